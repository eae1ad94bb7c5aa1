package pathweave.demo

import android.app.Activity
import android.view.View

/** Every decision about the plan, newest first. */
class LogScreen(activity: Activity, app: AppModel) : Screen {
    private val column = Column(activity)
    private val send = column.button(R.string.send_log) { app.sendLog() }
    private val again = column.button(R.string.show_log) { app.showLog() }
    private val lines = column.text()

    override val view: View get() = column.view

    override fun show(state: AppState) {
        again.isEnabled = state.ready
        send.isEnabled = state.ready && !state.offline && state.opened?.fromServer == true
        lines.text = state.log.joinToString("\n\n", transform = ::logText)
    }
}
