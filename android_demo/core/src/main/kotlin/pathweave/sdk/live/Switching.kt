/**
 * When a running subnet gives way to another one of the pool: pure decisions on measured service times.
 *
 * Source: AdaptiveNet §5.3: with the drift ratio r = actual / estimated latency, the best subnet is the most accurate
 * one whose estimated latency is within T / r; down when the budget T is exceeded, up when there is room. Ours are the
 * hysteresis, the cooldowns, that an excess has to add up, since noise passes, and that going up takes more evidence. A
 * cause that lasts, such as heat, needs no further evidence to go down, and going up again waits longer; load passes.
 */
package pathweave.sdk.live

import java.lang.Math.rint
import kotlin.math.floor
import pathweave.sdk.UsageError
import pathweave.sdk.memory_pressure.MemoryReading
import pathweave.sdk.numerics.median
import pathweave.sdk.search.Candidate
import pathweave.sdk.search.bestWithin
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.MB

private const val EXCESS_CALLS = 15

/**
 * How eager live update is. Times are seconds of a monotonic clock.
 *
 * [window]: the calls whose median counts; [upWindow]: those that must agree before a slower subnet is taken.
 * [tolerance]: latencies this close to the budget are equal to it. [excessMs]: how much above it, in all, the last calls
 * must have been before a faster subnet is taken. [margin]: what a candidate must have to spare. [upCooldownS] doubles,
 * up to [upCooldownMaxS], whenever a switch up had to be taken back soon; it is at least [lastingCooldownS] after a
 * switch for a cause that lasts: throttling, a power mode. [absurdRatio]: calls that took this many times the estimate,
 * as after a suspension, are not looked at. [warmBytes]: what plans that are kept ready ahead may take.
 * [searchCooldownS] and [searchTimeLimitS] are those of searches in the background.
 *
 * @throws UsageError a window of nothing, or a margin that leaves nothing.
 */
public data class LiveSettings(
    val window: Int = 5,
    val upWindow: Int = 20,
    val tolerance: Double = 0.02,
    val excessMs: Double = 30.0,
    val margin: Double = 0.02,
    val cooldownS: Double = 0.1,
    val upCooldownS: Double = 0.2,
    val upCooldownMaxS: Double = 1.0,
    val absurdRatio: Double = 100.0,
    val warmBytes: Long = 64_000_000,
    val searchCooldownS: Double = 60.0,
    val searchTimeLimitS: Double = 30.0,
    val lastingCooldownS: Double = 30.0,
) {
    init {
        if (window < 1 || upWindow < 1) throw UsageError("live update needs at least one call to judge by")
        if (!(margin >= 0 && margin < 1)) throw UsageError("the margin is $margin; it must lie between 0 and 1")
    }
}

internal enum class Why(val text: String) { SLOWER("slower"), FASTER("faster") }

/**
 * When the subnet was exchanged last, whether for a slower one, and how long to wait before going up again.
 *
 * [cause]: of a device that had become slower, where it is known.
 */
internal data class LastSwitch(
    val atS: Double = Double.NEGATIVE_INFINITY,
    val up: Boolean = false,
    val upCooldownS: Double = 0.0,
    val cause: Cause = Cause.UNKNOWN,
) {
    /** Seconds since then; infinite after the clock went backwards. */
    fun waitedS(nowS: Double): Double = (nowS - atS).let { if (it >= 0) it else Double.POSITIVE_INFINITY }

    /** Seconds from this switch until the next one up may come. */
    fun upWaitS(settings: LiveSettings): Double =
        maxOf(upCooldownS, settings.upCooldownS, if (cause.lasts) settings.lastingCooldownS else 0.0)

    /** The switch that comes now. One down soon after one up doubles the wait, one long after it resets it. */
    fun followedBy(why: Why, nowS: Double, settings: LiveSettings, cause: Cause = Cause.UNKNOWN): LastSwitch {
        var waitS = maxOf(upCooldownS, settings.upCooldownS)
        if (why == Why.SLOWER && up) {
            val soon = waitedS(nowS) < 2 * waitS
            waitS = if (soon) minOf(2 * waitS, settings.upCooldownMaxS) else settings.upCooldownS
        }
        return LastSwitch(nowS, why == Why.FASTER, waitS, if (why == Why.SLOWER) cause else Cause.UNKNOWN)
    }
}

/**
 * What to do. [target]: run this candidate from now on, or null: stay.
 *
 * [ratio]: the drift ratio r; [why]: the device became slower or faster; [fits]: whether the pool has anything for the
 * budget at this ratio: if not, the target is the fastest there is, and a new search may help.
 */
internal data class Decision(
    val target: Candidate?,
    val ratio: Double,
    val serviceMs: Double,
    val why: Why = Why.SLOWER,
    val fits: Boolean = true,
) {
    /** Whether it is a switch to a faster candidate. */
    val isDown: Boolean get() = target != null && why == Why.SLOWER
}

/**
 * Whether another candidate should run, by the [serviceMs] of the last calls of [current], the oldest first.
 *
 * [pool]: what could be run now, with the latencies that the calibration estimated. [cause]: of a slower device, where
 * the system states it; one that lasts is believed at once. Null: too little is known, or it is too soon after the last
 * switch.
 */
internal fun decide(
    current: Candidate,
    pool: List<Candidate>,
    budget: Budget,
    serviceMs: List<Double>,
    nowS: Double,
    last: LastSwitch,
    settings: LiveSettings,
    cause: Cause = Cause.UNKNOWN,
): Decision? {
    val limitMs = checkNotNull(budget.latencyMs)
    val calls = plausible(serviceMs, current, settings)
    if (calls.size < settings.window) return null
    val recentMs = median(calls.takeLast(settings.window))
    val ratio = recentMs / current.cost.latencyMs
    val waitedS = last.waitedS(nowS)
    if (recentMs > limitMs * (1 + settings.tolerance)) {
        if (waitedS < settings.cooldownS) return null
        val lasts = cause.lasts || isLasting(calls, limitMs, settings)
        if (lasts) return down(current, pool, budget, ratio, recentMs, settings)
    }
    if (calls.size >= settings.upWindow && waitedS >= last.upWaitS(settings)) {
        val slowest = maxOf(ratio, calls.takeLast(settings.upWindow).average() / current.cost.latencyMs)
        val better = bestWithin(pool, scaled(budget, slowest, settings))
        if (better != null && better.expectedAccuracy > current.expectedAccuracy) {
            return Decision(better, slowest, recentMs, Why.FASTER)
        }
    }
    return Decision(null, ratio, recentMs)
}

/**
 * Whether the time above the limit has added up to `excessMs` since some call: a cumulative sum test (Page).
 *
 * A call counts as at most twice the limit: a single very long one is no sign of a slower device. Of short calls those
 * of [EXCESS_CALLS] at twice the limit suffice.
 */
private fun isLasting(callsMs: List<Double>, limitMs: Double, settings: LiveSettings): Boolean {
    val allowedMs = limitMs * (1 + settings.tolerance)
    val excesses = callsMs.reversed().map { minOf(it, 2 * allowedMs) - allowedMs }
    return excesses.runningReduce(Double::plus).max() > minOf(settings.excessMs, EXCESS_CALLS * allowedMs)
}

private fun down(
    current: Candidate,
    pool: List<Candidate>,
    budget: Budget,
    ratio: Double,
    recentMs: Double,
    settings: LiveSettings,
): Decision {
    val fitting = bestWithin(pool, scaled(budget, ratio, settings))
    if (fitting != null) return Decision(fitting, ratio, recentMs)
    val faster = pool.filter { it.cost.latencyMs < current.cost.latencyMs && budget.fitsMemory(it.cost.peakBytes) }
    return Decision(faster.minByOrNull { it.cost.latencyMs }, ratio, recentMs, fits = false)
}

/** Whether the median of the last calls is above the budget and its tolerance. */
internal fun isOver(current: Candidate, serviceMs: List<Double>, budget: Budget, settings: LiveSettings): Boolean {
    val calls = plausible(serviceMs, current, settings).takeLast(settings.window)
    return calls.size == settings.window && median(calls) > checkNotNull(budget.latencyMs) * (1 + settings.tolerance)
}

/** The service times that a call of [current] can have taken: clocks jump, and machines are suspended. */
internal fun plausible(serviceMs: List<Double>, current: Candidate, settings: LiveSettings): List<Double> =
    serviceMs.filter { it > 0 && it <= settings.absurdRatio * current.cost.latencyMs }

/** What fits [budget] with the margin to spare while everything takes [ratio] times its estimate: T / r. */
internal fun scaled(budget: Budget, ratio: Double, settings: LiveSettings): Budget =
    Budget(latencyMs = checkNotNull(budget.latencyMs) * (1 - settings.margin) / ratio, memoryMb = budget.memoryMb)

/** Service times of [current] between these two give no reason to decide anything. */
internal fun boundsMs(
    current: Candidate,
    pool: List<Candidate>,
    budget: Budget,
    settings: LiveSettings,
): Pair<Double, Double> {
    val better = pool.filter { it.expectedAccuracy > current.expectedAccuracy && budget.fitsMemory(it.cost.peakBytes) }
    val roomMs = checkNotNull(scaled(budget, 1.0, settings).latencyMs)
    val lowMs = better.minOfOrNull { it.cost.latencyMs }?.let { roomMs * current.cost.latencyMs / it } ?: 0.0
    return lowMs to checkNotNull(budget.latencyMs) * (1 + settings.tolerance)
}

/** Those of [pool] that fit the memory budget beside [current], which serves until they are ready. */
internal fun beside(current: Candidate, pool: List<Candidate>, budget: Budget): List<Candidate> {
    val memoryMb = budget.memoryMb ?: return pool
    return pool.filter { it.cost.peakBytes + current.cost.peakBytes <= memoryMb * MB }
}

/**
 * What probably comes next, the likeliest first: the device twice as slow as now, a little slower, as calibrated.
 *
 * Worth preparing ahead, so that a switch is nothing but the exchange.
 */
internal fun likelyNext(
    current: Candidate,
    pool: List<Candidate>,
    budget: Budget,
    ratio: Double,
    settings: LiveSettings,
): List<Candidate> {
    val ratios = listOf(2 * ratio, 1.4 * ratio, 1.0, 3 * ratio)
    val found = ratios.map { bestWithin(pool, scaled(budget, it, settings)) } + pool.minByOrNull { it.cost.latencyMs }
    return found.filterNotNull().filter { it.subnet != current.subnet }.distinctBy { it.subnet }
}

/**
 * How the memory cap follows the system's memory.
 *
 * [reserveBytes]: left to everything else. [stalledShare]: of the last ten seconds, waiting for memory from which on
 * the cap sinks to [stalledFactor] of what is taken. [growMargin]: room beyond a new cap, as a share of it; the cap rises
 * when it can rise by as much again, for [growAfterS]. [intervalS]: between two readings.
 *
 * @throws UsageError a number is out of its range.
 */
public data class ElasticSettings(
    val reserveBytes: Long = 16_000_000,
    val stalledShare: Double = 0.2,
    val stalledFactor: Double = 0.75,
    val growMargin: Double = 0.1,
    val growAfterS: Double = 2.0,
    val intervalS: Double = 0.05,
) {
    init {
        if (reserveBytes < 0 || !(growMargin >= 0) || !(growAfterS >= 0)) {
            throw UsageError("the reserve, the margin and the wait of elastic memory cannot be negative")
        }
        val shares = stalledShare > 0 && stalledShare <= 1 && stalledFactor > 0 && stalledFactor < 1
        if (!shares || !(intervalS > 0)) {
            throw UsageError("shares of elastic memory lie between 0 and 1, and the interval is above 0")
        }
    }
}

/** The cap in use, null for none, and since when there has been room for a larger one, on a monotonic clock. */
internal data class CapState(val capBytes: Long?, val roomySinceS: Double = Double.POSITIVE_INFINITY)

/**
 * The cap after a reading.
 *
 * [takenBytes]: what the model takes now; it may keep this, and take what is available beyond the reserve. [mostBytes]:
 * what the whole model takes: with room for it, the cap is the ceiling. [ceilingBytes]: what the user allows; null for
 * no limit.
 */
internal fun nextCap(
    state: CapState,
    reading: MemoryReading,
    takenBytes: Long,
    mostBytes: Long,
    ceilingBytes: Long?,
    nowS: Double,
    settings: ElasticSettings,
): CapState {
    val stalled = reading.stalledShare != null && reading.stalledShare >= settings.stalledShare
    var roomBytes = maxOf(0L, takenBytes + reading.availableBytes - settings.reserveBytes)
    if (stalled) roomBytes = minOf(roomBytes, rint(settings.stalledFactor * takenBytes).toLong())
    val targetBytes = floor(roomBytes / (1 + settings.growMargin)).toLong() // small changes do not matter then
    val heldBytes = state.capBytes ?: takenBytes
    if (roomBytes < heldBytes) return CapState(targetBytes)
    if (state.capBytes == null || state.capBytes == ceilingBytes) return CapState(state.capBytes)
    val full = targetBytes >= if (ceilingBytes == null) mostBytes else minOf(mostBytes, ceilingBytes)
    if (stalled || !(full || targetBytes > heldBytes * (1 + settings.growMargin))) return CapState(state.capBytes)
    val sinceS = minOf(state.roomySinceS, nowS)
    if (nowS - sinceS < settings.growAfterS) return CapState(state.capBytes, sinceS)
    return CapState(if (full) ceilingBytes else targetBytes)
}
