/**
 * Adapting to a device: search on private data, confirm by measuring, judge on data that the search did not see.
 *
 * Mirrors device_sdk/policies/adaptation.py.
 */
package pathweave.sdk.policies

import kotlin.math.sqrt
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.InputError
import pathweave.sdk.NANOSECONDS_PER_MS
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
import pathweave.sdk.execution.corrected
import pathweave.sdk.execution.eachEdge
import pathweave.sdk.execution.largestBatch
import pathweave.sdk.numerics.argmax
import pathweave.sdk.numerics.median
import pathweave.sdk.policies.planning.ExitsFinder
import pathweave.sdk.policies.planning.ExitsFound
import pathweave.sdk.profiling.Profile
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.search.Candidate
import pathweave.sdk.search.DEFAULT_STRATEGY
import pathweave.sdk.search.Evaluator
import pathweave.sdk.search.PrefixTreeEvaluator
import pathweave.sdk.search.SearchProblem
import pathweave.sdk.search.SearchResult
import pathweave.sdk.search.Stopped
import pathweave.sdk.search.fastestWithin
import pathweave.sdk.search.findSubnets
import pathweave.sdk.search.makeStrategy
import pathweave.sdk.search.rows
import pathweave.sdk.search.rungsNear
import pathweave.sdk.search.smallestSubnet
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.MB
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.nbytes

private const val SEARCH_S = 20.0
private const val PREPARED = 5 // images that preparing is timed on
private const val CONFIRM_TURNS = 8

/**
 * What an adaptation found. Latencies are medians at batch 1; accuracies are shares of right answers.
 *
 * [accuracyHoldout] and [fullAccuracyHoldout] (the full model's) are on the [holdoutSamples] that the search did not
 * see; null without any. [accuracyInterval]: 95 % of the accuracy on new samples like these. [measuredMs] is what the
 * application sees when nothing else runs, at the budget's percentile, without preparing the image, which takes
 * [prepareMs]; [medianMs]: at the median; [measuredIntervalMs]: 95 % of [measuredMs]; [withinBudgetProbability]: that it
 * keeps the budget. [fullMeasuredMs]: of the full model in the same circumstances; under a memory cap without room for
 * both, alone, and in pages if need be. [slowdown]: of the device during the measurement, over quiet. [budget] is the one
 * that was kept, in milliseconds.
 */
public data class Adaptation(
    val plan: Plan,
    val budget: Budget,
    val predictedMs: Double,
    val measuredMs: Double,
    val medianMs: Double,
    val measuredIntervalMs: Pair<Double, Double>,
    val withinBudgetProbability: Double,
    val fullMeasuredMs: Double,
    val slowdown: Double,
    val prepareMs: Double,
    val predictedPeakBytes: Long,
    val accuracySearch: Double,
    val accuracyInterval: Pair<Double, Double>,
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
 * taken. [usePrior]: estimate the mix of classes of the samples, and correct all answers by it if that is certain to help.
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
    val usePrior: Boolean = true,
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
 * would, the candidates are measured in pages. All that is loaded keeps to the cap. [measure]: how latencies are taken,
 * by default on this device.
 */
internal class PlanFinder(
    private val bundle: Bundle,
    private val runtime: Runtime,
    private val profile: Profile,
    private val settings: AdaptationSettings,
    private val memoryCapBytes: Long? = null,
    private val measure: Measure? = null,
    private val onProgress: (AdaptationProgress) -> Unit = {},
) {
    private val supernet = bundle.supernet
    private val costModel = profile.costModel()
    private val workspace = Workspace(bundle, runtime, memoryCapBytes)

    /**
     * Find the most accurate subnet within [limits], and the memory cap, on [inputs] with [labels] [count].
     *
     * 1. without labels, the full model's answers stand in; 2. hold some samples back; 3. measure the full model and the
     * rungs of the ladder near the budget, so that the search aims at what really fits; 4. search on the other samples,
     * the ladder first; 5. confirm the best candidate by measuring (Confirmation.kt); 6. judge it on what was held back.
     *
     * @throws InfeasibleBudgetError no subnet fits; names the nearest.
     * @throws pathweave.sdk.BudgetError the search was stopped before it had anything, or the cap is too small for the largest block.
     * @throws InputError there are no inputs, or labels do not match them or the classes.
     */
    fun find(inputs: Inputs, labels: IntArray?, limits: Budget): Adaptation {
        val startedNs = System.nanoTime()
        val wanted = withinCap(supernet, costModel, limits, memoryCapBytes)
        if (inputs.count == 0) throw InputError("there are no samples to adapt on")
        var prior: Prior? = null
        val targets = labels ?: standInLabels(workspace, inputs, settings.batch, settings.usePrior).let { (found, mix) ->
            found.also { prior = mix }
        }
        checkLabels(targets, inputs)
        val (kept, held) = searchPositions(targets, settings.holdoutShare, settings.seed)
        val confirmation = confirmation(wanted)
        val budget = confirmation.budget
        val (found, confirmed) = makeEvaluator(workspace, costModel, settings, inputs, targets, kept).use { evaluator ->
            if (settings.usePrior && labels != null) {
                prior = evaluator.fullModelLogits().let { (logits, known) -> findPrior(logits, known) }
                evaluator.release() // rungs are loaded next, alone under the cap
            }
            evaluator.usePrior(prior)
            val found = withPrior(search(problem(evaluator, budget), confirmation), prior)
            evaluator.release() // whole subnets are loaded now, alone under the cap
            found to confirmation.best(found.pool)
        }
        val chosen = confirmed.candidate
        onProgress(AdaptationProgress(AdaptationStage.JUDGE, 0.0))
        val judged = judge(inputs, targets, held, listOf(chosen.subnet, supernet.original), prior)
        val adaptation = Adaptation(
            plan = chosen.plan,
            budget = budget,
            predictedMs = chosen.cost.latencyMs,
            measuredMs = confirmed.measuredMs,
            medianMs = confirmed.medianMs,
            measuredIntervalMs = confirmed.intervalMs,
            withinBudgetProbability = confirmed.probability,
            fullMeasuredMs = confirmed.fullMs,
            slowdown = confirmed.slowdown,
            prepareMs = prepareMs(inputs, chosen.subnet),
            predictedPeakBytes = chosen.cost.peakBytes,
            accuracySearch = chosen.accuracy,
            accuracyInterval = wilson(chosen.expectedAccuracy, inputs.count),
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
        val finder = ExitsFinder(workspace.copy(prior = prior), costModel, settings.batch) {
            onProgress(AdaptationProgress(AdaptationStage.JUDGE, it))
        }
        val exits = finder.find(found.pool, budget, inputs, targets, held, mostMs) ?: return adaptation
        return withExits(adaptation, exits).copy(seconds = (System.nanoTime() - startedNs) / 1e9)
    }

    /** The adaptation whose plan is the one with exits; its subnet is in the pool, so that it can be watched. */
    private fun withExits(adaptation: Adaptation, found: ExitsFound): Adaptation {
        val (subnet, prior) = found.plan.subnet to adaptation.plan.prior
        val added = Candidate(Plan(subnet).withPrior(prior), costModel.cost(subnet), found.accuracy)
        return adaptation.copy(
            plan = found.plan.withPrior(prior),
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

    private fun confirmation(wanted: Budget) = Confirmation(
        supernet.original,
        costModel,
        wanted,
        measure ?: pacedMeasure(workspace, wanted),
        originalMs = profile.originalMs,
        overheadMs = profile.callOverheadMs,
        onTurn = { onProgress(AdaptationProgress(AdaptationStage.CONFIRM, it.toDouble() / CONFIRM_TURNS)) },
    )

    /**
     * Search within the budget in terms of predictions.
     *
     * Where nothing is predicted to fit, the fastest subnet is measured; if it may keep the budget, its neighbourhood is
     * searched.
     *
     * @throws InfeasibleBudgetError nothing keeps the budget.
     */
    private fun search(problem: SearchProblem, confirmation: Confirmation): SearchResult {
        val aimed = confirmation.aim(rungsNear(supernet, costModel, problem.budget))
        fun found(budget: Budget) = findSubnets(makeStrategy(settings.strategy), problem.with(budget = budget))
        return try {
            found(aimed)
        } catch (error: InfeasibleBudgetError) {
            val fastest = fastestWithin(supernet, costModel, aimed.memoryMb) ?: throw error
            confirmation.requireChance(fastest, costModel.peakBytes(fastest))
            found(aimed.copy(latencyMs = costModel.latencyMs(fastest) * EQUAL_LATENCY))
        }
    }

    /** Median time of preparing one image for [subnet]; near 0 for prepared tensors. */
    private fun prepareMs(inputs: Inputs, subnet: Subnet): Double = median(
        List(minOf(PREPARED, inputs.count)) { position ->
            val startedNs = System.nanoTime()
            inputs.take(listOf(position), subnet.inputSize)
            (System.nanoTime() - startedNs) / NANOSECONDS_PER_MS
        },
    )

    /** Accuracies on held-back samples; null without any. */
    private fun judge(
        inputs: Inputs,
        labels: IntArray,
        held: List<Int>,
        subnets: List<Subnet>,
        prior: Prior?,
    ): List<Double?> {
        if (held.isEmpty()) return subnets.map { null }
        return makeEvaluator(workspace, costModel, settings, inputs, labels, held).use { evaluator ->
            evaluator.usePrior(prior)
            evaluator.accuracies(subnets)
        }
    }
}

/** The same with [prior] in the plans of all candidates, which were judged under it. */
internal fun withPrior(found: SearchResult, prior: Prior?): SearchResult {
    val pool = found.pool.map { it.copy(plan = it.plan.withPrior(prior)) }
    return found.copy(best = pool.find { it.subnet == found.best?.subnet }, pool = pool)
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

/** The full model's answers to [inputs], in place of labels, and the prior that corrected them, if any. */
internal fun standInLabels(
    workspace: Workspace,
    inputs: Inputs,
    batch: Int,
    usePrior: Boolean,
): Pair<IntArray, Prior?> {
    val logits = fullModelLogits(workspace, inputs, batch)
    val prior = if (usePrior) findPrior(logits, null) else null
    return corrected(logits, prior).map(::argmax).toIntArray() to prior
}

/** By sample; under a memory cap in pages and batches that fit. */
private fun fullModelLogits(workspace: Workspace, inputs: Inputs, batch: Int): List<FloatArray> {
    val whole = listOf(PlanSegment(workspace.bundle.supernet.original.edges, null))
    val fitting = workspace.largestBatch(whole, wanted = batch)
    return LoadedSegments(workspace, whole, batch = fitting).use { loaded ->
        val stretch = checkNotNull(loaded.stretches[0])
        (0 until inputs.count).chunked(fitting).flatMap { positions ->
            rows(stretch.run(listOf(inputs.take(positions, null))).last())
        }
    }
}

/** [budget] with the memory cap as its limit, so that no subnet in pages fits; unless there are only such. */
internal fun withinCap(supernet: Supernet, costs: CostModel, budget: Budget, memoryCapBytes: Long?): Budget {
    if (memoryCapBytes == null) return budget
    val limitMb = minOf(memoryCapBytes.toDouble() / MB, budget.memoryMb ?: Double.POSITIVE_INFINITY)
    val capped = budget.copy(memoryMb = limitMb)
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

/** Wilson's 95 % interval of an accuracy on [samples]. */
private fun wilson(accuracy: Double, samples: Int): Pair<Double, Double> {
    val z2 = NORMAL_95 * NORMAL_95
    val centre = (accuracy + z2 / (2 * samples)) / (1 + z2 / samples)
    val spread = sqrt(accuracy * (1 - accuracy) / samples + z2 / (4.0 * samples * samples))
    val half = NORMAL_95 * spread / (1 + z2 / samples)
    return maxOf(0.0, centre - half) to minOf(1.0, centre + half)
}
