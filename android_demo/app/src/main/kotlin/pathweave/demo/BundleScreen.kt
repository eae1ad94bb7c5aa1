package pathweave.demo

import android.app.Activity
import android.text.InputType
import android.view.View

/** Which bundle, from where, and whether the app goes online. [pickFolder]: has the person choose one. */
class BundleScreen(private val activity: Activity, app: AppModel, pickFolder: () -> Unit) : Screen {
    private val column = Column(activity)
    private val address = column.field(R.string.address_hint, InputType.TYPE_TEXT_VARIATION_URI)
    private val token = column.field(R.string.token_hint, InputType.TYPE_TEXT_VARIATION_PASSWORD)
    private val key = column.field(R.string.key_hint, InputType.TYPE_TEXT_FLAG_MULTI_LINE)
    init {
        column.text(R.string.kept_where)
    }

    private val offline = column.box(R.string.offline, app::setOffline)
    private val fetch = column.button(R.string.fetch) {
        app.open(BundleSource.Server(address.trimmed().orEmpty(), token.trimmed(), trusted))
    }
    private val copy = column.button(R.string.copy) { pickFolder() }
    private val shown = column.text()

    /** The key or key list that was pasted. */
    val trusted: String? get() = key.trimmed()

    override val view: View get() = column.view

    override fun show(state: AppState) {
        listOf(fetch, copy).forEach { it.isEnabled = state.busy == null }
        offline.isChecked = state.offline
        fetch.setText(if (state.offline) R.string.open_stored else R.string.fetch)
        val (opened, plan) = state.opened to state.plan
        shown.text = if (opened == null) {
            activity.getString(R.string.no_bundle)
        } else {
            listOfNotNull(
                activity.getString(R.string.opened, opened.name, opened.version, opened.subnets, opened.exits),
                plan?.let { activity.getString(R.string.plan, planText(it)) },
            ).joinToString("\n")
        }
    }
}

