/** When live classification runs: while a person wants it, something is on screen, and a model is open. */
package pathweave.demo

import pathweave.sdk.AdaptiveModel
import pathweave.sdk.InfeasibleDeadlineError
import pathweave.sdk.data.Image
import pathweave.sdk.supernet.Plan

private const val PAUSE_MS = 300L // between pictures that were picked

/**
 * Starts and stops the loop. [camera]: opens it (UnreadableException); [pictures]: those that were picked. Thread-safe.
 */
internal class LiveControl(
    private val state: Observed,
    private val camera: () -> Frames,
    private val pictures: () -> List<Image>,
) {
    private var model: AdaptiveModel? = null // guarded by this, as the loop
    private var loop: LiveLoop? = null

    /** Whether something is on screen. */
    @Volatile
    var shown = false

    /** Classify with [model] from now on. */
    fun use(model: AdaptiveModel): Unit = synchronized(this) { this.model = model }

    /** Begin anew with what is wanted now. If there are no pictures to be had, live classification is off. */
    fun restart(): Unit = synchronized(this) {
        stop()
        val source = state.value.live ?: return
        val model = model?.takeIf { shown } ?: return
        val frames = try {
            framesOf(source)
        } catch (error: UnreadableException) {
            state.change { it.copy(live = null, notice = Notice.Failed(error.message.orEmpty())) }
            return
        }
        val channels = model.bundle.manifest.preprocessing.ofImages().channels
        loop = LiveLoop(model, InChannels(frames, channels), { state.value.mode }, Shown(state))
    }

    private fun framesOf(source: LiveSource): Frames = when (source) {
        LiveSource.CAMERA -> camera()
        LiveSource.PICTURES -> {
            val images = pictures().ifEmpty { throw UnreadableException("There are no pictures yet: add some first.") }
            RepeatedFrames(images, PAUSE_MS)
        }
    }

    /** Stop, after the picture in progress. */
    fun stop(): Unit = synchronized(this) { loop.also { loop = null }?.close() }
}

/** Pictures with as many channels as the model wants. */
private class InChannels(private val frames: Frames, private val channels: Int) : Frames by frames {
    override fun take(): Image? = frames.take()?.let { withChannels(it, channels) }
}

/** Shows what a loop tells of. */
private class Shown(private val state: Observed) : LiveObserver {
    override fun answered(answer: Classified, plan: Plan) =
        state.change { it.copy(figures = it.figures.with(answer, plan), plan = plan) }

    override fun tooLate(error: InfeasibleDeadlineError) = state.change {
        it.copy(figures = it.figures.withTooLate(), notice = Notice.Failed(textOf(error)))
    }

    override fun ended(reason: String?) = state.change {
        it.copy(live = null, notice = reason?.let(Notice::Failed) ?: it.notice)
    }
}
