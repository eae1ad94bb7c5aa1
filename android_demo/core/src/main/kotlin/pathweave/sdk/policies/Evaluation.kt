/** Evaluating subnets on private samples, and what stands in for labels. */
package pathweave.sdk.policies

import pathweave.sdk.UsageError
import pathweave.sdk.data.Inputs
import pathweave.sdk.data.SomeInputs
import pathweave.sdk.execution.LoadedSegments
import pathweave.sdk.execution.PagedEdges
import pathweave.sdk.execution.PlanSegment
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.corrected
import pathweave.sdk.execution.eachEdge
import pathweave.sdk.execution.largestBatch
import pathweave.sdk.numerics.argmax
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.search.DEFAULT_STRATEGY
import pathweave.sdk.search.PrefixTreeEvaluator
import pathweave.sdk.search.rows
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.nbytes

private const val SEARCH_S = 20.0

/**
 * How to adapt. The defaults suit a few hundred private samples.
 *
 * [timeLimitS]: for the search, after which the best so far is taken; null to let it end by itself. [batch]: samples
 * evaluated together at most; fewer where the tensors between two blocks would take more than [batchBytes].
 * [cacheBytes]: of features that are kept to be used again. [usePrior]: estimate the mix of classes of the samples, and
 * correct all answers by it if that is certain to help. [cancelled]: ends the search, whose best so far is then taken.
 * [fillPool]: look for subnets of other latencies too, about as long again, for live update; [keepSamples]: in memory,
 * until the next adaptation, so that live update searches again when no subnet of the pool keeps the latency.
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
    val usePrior: Boolean = true,
    val cancelled: () -> Boolean = { false },
    val fillPool: Boolean = false,
    val keepSamples: Boolean = false,
) {
    init {
        if (batch < 1) throw UsageError("batch is $batch; it must be at least 1")
    }
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

/** The settings' batch, or half as many samples again and again until the tensors at a block's ends fit. */
internal fun batchWithin(supernet: Supernet, settings: AdaptationSettings): Int {
    val largestBytes = supernet.edges.filter { it.inputSize == null }.maxOf { edge ->
        val (start, end) = supernet.ends(edge)
        start.nbytes + end.nbytes
    }
    return generateSequence(settings.batch) { it / 2 }.first { it <= 1 || it * largestBytes <= settings.batchBytes }
}

/** The full model's answers to [inputs], in place of labels, and the prior that corrected them, if any. */
internal fun standInLabels(
    workspace: Workspace,
    inputs: Inputs,
    batch: Int,
    usePrior: Boolean,
): Pair<IntArray, Prior?> {
    val whole = listOf(PlanSegment(workspace.bundle.supernet.original.edges, null))
    val fitting = workspace.largestBatch(whole, wanted = batch)
    val logits = LoadedSegments(workspace, whole, batch = fitting).use { loaded ->
        val stretch = checkNotNull(loaded.stretches[0])
        (0 until inputs.count).chunked(fitting).flatMap { positions ->
            rows(stretch.run(listOf(inputs.take(positions, null))).last())
        }
    }
    val prior = if (usePrior) findPrior(logits, null) else null
    return corrected(logits, prior).map(::argmax).toIntArray() to prior
}
