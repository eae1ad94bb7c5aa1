/** Racing: subnets are evaluated on a growing share of the samples, and unpromising ones are dropped early. */
package pathweave.sdk.search

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

    /** The samples of the first stage. */
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
