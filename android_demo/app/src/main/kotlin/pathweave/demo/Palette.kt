package pathweave.demo

import android.content.Context
import android.content.res.ColorStateList
import android.content.res.Configuration
import android.graphics.Color
import android.graphics.drawable.Drawable
import android.graphics.drawable.GradientDrawable
import android.graphics.drawable.RippleDrawable
import java.util.Locale

/** The app's colours, by day or by night. res/values has the two that the system shows itself. */
class Palette private constructor(
    val background: Int,
    val card: Int,
    val text: Int,
    val quiet: Int,
    val accent: Int,
    val onAccent: Int,
    val line: Int,
    val notice: Int,
    val failure: Int,
    val onFailure: Int,
    val limit: Int,
) {
    /** [used] while the control can be used, [idle] while it cannot. */
    fun states(used: Int, idle: Int): ColorStateList =
        ColorStateList(arrayOf(intArrayOf(-android.R.attr.state_enabled), intArrayOf()), intArrayOf(idle, used))

    companion object {
        private fun rgb(colour: String) = Color.parseColor(colour)

        private val DAY = Palette(
            rgb("#F3F5F8"), rgb("#FFFFFF"), rgb("#171B21"), rgb("#525C68"), rgb("#0B57D0"), rgb("#FFFFFF"),
            rgb("#CBD2DA"), rgb("#DCE8FB"), rgb("#FCDAD7"), rgb("#7A1611"), rgb("#B3261E"),
        )
        private val NIGHT = Palette(
            rgb("#101317"), rgb("#1B2026"), rgb("#E7EBF0"), rgb("#A6B0BC"), rgb("#8AB4F8"), rgb("#08254D"),
            rgb("#3B444F"), rgb("#1D3252"), rgb("#57201C"), rgb("#FFDAD5"), rgb("#F2B8B5"),
        )

        fun isNight(context: Context): Boolean =
            context.resources.configuration.uiMode and Configuration.UI_MODE_NIGHT_MASK == Configuration.UI_MODE_NIGHT_YES

        fun of(context: Context): Palette = if (isNight(context)) NIGHT else DAY
    }
}

/** A rounded area. [stroke]: the colour of its outline; null: none. */
fun Context.rounded(fill: ColorStateList, radiusDp: Int, stroke: ColorStateList? = null): GradientDrawable =
    GradientDrawable().apply {
        color = fill
        cornerRadius = dp(radiusDp).toFloat()
        if (stroke != null) setStroke(dp(1), stroke)
    }

fun Context.rounded(fill: Int, radiusDp: Int): GradientDrawable = rounded(ColorStateList.valueOf(fill), radiusDp)

/** [drawn], and a wave over it where it is touched. */
fun Context.touched(drawn: Drawable, radiusDp: Int): RippleDrawable =
    RippleDrawable(ColorStateList.valueOf(Palette.of(this).accent and 0x33ffffff), drawn, rounded(Color.WHITE, radiusDp))

/**
 * The text [id] with [values] in it. Numbers are written as in the language of the text, not the system's, for which there
 * may be no text: English has no Arabic digits in it.
 */
fun Context.words(id: Int, vararg values: Any): String = String.format(language(), getString(id), *values)

/** A number with three digits that count, as [words] writes numbers. */
fun Context.number(value: Double): String = shortNumber(value, language())

private fun Context.language() = Locale.forLanguageTag(getString(R.string.language))
