/** Proposing subnets: a search on private data, the ladder first, aimed by measurements. */
package pathweave.sdk.policies

import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.SplitMix64
import pathweave.sdk.data.Inputs
import pathweave.sdk.data.SomeInputs
import pathweave.sdk.execution.PagedEdges
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.eachEdge
import pathweave.sdk.execution.largestBatch
import pathweave.sdk.profiling.Profile
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.search.PrefixTreeEvaluator
import pathweave.sdk.search.SearchProblem
import pathweave.sdk.search.SearchResult
import pathweave.sdk.search.Stopped
import pathweave.sdk.search.climb
import pathweave.sdk.search.fastestWithin
import pathweave.sdk.search.findSubnets
import pathweave.sdk.search.largestFirst
import pathweave.sdk.search.makeStrategy
import pathweave.sdk.search.rungsNear
import pathweave.sdk.search.smallestSubnet
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.MB
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.nbytes
import pathweave.sdk.tasks.Targets
import pathweave.sdk.tasks.answerTask

private const val MOST_WORKERS = 4 // each needs working memory, and an app wants cores too
private const val LOWER_AIMS = 3 // searches after the first one, each within a lower budget
private const val CONFIRM_TURNS = 8

/** The pool of a search, judged under [prior]. */
internal class SubnetsFound(val result: SearchResult, val prior: Prior?)

/**
 * A search for accurate subnets within [goal]'s budget on the samples of [inputs] with [targets] at [positions].
 *
 * The full model and the rungs of the ladder near the budget are measured first, so that the search aims at what really
 * fits. Without a latency limit, it goes for what is faster than the fastest rung that is accurate enough.
 *
 * Under the memory cap of [workspace], subnets that would run in pages are left out if there is any that would not
 * ([withinCap]): [profile], made under the same cap, does not include paging.
 */
internal class SubnetSearch(
    private val workspace: Workspace,
    profile: Profile,
    private val goal: Goal,
    inputs: Inputs,
    targets: Targets,
    positions: List<Int>,
    private val settings: AdaptationSettings,
    measure: Measure?,
    private val onProgress: (AdaptationProgress) -> Unit,
) : AutoCloseable {
    private val supernet = workspace.bundle.supernet
    private val named = profile.costModel()
    private val costs = atBestHomes(workspace, named, goal.threads) // edges name no home
    private val budget = withinCap(supernet, costs, goal.budget, workspace.memoryCapBytes)
    private val evaluator = makeEvaluator(workspace, costs, settings, inputs, targets, positions)

    /** Measures subnets. Under a memory cap, what is measured may take all of it: the search holds nothing loaded then. */
    val confirmation = Confirmation(
        supernet.original,
        named,
        budget,
        (measure ?: pacedMeasure(workspace, budget)).let { if (workspace.memoryCapBytes == null) it else alone(it, evaluator) },
        originalMs = profile.originalMs,
        overheadMs = profile.callOverheadMs,
        onTurn = { onProgress(AdaptationProgress(AdaptationStage.CONFIRM, it.toDouble() / CONFIRM_TURNS)) },
    )

    override fun close() = evaluator.close()

    /**
     * Estimates the mix of classes of the samples, if [estimatesPrior], or else takes [prior], and searches.
     *
     * @throws InfeasibleBudgetError no subnet fits; names the nearest.
     * @throws pathweave.sdk.BudgetError the search was stopped before it had anything, or the cap is too small.
     */
    fun find(prior: Prior?, estimatesPrior: Boolean): SubnetsFound {
        val mix = if (estimatesPrior) estimatedPrior() else prior
        evaluator.usePrior(mix)
        val problem = SearchProblem(
            supernet,
            costs,
            confirmation.budget,
            evaluator,
            SplitMix64(settings.seed),
            progress = { done, total, note ->
                onProgress(AdaptationProgress(AdaptationStage.SEARCH, done.toDouble() / total, note))
            },
            timeLimitS = settings.timeLimitS,
            cancelled = settings.cancelled,
        )
        val limited = goal.limitsLatency || goal.isBudget
        val found = search(if (limited) problem else belowFastestRung(problem), aims = limited)
        return SubnetsFound(withPrior(atNamedHomes(found, costs, named), mix), mix)
    }

    private fun estimatedPrior(): Prior? {
        val prior = evaluator.fullModelLogits().let { (logits, known) -> findPrior(logits, known) }
        evaluator.release() // the full model is not needed again soon
        return prior
    }

    /** With the latency of the fastest rung that is accurate enough, or of the full model, as its budget. */
    private fun belowFastestRung(problem: SearchProblem): SearchProblem {
        val climbed = climb(problem)
        val enough = climbed.known.filter { it.accuracy >= (goal.accuracy ?: 1.0) }.map { it.cost.latencyMs }
        return climbed.with(problem.budget.copy(latencyMs = enough.minOrNull() ?: costs.latencyMs(supernet.original)))
    }

    /**
     * Search within the budget in terms of predictions; where nothing is predicted to fit, the fastest subnet is measured,
     * and if it may keep the budget, its neighbourhood is searched.
     */
    private fun search(problem: SearchProblem, aims: Boolean): SearchResult {
        val near = rungsNear(supernet, costs, problem.budget)
        fun aimed() = confirmation.aim(near.map(costs::housed), largestFirst(supernet, near).map(costs::housed))
        val aimed = if (aims) aimed() else problem.budget
        return try {
            searchAimed(problem.with(budget = aimed))
        } catch (error: InfeasibleBudgetError) {
            val fastest = fastestWithin(supernet, costs, aimed.memoryMb) ?: throw error
            confirmation.requireChance(costs.housed(fastest), costs.peakBytes(fastest))
            val nearest = aimed.copy(latencyMs = costs.latencyMs(fastest) * EQUAL_LATENCY)
            findSubnets(makeStrategy(settings.strategy), problem.with(budget = nearest))
        }
    }

    /**
     * Search within the budget of [first], and again within a lower one where that was too high for what was found.
     *
     * Each search looks at one new subnet at least, also when time is up.
     */
    private fun searchAimed(first: SearchProblem): SearchResult {
        val startedS = first.clock()
        var problem = first
        var found = findSubnets(makeStrategy(settings.strategy), problem)
        repeat(LOWER_AIMS) {
            if (found.stopped == Stopped.CANCELLED) return found
            val lower = confirmation.aimLower(found.pool, problem.budget) ?: return found
            val leftS = first.timeLimitS?.let { maxOf(0.0, it - (problem.clock() - startedS)) }
            problem = problem.with(lower, leftS, found.pool)
            found = try {
                findSubnets(makeStrategy(settings.strategy), problem)
            } catch (_: InfeasibleBudgetError) { // what is known stays
                return found
            }
        }
        return found
    }
}

/** The same with [prior] in the plans of all candidates, which were judged under it. */
internal fun withPrior(found: SearchResult, prior: Prior?): SearchResult {
    val pool = found.pool.map { it.copy(plan = it.plan.withPrior(prior)) }
    return found.copy(best = pool.find { it.subnet == found.best?.subnet }, pool = pool)
}

/** [measure] with nothing loaded for [evaluator]. */
private fun alone(measure: Measure, evaluator: PrefixTreeEvaluator): Measure = { subnets, asServed ->
    evaluator.release()
    measure(subnets, asServed)
}

/** [budget] with the memory cap as its limit, so that no subnet in pages fits; unless there are only such. */
internal fun withinCap(supernet: Supernet, costs: CostModel, budget: Budget, capBytes: Long?): Budget {
    if (capBytes == null) return budget
    val capped = budget.copy(memoryMb = minOf(capBytes.toDouble() / MB, budget.memoryMb ?: Double.POSITIVE_INFINITY))
    return if (capped.fitsMemory(costs.peakBytes(smallestSubnet(supernet, costs)))) capped else budget
}

/**
 * Evaluates subnets on the samples of [inputs] with [targets] at [positions].
 *
 * Batches are small where features are large. Under a memory cap, edges leave memory for others, features get at most
 * half of what the largest edge leaves, batches are as large as then fits, and one is evaluated at a time.
 */
internal fun makeEvaluator(
    workspace: Workspace,
    costModel: CostModel,
    settings: AdaptationSettings,
    inputs: Inputs,
    targets: Targets,
    positions: List<Int>,
): PrefixTreeEvaluator {
    val (bundle, runtime, capBytes) = workspace
    val cacheBytes = workspace.roomForFeatures(settings.cacheBytes)
    var batch = batchWithin(bundle.supernet, settings)
    var load: (Edge) -> LoadedStretch = { edge -> runtime.load(bundle.stretch(listOf(edge), anySize = true)) }
    if (capBytes != null) {
        val roomBytes = capBytes - cacheBytes
        batch = largestBatch(bundle, eachEdge(bundle), roomBytes, wanted = batch)
        load = PagedEdges(bundle, runtime, roomBytes, batch)::load
    }
    val (some, chosen) = SomeInputs(inputs, positions) to targets.at(positions)
    val workers = if (capBytes != null) 1 else settings.workers ?: minOf(runtime.concurrency, MOST_WORKERS)
    val task = answerTask(bundle.manifest.task)
    return PrefixTreeEvaluator(bundle.supernet, load, some, chosen, costModel, batch, cacheBytes, workers, task)
}

/** The settings' batch, or half as many samples again and again until the tensors at a block's ends fit. */
internal fun batchWithin(supernet: Supernet, settings: AdaptationSettings): Int {
    val largestBytes = supernet.edges.filter { it.inputSize == null }.maxOf { edge ->
        val (start, end) = supernet.ends(edge)
        start.nbytes + end.nbytes
    }
    return generateSequence(settings.batch) { it / 2 }.first { it <= 1 || it * largestBytes <= settings.batchBytes }
}
