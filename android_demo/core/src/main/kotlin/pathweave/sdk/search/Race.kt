/** Racing: subnets are evaluated on a growing share of the samples, and unpromising ones are dropped early. */
package pathweave.sdk.search

import java.util.Locale
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet

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
            if (!unlessStopped { evaluator.scores(group, 0 until stage, run::checkStop) }) return false
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
        val finished = run.pool.keys.toList()
        val chances = smoothed(evaluator, finished, 0 until count)
        val counts = chances.map { it.sum() }
        val rows = counts.indices.sortedBy { -counts[it] }.take(COMPARED).map(chances::get)
        val noise = if (rows.size > 1) unsharedNoise(rows) else 1.0
        val observations = finished.zip(counts) { subnet, own -> Observation(subnet, own, count, noise) }.toMutableList()
        for (stage in stages.dropLast(1)) {
            val atStage = run.started.filterValues { it == stage }.keys.toList().takeLast(REMEMBERED)
            if (atStage.isEmpty()) continue
            val (rest, unseen) = extrapolated(rows.map { it.sliceArray(stage until count) }, count - stage)
            observations += atStage.zip(smoothed(evaluator, atStage, 0 until stage)) { subnet, row ->
                Observation(subnet, row.sum() + rest, count, noise, unseen)
            }
        }
        return observations
    }
}

/** Mean and variance of another subnet's number of correct answers, given chances of others [subnets, samples]. */
private fun extrapolated(chances: List<DoubleArray>, samples: Int): Pair<Double, Double> {
    val average = (chances.sumOf { it.sum() } + 0.5) / (chances.size * samples + 1)
    val perSample = DoubleArray(samples) { at -> (chances.sumOf { it[at] } + average) / (chances.size + 1) }
    val squares = (0 until samples).sumOf { at -> (chances.sumOf { it[at] * it[at] } + average) / (chances.size + 1) }
    return perSample.sum() to squares - perSample.sumOf { it * it }
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

    /**
     * Evaluate the new subnets as one group and add them to the pool; false, adding none, if it was stopped. [atAnyTime]:
     * the time limit does not stop it.
     */
    fun evaluate(subnets: Iterable<Subnet>, atAnyTime: Boolean = false): Boolean {
        val new = subnets.distinct().filter { it !in pool }
        if (new.isEmpty()) return true
        val accuracies = try {
            problem.evaluator.accuracies(new, if (atAnyTime) ::checkCancelled else ::checkStop)
        } catch (_: EvaluationStopped) {
            return false
        }
        for ((subnet, accuracy) in new.zip(accuracies)) {
            started.remove(subnet)
            pool[subnet] = Candidate(Plan(subnet), problem.costModel.cost(subnet), accuracy)
        }
        return true
    }

    fun fits(subnet: Subnet): Boolean = problem.budget.fits(problem.costModel.cost(subnet))

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
        if (!checkCancelled() && pool.isNotEmpty() && outOfTime()) stopped = Stopped.TIME_LIMIT
        return stopped != Stopped.DONE
    }

    private fun checkCancelled(): Boolean {
        if (problem.cancelled()) stopped = Stopped.CANCELLED
        return stopped == Stopped.CANCELLED
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
