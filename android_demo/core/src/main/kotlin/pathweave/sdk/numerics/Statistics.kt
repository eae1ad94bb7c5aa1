/** The little numerics that the search needs: triangular systems, medians, the complementary error function. */
package pathweave.sdk.numerics

import kotlin.math.abs
import kotlin.math.cos
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.sqrt
import pathweave.sdk.SplitMix64

private const val ERROR_SERIES_UP_TO = 2.0 // below, the series of erf converges fast; above, the continued fraction
private const val TINY = 1e-300

/** The lower Cholesky factor of a symmetric positive definite matrix, by rows. */
internal fun cholesky(matrix: Array<DoubleArray>): Array<DoubleArray> {
    val root = Array(matrix.size) { DoubleArray(matrix.size) }
    for (row in matrix.indices) {
        val own = root[row]
        for (column in 0..row) {
            val other = root[column]
            var sum = matrix[row][column]
            for (at in 0 until column) sum -= own[at] * other[at]
            own[column] = if (row == column) sqrt(sum) else sum / other[column]
        }
    }
    return root
}

/** x in `root · x = right`, for a lower triangular [root]. */
internal fun solveLower(root: Array<DoubleArray>, right: DoubleArray): DoubleArray {
    val solved = DoubleArray(right.size)
    for (row in right.indices) {
        var sum = right[row]
        val own = root[row]
        for (at in 0 until row) sum -= own[at] * solved[at]
        solved[row] = sum / own[row]
    }
    return solved
}

/** x in `rootᵀ · x = right`, for a lower triangular [root]. */
internal fun solveTransposed(root: Array<DoubleArray>, right: DoubleArray): DoubleArray {
    val solved = right.copyOf()
    for (row in right.indices.reversed()) {
        solved[row] /= root[row][row]
        for (at in 0 until row) solved[at] -= root[row][at] * solved[row]
    }
    return solved
}

internal fun dot(one: DoubleArray, other: DoubleArray): Double {
    var sum = 0.0
    for (at in one.indices) sum += one[at] * other[at]
    return sum
}

/** The middle of [values], or the mean of the two in the middle. */
internal fun median(values: List<Double>): Double = percentile(values.sorted(), 0.5)

/** A standard normal number (Box-Muller, the first of the pair). */
internal fun normal(random: SplitMix64): Double {
    val radius = sqrt(-2 * ln(1 - random.uniform()))
    return radius * cos(2 * Math.PI * random.uniform())
}

internal fun normals(count: Int, random: SplitMix64): DoubleArray = DoubleArray(count) { normal(random) }

/**
 * The complementary error function, to about 1e-13 relative.
 *
 * Source: Abramowitz, Stegun, "Handbook of Mathematical Functions", 7.1.6 (series) and 7.1.14 (continued fraction, here
 * by the modified method of Lentz).
 */
internal fun erfc(x: Double): Double = when {
    x < 0 -> 2 - erfc(-x)
    x < ERROR_SERIES_UP_TO -> 1 - erfSeries(x)
    else -> exp(-x * x) / sqrt(Math.PI) / erfcFraction(x)
}

private fun erfSeries(x: Double): Double {
    var (term, sum, odd) = Triple(x, x, 1.0)
    while (abs(term) > 1e-17 * abs(sum)) {
        odd += 2
        term *= 2 * x * x / odd
        sum += term
    }
    return 2 / sqrt(Math.PI) * exp(-x * x) * sum
}

/** `x + (1/2)/(x + (2/2)/(x + (3/2)/(x + …)))`. */
private fun erfcFraction(x: Double): Double {
    var fraction = x
    var (upper, lower) = x to 0.0
    var step = 0
    do {
        step++
        val factor = step / 2.0
        lower = 1 / (x + factor * lower).let { if (it == 0.0) TINY else it }
        upper = (x + factor / upper).let { if (it == 0.0) TINY else it }
        fraction *= upper * lower
    } while (abs(upper * lower - 1) > 1e-16 && step < 500)
    return fraction
}

/** Between the two nearest of [sorted], in proportion. */
internal fun percentile(sorted: List<Double>, share: Double): Double {
    val place = share * (sorted.size - 1)
    val below = place.toInt()
    val above = minOf(below + 1, sorted.lastIndex)
    return sorted[below] + (sorted[above] - sorted[below]) * (place - below)
}
