/** Calls to a model at a server that never throw and keep their time-out. */
package pathweave.sdk.offload

import java.io.Closeable
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Semaphore
import java.util.concurrent.TimeUnit.NANOSECONDS
import kotlin.concurrent.thread
import pathweave.sdk.Clock
import pathweave.sdk.ClosedError
import pathweave.sdk.DeadlineError
import pathweave.sdk.PathweaveError
import pathweave.sdk.ProtocolError
import pathweave.sdk.UsageError
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.transports.Transport

/** Requests at a time, including those abandoned after their time-out. */
internal const val MAX_UNDER_WAY = 8

private const val NANOSECONDS_PER_S = 1e9
private const val REPLY_BYTES_PER_VALUE = 32L // upper bound of a float as JSON text
private const val REPLY_BYTES = 64L * 1024 // names, ids, white space
private const val MOST_REPLY_BYTES = 256L shl 20 // of values; maps of many classes are large
private const val MOST_BATCH = 1 shl 20
private const val FAILURE_CHARACTERS = 300

/** A client whose reply limit fits outputs of [outputShape] for `maxBatch` samples, within a bound. */
internal fun makeClient(
    model: RemoteModel,
    transport: Transport,
    outputShape: List<Int>,
    clock: Clock,
    version: Long? = null,
): InferenceClient {
    val values = outputShape.fold(minOf(model.maxBatch, MOST_BATCH).toLong()) { product, extent ->
        minOf(product * extent, MOST_REPLY_BYTES)
    }
    val limit = REPLY_BYTES + minOf(REPLY_BYTES_PER_VALUE * values, MOST_REPLY_BYTES)
    return InferenceClient(model.server, model.model, transport, limit, clock, version)
}

/** A reply's output as float32 values of [samples] times [shape]. Throws ProtocolError for another shape or overflow. */
internal fun checkedLogits(output: NamedTensor, samples: Int, shape: List<Int>): FloatArray {
    if (output.shape != listOf(samples) + shape) {
        throw ProtocolError("the reply's shape is ${output.shape} for $samples samples")
    }
    val values = output.doubles()
    val logits = FloatArray(values.size) { values[it].toFloat() }
    if (!logits.all { it.isFinite() }) throw ProtocolError("the reply's values are too large")
    return logits
}

/**
 * [output]: [batch, *output] of the model, float32, [batch, classes] for a classifier.
 *
 * Null where it failed; [failure] is the reason in one line.
 */
internal class RemoteReply(val output: Tensor?, val failure: String?)

/**
 * Runs calls to one server. Thread-safe.
 *
 * Each call runs in its own thread, so that the caller times out even where the call cannot (name lookup). A late call is
 * abandoned and its reply discarded; [MAX_UNDER_WAY] bounds their number. While [breaker] is open no call is made; a
 * UsageError, which a retry cannot fix, opens it at once.
 */
internal class RemoteCalls(
    private val timeoutS: Double,
    private val clock: Clock,
    private val breaker: CircuitBreaker = CircuitBreaker(clock),
) : Closeable {
    private val slots = Semaphore(MAX_UNDER_WAY)

    @Volatile
    private var lastFailure = ""

    /** Whether it was closed. */
    @Volatile
    var closed = false
        private set

    /** Whether a call would be made now: it is not closed, and the breaker not open. */
    val ready: Boolean get() = !closed && breaker.state != BreakerState.OPEN

    /** Make no calls from now on. Idempotent. */
    override fun close() {
        closed = true
    }

    /** The result of [ask], which is told the deadline on the clock, or the reason why there is none in time. */
    fun run(ask: (untilNs: Long) -> Tensor): RemoteReply {
        val untilNs = clock() + (timeoutS * NANOSECONDS_PER_S).toLong()
        if (closed) return RemoteReply(null, "it was closed")
        if (!slots.tryAcquire()) return RemoteReply(null, "$MAX_UNDER_WAY requests are still in progress")
        if (!breaker.allows()) {
            slots.release()
            val wait = "%.1f".format(java.util.Locale.ROOT, breaker.retryInS)
            return RemoteReply(null, "no requests to the server for $wait s, since $lastFailure")
        }
        return outcome(Call(untilNs).also { begin(it, ask) })
    }

    /** Let the next call through as a trial if the breaker is open. */
    fun tryAgain(): Unit = breaker.endCooldown()

    /**
     * The seconds until [untilNs], for use within `ask`.
     *
     * @throws DeadlineError the deadline passed. [ClosedError] the calls were closed.
     */
    fun leftS(untilNs: Long): Double {
        if (closed) throw ClosedError("it was closed")
        val leftS = (untilNs - clock()) / NANOSECONDS_PER_S
        if (leftS <= 0) throw DeadlineError(late)
        return leftS
    }

    private val late get() = "no answer came within ${timeoutS.toString().removeSuffix(".0")} s"

    private fun begin(call: Call, ask: (Long) -> Tensor) {
        try {
            thread(isDaemon = true, name = "pathweave-remote-call") {
                try {
                    call.output = ask(call.untilNs)
                } catch (error: Throwable) { // told as the failure
                    call.error = error
                } finally {
                    slots.release()
                    call.done.countDown()
                }
            }
        } catch (error: OutOfMemoryError) { // the thread could not be started
            slots.release()
            call.error = error
            call.done.countDown()
        }
    }

    /** Wait for the call until its deadline, and report its outcome to the breaker. */
    private fun outcome(call: Call): RemoteReply {
        val answered = call.done.await(maxOf(0L, call.untilNs - clock()), NANOSECONDS)
        val (output, error) = if (answered) call.output to call.error else null to null
        if (output != null) {
            breaker.succeeded()
            return RemoteReply(output, null)
        }
        val failure = if (answered) oneLine(error) else late
        lastFailure = failure
        if (error is UsageError) breaker.trip() else breaker.failed()
        return RemoteReply(null, failure)
    }

    /** One call; its thread stores the outcome here. */
    private class Call(val untilNs: Long) {
        val done = CountDownLatch(1)

        @Volatile
        var output: Tensor? = null

        @Volatile
        var error: Throwable? = null
    }
}

private fun oneLine(error: Throwable?): String {
    if (error == null) return "there was no output"
    val kind = error.javaClass.simpleName
    val text = if (error is PathweaveError) error.message.orEmpty() else "$kind: ${error.message}"
    return text.split(Regex("\\s+")).filter { it.isNotEmpty() }.joinToString(" ").take(FAILURE_CHARACTERS).ifEmpty { kind }
}

/** What a [CircuitBreaker] does with calls. As text `closed`, `open`, `half-open`. */
public enum class BreakerState {
    /** All calls are let through. */
    CLOSED,

    /** No call is. */
    OPEN,

    /** One call at a time is, as a trial. */
    HALF_OPEN,
    ;

    override fun toString(): String = name.lowercase().replace('_', '-')
}

/**
 * Closed until [failures] consecutive calls fail, then open for [cooldownS], then half-open: one trial a time.
 *
 * A successful trial closes it; a failed one opens it for twice as long as before, up to [longestCooldownS]. A trial that
 * is never reported expires after the cooldown, and a clock that is set back ends both. Thread-safe.
 */
public class CircuitBreaker(
    private val clock: Clock = System::nanoTime,
    private val failures: Int = 3,
    cooldownS: Double = 5.0,
    longestCooldownS: Double = 60.0,
) {
    private val shortestNs = nanoseconds(cooldownS)
    private val longestNs = nanoseconds(longestCooldownS)
    private var inARow = 0 // guarded by this, as what follows
    private var cooldownNs = shortestNs
    private var openUntilNs: Long? = null // null: closed
    private var trialUntilNs: Long? = null // null: no trial is in progress

    /** The current state. */
    public val state: BreakerState get() = synchronized(this) { stateNow() }

    /** Seconds until it is half-open; 0 if it is not open. */
    public val retryInS: Double
        get() = synchronized(this) {
            openUntilNs?.let { maxOf(0L, it - clock()) / NANOSECONDS_PER_S } ?: 0.0
        }

    /** Whether a call is allowed now; if so, report its outcome. In half-open state this starts the trial. */
    public fun allows(): Boolean = synchronized(this) {
        val state = stateNow()
        if (state != BreakerState.HALF_OPEN) return state == BreakerState.CLOSED
        val nowNs = clock()
        if (trialUntilNs.let { it != null && it - nowNs in 1..2 * longestNs }) return false
        trialUntilNs = nowNs + cooldownNs
        true
    }

    /** Report that an allowed call succeeded. Ignored while open: the call started earlier. */
    public fun succeeded(): Unit = synchronized(this) {
        if (stateNow() == BreakerState.OPEN) return
        inARow = 0
        cooldownNs = shortestNs
        openUntilNs = null
        trialUntilNs = null
    }

    /** Report that an allowed call failed. Ignored while open. */
    public fun failed(): Unit = synchronized(this) {
        inARow++
        when (stateNow()) {
            BreakerState.HALF_OPEN -> reopen()
            BreakerState.CLOSED -> if (inARow >= failures) open()
            BreakerState.OPEN -> {}
        }
    }

    /** Become half-open if it is open: the server was seen to answer something else. */
    public fun endCooldown(): Unit = synchronized(this) {
        openUntilNs = openUntilNs?.let { minOf(it, clock()) }
    }

    /** Report a permanent failure of an allowed call: opens at once. */
    public fun trip(): Unit = synchronized(this) {
        when (stateNow()) {
            BreakerState.HALF_OPEN -> reopen()
            BreakerState.CLOSED -> open()
            BreakerState.OPEN -> {}
        }
    }

    private fun stateNow(): BreakerState {
        val untilNs = openUntilNs ?: return BreakerState.CLOSED
        val isOpen = untilNs - clock() in 1..2 * longestNs // longer: the clock was set back
        return if (isOpen) BreakerState.OPEN else BreakerState.HALF_OPEN
    }

    private fun reopen() {
        cooldownNs = minOf(2 * cooldownNs, longestNs)
        open()
    }

    private fun open() {
        openUntilNs = clock() + cooldownNs
        trialUntilNs = null
    }
}

private fun nanoseconds(seconds: Double): Long = (seconds * NANOSECONDS_PER_S).toLong()
