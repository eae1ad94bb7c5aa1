package pathweave.demo

import android.content.Context
import android.view.Gravity
import android.view.View
import android.view.ViewGroup.LayoutParams.WRAP_CONTENT
import android.widget.LinearLayout
import android.widget.ProgressBar
import android.widget.ScrollView
import android.widget.TextView
import pathweave.sdk.policies.AdaptationProgress
import pathweave.sdk.policies.AdaptationStage

private const val PROGRESS_STEPS = 1000
private const val MOST_SHARE = 3 // of the screen's height, one part

/** What runs, how far it is, how to end it, and what happened last; at the bottom of every screen. */
class StatusBar(private val context: Context, cancelled: () -> Unit) {
    private val palette = Palette.of(context)
    private val words = TextView(context).apply {
        textSize = TEXT_SP
        setTextColor(palette.text)
        textAlignment = View.TEXT_ALIGNMENT_VIEW_START
        accessibilityLiveRegion = View.ACCESSIBILITY_LIVE_REGION_POLITE
    }
    private val cancel = context.button(R.string.cancel, main = false, cancelled)
    private val bar = ProgressBar(context, null, android.R.attr.progressBarStyleHorizontal).apply {
        max = PROGRESS_STEPS
        progressTintList = palette.states(palette.accent, palette.line)
        indeterminateTintList = progressTintList
    }
    val view: View = LinearLayout(context).apply {
        orientation = LinearLayout.VERTICAL
        val margin = context.dp(MARGIN_DP)
        setPadding(margin, margin / 2, margin, margin / 2)
        addView(LinearLayout(context).apply {
            gravity = Gravity.CENTER_VERTICAL
            addView(Low(context).apply { addView(words) }, LinearLayout.LayoutParams(0, WRAP_CONTENT, 1f))
            addView(cancel, LinearLayout.LayoutParams(WRAP_CONTENT, WRAP_CONTENT).apply { marginStart = margin / 2 })
        })
        addView(bar)
    }

    fun show(state: AppState) {
        val busy = state.busy
        val failed = busy == null && state.notice is Notice.Failed
        view.setVisible(busy != null || state.notice != null)
        view.setBackgroundColor(if (failed) palette.failure else palette.notice)
        words.setTextColor(if (failed) palette.onFailure else palette.text)
        cancel.setVisible(busy == Busy.PROFILING || busy == Busy.ADAPTING)
        bar.setVisible(busy != null)
        val progress = state.progress
        bar.isIndeterminate = progress == null
        progress?.let { bar.progress = (it.share * PROGRESS_STEPS).toInt() }
        words.say(listOfNotNull(busy?.let { busyWords(it, progress) }, state.notice?.let(::noticeWords)).joinToString("\n"))
        bar.contentDescription = words.text
    }

    private fun busyWords(busy: Busy, progress: AdaptationProgress?): String = when (progress?.stage) {
        AdaptationStage.PROFILE -> context.words(R.string.stage_profile)
        AdaptationStage.SEARCH -> context.words(R.string.stage_search, progress.note)
        AdaptationStage.CONFIRM -> context.words(R.string.stage_confirm)
        AdaptationStage.JUDGE -> context.words(R.string.stage_judge)
        null -> context.words(nameOf(busy))
    }

    private fun nameOf(busy: Busy): Int = when (busy) {
        Busy.OPENING -> R.string.opening
        Busy.COPYING -> R.string.copying
        Busy.READING -> R.string.reading
        Busy.CLASSIFYING -> R.string.classifying
        Busy.PROFILING -> R.string.stage_profile
        Busy.ADAPTING -> R.string.adapting
        Busy.PLANNING -> R.string.planning
        Busy.SENDING -> R.string.sending
    }

    private fun noticeWords(notice: Notice): String = when (notice) {
        is Notice.Failed -> notice.text
        is Notice.Kept -> context.words(R.string.kept, notice.reason)
        Notice.Interrupted -> context.words(R.string.interrupted)
        Notice.Cancelled -> context.words(R.string.cancelled)
        is Notice.PicturesRead -> context.words(R.string.pictures_read, notice.count, notice.unread)
        is Notice.LogSent -> context.words(R.string.log_sent, notice.accepted, notice.duplicates)
        Notice.NoServer -> context.words(R.string.no_server)
    }
}

/** Scrolls what would be higher than a third of the screen. */
private class Low(context: Context) : ScrollView(context) {
    override fun onMeasure(widthSpec: Int, heightSpec: Int) {
        val most = resources.displayMetrics.heightPixels / MOST_SHARE
        super.onMeasure(widthSpec, MeasureSpec.makeMeasureSpec(most, MeasureSpec.AT_MOST))
    }
}
