/**
 * Which answer of a plan is sure to be in time, as device_sdk/execution/stepped_plan.py.
 *
 * A step runs from one exit of the plan to the next, the last one to the end. Source: finite-time inference of MEEdge
 * §3.4; here times are a distribution, and the device's present speed counts (docs/adr/0042).
 */
package pathweave.sdk.execution

import kotlin.math.ceil
import kotlin.math.max

/** Of the times of earlier runs: a deadline is kept this often. */
public const val DEADLINE_QUANTILE: Double = 0.99

internal const val RECENT_RUNS = 9 // whose median says how slow the device is now

/**
 * How many times as long as [typicalMs] the last runs took: the upper median of their ratios; 1 without runs.
 *
 * [runsMs]: per run, the oldest first, the milliseconds of its first steps, at least one.
 */
public fun slowness(runsMs: List<List<Double>>, typicalMs: List<Double>): Double {
    val ratios = runsMs.takeLast(RECENT_RUNS).map { it.sum() / typicalMs.take(it.size).sum() }.sorted()
    return if (ratios.isEmpty()) 1.0 else ratios[ratios.size / 2]
}

/**
 * The time from the start within which each step's answer is there, in all but 1 - [quantile] of the runs.
 *
 * What a run did not reach counts as [typicalMs] times the present [slowness]. [presentSlowness]: what ordinary calls
 * say of it; if it is worse than what the runs say, all times are scaled by the difference.
 */
public fun answerTimesMs(
    runsMs: List<List<Double>>,
    typicalMs: List<Double>,
    presentSlowness: Double? = null,
    quantile: Double = DEADLINE_QUANTILE,
): List<Double> {
    val now = slowness(runsMs, typicalMs)
    val scale = if (presentSlowness == null) 1.0 else max(1.0, presentSlowness / now)
    if (runsMs.isEmpty()) return summed(typicalMs).map { scale * it }
    val answers = runsMs.map { run -> summed(typicalMs.mapIndexed { step, ms -> run.getOrNull(step) ?: (now * ms) }) }
    val rank = max(ceil(quantile * runsMs.size).toInt() - 1, 0)
    return typicalMs.indices.map { step -> scale * answers.map { it[step] }.sorted()[rank] }
}

/** The last step whose answer is there within [deadlineMs]; null if not even the first is. */
public fun lastInTime(timesMs: List<Double>, deadlineMs: Double): Int? =
    timesMs.indexOfLast { it <= deadlineMs }.takeIf { it >= 0 }

private fun summed(values: List<Double>): List<Double> = values.runningReduce(Double::plus)
