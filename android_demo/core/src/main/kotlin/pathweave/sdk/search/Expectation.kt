/** Expected accuracies of a pool. */
package pathweave.sdk.search

import kotlin.math.PI
import kotlin.math.exp
import kotlin.math.sqrt
import pathweave.sdk.numerics.cholesky
import pathweave.sdk.numerics.dot
import pathweave.sdk.numerics.erfc
import pathweave.sdk.numerics.median
import pathweave.sdk.numerics.solveLower
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet

private const val COMPARABLE = 2.0 // log odds below the best: candidates further below are left out of the regression
private const val SLOPE_MEAN = 0.5 // prior: log odds lost at the median distance
private const val SLOPE_SPREAD = 1.0
private const val LINE_SAMPLES = 300.0 // weight of the line, as an equivalent number of samples (docs/adr/0072)
private const val FAR = 30.0 // standard deviations beyond which a normal tail is taken as exponential
private const val OWN_NOISE = 0.25 // share of a candidate's sampling variance that is independent of the others
private const val LEAST_NOISE = 0.5 // squared answers: least variance, also of one that agrees with the nearest one
private const val LARGER_FIRST = 1e-6 // accuracy by which the larger of two inputs that are equal otherwise comes first

/** [result] with its candidates' expected accuracy, and the best by it. Evaluates nothing. */
public fun withExpectedAccuracies(result: SearchResult, problem: SearchProblem): SearchResult {
    val pool = expectedCandidates(result.pool, problem.supernet, problem.evaluator)
    return result.copy(pool = pool, best = bestWithin(pool, problem.budget))
}

/**
 * [candidates] with their expected accuracy.
 *
 * Of rungs that differ in their input size alone, the larger input counts as at least as accurate, up to the model's own.
 */
public fun expectedCandidates(
    candidates: List<Candidate>,
    supernet: Supernet,
    evaluator: Evaluator,
): List<Candidate> {
    if (candidates.isEmpty()) return candidates
    val subnets = candidates.map { it.subnet }
    val expected = expectedAccuracies(evaluator, subnets, 0 until evaluator.sampleCount)
    val placeOf = subnets.withIndex().associate { (place, subnet) -> subnet to place }
    for (column in ladder(supernet)) {
        val places = upToOwnSize(column).mapNotNull(placeOf::get)
        val rising = neverFalling(places.map { expected[it] })
        for ((number, place) in places.withIndex()) expected[place] = rising[number] + LARGER_FIRST * number
    }
    return candidates.mapIndexed { place, one -> one.copy(expected = expected[place]) }
}

/** The closest non-decreasing sequence (pool adjacent violators). */
private fun neverFalling(values: List<Double>): List<Double> {
    val pools = ArrayDeque<Pair<Double, Int>>()
    for (value in values) {
        pools.addLast(value to 1)
        while (pools.size > 1 && pools[pools.size - 2].first > pools.last().first) {
            val (after, many) = pools.removeLast()
            val (before, few) = pools.removeLast()
            pools.addLast((before * few + after * many) / (few + many) to few + many)
        }
    }
    return pools.flatMap { (value, count) -> List(count) { value } }
}

/**
 * Posterior mean accuracy on unseen samples of subnets that were evaluated on [samples]: [subnets].
 *
 * 1. count answers by their margins instead of as right or wrong ([smoothed]); 2. shrink the log odds towards a line over
 * the distance from the full model; 3. shift all to the mean that was measured. Subnets far worse than the best are not
 * shrunk, and do not affect the others.
 */
public fun expectedAccuracies(evaluator: Evaluator, subnets: List<Subnet>, samples: IntRange): DoubleArray {
    val measured = evaluator.scores(subnets, samples).map { row -> total(row) / row.size }
    val chances = smoothed(evaluator, subnets, samples)
    val counted = chances.map { logOdds(it.sum(), it.size) }
    val near = counted.indices.filter { counted[it] >= counted.max() - COMPARABLE }
    val distances = evaluator.distances(near.map(subnets::get), samples)
    val odds = expectedLogOdds(near.map(chances::get), distances)
    val expected = DoubleArray(subnets.size) { chances[it].average() }
    for ((number, place) in near.withIndex()) expected[place] = 1 / (1 + exp(-odds[number]))
    val shift = near.sumOf { measured[it] - expected[it] } / near.size
    return DoubleArray(subnets.size) { (expected[it] + shift).coerceIn(0.0, 1.0) }
}

/**
 * [candidates], from the chances of correct answers [candidates, samples] and the distances [candidates].
 *
 * Bayesian regression on the distances, relative to the candidate that is nearest to the full model. Candidates deviate
 * from the line with the variance of [LINE_SAMPLES] samples.
 */
private fun expectedLogOdds(chances: List<DoubleArray>, distances: DoubleArray): DoubleArray {
    val samples = chances[0].size
    val nearest = distances.indices.minBy(distances::get)
    val odds = DoubleArray(chances.size) { logOdds(chances[it].sum(), samples) }
    val typical = median(distances.map { it - distances[nearest] }).let { if (it == 0.0) 1.0 else it }
    val root = cholesky(scatter(chances, nearest))
    val far = solveLower(root, DoubleArray(distances.size) { (distances[it] - distances[nearest]) / typical })
    val seen = solveLower(root, DoubleArray(odds.size) { odds[it] - odds[nearest] })
    val variance = 1.0 / samples + 1 / LINE_SAMPLES
    val precision = dot(far, far) / variance + 1 / (SLOPE_SPREAD * SLOPE_SPREAD)
    val peak = (SLOPE_MEAN / (SLOPE_SPREAD * SLOPE_SPREAD) - dot(far, seen) / variance) / precision
    val slope = meanAbove0(peak, 1 / sqrt(precision))
    val weight = 1 / LINE_SAMPLES / variance
    val whitened = DoubleArray(odds.size) { -slope * far[it] + weight * (seen[it] + slope * far[it]) }
    return DoubleArray(odds.size) { row ->
        var sum = odds[nearest]
        for (at in 0..row) sum += root[row][at] * whitened[at]
        sum
    }
}

/**
 * Covariance, per sample, of the log odds relative to those of candidate [nearest]: [candidates, candidates].
 *
 * Candidates that differ from it on the same samples are correlated.
 */
private fun scatter(chances: List<DoubleArray>, nearest: Int): Array<DoubleArray> {
    val samples = chances[0].size
    val differences = chances.map { row -> DoubleArray(samples) { row[it] - chances[nearest][it] } }
    val slopes = chances.map { row ->
        val share = (row.sum() + 0.5) / (samples + 1)
        share * (1 - share) // answers per sample and unit of log odds
    }
    return Array(chances.size) { row ->
        DoubleArray(chances.size) { column ->
            var together = dot(differences[row], differences[column])
            if (row == column) together = together * (1 / (1 - OWN_NOISE)) + LEAST_NOISE
            together / samples / (slopes[row] * slopes[column])
        }
    }
}

/**
 * Mean of a normal distribution truncated at 0.
 *
 * It keeps the slope positive: the candidate nearer to the full model is preferred, also where more distant ones
 * measured higher by chance.
 */
private fun meanAbove0(peak: Double, deviation: Double): Double {
    val below = -peak / deviation
    if (below > FAR) return deviation / below
    val density = exp(-0.5 * below * below) / sqrt(2 * PI)
    return peak + deviation * density / (0.5 * erfc(below / sqrt(2.0)))
}
