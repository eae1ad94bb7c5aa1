package pathweave.demo

import android.content.Context
import android.text.InputType
import android.view.View
import android.view.ViewGroup.LayoutParams.MATCH_PARENT
import android.view.ViewGroup.LayoutParams.WRAP_CONTENT
import android.widget.Button
import android.widget.CheckBox
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.SeekBar
import android.widget.TextView

private const val MARGIN_DP = 16

/** One of the app's screens. */
interface Screen {
    val view: View

    /** Show this state. */
    fun show(state: AppState)
}

/** Views one below the other. Those that keep something have an id, so that the system keeps it when the screen turns. */
class Column(private val context: Context) {
    val view: LinearLayout = LinearLayout(context).apply {
        orientation = LinearLayout.VERTICAL
        val margin = context.dp(MARGIN_DP)
        setPadding(margin, margin, margin, margin)
    }

    fun <V : View> add(one: V, height: Int = WRAP_CONTENT): V = one.also { view.addView(it, MATCH_PARENT, height) }

    fun text(): TextView = add(TextView(context).apply { setTextIsSelectable(true) })

    fun text(what: Int): TextView = text().apply { setText(what) }

    fun field(hint: Int, kind: Int): EditText = add(EditText(context)).apply {
        setHint(hint)
        id = hint
        inputType = InputType.TYPE_CLASS_TEXT or kind
    }

    fun button(text: Int, clicked: () -> Unit): Button = add(Button(context)).apply {
        setText(text)
        setOnClickListener { clicked() }
    }

    /** [changed]: called when a person ticks it, not when the app does. */
    fun box(text: Int, changed: (Boolean) -> Unit = {}): CheckBox = add(CheckBox(context)).apply {
        setText(text)
        id = text
        setOnClickListener { changed(isChecked) }
    }

    /** A slider below its own words. [said]: what its position means; [changed]: called when a person moves it. */
    fun slider(id: Int, said: (position: Int) -> String, changed: (Int) -> Unit = {}): Slider =
        Slider(text(), add(SeekBar(context)), id, said, changed)
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
        bar.id = id
        bar.max = SLIDER_STEPS
        bar.progress = SLIDER_STEPS
        bar.setOnSeekBarChangeListener(object : SeekBar.OnSeekBarChangeListener {
            override fun onProgressChanged(bar: SeekBar, position: Int, byPerson: Boolean) {
                say()
                if (byPerson) changed(position)
            }

            override fun onStartTrackingTouch(bar: SeekBar) = Unit
            override fun onStopTrackingTouch(bar: SeekBar) = Unit
        })
        say()
    }

    /** Say again what the position means. */
    fun say() {
        val text = said(position)
        if (words.text.toString() != text) words.text = text
    }

    fun moveTo(position: Int) {
        if (bar.progress != position) bar.progress = position
    }

    fun setVisible(visible: Boolean) {
        for (view in listOf(words, bar)) view.visibility = if (visible) View.VISIBLE else View.GONE
    }
}

fun Context.dp(size: Int): Int = (size * resources.displayMetrics.density).toInt()

/** What is written in a field; null: nothing. */
fun EditText.trimmed(): String? = text.toString().trim().ifEmpty { null }

/** A share of 1 in percent. */
fun percent(share: Double): Int = (100 * share).toInt()
