package pathweave.demo

import android.Manifest
import android.app.Activity
import android.content.Intent
import android.content.pm.PackageManager
import android.net.Uri
import android.os.Bundle
import android.view.View
import android.view.ViewGroup.LayoutParams.MATCH_PARENT
import android.view.ViewGroup.LayoutParams.WRAP_CONTENT
import android.widget.Button
import android.widget.LinearLayout
import android.widget.ScrollView
import android.widget.TextView
import java.io.File

private const val PICK_PICTURE = 1
private const val PICK_BUNDLE = 2
private const val PICK_PICTURES = 3
private const val PICK_PICTURE_FOLDER = 4
private const val ASK_CAMERA = 5
private const val TAB = "tab"

/** The screens, one at a time. Passes on what Android says, shows state, decides nothing. */
class MainActivity : Activity() {
    private val app by lazy { (application as PathweaveApp).model }
    private val bundle by lazy { BundleScreen(this, app) { choose(PICK_BUNDLE) } }
    private val adapt by lazy { AdaptScreen(this, app, { choose(PICK_PICTURES) }, { choose(PICK_PICTURE_FOLDER) }) }
    private val live by lazy { LiveScreen(this, app, { choose(PICK_PICTURE) }, ::useCamera) }
    private val log by lazy { LogScreen(this, app) }
    private val screens by lazy { listOf(bundle, adapt, live, log) }
    private lateinit var status: TextView
    private var tab = 0

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(content())
        select(savedInstanceState?.getInt(TAB) ?: 0)
    }

    override fun onSaveInstanceState(outState: Bundle) {
        super.onSaveInstanceState(outState)
        outState.putInt(TAB, tab)
    }

    override fun onStart() {
        super.onStart()
        app.state.observe(::show)
        app.visible()
    }

    override fun onStop() {
        super.onStop()
        app.hidden()
        app.state.observe(null)
    }

    private fun content(): View {
        val tabs = LinearLayout(this)
        val names = listOf(R.string.tab_bundle, R.string.tab_adapt, R.string.tab_live, R.string.tab_log)
        for ((number, name) in names.withIndex()) {
            val button = Button(this).apply {
                setText(name)
                setOnClickListener { select(number) }
            }
            tabs.addView(button, LinearLayout.LayoutParams(0, WRAP_CONTENT, 1f))
        }
        status = TextView(this).apply { setTextIsSelectable(true) }
        val column = Column(this)
        column.add(status)
        screens.forEach { column.add(it.view) }
        val scroll = ScrollView(this).apply { addView(column.view) }
        return LinearLayout(this).apply {
            orientation = LinearLayout.VERTICAL
            addView(tabs, MATCH_PARENT, WRAP_CONTENT)
            addView(scroll, LinearLayout.LayoutParams(MATCH_PARENT, 0, 1f))
        }
    }

    private fun select(number: Int) {
        tab = number
        for ((at, screen) in screens.withIndex()) screen.view.visibility = if (at == tab) View.VISIBLE else View.GONE
        if (screens[tab] === log) app.showLog()
        show(app.state.value)
    }

    private fun show(state: AppState) {
        screens[tab].show(state)
        status.text = listOfNotNull(
            state.busy?.let { getString(words(it)) },
            state.notice?.let(::words),
        ).joinToString("\n")
    }

    private fun useCamera() {
        if (checkSelfPermission(Manifest.permission.CAMERA) == PackageManager.PERMISSION_GRANTED) {
            app.setLive(LiveSource.CAMERA)
        } else {
            requestPermissions(arrayOf(Manifest.permission.CAMERA), ASK_CAMERA)
        }
    }

    /** Refused or granted: the app tries, and says what is missing. */
    override fun onRequestPermissionsResult(request: Int, permissions: Array<out String>, results: IntArray) {
        if (request == ASK_CAMERA) app.setLive(LiveSource.CAMERA)
    }

    @Suppress("DEPRECATION") // the replacement is a library
    private fun choose(request: Int) = startActivityForResult(
        when (request) {
            PICK_BUNDLE, PICK_PICTURE_FOLDER -> Intent(Intent.ACTION_OPEN_DOCUMENT_TREE)
            else -> Intent(Intent.ACTION_GET_CONTENT).setType("image/*")
                .putExtra(Intent.EXTRA_ALLOW_MULTIPLE, request == PICK_PICTURES)
        },
        request,
    )

    @Deprecated("Deprecated in Java")
    override fun onActivityResult(requestCode: Int, resultCode: Int, data: Intent?) {
        val picked = data?.takeIf { resultCode == RESULT_OK } ?: return
        val resolver = applicationContext.contentResolver
        val unreadable = getString(R.string.no_image)
        if (requestCode == PICK_PICTURES) {
            app.addPictures(adapt.typed) { picturesOf(resolver, picked, unreadable) }
            return
        }
        val uri: Uri = picked.data ?: return
        val copied = File(applicationContext.filesDir, "copied")
        when (requestCode) {
            PICK_PICTURE -> app.classify { pixelsOf(readPicture(resolver, uri, unreadable, PHOTO_SIDE)) }
            PICK_PICTURE_FOLDER -> app.addPictures(adapt.typed) { picturesIn(resolver, uri, unreadable) }
            PICK_BUNDLE -> app.openCopied(bundle.trusted) { copyBundle(resolver, uri, copied) }
        }
    }

    private fun words(busy: Busy): Int = when (busy) {
        Busy.OPENING -> R.string.opening
        Busy.COPYING -> R.string.copying
        Busy.READING -> R.string.reading
        Busy.CLASSIFYING -> R.string.classifying
        Busy.PROFILING -> R.string.stage_profile
        Busy.ADAPTING -> R.string.adapting
        Busy.PLANNING -> R.string.planning
        Busy.SENDING -> R.string.sending
    }

    private fun words(notice: Notice): String = when (notice) {
        is Notice.Failed -> notice.text
        is Notice.Kept -> getString(R.string.kept, notice.reason)
        Notice.Interrupted -> getString(R.string.interrupted)
        Notice.Cancelled -> getString(R.string.cancelled)
        is Notice.PicturesRead -> getString(R.string.pictures_read, notice.count, notice.unread)
        is Notice.LogSent -> getString(R.string.log_sent, notice.accepted, notice.duplicates)
        Notice.NoServer -> getString(R.string.no_server)
    }
}
