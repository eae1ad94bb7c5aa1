/** State that all strategies share: the pool, the best so far, elapsed time and the stop reason. */
package pathweave.sdk.search

import java.util.Locale
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet

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

    /** The pool, best first; candidates over the budget come after all that fit. */
    fun ranked(): List<Candidate> = pool.values
        .sortedWith(compareBy<Candidate> { !problem.budget.fits(it.cost) }.then(BY_EXPECTED_ACCURACY))

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

    /** The result so far. */
    fun result(): SearchResult = SearchResult(
        best = bestWithin(pool.values, problem.budget),
        pool = pool.values.toList(),
        subnetsEvaluated = pool.size + started.size,
        generations = generations,
        seconds = problem.clock() - startedS,
        stopped = stopped,
    )
}
