package pathweave.demo

import android.app.Activity
import android.view.View
import android.widget.ImageView
import pathweave.sdk.data.Image

private const val PICTURE_DP = 240

/** What the model says about a picture, or about one after the other. [useCamera]: asks for it, if need be. */
class LiveScreen(
    private val activity: Activity,
    private val app: AppModel,
    pickPicture: () -> Unit,
    useCamera: () -> Unit,
) : Screen {
    private val column = Column(activity)
    private val camera = column.box(R.string.live_camera) { if (it) useCamera() else app.setLive(null) }
    private val pictures = column.box(R.string.live_pictures) { app.setLive(if (it) LiveSource.PICTURES else null) }
    private val pick = column.button(R.string.pick) { pickPicture() }
    private val exits = column.box(R.string.use_exits) { app.useExits(it) }
    private val ask = column.box(R.string.ask_server) { app.askServer(it) }
    private val deadline = column.slider(R.string.deadline, ::deadlineWords) { position ->
        app.setMode(app.state.value.mode.copy(deadlineMs = DEADLINES_MS.at(position)))
    }
    private val anytime = column.box(R.string.anytime) { app.setMode(app.state.value.mode.copy(anytime = it)) }
    private val picture = column.add(ImageView(activity), activity.dp(PICTURE_DP))
    private val words = column.text()
    private var shown: Image? = null

    override val view: View get() = column.view

    private fun deadlineWords(position: Int): String {
        val limitMs = DEADLINES_MS.at(position) ?: return activity.getString(R.string.no_deadline)
        return activity.getString(R.string.deadline, limitMs)
    }

    override fun show(state: AppState) {
        camera.isChecked = state.live == LiveSource.CAMERA
        pictures.isChecked = state.live == LiveSource.PICTURES
        exits.isChecked = state.plan?.exits?.any { it.decides } == true
        ask.isChecked = state.asks
        ask.isEnabled = state.ready && !state.offline && state.opened?.fromServer == true
        anytime.isChecked = state.mode.anytime
        deadline.moveTo(DEADLINES_MS.positionOf(state.mode.deadlineMs))
        listOf(camera, pictures).forEach { it.isEnabled = state.opened != null }
        listOf(pick, exits).forEach { it.isEnabled = state.ready }
        val last = if (state.live == null) state.classified else state.figures.last
        showPicture(last?.image)
        words.text = listOfNotNull(
            last?.let(::answerWords),
            state.figures.takeIf { it.count + it.tooLate > 0 }?.let(::figureWords),
            state.plan?.let { activity.getString(R.string.plan, planText(it)) },
            activity.getString(if (state.watching) R.string.watching else R.string.not_watching),
        ).joinToString("\n\n")
    }

    private fun showPicture(image: Image?) {
        if (image === shown) return
        shown = image
        picture.setImageBitmap(image?.let(::bitmapOf))
    }

    private fun answerWords(answer: Classified): String {
        val said = answer.label ?: activity.getString(R.string.no_answer)
        return activity.getString(R.string.answer, said, percent(answer.confidence), answer.source, answer.latencyMs)
    }

    private fun figureWords(figures: LiveFigures): String = listOf(
        activity.getString(R.string.live_counts, figures.count, figures.medianMs ?: 0.0, figures.tooLate),
        activity.getString(R.string.live_asks, figures.asked, figures.answeredByServer),
        activity.getString(R.string.live_switches, figures.switches),
        figures.sources.entries.joinToString(", ") { (source, count) -> "$source: $count" },
    ).joinToString("\n")
}
