/** Racing: subnets are evaluated on a growing share of the samples, and unpromising ones are dropped early. */
package pathweave.sdk.search

import java.util.Locale
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.sqrt
import pathweave.sdk.numerics.cholesky
import pathweave.sdk.numerics.dot
import pathweave.sdk.numerics.erfc
import pathweave.sdk.numerics.median
import pathweave.sdk.numerics.solveLower
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet

private const val COMPARED = 32 // best finished candidates, from which the unfinished ones are extrapolated
private const val REMEMBERED = 128 // latest unfinished candidates per stage that are used as observations

/**
 * Advances subnets over [shares] of the samples, in whole batches; the last stage is all samples.
 *
 * [begin] sorts the samples by margin. The strategy chooses the subnets to advance. Finished subnets are in the run's
 * pool, the others among its started ones.
 */
internal class Race(private val run: SearchRun, shares: List<Double>) {
    private val evaluator = run.problem.evaluator
    private val count = evaluator.sampleCount
    private val stages: List<Int>

    init {
        val batch = evaluator.batch
        val counts = shares.map { maxOf(1, Math.rint(it * count).toInt()) }
        stages = (counts.map { minOf((it + batch - 1) / batch * batch, count) } + count).distinct().sorted()
    }

    val first: IntRange get() = 0 until stages[0]

    /** Sort the samples by margin; false if that was stopped. */
    fun begin(): Boolean = unlessStopped { evaluator.orderByMargin(run::checkStop) }

    /** Evaluate each subnet on its next stage, one group per stage; false if the evaluation was stopped. */
    fun advance(subnets: List<Subnet>): Boolean {
        val groups = subnets.groupBy { subnet -> stages.first { it > (run.started[subnet] ?: 0) } }
        for ((stage, group) in groups.toSortedMap()) {
            if (stage == count) {
                if (!run.evaluate(group)) return false
                continue
            }
            if (!unlessStopped { evaluator.correct(group, 0 until stage, run::checkStop) }) return false
            for (subnet in group) run.started[subnet] = stage
        }
        return true
    }

    private inline fun unlessStopped(work: () -> Unit): Boolean = try {
        work()
        true
    } catch (_: EvaluationStopped) {
        false
    }

    /**
     * Observations of all finished subnets and of the latest unfinished ones.
     *
     * The remaining answers of an unfinished subnet are extrapolated from those of the best finished ones.
     */
    fun observations(): List<Observation> {
        val finished = run.pool.values.toList()
        val best = finished.sortedBy { -it.accuracy }.take(COMPARED)
        val rows = evaluator.correct(best.map { it.subnet }, 0 until count)
        val noise = if (best.size > 1) unsharedNoise(rows) else 1.0
        val observations = finished.map { Observation(it.subnet, it.accuracy * count, count, noise) }.toMutableList()
        for (stage in stages.dropLast(1)) {
            val atStage = run.started.filterValues { it == stage }.keys.toList().takeLast(REMEMBERED)
            val correct = evaluator.correct(atStage, 0 until stage)
            val (rest, unseen) = extrapolated(rows.map { it.sliceArray(stage until count) })
            observations += atStage.zip(correct) { subnet, row ->
                Observation(subnet, row.count { it } + rest, count, noise, unseen)
            }
        }
        return observations
    }
}

/** Mean and variance of another subnet's number of correct answers, given those of others [subnets, samples]. */
private fun extrapolated(correct: List<BooleanArray>): Pair<Double, Double> {
    val samples = correct[0].size
    val average = (correct.sumOf { row -> row.count { it } } + 0.5) / (correct.size * samples + 1)
    val perSample = (0 until samples).map { at -> (correct.count { it[at] } + average) / (correct.size + 1) }
    return perSample.sum() to perSample.sumOf { it * (1 - it) }
}

/**
 * The state of one search, which plans at most [planned] generations.
 *
 * [pool]: candidates evaluated on all samples, by subnet, in evaluation order, the problem's known ones first.
 * [started]: subnets that a racing strategy evaluated on part of the samples, with their number. [generations] counts
 * groups, [stale] those since the best subnet changed.
 */
internal class SearchRun(val problem: SearchProblem, private val planned: Int) {
    val pool = LinkedHashMap<Subnet, Candidate>()
    val started = LinkedHashMap<Subnet, Int>()
    var generations = 0
        private set
    var stale = 0
    private var stopped = Stopped.DONE
    private var best: Candidate? = null
    private val startedS = problem.clock()

    init {
        problem.known.associateByTo(pool) { it.subnet }
        problem.progress.report(0, planned, "")
    }

    /** Evaluate the new subnets as one group and add them to the pool; false, adding none, if it was stopped. */
    fun evaluate(subnets: Iterable<Subnet>): Boolean {
        val new = subnets.distinct().filter { it !in pool }
        if (new.isEmpty()) return true
        val accuracies = try {
            problem.evaluator.accuracies(new, ::checkStop)
        } catch (_: EvaluationStopped) {
            return false
        }
        for ((subnet, accuracy) in new.zip(accuracies)) {
            started.remove(subnet)
            pool[subnet] = Candidate(Plan(subnet), problem.costModel.cost(subnet), accuracy)
        }
        return true
    }

    /** Count the generation, update [stale], and report the best. */
    fun finishGeneration() {
        val now = bestWithin(pool.values, problem.budget)
        generations++
        stale = if (now == best) stale + 1 else 0
        best = now
        problem.progress.report(generations, planned, now?.let(::remark).orEmpty())
    }

    private fun remark(best: Candidate): String {
        val accuracy = String.format(Locale.ROOT, "%.2f", 100 * best.accuracy)
        return "best $accuracy% at ${digits(best.cost.latencyMs)} ms"
    }

    /** Record and return whether the search must stop: cancelled, or out of time with a non-empty pool. */
    fun checkStop(): Boolean {
        if (problem.cancelled()) {
            stopped = Stopped.CANCELLED
        } else if (pool.isNotEmpty() && outOfTime()) {
            stopped = Stopped.TIME_LIMIT
        }
        return stopped != Stopped.DONE
    }

    private fun outOfTime(): Boolean = problem.timeLimitS.let { it != null && problem.clock() - startedS >= it }

    fun result(): SearchResult = SearchResult(
        best = bestWithin(pool.values, problem.budget),
        pool = pool.values.toList(),
        subnetsEvaluated = pool.size + started.size,
        generations = generations,
        seconds = problem.clock() - startedS,
        stopped = stopped,
    )
}

private const val COMPARABLE = 2.0 // log odds below the best: candidates further below are left out of the regression
private const val SLOPE_MEAN = 0.5 // prior: log odds lost at the median distance
private const val SLOPE_SPREAD = 1.0
private val LINE_SAMPLES = listOf(100_000, 10_000, 1_000, 100, 10) // grid: weight of the line, as a number of samples
private const val FAR = 30.0 // standard deviations beyond which a normal tail is taken as exponential
private const val OWN_NOISE = 0.25 // share of a candidate's sampling variance that is independent of the others
private const val LEAST_NOISE = 0.5 // squared correct answers: least variance, also of one that agrees with the model
private const val CAUTION = 0.5 // standard errors of its difference from a rung that a candidate loses
private const val ABOUT_AS_FAST = 1.05 // latencies of a candidate and the rung that it is compared with
private const val LARGER_FIRST = 1e-6 // accuracy by which the larger of two inputs that are equal otherwise comes first
private const val BEND = 0.3 // prior deviation of the line's common offset, relative to the candidates' mean loss

/** [result] with its candidates' expected accuracy, and the best by it. Evaluates nothing. */
public fun withExpectedAccuracies(result: SearchResult, problem: SearchProblem): SearchResult {
    val pool = expectedCandidates(result.pool, problem.supernet, problem.evaluator)
    return result.copy(pool = pool, best = bestWithin(pool, problem.budget))
}

/**
 * [candidates] with their expected accuracy, cautious where it would depart from the ladder.
 *
 * Differences below the sampling error would often lead away from a rung to something worse. So, of rungs that differ in
 * their input size alone, the larger input counts as at least as accurate, up to the model's own; and any other candidate loses half the
 * standard error of its difference from the best rung that is about as fast, or else from the fastest.
 */
public fun expectedCandidates(
    candidates: List<Candidate>,
    supernet: Supernet,
    evaluator: Evaluator,
): List<Candidate> {
    if (candidates.isEmpty()) return candidates
    val subnets = candidates.map { it.subnet }
    val all = 0 until evaluator.sampleCount
    val expected = expectedAccuracies(evaluator, subnets, all)
    val placeOf = subnets.withIndex().associate { (place, subnet) -> subnet to place }
    val rungs = mutableListOf<Int>() // places
    for (column in ladder(supernet)) {
        rungs += column.mapNotNull(placeOf::get)
        val places = upToOwnSize(column).mapNotNull(placeOf::get)
        val rising = neverFalling(places.map { expected[it] })
        for ((number, place) in places.withIndex()) expected[place] = rising[number] + LARGER_FIRST * number
    }
    if (rungs.isEmpty()) return candidates.mapIndexed { place, one -> one.copy(expected = expected[place]) }
    val latenciesMs = candidates.map { it.cost.latencyMs }
    val correct = evaluator.correct(subnets, all)
    val fastest = rungs.minBy(latenciesMs::get)
    return candidates.mapIndexed { place, one ->
        if (place in rungs) return@mapIndexed one.copy(expected = expected[place])
        val quick = rungs.filter { latenciesMs[it] <= ABOUT_AS_FAST * latenciesMs[place] }
        val rival = quick.ifEmpty { listOf(fastest) }.maxBy { expected[it] }
        val differing = correct[place].indices.count { correct[place][it] != correct[rival][it] }
        one.copy(expected = expected[place] - CAUTION * sqrt(differing + 1.0) / correct[place].size)
    }
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
 * Subnets far worse than the best keep their measured accuracy and do not affect the others.
 */
public fun expectedAccuracies(evaluator: Evaluator, subnets: List<Subnet>, samples: IntRange): DoubleArray {
    val correct = evaluator.correct(subnets, samples)
    val counts = correct.map { row -> row.count { it } }
    val measured = correct.indices.map { logOdds(counts[it].toDouble(), correct[it].size) }
    val near = measured.indices.filter { measured[it] >= measured.max() - COMPARABLE }
    val distances = evaluator.distances(near.map(subnets::get), samples)
    val full = evaluator.fullModelCorrect().sliceArray(samples)
    val odds = expectedLogOdds(near.map(correct::get), full, distances)
    val expected = DoubleArray(subnets.size) { counts[it].toDouble() / correct[it].size }
    for ((number, place) in near.withIndex()) expected[place] = 1 / (1 + exp(-odds[number]))
    return expected
}

/** [candidates], from the correctness of candidates [candidates, samples] and of the full model [samples]. */
internal fun expectedLogOdds(correct: List<BooleanArray>, full: BooleanArray, distances: DoubleArray): DoubleArray {
    val samples = full.size
    val reference = logOdds(full.count { it }.toDouble(), samples)
    val above = DoubleArray(correct.size) { at -> logOdds(correct[at].count { it }.toDouble(), samples) - reference }
    val typical = median(distances.toList()).let { if (it == 0.0) 1.0 else it }
    val scatter = scatter(correct, full)
    val root = cholesky(scatter)
    val far = solveLower(root, DoubleArray(distances.size) { distances[it] / typical })
    val seen = solveLower(root, above)
    val line = LINE_SAMPLES.map { line(far, seen, samples, it) }.maxBy { it.logLikelihood }.expected
    val expected = DoubleArray(line.size) { row ->
        var sum = 0.0
        for (at in 0..row) sum += root[row][at] * line[at]
        sum
    }
    val bend = (BEND * above.average()).let { it * it }
    val noise = scatter.sumOf { it.sum() } / (scatter.size * scatter.size) / samples
    val offset = bend / (bend + noise) * above.indices.sumOf { above[it] - expected[it] } / above.size
    return DoubleArray(expected.size) { reference + expected[it] + offset }
}

/**
 * Covariance, per sample, of the log odds relative to the full model: [candidates, candidates].
 *
 * Only samples on which a candidate and the full model differ in correctness contribute; candidates that differ on the
 * same samples are correlated.
 */
private fun scatter(correct: List<BooleanArray>, full: BooleanArray): Array<DoubleArray> {
    val samples = full.size
    val differing = correct.map { row -> row.indices.filter { row[it] != full[it] } }
    val slopes = correct.map { row ->
        val share = (row.count { it } + 0.5) / (samples + 1)
        share * (1 - share) // correct answers per sample and unit of log odds
    }
    return Array(correct.size) { row ->
        DoubleArray(correct.size) { column ->
            // where both differ from the full model, both are right or both are wrong
            var together = differing[row].count { correct[column][it] != full[it] }.toDouble()
            if (row == column) together = together * (1 / (1 - OWN_NOISE)) + LEAST_NOISE
            together / samples / (slopes[row] * slopes[column])
        }
    }
}

/** Posterior mean of the whitened log odds relative to the full model [candidates], and the fit's likelihood. */
private class Line(val expected: DoubleArray, val logLikelihood: Double)

/**
 * Bayesian regression of whitened log odds on whitened distances [candidates], through the full model.
 *
 * Candidates deviate from the line with the variance of [worth] samples.
 */
private fun line(distances: DoubleArray, above: DoubleArray, samples: Int, worth: Int): Line {
    val variance = 1.0 / samples + 1.0 / worth
    val precision = dot(distances, distances) / variance + 1 / (SLOPE_SPREAD * SLOPE_SPREAD)
    val peak = (SLOPE_MEAN / (SLOPE_SPREAD * SLOPE_SPREAD) - dot(distances, above) / variance) / precision
    val slope = meanAbove0(peak, 1 / sqrt(precision))
    val missed = above.indices.sumOf { val rest = above[it] + slope * distances[it]; rest * rest }
    val off = (slope - SLOPE_MEAN) / SLOPE_SPREAD
    val likelihood = -0.5 * missed / variance - 0.5 * above.size * ln(variance) - 0.5 * off * off
    val weight = samples.toDouble() / (samples + worth)
    val expected = DoubleArray(above.size) {
        val onLine = -slope * distances[it]
        onLine + weight * (above[it] - onLine)
    }
    return Line(expected, likelihood)
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
    val density = exp(-0.5 * below * below) / sqrt(2 * Math.PI)
    return peak + deviation * density / (0.5 * erfc(below / sqrt(2.0)))
}
