/**
 * The mix of classes on a device, estimated from private samples, as a prior of plans. Mirrors
 * device_sdk/policies/gathering.py.
 *
 * Without labels the mix is the maximum of the likelihood of the logits, found by expectation maximisation (Saerens,
 * Latinne, Decaestecker 2002, section 2). One temperature suffices where the shares are smoothed.
 */
package pathweave.sdk.policies

import kotlin.math.abs
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.sqrt
import pathweave.sdk.supernet.Prior

/** Fewer samples give no prior. */
public const val LEAST_SAMPLES: Int = 20

private const val PSEUDO_SAMPLES = 4.0 // spread as in training: a class that was not seen keeps a share
private const val ITERATIONS = 200
private const val TOLERANCE = 1e-6
private const val FOLDS = 4
private const val CERTAINTY = 2.0 // standard errors by which samples that it was not estimated on must become likelier
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
 */
public fun findPrior(logits: List<FloatArray>, labels: IntArray?, temperature: Double? = null): Prior? {
    val count = logits.size
    if (count < LEAST_SAMPLES || logits[0].size < 2 || !logits.all { row -> row.all { it.isFinite() } }) return null
    val scale = temperature ?: if (labels == null) 1.0 else fitTemperature(logits, labels)
    val likely = logits.map { row -> probabilities(DoubleArray(row.size) { row[it] / scale }) }
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
    return Prior(logRatios(likely, labels).toList(), scale)
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
