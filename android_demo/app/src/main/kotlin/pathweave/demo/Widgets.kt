package pathweave.demo

import android.content.Context
import android.graphics.Typeface
import android.text.InputType
import android.view.Gravity
import android.view.View
import android.view.ViewGroup.LayoutParams.MATCH_PARENT
import android.view.ViewGroup.LayoutParams.WRAP_CONTENT
import android.widget.Button
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.SeekBar
import android.widget.Switch
import android.widget.TextView

const val MARGIN_DP: Int = 16
const val TOUCH_DP: Int = 48 // least height of what can be touched
private const val GAP_DP = 8
private const val CARD_GAP_DP = 12 // below, so that a hidden card leaves no gap
private const val CARD_RADIUS_DP = 16
private const val FIELD_RADIUS_DP = 8
private const val BUTTON_RADIUS_DP = 24
const val TITLE_SP: Float = 18f
const val TEXT_SP: Float = 15f
const val SMALL_SP: Float = 13f

/** One of the app's screens. */
interface Screen {
    val view: View

    /** Show this state. */
    fun show(state: AppState)
}

/** Views one below the other. Those that keep something have an id, so that the system keeps it when the screen turns. */
class Column(private val context: Context) {
    private val palette = Palette.of(context)
    val view: LinearLayout = LinearLayout(context).apply { orientation = LinearLayout.VERTICAL }

    fun <V : View> add(one: V, gapDp: Int = GAP_DP, height: Int = WRAP_CONTENT): V = one.also {
        val parameters = LinearLayout.LayoutParams(MATCH_PARENT, height)
        if (view.childCount > 0) parameters.topMargin = context.dp(gapDp)
        view.addView(it, parameters)
    }

    /** A card with these views and a [title]. */
    fun card(title: Int, fill: Column.() -> Unit): View {
        val inner = Column(context)
        inner.view.background = context.rounded(palette.card, CARD_RADIUS_DP)
        val margin = context.dp(MARGIN_DP)
        inner.view.setPadding(margin, margin, margin, margin)
        inner.add(text(TITLE_SP, title)).typeface = Typeface.create("sans-serif-medium", Typeface.NORMAL)
        inner.fill()
        add(inner.view, gapDp = 0)
        (inner.view.layoutParams as LinearLayout.LayoutParams).bottomMargin = context.dp(CARD_GAP_DP)
        return inner.view
    }

    private fun text(sizeSp: Float, words: Int? = null, colour: Int = palette.text) = TextView(context).apply {
        textSize = sizeSp
        setTextColor(colour)
        textAlignment = View.TEXT_ALIGNMENT_VIEW_START
        if (words != null) text = context.words(words)
    }

    fun words(sizeSp: Float = TEXT_SP): TextView = add(text(sizeSp))

    /** What is said beside the matter. */
    fun help(words: Int? = null): TextView = add(text(SMALL_SP, words, palette.quiet), GAP_DP / 2)

    /** A field below its label. [hint]: an example. */
    fun field(label: Int, hint: Int?, kind: Int): EditText {
        add(text(SMALL_SP, label, palette.quiet), GAP_DP + GAP_DP / 2).labelFor = label
        return add(EditText(context), GAP_DP / 2).apply {
            id = label
            hint?.let(::setHint)
            inputType = InputType.TYPE_CLASS_TEXT or kind
            typeface = Typeface.DEFAULT // those of passwords have another
            textAlignment = View.TEXT_ALIGNMENT_VIEW_START
            textSize = TEXT_SP
            setTextColor(palette.text)
            setHintTextColor(palette.quiet)
            minimumHeight = context.dp(TOUCH_DP)
            val side = context.dp(GAP_DP + GAP_DP / 2)
            background = context.rounded(palette.states(palette.background, palette.background), FIELD_RADIUS_DP, palette.states(palette.line, palette.line))
            setPadding(side, context.dp(GAP_DP), side, context.dp(GAP_DP))
        }
    }

    /** [main]: what the screen is for; there is one of these. */
    fun button(words: Int, main: Boolean = false, clicked: () -> Unit): Control<Button> {
        val button = context.button(words, main, clicked)
        return Control(add(button), reason())
    }

    /** [changed]: called when a person moves it, not when the app does. */
    fun switch(words: Int, changed: (Boolean) -> Unit = {}): Control<Switch> {
        val switch = add(Switch(context)).apply {
            text = context.words(words)
            id = words
            textSize = TEXT_SP
            textAlignment = View.TEXT_ALIGNMENT_VIEW_START
            minimumHeight = context.dp(TOUCH_DP)
            setTextColor(palette.states(palette.text, palette.quiet))
            setSwitchPadding(context.dp(MARGIN_DP))
            setOnClickListener { changed(isChecked) }
        }
        return Control(switch, reason())
    }

    /** A slider below its own words. [said]: what its position means; [changed]: called when a person moves it. */
    fun slider(id: Int, said: (position: Int) -> String, changed: (Int) -> Unit = {}): Slider =
        Slider(words().apply { importantForAccessibility = View.IMPORTANT_FOR_ACCESSIBILITY_NO }, add(SeekBar(context), 0), id, said, changed)

    private fun reason() = help().apply { visibility = View.GONE }
}

/** A button as the app draws them. */
fun Context.button(words: Int, main: Boolean, clicked: () -> Unit): Button = Button(this).apply {
    val palette = Palette.of(context)
    text = context.words(words)
    id = words
    setAllCaps(false)
    textSize = TEXT_SP
    stateListAnimator = null // no shadow
    minimumHeight = dp(TOUCH_DP)
    minHeight = dp(TOUCH_DP)
    gravity = Gravity.CENTER
    val (fill, ink) = if (main) palette.accent to palette.onAccent else palette.card to palette.accent
    setTextColor(palette.states(ink, palette.quiet))
    val edge = palette.states(if (main) fill else palette.line, palette.line)
    background = touched(rounded(palette.states(fill, palette.background), BUTTON_RADIUS_DP, edge), BUTTON_RADIUS_DP)
    setPadding(dp(MARGIN_DP), dp(GAP_DP), dp(MARGIN_DP), dp(GAP_DP))
    setOnClickListener { clicked() }
}

/** A control, and below it why it is greyed out. */
class Control<V : View>(val view: V, private val reason: TextView) {
    /** [missing]: what is missing before it can be used; null: it can be. [said]: whether the reason is shown, too. */
    fun need(missing: Missing?, said: Boolean = true) {
        view.isEnabled = missing == null
        val shown = said && missing != null && missing != Missing.TURN // what runs is shown elsewhere
        reason.visibility = if (shown) View.VISIBLE else View.GONE
        reason.text = missing?.let { view.context.words(reasonOf(it)) }
    }
}

fun reasonOf(missing: Missing): Int = when (missing) {
    Missing.BUNDLE -> R.string.missing_bundle
    Missing.TURN -> R.string.missing_turn
    Missing.PROFILE -> R.string.missing_profile
    Missing.PICTURES -> R.string.missing_pictures
    Missing.LIMITS -> R.string.missing_limits
    Missing.EXITS -> R.string.missing_exits
    Missing.SERVER -> R.string.missing_server
    Missing.ONLINE -> R.string.missing_online
}

/** A slider with words that say what its position means. */
class Slider(
    private val words: TextView,
    private val bar: SeekBar,
    id: Int,
    private val said: (Int) -> String,
    private val changed: (Int) -> Unit,
) {
    val position: Int get() = bar.progress

    init {
        val context = bar.context
        bar.id = id
        bar.max = SLIDER_STEPS
        bar.progress = SLIDER_STEPS
        bar.minimumHeight = context.dp(TOUCH_DP)
        val palette = Palette.of(context)
        bar.progressTintList = palette.states(palette.accent, palette.line)
        bar.thumbTintList = palette.states(palette.accent, palette.line)
        bar.setOnSeekBarChangeListener(object : SeekBar.OnSeekBarChangeListener {
            override fun onProgressChanged(bar: SeekBar, position: Int, byPerson: Boolean) {
                say()
                if (byPerson) changed(position)
            }

            override fun onStartTrackingTouch(bar: SeekBar) = Unit
            override fun onStopTrackingTouch(bar: SeekBar) = Unit
        })
    }

    /** Say again what the position means. */
    fun say() {
        val text = said(position)
        if (words.text.toString() == text) return
        words.text = text
        bar.contentDescription = text
    }

    fun moveTo(position: Int) {
        if (bar.progress != position) bar.progress = position
    }

    fun setEnabled(enabled: Boolean) {
        for (view in listOf(words, bar)) view.isEnabled = enabled
    }

    fun setVisible(visible: Boolean) {
        for (view in listOf(words, bar)) view.visibility = if (visible) View.VISIBLE else View.GONE
    }
}

/** Shows views, or takes them and their room away. */
fun View.setVisible(visible: Boolean) {
    visibility = if (visible) View.VISIBLE else View.GONE
}

fun Context.dp(size: Int): Int = (size * resources.displayMetrics.density).toInt()

/** What is written in a field; null: nothing. */
fun EditText.trimmed(): String? = text.toString().trim().ifEmpty { null }

/** A share of 1 in percent. */
fun percent(share: Double): Int = (100 * share).toInt()

/** The text of a view, which changes only where it differs: TalkBack reads what changes. */
fun TextView.say(words: String) {
    if (text.toString() != words) text = words
}
