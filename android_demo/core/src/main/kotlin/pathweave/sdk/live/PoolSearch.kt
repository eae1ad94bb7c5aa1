/**
 * Searching for subnets at other latencies than an adaptation's budget, to have them when the device changes. Mirrors
 * device_sdk/live/pool_search.py.
 */
package pathweave.sdk.live

import pathweave.sdk.BudgetError
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.SplitMix64
import pathweave.sdk.data.Inputs
import pathweave.sdk.data.searchPositions
import pathweave.sdk.execution.Workspace
import pathweave.sdk.policies.AdaptationSettings
import pathweave.sdk.policies.makeEvaluator
import pathweave.sdk.policies.withPrior
import pathweave.sdk.search.Candidate
import pathweave.sdk.search.Evaluator
import pathweave.sdk.search.PrefixTreeEvaluator
import pathweave.sdk.search.SearchProblem
import pathweave.sdk.search.SearchProgress
import pathweave.sdk.search.digits
import pathweave.sdk.search.expectedCandidates
import pathweave.sdk.search.findSubnets
import pathweave.sdk.search.latencyRangeMs
import pathweave.sdk.search.makeStrategy
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.kCheapest

private const val LEAST_RUNG_S = 1.0
private val SILENT = SearchProgress { _, _, _ -> }

/**
 * Searches on the samples on which an adaptation with the same [settings] searches.
 *
 * [inputs] and [labels] [count] are the device's own, [prior] is that of the adaptation. Latencies are those of [costs].
 */
internal class PoolSearch(
    private val workspace: Workspace,
    private val costs: CostModel,
    private val inputs: Inputs,
    private val labels: IntArray,
    private val settings: AdaptationSettings,
    private val prior: Prior? = null,
) {
    private val positions = searchPositions(labels, settings.holdoutShare, settings.seed).first

    /**
     * Candidates all the way from the fastest subnet to the slowest, besides those near [budget] itself.
     *
     * Rungs are searched one by one and share what was evaluated; [timeLimitS] is for all of them together. The full
     * model and the fastest subnet always are among them.
     */
    fun fill(budget: Budget, timeLimitS: Double, progress: SearchProgress): List<Candidate> {
        val supernet = workspace.bundle.supernet
        val (fastestMs, slowestMs) = latencyRangeMs(supernet, costs)
        val rungs = rungsMs(fastestMs, slowestMs, checkNotNull(budget.latencyMs))
        val limitS = maxOf(LEAST_RUNG_S, timeLimitS / maxOf(1, rungs.size))
        val ends = listOf(supernet.original, kCheapest(supernet, costs::edgeLatencyMs, k = 1)[0].subnet)
        return evaluator().use { evaluator ->
            val found = evaluated(ends, evaluator).toMutableList()
            for ((number, rungMs) in rungs.withIndex()) {
                progress.report(number, rungs.size, "plan pool at ${digits(rungMs)} ms")
                try {
                    found += search(Budget(rungMs, budget.memoryMb), evaluator, limitS, settings.cancelled)
                } catch (_: BudgetError) {
                    progress.report(number, rungs.size, "the memory limit leaves nothing at ${digits(rungMs)} ms")
                }
            }
            withExpectations(found, evaluator)
        }
    }

    /**
     * What a search finds at and around [budget].
     *
     * @throws InfeasibleBudgetError no subnet fits.
     */
    fun search(budget: Budget, timeLimitS: Double, cancelled: () -> Boolean): List<Candidate> =
        evaluator().use { search(budget, it, timeLimitS, cancelled) }

    private fun search(
        budget: Budget,
        evaluator: Evaluator,
        timeLimitS: Double,
        cancelled: () -> Boolean,
    ): List<Candidate> {
        val problem = SearchProblem(
            workspace.bundle.supernet,
            costs,
            budget,
            evaluator,
            SplitMix64(settings.seed),
            progress = SILENT,
            timeLimitS = timeLimitS,
            cancelled = cancelled,
        )
        return withPrior(findSubnets(makeStrategy(settings.strategy), problem), prior).pool
    }

    /** All candidates of all rungs by one measure, so that the pool compares like with like. */
    private fun withExpectations(found: List<Candidate>, evaluator: Evaluator): List<Candidate> {
        val candidates = found.associateBy { it.subnet }.values.toList()
        return expectedCandidates(candidates, workspace.bundle.supernet, evaluator)
    }

    private fun evaluated(subnets: List<Subnet>, evaluator: Evaluator): List<Candidate> =
        subnets.zip(evaluator.accuracies(subnets)) { subnet, share ->
            Candidate(Plan(subnet).withPrior(prior), costs.cost(subnet), share)
        }

    private fun evaluator(): PrefixTreeEvaluator =
        makeEvaluator(workspace, costs, settings, inputs, labels, positions).also { it.usePrior(prior) }
}
