/** A circuit breaker for a failing server. Pure except for the clock. Mirrors device_sdk/offload/remote_calls.py. */
package pathweave.sdk.offload

import pathweave.sdk.Clock

private const val NANOSECONDS_PER_S = 1e9

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
