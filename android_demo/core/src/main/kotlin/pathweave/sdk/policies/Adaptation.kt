/**
 * Adapting to a device: search on private data, confirm by measuring, judge on data that the search did not see.
 *
 * Mirrors device_sdk/policies/adaptation.py.
 */
package pathweave.sdk.policies

import pathweave.sdk.BudgetError
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.InputError
import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.data.Inputs
import pathweave.sdk.data.SomeInputs
import pathweave.sdk.data.searchPositions
import pathweave.sdk.execution.LoadedSegments
import pathweave.sdk.execution.PagedEdges
import pathweave.sdk.execution.PlanSegment
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.eachEdge
import pathweave.sdk.execution.largestBatch
import pathweave.sdk.numerics.argmax
import pathweave.sdk.policies.planning.ExitsFinder
import pathweave.sdk.policies.planning.ExitsFound
import pathweave.sdk.profiling.Latency
import pathweave.sdk.profiling.Patience
import pathweave.sdk.profiling.Profile
import pathweave.sdk.profiling.measureSubnets
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.search.Candidate
import pathweave.sdk.search.DEFAULT_STRATEGY
import pathweave.sdk.search.Evaluator
import pathweave.sdk.search.PrefixTreeEvaluator
import pathweave.sdk.search.SearchProblem
import pathweave.sdk.search.SearchResult
import pathweave.sdk.search.Stopped
import pathweave.sdk.search.bestWithin
import pathweave.sdk.search.digits
import pathweave.sdk.search.findSubnets
import pathweave.sdk.search.makeStrategy
import pathweave.sdk.search.rows
import pathweave.sdk.search.smallestSubnet
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.MB
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.nbytes

private const val SEARCH_S = 20.0
private val CONFIRM_PATIENCE = Patience(rounds = 80, precision = 0.01, limitS = 2.5, least = 15)
private const val CONFIRM_ATTEMPTS = 8
private const val MOST_DRIFT = 1.15 // in either direction, between the profile and the confirmation
private const val EQUAL_LATENCY = 1.02 // latencies within 2 % are equal: two sessions of one model differ by that

/**
 * What an adaptation found. Latencies are medians at batch 1; accuracies are shares of right answers.
 *
 * [accuracyHoldout] and [fullAccuracyHoldout] (the full model's) are on the [holdoutSamples] that the search did not
 * see; null without any. [fullMeasuredMs] was measured in turns with [measuredMs]; under a memory cap that has no room
 * for both, alone, and in pages if need be.
 */
public data class Adaptation(
    val plan: Plan,
    val budget: Budget,
    val predictedMs: Double,
    val measuredMs: Double,
    val fullMeasuredMs: Double,
    val predictedPeakBytes: Long,
    val accuracySearch: Double,
    val accuracyHoldout: Double?,
    val fullAccuracyHoldout: Double?,
    val searchSamples: Int,
    val holdoutSamples: Int,
    val subnetsEvaluated: Int,
    val seconds: Double,
    val stopped: Stopped,
    val pool: List<Candidate>,
) {
    /** The chosen subnet. */
    val subnet: Subnet get() = plan.subnet

    /** Measured latency over the full model's, same run. */
    val measuredRatio: Double get() = measuredMs / fullMeasuredMs
}

/**
 * How to adapt. The defaults suit a few hundred private samples.
 *
 * [timeLimitS]: for the search, after which the best so far is taken; null to let it end by itself. [batch]: samples
 * evaluated together at most; fewer where the tensors between two blocks would take more than [batchBytes].
 * [cacheBytes]: of features that are kept to be used again. [useExits]: let the subnets of the search compete with and
 * without exits; the budget then limits the mean latency. [cancelled]: ends the search, whose best so far is then
 * taken.
 *
 * @throws UsageError the batch is not above zero.
 */
public data class AdaptationSettings(
    val strategy: String = DEFAULT_STRATEGY,
    val holdoutShare: Double = 0.3,
    val seed: Long = 0,
    val batch: Int = 64,
    val batchBytes: Long = 32_000_000,
    val cacheBytes: Long = 64_000_000,
    val timeLimitS: Double? = SEARCH_S,
    val useExits: Boolean = false,
    val cancelled: () -> Boolean = { false },
) {
    init {
        if (batch < 1) throw UsageError("batch is $batch; it must be at least 1")
    }
}

/** What an adaptation is doing. */
public enum class AdaptationStage { PROFILE, SEARCH, CONFIRM, JUDGE }

/** How far a stage is: [share] of it, 0 to 1, and a short remark, which may be empty. */
public data class AdaptationProgress(val stage: AdaptationStage, val share: Double, val note: String = "")

/**
 * Finds plans for [bundle] on [runtime], blocking. [onProgress] may throw to give up. Under [memoryCapBytes], which
 * [profile] was made under, subnets that would run in pages are left out if there is any that would not; where all
 * would, the candidates are measured in pages. All that is loaded keeps to the cap.
 */
internal class PlanFinder(
    private val bundle: Bundle,
    private val runtime: Runtime,
    private val profile: Profile,
    private val settings: AdaptationSettings,
    private val memoryCapBytes: Long? = null,
    private val onProgress: (AdaptationProgress) -> Unit = {},
) {
    private val supernet = bundle.supernet
    private val costModel = profile.costModel()
    private val workspace = Workspace(bundle, runtime, memoryCapBytes)

    /**
     * Find the most accurate subnet within [limits], and the memory cap, on [inputs] with [labels] [count].
     *
     * 1. without labels, the full model's answers stand in; 2. hold some samples back; 3. search on the others, and say
     * what is to be expected of the candidates elsewhere; 4. confirm the best of them by measuring; 5. judge the chosen
     * one on what was held back.
     *
     * @throws InfeasibleBudgetError no subnet fits; names the nearest.
     * @throws BudgetError the search was stopped before it had anything, or the cap is too small for the largest block.
     * @throws InputError there are no inputs, or labels do not match them or the classes.
     */
    fun find(inputs: Inputs, labels: IntArray?, limits: Budget): Adaptation {
        val startedNs = System.nanoTime()
        val budget = withinCap(supernet, costModel, limits, memoryCapBytes)
        if (inputs.count == 0) throw InputError("there are no samples to adapt on")
        val targets = labels ?: standInLabels(workspace, inputs, settings.batch)
        checkLabels(targets, inputs)
        val (kept, held) = searchPositions(targets, settings.holdoutShare, settings.seed)
        val (found, confirmed) = makeEvaluator(workspace, costModel, settings, inputs, targets, kept).use { evaluator ->
            searchAndConfirm(problem(evaluator, budget), evaluator)
        }
        val chosen = confirmed.candidate
        onProgress(AdaptationProgress(AdaptationStage.JUDGE, 0.0))
        val judged = judge(inputs, targets, held, listOf(chosen.subnet, supernet.original))
        val adaptation = Adaptation(
            plan = chosen.plan,
            budget = budget,
            predictedMs = chosen.cost.latencyMs,
            measuredMs = confirmed.measuredMs,
            fullMeasuredMs = confirmed.fullMeasuredMs,
            predictedPeakBytes = chosen.cost.peakBytes,
            accuracySearch = chosen.accuracy,
            accuracyHoldout = judged[0],
            fullAccuracyHoldout = judged[1],
            searchSamples = kept.size,
            holdoutSamples = held.size,
            subnetsEvaluated = found.subnetsEvaluated,
            seconds = (System.nanoTime() - startedNs) / 1e9,
            stopped = found.stopped,
            pool = found.pool,
        )
        if (!settings.useExits) return adaptation
        val mostMs = budget.latencyMs?.let { it * EQUAL_LATENCY } ?: Double.POSITIVE_INFINITY
        val finder = ExitsFinder(workspace, costModel, settings.batch) {
            onProgress(AdaptationProgress(AdaptationStage.JUDGE, it))
        }
        val exits = finder.find(found.pool, budget, inputs, targets, held, mostMs) ?: return adaptation
        return withExits(adaptation, exits).copy(seconds = (System.nanoTime() - startedNs) / 1e9)
    }

    /** The adaptation whose plan is the one with exits; its subnet is in the pool, so that it can be watched. */
    private fun withExits(adaptation: Adaptation, found: ExitsFound): Adaptation {
        val subnet = found.plan.subnet
        val added = Candidate(Plan(subnet), costModel.cost(subnet), found.accuracy)
        return adaptation.copy(
            plan = found.plan,
            predictedMs = found.predictedMs,
            measuredMs = found.meanMs,
            predictedPeakBytes = found.peakBytes,
            accuracySearch = found.accuracy,
            accuracyHoldout = found.accuracyHeldOut,
            holdoutSamples = found.judged,
            pool = if (adaptation.pool.any { it.subnet == subnet }) adaptation.pool else adaptation.pool + added,
        )
    }

    private fun problem(evaluator: Evaluator, budget: Budget) = SearchProblem(
        supernet,
        costModel,
        budget,
        evaluator,
        SplitMix64(settings.seed),
        progress = { done, total, note ->
            onProgress(AdaptationProgress(AdaptationStage.SEARCH, done.toDouble() / total, note))
        },
        timeLimitS = settings.timeLimitS,
        cancelled = settings.cancelled,
    )

    private fun checkLabels(labels: IntArray, inputs: Inputs) {
        if (labels.size != inputs.count) throw InputError("there are ${inputs.count} samples and ${labels.size} labels")
        val classes = bundle.manifest.task.classNames.size
        if (labels.min() < 0 || labels.max() >= classes) {
            throw InputError("labels must lie between 0 and ${classes - 1}, got ${labels.min()} to ${labels.max()}")
        }
    }

    /**
     * What a search finds, and the best of it that measures within the budget.
     *
     * Where nothing does, since all is slower here than predicted, the search runs once more within a budget that is
     * tighter by as much.
     *
     * @throws InfeasibleBudgetError nothing measures within the budget.
     */
    private fun searchAndConfirm(
        problem: SearchProblem,
        evaluator: PrefixTreeEvaluator,
    ): Pair<SearchResult, Confirmed> {
        fun searched(problem: SearchProblem) = findSubnets(makeStrategy(settings.strategy), problem)

        fun confirmed(found: SearchResult): Confirmed {
            evaluator.release()
            return confirm(found, problem.budget)
        }
        val first = searched(problem)
        return try {
            first to confirmed(first)
        } catch (error: InfeasibleBudgetError) {
            val limitMs = problem.budget.latencyMs
            if (limitMs == null || error.nearestLatencyMs <= limitMs) throw error
            val tighter = Budget(limitMs * limitMs / error.nearestLatencyMs, problem.budget.memoryMb)
            val again = try {
                searched(problem.within(tighter))
            } catch (_: InfeasibleBudgetError) {
                throw error
            }
            again to confirmed(again)
        }
    }

    private class Confirmed(val candidate: Candidate, val measuredMs: Double, val fullMeasuredMs: Double)

    /**
     * Measure the best candidate in turns with the full model; while one is too slow, expect more of the others.
     *
     * Predictions are right to a few percent. A candidate that measures above the budget tightens the predicted budget
     * of the next one by the same ratio. The limit itself is relaxed only by 2 %. By how much the full model's latency
     * differs from that of the profile is speed drift of the device, which is cancelled within 15 %.
     */
    private fun confirm(found: SearchResult, budget: Budget): Confirmed {
        var wanted = budget
        val rejected = HashSet<Subnet>()
        var fastest: Confirmed? = null
        for (attempt in 0 until CONFIRM_ATTEMPTS) {
            onProgress(AdaptationProgress(AdaptationStage.CONFIRM, attempt.toDouble() / CONFIRM_ATTEMPTS))
            val candidate = bestWithin(found.pool.filter { it.subnet !in rejected }, wanted) ?: break
            val (full, own) = measure(listOf(supernet.original, candidate.subnet))
            val confirmed = Confirmed(candidate, own.medianMs, full.medianMs)
            val drift = (full.medianMs / profile.originalMs).coerceIn(1 / MOST_DRIFT, MOST_DRIFT)
            if (budget.fitsLatency(own.medianMs / drift / EQUAL_LATENCY)) return confirmed
            rejected += candidate.subnet
            if (fastest == null || confirmed.measuredMs < fastest.measuredMs) fastest = confirmed
            val slower = own.medianMs / drift / candidate.cost.latencyMs
            wanted = Budget(budget.latencyMs?.let { it / maxOf(slower, 1.0) }, budget.memoryMb)
        }
        throw nothingConfirmed(budget, fastest)
    }

    private fun measure(subnets: List<Subnet>): List<Latency> =
        measureSubnets(workspace, subnets, CONFIRM_PATIENCE.rounds, patience = CONFIRM_PATIENCE)

    private fun nothingConfirmed(budget: Budget, fastest: Confirmed?): BudgetError {
        if (fastest == null) {
            return BudgetError("the search was stopped before it had looked at a subnet within the budget")
        }
        val (limit, took) = digits(budget.latencyMs ?: 0.0) to digits(fastest.measuredMs)
        return InfeasibleBudgetError(
            "no subnet ran in $limit ms; the fastest candidate took $took ms",
            nearest = fastest.candidate.subnet.edges.map { it.block },
            nearestLatencyMs = fastest.measuredMs,
            nearestPeakBytes = fastest.candidate.cost.peakBytes,
            hint = "allow at least ${digits(fastest.measuredMs * 1.05)} ms, or quieten the device",
        )
    }

    /** Accuracies on held-back samples; null without any. */
    private fun judge(inputs: Inputs, labels: IntArray, held: List<Int>, subnets: List<Subnet>): List<Double?> =
        if (held.isEmpty()) subnets.map { null }
        else makeEvaluator(workspace, costModel, settings, inputs, labels, held).use { it.accuracies(subnets) }
}

/**
 * Evaluates subnets on the samples of [inputs] with [labels] at [positions].
 *
 * Batches are small where features are large. Under a memory cap, edges leave memory for others, features get at most
 * half of what the largest edge leaves, and batches are as large as then fits.
 */
internal fun makeEvaluator(
    workspace: Workspace,
    costModel: CostModel,
    settings: AdaptationSettings,
    inputs: Inputs,
    labels: IntArray,
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
    val (some, chosen) = SomeInputs(inputs, positions) to IntArray(positions.size) { labels[positions[it]] }
    return PrefixTreeEvaluator(bundle.supernet, load, some, chosen, costModel, batch, cacheBytes)
}

/** The full model's answers to [inputs], in place of labels; under a memory cap in pages and batches that fit. */
internal fun standInLabels(workspace: Workspace, inputs: Inputs, batch: Int): IntArray {
    val whole = listOf(PlanSegment(workspace.bundle.supernet.original.edges, null))
    val fitting = workspace.largestBatch(whole, wanted = batch)
    return LoadedSegments(workspace, whole, batch = fitting).use { loaded ->
        val stretch = checkNotNull(loaded.stretches[0])
        (0 until inputs.count).chunked(fitting).flatMap { positions ->
            rows(stretch.run(listOf(inputs.take(positions, null))).last()).map(::argmax)
        }.toIntArray()
    }
}

/** [budget] with the memory cap as its limit, so that no subnet in pages fits; unless there are only such. */
internal fun withinCap(supernet: Supernet, costs: CostModel, budget: Budget, memoryCapBytes: Long?): Budget {
    if (memoryCapBytes == null) return budget
    val limitMb = minOf(memoryCapBytes.toDouble() / MB, budget.memoryMb ?: Double.POSITIVE_INFINITY)
    val capped = Budget(budget.latencyMs, limitMb)
    return if (capped.fitsMemory(costs.peakBytes(smallestSubnet(supernet, costs)))) capped else budget
}

/** The settings' batch, or half as many samples again and again until the tensors at a block's ends fit. */
internal fun batchWithin(supernet: Supernet, settings: AdaptationSettings): Int {
    val largestBytes = supernet.edges.filter { it.inputSize == null }.maxOf { edge ->
        val (start, end) = supernet.ends(edge)
        start.nbytes + end.nbytes
    }
    return generateSequence(settings.batch) { it / 2 }.first { it <= 1 || it * largestBytes <= settings.batchBytes }
}
