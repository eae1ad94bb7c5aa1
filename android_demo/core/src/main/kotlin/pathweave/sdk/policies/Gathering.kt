/** Samples that choose and those that judge, what stands in for labels, and the prior over classes. */
package pathweave.sdk.policies

import kotlin.math.abs
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.sqrt
import pathweave.sdk.UsageError
import pathweave.sdk.data.Inputs
import pathweave.sdk.data.searchPositions
import pathweave.sdk.execution.LoadedSegments
import pathweave.sdk.execution.PlanSegment
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.corrected
import pathweave.sdk.execution.largestBatch
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.search.DEFAULT_STRATEGY
import pathweave.sdk.supernet.Prior
import pathweave.sdk.tasks.ClassTargets
import pathweave.sdk.tasks.Targets
import pathweave.sdk.tasks.answerTask
import pathweave.sdk.tasks.flattened

private const val SEARCH_S = 20.0

/**
 * How to adapt. The defaults suit a few hundred private samples.
 *
 * [timeLimitS]: for the search, after which the best so far is taken; null to let it end by itself. [batch]: samples
 * evaluated together at most; fewer where the tensors between two blocks would take more than [batchBytes].
 * [cacheBytes]: of features that are kept to be used again. [workers]: batches that are evaluated at once, in threads;
 * null: as many as there are cores for, at most four. Latencies are measured with nothing beside. [usePrior]: estimate the mix of classes of the samples, and
 * correct all answers by it if that is certain to help. [cancelled]: ends the search, whose best so far is then taken.
 * [fillPool]: look for subnets of other latencies too, about as long again, for live update; [keepSamples]: in memory,
 * until the next adaptation, so that live update searches again when no subnet of the pool keeps the latency.
 *
 * @throws UsageError the batch or the number of workers is not above zero.
 */
public data class AdaptationSettings(
    val strategy: String = DEFAULT_STRATEGY,
    val holdoutShare: Double = 0.3,
    val seed: Long = 0,
    val batch: Int = 64,
    val batchBytes: Long = 16_000_000,
    val cacheBytes: Long = 64_000_000,
    val workers: Int? = null,
    val timeLimitS: Double? = SEARCH_S,
    val usePrior: Boolean = true,
    val cancelled: () -> Boolean = { false },
    val fillPool: Boolean = false,
    val keepSamples: Boolean = false,
) {
    init {
        if (batch < 1) throw UsageError("batch is $batch; it must be at least 1")
        if (workers != null && workers < 1) throw UsageError("workers is $workers; it must be at least 1")
    }
}

/**
 * Positions of samples to search on, in random order, and to hold back; of each class alike.
 *
 * @throws UsageError the share to hold back does not lie between 0 and 1.
 */
internal fun searchPositions(targets: Targets, settings: AdaptationSettings): Pair<List<Int>, List<Int>> {
    val alike = (targets as? ClassTargets)?.classes ?: IntArray(targets.count)
    return searchPositions(alike, settings.holdoutShare, settings.seed)
}

/** The full model's answers to [inputs], in place of targets, and the prior that corrected them, if any. */
internal fun standIns(
    workspace: Workspace,
    inputs: Inputs,
    batch: Int,
    usePrior: Boolean,
): Pair<Targets, Prior?> {
    val manifest = workspace.bundle.manifest
    val task = answerTask(manifest.task)
    val whole = listOf(PlanSegment(workspace.bundle.supernet.original.edges, null))
    val fitting = workspace.largestBatch(whole, wanted = batch)
    val answers = LoadedSegments(workspace, whole, batch = fitting).use { loaded ->
        val stretch = checkNotNull(loaded.stretches[0])
        Tensor.joined(
            (0 until inputs.count).chunked(fitting).map { stretch.run(listOf(inputs.take(it, null))).last() },
        )
    }
    if (!usePrior || !task.classifies) return task.standIn(answers) to null
    val certainty = manifest.certainty
    val prior = findPrior(flattened(answers), null, certainty?.temperature, certainty?.accuracy ?: 0.0)
    return task.standIn(corrected(answers, prior)) to prior
}

/** Fewer samples give no prior. */
public const val LEAST_SAMPLES: Int = 20

private const val PSEUDO_SAMPLES = 4.0 // spread as in training: a class that was not seen keeps a share
private const val ITERATIONS = 200
private const val TOLERANCE = 1e-6
private const val FOLDS = 4
private const val CERTAINTY = 2.0 // standard errors by which samples that it was not estimated on must become likelier
private const val LESS_CERTAIN = 0.1 // mean probability below the usual accuracy at which samples are of another kind
private const val LEAST_DIVERGENCE = 0.2 // nats of a mix that is estimated without labels from the uniform one
private const val LEAST_TEMPERATURE = 0.25
private const val MOST_TEMPERATURE = 8.0
private const val SEARCH_STEPS = 40
private const val LEAST_PROBABILITY = 1e-300
private val GOLDEN = (sqrt(5.0) - 1) / 2

/**
 * The prior of the samples with [logits] (by sample, one per class) of the full model; null where none is certain to
 * help.
 *
 * [labels]: one per sample, or null: then the mix is estimated from the logits. [temperature]: of the logits; null:
 * fitted to the labels, or 1 without any. Shares are estimated on three quarters of the samples and judged on the
 * fourth, in turns: the prior is kept only if it makes those samples more likely by two standard errors.
 *
 * Without labels another mix of classes and samples of another kind look alike. Samples of which the model is less
 * certain than [usualAccuracy], its accuracy where the temperature was fitted, are taken to be of another kind, and get
 * no prior. Nor does a mix that is near the uniform one: two classes that are confused on samples of another kind move it
 * as far, and a true one gains little.
 */
public fun findPrior(
    logits: List<FloatArray>,
    labels: IntArray?,
    temperature: Double? = null,
    usualAccuracy: Double = 0.0,
): Prior? {
    val count = logits.size
    if (count < LEAST_SAMPLES || logits[0].size < 2 || !logits.all { row -> row.all { it.isFinite() } }) return null
    val scale = temperature ?: if (labels == null) 1.0 else fitTemperature(logits, labels)
    val likely = logits.map { row -> probabilities(DoubleArray(row.size) { row[it] / scale }) }
    if (labels == null && likely.sumOf { it.max() } / count < usualAccuracy - LESS_CERTAIN) return null
    val gains = DoubleArray(count)
    for (fold in 0 until FOLDS) {
        val (own, rest) = (0 until count).partition { it % FOLDS == fold }
        val estimated = logRatios(rest.map(likely::get), labels?.let { all -> IntArray(rest.size) { all[rest[it]] } })
        val ratios = DoubleArray(estimated.size) { exp(estimated[it]) }
        for (at in own) gains[at] = ln(evidence(likely[at], ratios, labels?.get(at)))
    }
    val mean = gains.average()
    val spread = sqrt(gains.sumOf { (it - mean) * (it - mean) } / count)
    if (mean <= CERTAINTY * spread / sqrt(count.toDouble())) return null
    val found = logRatios(likely, labels)
    if (labels == null && found.sumOf { exp(it) * it } / found.size < LEAST_DIVERGENCE) return null
    return Prior(found.toList(), scale)
}

/**
 * The temperature at which [logits] (by sample) over it make [labels] likeliest, 0.25 to 8.
 *
 * Under the mix of the labels themselves, so that another mix does not count as overconfidence. Golden-section search
 * over its logarithm (temperature scaling, Guo et al. 2017).
 */
public fun fitTemperature(logits: List<FloatArray>, labels: IntArray): Double {
    val mix = sharesToLogRatios(labelShares(labels, logits[0].size))

    fun loss(logTemperature: Double): Double {
        val scale = exp(logTemperature)
        return -labels.indices.sumOf { at ->
            val row = logits[at]
            val likely = probabilities(DoubleArray(row.size) { row[it] / scale + mix[it] })
            ln(maxOf(likely[labels[at]], LEAST_PROBABILITY))
        } / labels.size
    }

    var (low, high) = ln(LEAST_TEMPERATURE) to ln(MOST_TEMPERATURE)
    repeat(SEARCH_STEPS) {
        val (first, second) = high - GOLDEN * (high - low) to low + GOLDEN * (high - low)
        if (loss(first) < loss(second)) high = second else low = first
    }
    return exp((low + high) / 2)
}

/** By class, from calibrated probabilities by sample, or from labels. */
private fun logRatios(likely: List<DoubleArray>, labels: IntArray?): DoubleArray =
    sharesToLogRatios(if (labels == null) estimatedShares(likely) else labelShares(labels, likely[0].size))

private fun sharesToLogRatios(shares: DoubleArray) = DoubleArray(shares.size) { ln(shares[it] * shares.size) }

private fun labelShares(labels: IntArray, classes: Int): DoubleArray {
    val counts = DoubleArray(classes)
    for (label in labels) counts[label]++
    return DoubleArray(classes) { (counts[it] + PSEUDO_SAMPLES / classes) / (labels.size + PSEUDO_SAMPLES) }
}

/** Shares of the classes by expectation maximisation, with pseudo-samples of the uniform mix. */
private fun estimatedShares(likely: List<DoubleArray>): DoubleArray {
    val classes = likely[0].size
    var shares = DoubleArray(classes) { 1.0 / classes }
    repeat(ITERATIONS) {
        val responsible = DoubleArray(classes)
        for (row in likely) {
            var total = 0.0
            for (at in row.indices) total += row[at] * shares[at]
            for (at in row.indices) responsible[at] += row[at] * shares[at] / total
        }
        val new = DoubleArray(classes) { (responsible[it] + PSEUDO_SAMPLES / classes) / (likely.size + PSEUDO_SAMPLES) }
        val moved = new.indices.sumOf { abs(new[it] - shares[it]) }
        shares = new
        if (moved < TOLERANCE) return shares
    }
    return shares
}

/** How much likelier a sample is under the new mix; with a label: that label. */
private fun evidence(likely: DoubleArray, ratios: DoubleArray, label: Int?): Double {
    var total = 0.0
    for (at in likely.indices) total += likely[at] * ratios[at]
    return if (label == null) total else ratios[label] / total
}

private fun probabilities(logits: DoubleArray): DoubleArray {
    val most = logits.max()
    val powers = DoubleArray(logits.size) { exp(logits[it] - most) }
    val total = powers.sum()
    return DoubleArray(powers.size) { powers[it] / total }
}
