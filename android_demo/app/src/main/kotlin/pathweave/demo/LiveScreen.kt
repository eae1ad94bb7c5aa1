package pathweave.demo

import android.app.Activity
import android.graphics.Typeface
import android.graphics.drawable.BitmapDrawable
import android.view.View
import android.widget.ImageView

private const val PICTURE_DP = 200
private const val COARSE = 64 // pixels; smaller pictures show their pixels instead of a blur
private const val ANSWER_SP = 26f

/** What the model says about a picture, or about one after the other. [useCamera]: asks for it, if need be. */
class LiveScreen(
    private val activity: Activity,
    private val app: AppModel,
    pickPicture: () -> Unit,
    useCamera: () -> Unit,
) : Screen {
    private val column = Column(activity)
    private val answer = Column(activity)
    private val picture = answer.add(ImageView(activity), height = activity.dp(PICTURE_DP))
    private val label = answer.words(ANSWER_SP).apply { typeface = Typeface.create("sans-serif-medium", Typeface.NORMAL) }
    private val source = answer.help()
    private val pick = answer.button(R.string.pick, main = true) { pickPicture() }
    private val running = Column(activity)
    private val camera = running.switch(R.string.live_camera) { if (it) useCamera() else app.setLive(null) }
    private val pictures = running.switch(R.string.live_pictures) { app.setLive(if (it) LiveSource.PICTURES else null) }
    private val figures = running.help()
    private val mode = Column(activity)
    private val exits = mode.switch(R.string.use_exits) { app.useExits(it) }
    private val ask = mode.switch(R.string.ask_server) { app.askServer(it) }

    init {
        mode.help(R.string.ask_help)
    }

    private val deadline = mode.slider(R.string.no_deadline, ::deadlineWords) { position ->
        app.setMode(app.state.value.mode.copy(deadlineMs = DEADLINES_MS.at(position)))
    }
    private val anytime = mode.switch(R.string.anytime) { app.setMode(app.state.value.mode.copy(anytime = it)) }
    private val plan = mode.help()
    private var shown: Classified? = null

    init {
        column.card(R.string.answer_title) { add(answer.view) }
        column.card(R.string.live_title) { add(running.view) }
        column.card(R.string.how_title) { add(mode.view) }
    }

    override val view: View get() = column.view

    private fun deadlineWords(position: Int): String {
        val limitMs = DEADLINES_MS.at(position) ?: return activity.words(R.string.no_deadline)
        return activity.words(R.string.deadline, activity.number(limitMs))
    }

    override fun show(state: AppState) {
        pick.need(state.missing(Action.CLASSIFY))
        camera.need(state.missing(Action.CAMERA), said = false)
        camera.view.isChecked = state.live == LiveSource.CAMERA
        pictures.need(state.missing(Action.LIVE_PICTURES), said = state.opened != null)
        pictures.view.isChecked = state.live == LiveSource.PICTURES
        showAnswer(if (state.live == null) state.classified else state.figures.last)
        val counted = state.figures.count + state.figures.tooLate > 0
        figures.setVisible(counted)
        if (counted) figures.say(figureWords(state.figures))
        showMode(state)
    }

    private fun showMode(state: AppState) {
        exits.need(state.missing(Action.EXITS), said = state.opened != null)
        exits.view.isChecked = state.plan?.exits?.any { it.decides } == true
        ask.need(state.missing(Action.ASK), said = state.opened != null)
        ask.view.isChecked = state.asks
        anytime.view.isChecked = state.mode.anytime
        deadline.moveTo(DEADLINES_MS.positionOf(state.mode.deadlineMs))
        deadline.say()
        plan.say(
            listOfNotNull(
                state.plan?.let { activity.words(R.string.plan, planText(it)) },
                activity.words(if (state.watching) R.string.watching else R.string.not_watching),
            ).joinToString("\n"),
        )
    }

    private fun showAnswer(last: Classified?) {
        label.say(
            when {
                last == null -> activity.words(R.string.no_answers)
                else -> last.label ?: activity.words(R.string.no_answer)
            },
        )
        label.textSize = if (last == null) TEXT_SP else ANSWER_SP
        source.setVisible(last != null)
        if (last != null) {
            source.say(answerWords(last))
            picture.contentDescription = activity.words(R.string.picture_described, label.text)
        }
        showPicture(last)
    }

    private fun answerWords(last: Classified): String {
        val latency = activity.number(last.latencyMs)
        val confidence = last.confidence ?: return activity.words(R.string.answer_of, last.source, latency)
        return activity.words(R.string.answer, percent(confidence), last.source, latency)
    }

    private fun showPicture(last: Classified?) {
        picture.setVisible(last != null)
        if (last === shown) return
        shown = last
        val size = last?.image?.size
        val accent = Palette.of(activity).accent
        val drawn = last?.let { BitmapDrawable(activity.resources, withBoxes(bitmapOf(it.image), it.boxes, accent)) }
        drawn?.isFilterBitmap = size != null && minOf(size.height, size.width) >= COARSE
        picture.setImageDrawable(drawn)
    }

    private fun figureWords(figures: LiveFigures): String = listOf(
        activity.words(R.string.live_counts, figures.count, activity.number(figures.medianMs ?: 0.0), figures.tooLate),
        activity.words(R.string.live_asks, figures.asked, figures.answeredByServer),
        activity.words(R.string.live_switches, figures.switches),
        figures.sources.entries.joinToString(" · ") { (source, count) -> "$source: $count" },
    ).joinToString("\n")
}
