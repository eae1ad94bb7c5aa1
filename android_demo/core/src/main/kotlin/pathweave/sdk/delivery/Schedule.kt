/**
 * Deadlines, minimum rate, retries and backoff of a delivery. Mirrors device_sdk/delivery/schedule.py.
 */
package pathweave.sdk.delivery

import java.util.concurrent.CancellationException
import pathweave.sdk.Clock
import pathweave.sdk.DeadlineError
import pathweave.sdk.ProtocolError
import pathweave.sdk.RefusedError
import pathweave.sdk.TransferError
import pathweave.sdk.transports.Deadlines

private const val FIRST_PAUSE_S = 0.2
private const val LONGEST_PAUSE_S = 5.0
private const val LONGEST_DOUBLING = 10
private const val MIN_BYTES_PER_S = 1_000.0 // a server below it would hold a device for hours
private const val RATE_WINDOW_S = 15.0
private const val NANOSECONDS_PER_S = 1e9
private const val SERVER_ERROR = 500
private val TRANSIENT = setOf(408, 425, 429) // besides 5xx

/** The server sent less than the minimum rate. Not retried: the bytes received are kept for the next delivery. */
internal class TooSlowError(message: String) :
    DeadlineError(message, hint = "try again: it resumes where it stopped")

/** Limits: [idleS] without a byte, [totalS] from now on [clock], [attempts] consecutive attempts that fail. */
internal class Schedule(
    limits: Deadlines,
    val attempts: Int,
    private val clock: Clock,
    private val sleep: (seconds: Double) -> Unit,
    private val stopped: () -> Boolean,
) {
    private val idleS = limits.idleS
    private val endsAtNs = clock() + (limits.totalS * NANOSECONDS_PER_S).toLong()
    private var windowBeganNs = clock()
    private var windowBytes = 0L

    /**
     * The deadlines of a request that starts now.
     *
     * @throws DeadlineError no time is left. CancellationException: the caller stopped the delivery.
     */
    fun left(): Deadlines {
        if (stopped()) throw CancellationException("the delivery was stopped")
        val leftS = (endsAtNs - clock()) / NANOSECONDS_PER_S
        if (leftS <= 0) {
            throw DeadlineError("the delivery exceeded its deadline", hint = "try again: it resumes where it stopped")
        }
        return Deadlines(idleS, leftS)
    }

    /**
     * Count [count] received bytes.
     *
     * @throws TooSlowError the window that ends now had less than the minimum. DeadlineError: as [left].
     */
    fun received(count: Int) {
        left()
        windowBytes += count
        val passedS = (clock() - windowBeganNs) / NANOSECONDS_PER_S
        if (passedS < RATE_WINDOW_S) return
        val tooSlow = windowBytes < MIN_BYTES_PER_S * passedS
        windowBeganNs = clock()
        windowBytes = 0
        if (tooSlow) {
            val least = MIN_BYTES_PER_S.toLong()
            throw TooSlowError("the server sent less than $least bytes per second for ${passedS.toLong()} s")
        }
    }

    /** Exponential backoff after [failures] consecutive failures, at most until the deadline. */
    fun pause(failures: Int) {
        val pauseS = FIRST_PAUSE_S * (1 shl minOf(failures, LONGEST_DOUBLING))
        sleep(minOf(pauseS, LONGEST_PAUSE_S, left().totalS))
    }

    /** Repeats [call] while it fails with transient errors; the last failure is thrown. */
    fun <T> retry(call: (Deadlines) -> T): T {
        for (failures in 0 until attempts - 1) {
            try {
                return call(left())
            } catch (error: TransferError) {
                if (!transient(error)) throw error
            }
            pause(failures)
        }
        return call(left())
    }
}

/** Whether a retry of the same request may succeed. */
internal fun transient(error: TransferError): Boolean = when (error) {
    is RefusedError -> error.status in TRANSIENT || error.status >= SERVER_ERROR
    is ProtocolError, is TooSlowError -> false
    else -> true
}
