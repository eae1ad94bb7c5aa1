/** Margins of answers, and the chance of a right answer to a sample like one with this margin. */
package pathweave.sdk.tasks

import kotlin.math.PI
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.pow
import kotlin.math.sqrt
import pathweave.sdk.numerics.percentile

private const val AZZALINI = 1.3 // width of a kernel for a distribution function, in deviations, times n^(-1/3)
private const val QUARTILES = 1.349 // of a normal distribution: distance of its quartiles in deviations
private val LOGISTIC = sqrt(3.0) / PI // scale of a logistic distribution of deviation 1
private const val STEEPEST = 30.0 // of a logistic function's argument: beyond, it is 0 or 1
private const val LEAST_SCALE = 1.1754943508222875e-38 // the least normal float32
private const val LEAST_SHARE = 1e-6 // of a score's logarithm of the odds

/** The logit of [label] minus the largest of the others; the lowest number where that is no number. */
internal fun margin(logits: FloatArray, label: Int): Float {
    var other = Float.NEGATIVE_INFINITY
    for (at in logits.indices) if (at != label && !(logits[at] <= other)) other = logits[at]
    val margin = logits[label] - other
    return if (margin.isNaN()) -Float.MAX_VALUE else margin.coerceIn(-Float.MAX_VALUE, Float.MAX_VALUE)
}

/** Margins of scores 0 to 1, from which [byMargin] with a scale of 1 gives the scores again. */
internal fun scoreMargins(scores: FloatArray): FloatArray = FloatArray(scores.size) {
    val share = scores[it].toDouble().coerceIn(LEAST_SHARE, 1 - LEAST_SHARE)
    ln(share / (1 - share)).toFloat()
}

/**
 * Scale of the logistic function by which answers to [count] samples count.
 *
 * The mean of that function is a kernel estimate of the chance that the margin is above 0, which varies less from one set
 * of samples to the next than the share of right answers. All subnets have one width: `1.3 σ n^(-1/3)` (Azzalini 1981),
 * with σ of the full model's margins.
 */
internal fun marginScale(fullModelMargins: DoubleArray, count: Int): Double {
    val width = AZZALINI * deviation(fullModelMargins) * count.toDouble().pow(-1.0 / 3)
    return maxOf(LOGISTIC * width, LEAST_SCALE)
}

/** Chance of a right answer to a sample like those with these [margins]. */
internal fun byMargin(margins: DoubleArray, scale: Double): DoubleArray =
    DoubleArray(margins.size) { 1 / (1 + exp(-(margins[it] / scale).coerceIn(-STEEPEST, STEEPEST))) }

/** The standard deviation, or by the quartiles where these are nearer: a robust measure of spread. */
private fun deviation(values: DoubleArray): Double {
    val mean = values.average()
    val deviation = sqrt(values.sumOf { (it - mean) * (it - mean) } / values.size)
    val sorted = values.sorted()
    return minOf(deviation, (percentile(sorted, 0.75) - percentile(sorted, 0.25)) / QUARTILES)
}
