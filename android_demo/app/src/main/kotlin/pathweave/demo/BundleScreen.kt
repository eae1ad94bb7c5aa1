package pathweave.demo

import android.app.Activity
import android.text.InputType
import android.view.View

/** Which bundle, from where, and whether the app goes online. [pickFolder]: has the person choose one. */
class BundleScreen(private val activity: Activity, private val app: AppModel, pickFolder: () -> Unit) : Screen {
    private val column = Column(activity)
    private val open = Column(activity)
    private val shown = open.words()
    private val plan = open.help()
    private val server = Column(activity)
    private val address = server.field(R.string.address, R.string.address_hint, InputType.TYPE_TEXT_VARIATION_URI)
    private val token = server.field(R.string.token, R.string.token_hint, InputType.TYPE_TEXT_VARIATION_PASSWORD)
    private val key = server.field(R.string.key, hint = null, InputType.TYPE_TEXT_FLAG_MULTI_LINE)

    init {
        server.help(R.string.key_help)
    }

    private val offline = server.switch(R.string.offline, app::setOffline)
    private val fetch = server.button(R.string.fetch, main = true) {
        app.open(BundleSource.Server(address.trimmed().orEmpty(), token.trimmed(), trusted))
    }
    private val folder = Column(activity)
    private val copy = folder.button(R.string.copy) { pickFolder() }

    init {
        column.card(R.string.open_title) { add(open.view) }
        column.card(R.string.server_title) {
            add(server.view)
            help(R.string.kept_where)
        }
        column.card(R.string.folder_title) { add(folder.view) }
    }

    /** The key or key list that was pasted. */
    val trusted: String? get() = key.trimmed()

    override val view: View get() = column.view

    override fun show(state: AppState) {
        listOf(fetch, copy).forEach { it.need(state.missing(Action.OPEN)) }
        offline.view.isChecked = state.offline
        fetch.view.say(activity.words(if (state.offline) R.string.open_stored else R.string.fetch))
        val opened = state.opened
        shown.say(
            if (opened == null) activity.words(R.string.no_bundle)
            else opened.name + "\n" + activity.words(R.string.opened, opened.version, opened.subnets, opened.exits),
        )
        plan.setVisible(state.plan != null)
        plan.say(state.plan?.let { activity.words(R.string.plan, planText(it)) }.orEmpty())
    }
}
