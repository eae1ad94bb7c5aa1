package pathweave.demo

import android.app.Activity
import android.graphics.Typeface
import android.text.SpannableStringBuilder
import android.text.Spanned
import android.text.style.StyleSpan
import android.view.View
import pathweave.sdk.logs.LogLine

/** Every decision about the plan, newest first. */
class LogScreen(private val activity: Activity, app: AppModel) : Screen {
    private val column = Column(activity)
    private val actions = Column(activity)
    private val send = actions.button(R.string.send_log) { app.sendLog() }
    private val again = actions.button(R.string.show_log) { app.showLog() }
    private val lines = actions.words(SMALL_SP).apply { setTextIsSelectable(true) }
    private var shown: List<LogLine>? = null

    init {
        column.card(R.string.log_title) { add(actions.view) }
    }

    override val view: View get() = column.view

    override fun show(state: AppState) {
        again.need(state.missing(Action.READ_LOG))
        send.need(state.missing(Action.SEND_LOG), said = state.opened != null)
        if (shown == state.log) return
        shown = state.log
        lines.text = if (state.log.isEmpty()) activity.words(R.string.no_log) else written(state.log)
    }

    private fun written(log: List<LogLine>) = SpannableStringBuilder().apply {
        for (line in log) {
            if (isNotEmpty()) append("\n\n")
            val (from, text) = length to logText(line)
            append(text)
            val head = from + text.lineSequence().first().length
            setSpan(StyleSpan(Typeface.BOLD), from, head, Spanned.SPAN_EXCLUSIVE_EXCLUSIVE)
        }
    }
}
