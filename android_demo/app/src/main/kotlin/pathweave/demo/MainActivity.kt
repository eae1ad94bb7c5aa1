package pathweave.demo

import android.app.Activity
import android.content.Intent
import android.net.Uri
import android.os.Bundle
import android.text.InputType
import android.view.View
import android.view.ViewGroup.LayoutParams.MATCH_PARENT
import android.view.ViewGroup.LayoutParams.WRAP_CONTENT
import android.widget.Button
import android.widget.CheckBox
import android.widget.EditText
import android.widget.ImageView
import android.widget.LinearLayout
import android.widget.ScrollView
import android.widget.TextView

private const val PICK_IMAGE = 1
private const val PICK_FOLDER = 2
private const val MARGIN_DP = 16
private const val PICTURE_DP = 240

/** The one screen: which bundle, which picture, and what the model says. Shows state, decides nothing. */
class MainActivity : Activity() {
    private lateinit var viewModel: ClassifyViewModel
    private lateinit var address: EditText
    private lateinit var token: EditText
    private lateinit var key: EditText
    private lateinit var useExits: CheckBox
    private lateinit var pick: Button
    private lateinit var picture: ImageView
    private lateinit var status: TextView
    private lateinit var buttons: List<Button>

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(screen())
        @Suppress("DEPRECATION") // it needs no library
        val kept = lastNonConfigurationInstance as ClassifyViewModel?
        viewModel = kept ?: ClassifyViewModel(shelf(applicationContext))
        UpdateJob.schedule(applicationContext)
        LogUploadJob.schedule(applicationContext)
        viewModel.shown = ::show
        if (kept == null) viewModel.reopen(useExits.isChecked)
        show(viewModel.state)
    }

    @Deprecated("Deprecated in Java")
    override fun onRetainNonConfigurationInstance(): Any = viewModel

    override fun onDestroy() {
        super.onDestroy()
        viewModel.shown = {}
        if (!isChangingConfigurations) viewModel.close()
    }

    @Deprecated("Deprecated in Java")
    override fun onActivityResult(requestCode: Int, resultCode: Int, data: Intent?) {
        val uri = data?.data?.takeIf { resultCode == RESULT_OK } ?: return
        when (requestCode) {
            PICK_IMAGE -> classify(uri)
            PICK_FOLDER -> viewModel.open(BundleSource.Folder(uri, trustedKey()), useExits.isChecked)
        }
    }

    private fun classify(uri: Uri) {
        val resolver = applicationContext.contentResolver
        val unreadable = getString(R.string.no_image)
        viewModel.classify { readPicture(resolver, uri, unreadable) }
    }

    private fun fetch() {
        val source = BundleSource.Server(address.trimmed().orEmpty(), token.trimmed(), trustedKey())
        viewModel.open(source, useExits.isChecked)
    }

    private fun trustedKey(): String? = key.trimmed()

    @Suppress("DEPRECATION") // the replacement is a library
    private fun choose(action: String, request: Int, type: String?) =
        startActivityForResult(Intent(action).apply { type?.let(::setType) }, request)

    private fun show(state: ScreenState) {
        buttons.forEach { it.isEnabled = state.busy == null }
        pick.isEnabled = state.busy == null && state.opened != null
        picture.setImageBitmap(state.picture)
        val opened = state.opened
        status.text = listOfNotNull(
            if (opened == null) getString(R.string.no_bundle)
            else getString(R.string.opened, opened.name, opened.version, opened.subnets, opened.exits),
            when (state.busy) {
                Busy.OPENING -> getString(R.string.opening)
                Busy.CLASSIFYING -> getString(R.string.classifying)
                null -> null
            },
            state.classified?.run {
                val said = label ?: getString(R.string.no_answer)
                getString(R.string.answer, said, percent(confidence), source, latencyMs)
            },
            state.failure,
        ).joinToString("\n\n")
    }

    private fun screen(): View {
        address = field(R.string.address_hint, InputType.TYPE_TEXT_VARIATION_URI)
        token = field(R.string.token_hint, InputType.TYPE_TEXT_VARIATION_PASSWORD)
        key = field(R.string.key_hint, InputType.TYPE_TEXT_FLAG_MULTI_LINE)
        val fetch = button(R.string.fetch) { fetch() }
        val copy = button(R.string.copy) { choose(Intent.ACTION_OPEN_DOCUMENT_TREE, PICK_FOLDER, type = null) }
        pick = button(R.string.pick) { choose(Intent.ACTION_GET_CONTENT, PICK_IMAGE, type = "image/*") }
        buttons = listOf(fetch, copy)
        useExits = CheckBox(this).apply {
            setText(R.string.use_exits)
            id = R.string.use_exits
            setOnCheckedChangeListener { _, use -> viewModel.useExits(use) }
        }
        picture = ImageView(this)
        status = TextView(this).apply { setTextIsSelectable(true) }
        val column = LinearLayout(this).apply {
            orientation = LinearLayout.VERTICAL
            setPadding(dp(MARGIN_DP), dp(MARGIN_DP), dp(MARGIN_DP), dp(MARGIN_DP))
        }
        val controls = listOf(address, token, key, fetch, copy, useExits, pick)
        controls.forEach { column.addView(it, MATCH_PARENT, WRAP_CONTENT) }
        column.addView(picture, MATCH_PARENT, dp(PICTURE_DP))
        column.addView(status, MATCH_PARENT, WRAP_CONTENT)
        return ScrollView(this).apply { addView(column) }
    }

    private fun field(hint: Int, kind: Int) = EditText(this).apply {
        setHint(hint)
        id = hint // so that the system keeps its text when the screen turns
        inputType = InputType.TYPE_CLASS_TEXT or kind
    }

    private fun button(text: Int, clicked: () -> Unit) = Button(this).apply {
        setText(text)
        setOnClickListener { clicked() }
    }

    private fun dp(size: Int): Int = (size * resources.displayMetrics.density).toInt()
}

private fun EditText.trimmed(): String? = text.toString().trim().ifEmpty { null }

private fun percent(share: Double): Int = (100 * share).toInt()
