package pathweave.demo

import android.Manifest
import android.app.Activity
import android.content.Context
import android.content.Intent
import android.content.pm.PackageManager
import android.net.Uri
import android.os.Bundle
import android.view.View
import android.view.ViewGroup.LayoutParams.MATCH_PARENT
import android.view.ViewGroup.LayoutParams.WRAP_CONTENT
import android.widget.FrameLayout
import android.widget.LinearLayout
import android.widget.ScrollView
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
    private val tabs by lazy { TabRow(this, listOf(R.string.tab_bundle, R.string.tab_adapt, R.string.tab_live, R.string.tab_log), ::select) }
    private val status by lazy { StatusBar(this) { app.cancel() } }
    private val scroll by lazy { ScrollView(this) }
    private var tab = 0

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(content())
        drawBehindBars()
        show(savedInstanceState?.getInt(TAB) ?: 0)
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
        val column = Column(this)
        screens.forEach { column.add(it.view, gapDp = 0) }
        val margin = dp(MARGIN_DP)
        column.view.setPadding(margin, margin, margin, margin)
        scroll.addView(Narrow(this).apply { addView(column.view) })
        return LinearLayout(this).apply {
            orientation = LinearLayout.VERTICAL
            isFocusableInTouchMode = true // or the first field has the focus, and Android 8 scrolls to it
            importantForAccessibility = View.IMPORTANT_FOR_ACCESSIBILITY_NO
            addView(tabs, MATCH_PARENT, WRAP_CONTENT)
            addView(scroll, LinearLayout.LayoutParams(MATCH_PARENT, 0, 1f))
            addView(status.view, MATCH_PARENT, WRAP_CONTENT)
        }
    }

    /** Keeps controls out from under the system's bars, the cut-out and the keyboard, where Android draws the app behind them. */
    @Suppress("DEPRECATION") // the replacements need API 30
    private fun drawBehindBars() {
        val root = scroll.parent as View
        root.setBackgroundColor(Palette.of(this).background)
        root.setOnApplyWindowInsetsListener { _, insets ->
            root.setPadding(
                insets.systemWindowInsetLeft, insets.systemWindowInsetTop, insets.systemWindowInsetRight, insets.systemWindowInsetBottom,
            )
            insets.consumeSystemWindowInsets()
        }
        window.navigationBarColor = Palette.of(this).background
        if (!Palette.isNight(this)) {
            window.decorView.systemUiVisibility = window.decorView.systemUiVisibility or View.SYSTEM_UI_FLAG_LIGHT_NAVIGATION_BAR
        }
    }

    private fun select(number: Int) {
        scroll.scrollTo(0, 0)
        show(number)
    }

    private fun show(number: Int) {
        tab = number
        tabs.mark(tab)
        for ((at, screen) in screens.withIndex()) screen.view.setVisible(at == tab)
        if (screens[tab] === log) app.showLog()
        show(app.state.value)
    }

    private fun show(state: AppState) {
        screens[tab].show(state)
        status.show(state)
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
}

private const val WIDEST_DP = 600

/** No wider than is good to read, in the middle of a wider screen. */
private class Narrow(context: Context) : FrameLayout(context) {
    override fun onMeasure(widthSpec: Int, heightSpec: Int) {
        val spare = maxOf(0, MeasureSpec.getSize(widthSpec) - context.dp(WIDEST_DP)) / 2
        setPadding(spare, 0, spare, 0)
        super.onMeasure(widthSpec, heightSpec)
    }
}
