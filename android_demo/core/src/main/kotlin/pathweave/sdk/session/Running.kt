/** An anytime run: it may be ended at any moment, and has the best answer so far: device_sdk/session/answer.py. */
package pathweave.sdk.session

import java.io.Closeable
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit.MILLISECONDS
import kotlin.concurrent.thread
import pathweave.sdk.NoAnswerYetError
import pathweave.sdk.runtimes.StopSignal

/**
 * A plan that runs in a thread of its own, exit by exit. All methods may be called from any thread.
 *
 * Source: anytime inference of MEEdge §3.4. Left alone, it ends with the answer of the device without servers. Closing
 * it stops it and waits until nothing runs any more.
 */
public class Running internal constructor(run: (StopSignal, (Answer) -> Unit) -> Unit) : Closeable {
    private val signal = StopSignal()
    private val first = CountDownLatch(1) // there is an answer, or there will be none

    @Volatile
    private var answer: Answer? = null

    @Volatile
    private var failure: Throwable? = null

    private val thread = thread(isDaemon = true, name = "pathweave-anytime") {
        try {
            run(signal) { latest ->
                answer = latest
                first.countDown()
            }
        } catch (error: Throwable) { // thrown where the answer is fetched
            failure = error
        } finally {
            first.countDown()
        }
    }

    /** Whether there is an answer. */
    public val answered: Boolean get() = answer != null

    /** Whether nothing runs any more. */
    public val done: Boolean get() = !thread.isAlive

    /**
     * The best answer so far: that of the last exit reached, or of the end. [Answer.latencyMs]: when it was there.
     *
     * @throws NoAnswerYetError no exit was reached yet, or the run was stopped before it was.
     * @throws RuntimeFailedError, BlobError, ClosedError: the run failed before it had an answer.
     */
    public fun latest(): Answer {
        answer?.let { return it }
        failure?.let { throw it }
        throw NoAnswerYetError(
            if (signal.isSet) "the run was stopped before its first exit" else "no exit was reached yet",
            "wait for the first answer with waitFirst, or calibrate the plan with earlier exits",
        )
    }

    /** Wait for the first answer, at most [timeoutMs], and return the latest. Throws as [latest]. */
    public fun waitFirst(timeoutMs: Long = Long.MAX_VALUE): Answer {
        first.await(timeoutMs, MILLISECONDS)
        return latest()
    }

    /**
     * Wait for the end, at most [timeoutMs] (0: as long as it takes), and return the latest. Throws as [latest].
     *
     * Python calls it `wait`, which on the JVM every object has, with another meaning.
     */
    public fun waitEnd(timeoutMs: Long = 0): Answer {
        thread.join(timeoutMs)
        return latest()
    }

    /** End it, without waiting: the runtime stops at its next operator, or after the block where it cannot. */
    public fun stop(): Unit = signal.set()

    override fun close() {
        stop()
        thread.join()
    }
}
