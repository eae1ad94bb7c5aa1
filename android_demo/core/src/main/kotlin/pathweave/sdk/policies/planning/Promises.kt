/**
 * The bound for new samples of a share of samples seen: the exact binomial one (Clopper and Pearson 1934). Pure.
 *
 * A part of device_sdk/policies/deciding/promises.py; accuracies are promised by Python's planner only.
 */
package pathweave.sdk.policies.planning

import kotlin.math.abs
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.ln1p
import kotlin.math.sqrt

/** Of shares of samples that take a second path. */
internal const val SHARES_CERTAINTY: Double = 0.9

private const val BISECTIONS = 40
private const val MOST_TERMS = 500
private const val CONVERGED = 1e-12
private const val TINY = 1e-300
private const val ROUNDING = 1e-9

/** Upper bounds of a share among new samples, by the number of [samples] seen that have it: [samples + 1]. */
internal fun mostShares(samples: Int, certainty: Double): DoubleArray {
    val logFactorials = (1..samples).runningFold(0.0) { sum, one -> sum + ln(one.toDouble()) }.toDoubleArray()
    return DoubleArray(samples + 1) { count ->
        var (low, high) = 0.0 to 1.0
        repeat(if (count < samples) BISECTIONS else 0) {
            val middle = (low + high) / 2
            if (binomialTail(count, samples, middle, logFactorials) <= 1 - certainty) high = middle else low = middle
        }
        high
    }
}

/** P(X ≤ [count]) for X ~ Binomial([trials], [probability]), as the incomplete beta function; [count] below [trials]. */
private fun binomialTail(count: Int, trials: Int, probability: Double, logFactorials: DoubleArray): Double {
    val (first, second) = (trials - count).toDouble() to count + 1.0
    val point = 1 - probability
    val scale = logFactorials[trials] - logFactorials[trials - count - 1] - logFactorials[count]
    val factor = exp(scale + first * ln(point) + second * ln1p(-point))
    val isTurned = point > (first + 1) / (first + second + 2)
    return if (isTurned) 1 - factor * fraction(second, first, 1 - point) / second else factor * fraction(first, second, point) / first
}

/** The continued fraction of the incomplete beta function, by Lentz's method (Numerical Recipes §6.4). */
private fun fraction(first: Double, second: Double, point: Double): Double {
    var above = 1.0
    var below = 1 / awayFromZero(1 - (first + second) * point / (first + 1))
    var found = below
    for (term in 1 until MOST_TERMS) {
        val twice = first + 2 * term
        val even = term * (second - term) * point / ((twice - 1) * twice)
        val odd = -(first + term) * (first + second + term) * point / (twice * (twice + 1))
        for (step in doubleArrayOf(even, odd)) {
            below = 1 / awayFromZero(1 + step * below)
            above = awayFromZero(1 + step / above)
            found *= below * above
        }
        if (abs(below * above - 1) < CONVERGED) break
    }
    return found
}

private fun awayFromZero(value: Double) = if (abs(value) < TINY) TINY else value

/** True if the mean of [gains] of single samples is more than its standard error above zero; one that is won is not. */
internal fun isCertainGain(gains: DoubleArray): Boolean {
    if (gains.size < 2) return false
    val mean = gains.average()
    val variance = gains.sumOf { (it - mean) * (it - mean) } / (gains.size - 1)
    return mean > (1 + ROUNDING) * sqrt(variance / gains.size)
}
