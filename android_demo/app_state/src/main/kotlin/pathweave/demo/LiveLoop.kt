/** Classifying one picture after the other, in a thread of its own. */
package pathweave.demo

import java.io.Closeable
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit
import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.thread
import kotlin.concurrent.withLock
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.ClosedError
import pathweave.sdk.InfeasibleDeadlineError
import pathweave.sdk.NoAnswerYetError
import pathweave.sdk.PathweaveError
import pathweave.sdk.data.Image
import pathweave.sdk.session.Answer
import pathweave.sdk.supernet.Plan

/** Where pictures come from. */
interface Frames : Closeable {
    /** The next picture, waited for; null: it was closed. @throws UnreadableException there will be no more. */
    fun take(): Image?
}

/** The newest picture that a camera has put here; older ones that nothing took are dropped. */
class LatestFrame : Frames {
    private val lock = ReentrantLock() // guards what follows
    private val changed = lock.newCondition()
    private var frame: Image? = null
    private var failure: UnreadableException? = null
    private var closed = false

    fun put(image: Image): Unit = change { frame = image }

    /** What takes pictures throws [error] from now on. */
    fun fail(error: UnreadableException): Unit = change { failure = error }

    override fun close(): Unit = change { closed = true }

    private fun change(what: () -> Unit): Unit = lock.withLock {
        what()
        changed.signalAll()
    }

    override fun take(): Image? {
        lock.withLock {
            while (frame == null && failure == null && !closed) changed.awaitUninterruptibly()
            if (closed) return null
            failure?.let { throw it }
            return frame.also { frame = null }
        }
    }
}

/** [images], at least one, again and again, [pauseMs] apart. */
class RepeatedFrames(private val images: List<Image>, private val pauseMs: Long) : Frames {
    private val closed = CountDownLatch(1)
    private var next = 0 // of the thread that takes

    override fun take(): Image? {
        if (closed.await(pauseMs, TimeUnit.MILLISECONDS)) return null
        return images[next].also { next = (next + 1) % images.size }
    }

    override fun close(): Unit = closed.countDown()
}

/** How pictures are answered. [deadlineMs]: null for none. [anytime]: run until then, and take the best there is. */
data class AnswerMode(val deadlineMs: Double? = null, val anytime: Boolean = false)

/** The answer to [image] in this [mode]; throws as a call of the model. */
fun AdaptiveModel.answer(image: Image, mode: AnswerMode): Answer {
    val deadlineMs = mode.deadlineMs ?: return invoke(image)
    if (!mode.anytime) return invoke(image, deadlineMs = deadlineMs)
    return stream(image).use { running ->
        try {
            running.waitEnd(deadlineMs.toLong().coerceAtLeast(1))
        } catch (_: NoAnswerYetError) {
            running.waitFirst() // late, but an answer
        }
    }
}

/** What the loop tells of. Called in its thread. */
interface LiveObserver {
    fun answered(answer: Classified, plan: Plan)

    /** There was no answer in time; [error] says the least deadline. The loop goes on. */
    fun tooLate(error: InfeasibleDeadlineError)

    /** The loop ended by itself; [reason]: why, null if the model was closed. */
    fun ended(reason: String?)
}

/** Runs until it is closed. [mode]: asked before every picture. Closing waits for the picture in progress. */
class LiveLoop(
    private val model: AdaptiveModel,
    private val frames: Frames,
    private val mode: () -> AnswerMode,
    private val observer: LiveObserver,
) : Closeable {
    @Volatile
    private var closed = false
    private val thread = thread(isDaemon = true, name = "live") { answerAll() }

    private fun answerAll() {
        val reason = try {
            while (!closed) answer(frames.take() ?: break)
            null
        } catch (_: ClosedError) {
            null
        } catch (error: PathweaveError) {
            textOf(error)
        } catch (error: UnreadableException) {
            error.message
        }
        if (!closed) observer.ended(reason)
    }

    private fun answer(image: Image) {
        try {
            val answer = model.answer(image, mode())
            if (!closed) observer.answered(classified(image, answer, model.bundle.manifest), model.plan)
        } catch (error: InfeasibleDeadlineError) {
            observer.tooLate(error)
        }
    }

    override fun close() {
        closed = true
        frames.close()
        if (Thread.currentThread() !== thread) thread.join()
    }
}
