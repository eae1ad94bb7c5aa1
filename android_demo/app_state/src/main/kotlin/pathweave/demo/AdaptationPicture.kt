/** The result of an adaptation as a picture: which plans there were, which was taken, and what was allowed. */
package pathweave.demo

import java.math.BigDecimal
import java.math.MathContext
import java.util.Locale
import kotlin.math.ceil
import kotlin.math.floor
import kotlin.math.log10
import kotlin.math.pow
import pathweave.sdk.policies.Found
import pathweave.sdk.supernet.Subnet

private const val MARGIN = 0.08 // of an axis beyond the outermost point
private const val LEAST_SPAN = 0.02 // of the accuracy, so that plans that are equal do not look far apart
private const val DIGITS = 3

/** A plan as a point: its latency, and the share of samples that it gets right. */
data class PlanPoint(val latencyMs: Double, val accuracy: Double)

/** What an axis runs over. */
data class Axis(val from: Double, val to: Double) {
    /** Where [value] lies on it: 0 at its beginning, 1 at its end. */
    fun share(value: Double): Double = if (to > from) (value - from) / (to - from) else 0.5

    /** Round values on it, evenly spaced, at most [most] of them. */
    fun ticks(most: Int): List<Double> {
        val rough = (to - from) / most
        if (!(rough > 0)) return listOf(from)
        val magnitude = 10.0.pow(floor(log10(rough)))
        val step = STEPS.map { it * magnitude }.first { it >= rough * (1 - 1e-9) }
        val first = ceil(from / step - 1e-9).toLong()
        val last = floor(to / step + 1e-9).toLong()
        return (first..last).map { it * step }
    }

    private companion object {
        val STEPS = listOf(1.0, 2.0, 5.0, 10.0)
    }
}

/**
 * [plans]: the subnets that were judged. [chosen]: the plan in use from now on. [full]: the full model. [limitMs]: what was
 * allowed, null without a limit on latency.
 */
data class AdaptationPicture(
    val plans: List<PlanPoint>,
    val chosen: PlanPoint,
    val full: PlanPoint?,
    val limitMs: Double?,
) {
    private val all = plans + listOfNotNull(chosen, full)

    /** The plans than which no other is both faster and more accurate, the fastest first. */
    val front: List<PlanPoint> = buildList {
        for (plan in plans.sortedWith(compareBy({ it.latencyMs }, { -it.accuracy }))) {
            if (isEmpty() || plan.accuracy > last().accuracy) add(plan)
        }
    }

    /** From zero, so that lengths compare as latencies do. */
    val latencyAxis: Axis = Axis(0.0, (all.map { it.latencyMs } + listOfNotNull(limitMs)).max() * (1 + MARGIN))

    val accuracyAxis: Axis = all.map { it.accuracy }.run {
        val room = maxOf(max() - min(), LEAST_SPAN) * MARGIN
        Axis(maxOf(min() - room, 0.0), minOf(max() + room, 1.0))
    }
}

/**
 * The picture of what an adaptation [found]; null where the latency of its plan was not measured.
 *
 * [original]: the full model, and [fullMs]: its latency by the profile. What the search predicts is shown at the pace that the measurement found.
 */
fun pictureOf(found: Found, original: Subnet, fullMs: Double): AdaptationPicture? {
    val measured = found.measured ?: return null
    val pace = if (fullMs > 0) measured.fullMs / fullMs else 1.0
    val plans = found.pool.map { PlanPoint(pace * it.cost.latencyMs, it.expectedAccuracy) }
    val alone = found.pool.find { it.plan == found.plan }?.expectedAccuracy
    val accuracy = alone ?: found.expected.accuracy ?: return null
    val whole = found.pool.find { it.subnet == original }?.expectedAccuracy ?: found.fullAccuracy
    val full = whole?.let { PlanPoint(measured.fullMs, it) }
    return AdaptationPicture(plans, PlanPoint(measured.latencyMs, accuracy), full, found.goal.latencyMs)
}

/** [value] with three digits that count: 0.0123, 1.23, 123. */
fun shortNumber(value: Double, locale: Locale): String {
    if (value == 0.0 || !value.isFinite()) return String.format(locale, "%.0f", value)
    val rounded = BigDecimal(value).round(MathContext(DIGITS))
    return String.format(locale, "%.${maxOf(rounded.stripTrailingZeros().scale(), 0)}f", rounded)
}
