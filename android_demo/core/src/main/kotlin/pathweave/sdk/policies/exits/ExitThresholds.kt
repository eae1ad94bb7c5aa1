/** Thresholds of exits: those of least mean latency that are expected to lose little. */
package pathweave.sdk.policies.exits

import kotlin.math.ln
import kotlin.math.sqrt
import pathweave.sdk.numerics.percentile
import pathweave.sdk.policies.costs.ExitSamples
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE

private const val TRIED = 32 // thresholds per exit
private const val HIGHEST_TRIED = 0.99 // quantile
private const val ROUNDS = 20 // of improving thresholds one by one
private const val CAUTION = 1.5 // standard errors
private const val SAMPLES_OF_NO_LOSS = 8.0 // that the regression starts from
private const val LEAST_SHARE = 1e-4 // of a confidence's log odds
private const val AT_END = -1

/**
 * The exits and thresholds of least mean latency that are expected to lose [accuracyDrop] at most.
 *
 * The drop is that of the accuracy below the end's, as seen, and as expected of new samples ([ExpectedDrop]): many
 * thresholds are tried on few samples, so the drop seen of the best is biased downwards.
 *
 * [exits] follow each other. Starts from the best common threshold, then improves one exit's threshold at a time; an
 * exit that does not pay is left out.
 */
internal fun chooseExits(
    exits: List<ExitSamples>,
    rightAtEnd: BooleanArray,
    confidenceAtEnd: DoubleArray,
    fullMs: Double,
    accuracyDrop: Double,
): List<ExitChoice> {
    if (exits.isEmpty()) return emptyList()
    val grids = exits.map { grid(it.confidence) }
    val drop = ExpectedDrop(exits, rightAtEnd, confidenceAtEnd)

    fun meanMs(thresholds: List<Double>): Double {
        val route = Route(exits, thresholds, rightAtEnd.size)
        return if (drop.within(accuracyDrop, route.leftAt)) route.meanMs(fullMs) else Double.POSITIVE_INFINITY
    }

    fun best(tried: List<List<Double>>) = tried.map { meanMs(it) to it }.minBy { it.first }

    var (bestMs, best) = best(grids.flatten().distinct().sorted().map { value -> exits.map { value } })
    for (round in 1..ROUNDS) {
        val changed = grids.flatMapIndexed { at, grid ->
            grid.map { value -> best.mapIndexed { number, own -> if (number == at) value else own } }
        }
        val (meanMs, thresholds) = best(changed)
        if (!(meanMs < bestMs)) break
        bestMs = meanMs
        best = thresholds
    }
    return exits.zip(best) { exit, threshold -> exit.choice.copy(threshold = threshold) }
        .filter { it.threshold < UNREACHABLE_CONFIDENCE }
}

/** The way of each of [count] samples if all [exits] answered from their thresholds on. */
private class Route(exits: List<ExitSamples>, thresholds: List<Double>, count: Int) {
    /** The number of the exit that each sample leaves by, below 0 for the end. */
    val leftAt = IntArray(count) { AT_END }
    private var answeredMs = 0.0
    private var triedMs = 0.0

    init {
        for ((number, exit) in exits.withIndex()) {
            if (thresholds[number] >= UNREACHABLE_CONFIDENCE) continue
            triedMs += exit.branchMs
            var answered = 0
            for (sample in leftAt.indices) {
                if (leftAt[sample] != AT_END || exit.confidence[sample] < thresholds[number]) continue
                leftAt[sample] = number
                answered++
            }
            answeredMs += answered * (exit.reachMs + triedMs)
        }
    }

    fun meanMs(fullMs: Double): Double = (answeredMs + leftAt.count { it == AT_END } * (fullMs + triedMs)) / leftAt.size
}

/**
 * The accuracy that thresholds of [exits] lose against the end, expected of samples like these.
 *
 * Samples that only the end (1) or only the exit (-1) gets right tell what leaving costs. A ridge regression of that on
 * the log odds of the end's confidence less those of the exit's, over the samples of all exits together, says what such a
 * sample costs on average, so that the lucky ones of one threshold do not count for it alone (ADR 100).
 */
internal class ExpectedDrop(exits: List<ExitSamples>, rightAtEnd: BooleanArray, confidenceAtEnd: DoubleArray) {
    private val count = rightAtEnd.size
    private val seen = exits.map { exit -> DoubleArray(count) { number(rightAtEnd[it]) - number(exit.right[it]) } }

    /** How much surer the end is, over the mean square of all; 0 where both are right or both wrong. */
    private val surer: List<DoubleArray>
    private val expected: List<DoubleArray>
    private val covariance: Symmetric

    init {
        val end = DoubleArray(count) { logOdds(confidenceAtEnd[it]) }
        val apart = exits.mapIndexed { number, exit ->
            DoubleArray(count) { if (seen[number][it] == 0.0) 0.0 else end[it] - logOdds(exit.confidence[it]) }
        }
        val differ = maxOf(1, seen.sumOf { row -> row.count { it != 0.0 } })
        val scale = sqrt(apart.sumOf { row -> row.sumOf { it * it } } / differ).let { if (it == 0.0) 1.0 else it }
        surer = apart.map { row -> DoubleArray(count) { row[it] / scale } }
        val products = Symmetric(SAMPLES_OF_NO_LOSS, 0.0, SAMPLES_OF_NO_LOSS)
        var (ones, slopes) = 0.0 to 0.0
        each { number, sample ->
            products.add(1.0, surer[number][sample])
            ones += seen[number][sample]
            slopes += surer[number][sample] * seen[number][sample]
        }
        val inverse = products.inverse()
        val (offset, slope) = inverse.times(ones, slopes)
        expected = surer.mapIndexed { number, row ->
            DoubleArray(count) { if (seen[number][it] == 0.0) 0.0 else offset + slope * row[it] }
        }
        // exits are wrong about the same samples: errors are added up by sample before they are squared
        val (errors, weighted) = DoubleArray(count) to DoubleArray(count)
        each { number, sample ->
            val error = seen[number][sample] - expected[number][sample]
            errors[sample] += error
            weighted[sample] += surer[number][sample] * error
        }
        val spread = Symmetric(SAMPLES_OF_NO_LOSS, 0.0, SAMPLES_OF_NO_LOSS)
        for (sample in 0 until count) spread.add(errors[sample], weighted[sample])
        covariance = inverse.around(spread)
    }

    private inline fun each(use: (number: Int, sample: Int) -> Unit) {
        for (number in seen.indices) for (sample in 0 until count) if (seen[number][sample] != 0.0) use(number, sample)
    }

    /**
     * True if the drop seen is within [limit], and the one expected with CAUTION standard errors.
     *
     * [leftAt]: the number of the exit that each sample leaves by, below 0 for the end.
     */
    fun within(limit: Double, leftAt: IntArray): Boolean {
        var (lost, costs, squares) = Triple(0.0, 0.0, 0.0)
        var (differ, surerBy) = 0.0 to 0.0
        for ((sample, number) in leftAt.withIndex()) {
            if (number < 0 || seen[number][sample] == 0.0) continue
            lost += seen[number][sample]
            val cost = expected[number][sample]
            costs += cost
            squares += cost * cost
            differ += 1.0
            surerBy += surer[number][sample]
        }
        val error = sqrt(covariance.form(differ, surerBy) + squares)
        return maxOf(lost, costs + CAUTION * error) / count <= limit
    }
}

/** A symmetric matrix [[a, b], [b, c]]. */
private class Symmetric(private var a: Double, private var b: Double, private var c: Double) {
    fun add(x: Double, y: Double) {
        a += x * x
        b += x * y
        c += y * y
    }

    fun inverse(): Symmetric = (a * c - b * b).let { Symmetric(c / it, -b / it, a / it) }

    fun times(x: Double, y: Double): Pair<Double, Double> = a * x + b * y to b * x + c * y

    /** The quadratic form of (x, y). */
    fun form(x: Double, y: Double): Double = times(x, y).let { (first, second) -> x * first + y * second }

    /** This · [inner] · this. */
    fun around(inner: Symmetric): Symmetric {
        val (first, second) = inner.times(a, b) to inner.times(b, c)
        val (top, side) = times(first.first, first.second)
        return Symmetric(top, side, times(second.first, second.second).second)
    }
}

private fun number(isRight: Boolean) = if (isRight) 1.0 else 0.0

private fun logOdds(confidence: Double): Double = confidence.coerceIn(LEAST_SHARE, 1 - LEAST_SHARE).let { ln(it / (1 - it)) }

/** Thresholds to try: evenly spaced quantiles from the least confidence on, and one that no sample reaches. */
private fun grid(confidence: DoubleArray): List<Double> {
    val sorted = confidence.sorted()
    val quantiles = List(TRIED) { percentile(sorted, HIGHEST_TRIED * it / (TRIED - 1)) }
    return quantiles.distinct().sorted() + UNREACHABLE_CONFIDENCE
}
