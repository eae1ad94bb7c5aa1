/** Which samples are hard, by their logits: what exits, abstention and asking a server decide by. */
package pathweave.sdk.supernet

import kotlin.math.exp
import kotlin.math.ln
import pathweave.sdk.numerics.Tensor

/** Of the logarithm of the odds: beyond it the exponential overflows. */
private const val STEEPEST = 700.0

/** The highest softmax probability of each sample: logits [batch, classes] -> [batch], above 0 and at most 1. */
public fun confidence(logits: Tensor): DoubleArray = scores(logits) { powers -> 1.0 / powers.sum() }

/**
 * The difference of the two largest softmax probabilities: logits [batch, classes] -> [batch], 0 to 1.
 *
 * A single class has the margin 1.
 */
internal fun margin(logits: Tensor): DoubleArray = scores(logits) { powers ->
    val descending = probabilities(powers).sortedArrayDescending()
    descending[0] - descending.getOrElse(1) { 0.0 }
}

/** The Shannon entropy of the softmax probabilities in nats: logits [batch, classes] -> [batch], at least 0. */
internal fun entropy(logits: Tensor): DoubleArray = scores(logits) { powers ->
    maxOf(-probabilities(powers).sumOf { if (it > 0.0) it * ln(it) else it }, 0.0)
}

/**
 * Which samples [decider] calls hard: logits [batch, classes] -> [batch].
 *
 * Logits that hold NaN, or whose largest is infinite, are no answer: they are hard for every decider.
 */
internal fun hardSamples(decider: Decider, logits: Tensor): List<Boolean> {
    val limit = if (decider is Decider.Entropy) -decider.threshold else decider.threshold
    return ease(decider, logits).map { it < limit }
}

/**
 * How easy each sample is, in the decider's own measure: the larger, the easier. [batch]
 *
 * The entropy counts negative, so that every kind is ordered the same way. Logits that hold NaN, or whose largest is
 * infinite, are no answer: their ease is minus infinity.
 */
internal fun ease(decider: Decider, logits: Tensor): DoubleArray {
    val found = when (decider) {
        is Decider.MaxConfidence -> confidence(logits)
        is Decider.Entropy -> entropy(logits).also { all -> all.indices.forEach { all[it] = -all[it] } }
        is Decider.Margin -> margin(logits)
        is Decider.Logistic -> estimates(decider, logits)
        is Decider.Router -> estimates(decider, logits)
    }
    return DoubleArray(found.size) { if (found[it].isNaN()) Double.NEGATIVE_INFINITY else found[it] }
}

/** Which samples an exit answers, and for which it asks a server; all others go on. */
internal data class Leaving(val answered: List<Boolean>, val asked: List<Boolean>)

/**
 * Which samples leave the path at [choice]: logits [batch, classes] -> [batch] each.
 *
 * Those whose logits hold NaN go on.
 */
internal fun leaving(choice: ExitChoice, logits: Tensor): Leaving {
    val sure = confidence(logits)
    return Leaving(sure.map { it >= choice.threshold }, sure.map { it < choice.askBelow })
}

/** The estimated probability that the answer is right: logits [batch, classes] -> [batch]. */
private fun estimates(decider: Decider.Logistic, logits: Tensor): DoubleArray {
    val columns = decider.features.map { feature(it, logits) }
    val byClass = rows(logits) { row -> byClass(decider, row) }
    return DoubleArray(logits.batch) { sample ->
        val terms = columns.indices.map { decider.weights[it] * columns[it][sample] }
        val total = terms.fold(decider.bias, Double::plus) + byClass[sample]
        1.0 / (1.0 + exp(-total.coerceIn(-STEEPEST, STEEPEST)))
    }
}

/** What the two most probable classes of a sample add; of equal ones the lower index comes first. */
private fun byClass(decider: Decider.Logistic, row: DoubleArray): Double {
    if (decider.byAnswer.isEmpty()) return 0.0
    val order = row.indices.sortedByDescending { row[it] }
    return decider.byAnswer[order[0]] + decider.byRunnerUp[order[minOf(1, row.size - 1)]]
}

internal fun feature(feature: LogitFeature, logits: Tensor): DoubleArray = when (feature) {
    LogitFeature.TOP_1 -> confidence(logits)
    LogitFeature.TOP_2 -> scores(logits) { powers -> probabilities(powers).largest(1) }
    LogitFeature.ENTROPY -> entropy(logits)
    LogitFeature.LOGIT_MARGIN -> rows(logits) { row -> row.largest(0) - row.largest(1) }
    LogitFeature.LOG_SUM_EXP -> rows(logits) { row -> row.max().let { top -> top + ln(row.sumOf { exp(it - top) }) } }
}

/** The value of this rank, 0 for the largest; of too few values 0. */
private fun DoubleArray.largest(rank: Int): Double = sortedArrayDescending().getOrElse(rank) { 0.0 }

/** The [score] of each sample by exp(logit − highest logit) of its classes. */
private inline fun scores(logits: Tensor, score: (powers: DoubleArray) -> Double): DoubleArray {
    return rows(logits) { row ->
        val highest = row.max()
        score(DoubleArray(row.size) { exp(row[it] - highest) })
    }
}

/** The [score] of each sample by its logits. */
private inline fun rows(logits: Tensor, score: (row: DoubleArray) -> Double): DoubleArray {
    val classes = logits.size / logits.batch
    return DoubleArray(logits.batch) { sample -> score(DoubleArray(classes) { logits[sample * classes + it] }) }
}

private fun probabilities(powers: DoubleArray): DoubleArray {
    val sum = powers.sum()
    return DoubleArray(powers.size) { powers[it] / sum }
}

private const val TOP = 10 // probabilities that count
private const val FARTHEST = 5.0 // standard deviations from the mean of a feature

/** The estimated probability that asking gains nothing: logits [batch, classes] -> [batch]. */
internal fun estimates(router: Decider.Router, logits: Tensor): DoubleArray {
    val network = RouterNetwork(router)
    val classes = logits.size / logits.batch
    return DoubleArray(logits.batch) { sample ->
        network.ease(metaFeatures(DoubleArray(classes) { logits[sample * classes + it] }))
    }
}

/**
 * The 101 numbers of one sample's logits.
 *
 * The ten largest probabilities in descending order; the entropy in nats; then for each pair of these ten, in the order
 * (1, 2), (1, 3) … (9, 10), the product of their probabilities, and after all products the differences of their logits.
 * With fewer than ten classes the missing probabilities are 0, and so are the differences with them.
 */
internal fun metaFeatures(row: DoubleArray): DoubleArray {
    val ordered = row.sortedArrayDescending()
    val powers = DoubleArray(ordered.size) { exp(ordered[it] - ordered[0]) }
    val sum = powers.sum()
    val probabilities = DoubleArray(powers.size) { powers[it] / sum }
    val entropy = maxOf(-probabilities.sumOf { if (it > 0.0) it * ln(it) else it }, 0.0)
    val top = DoubleArray(TOP) { probabilities.getOrElse(it) { 0.0 } }
    val pairs = (0 until TOP).flatMap { first -> (first + 1 until TOP).map { first to it } }
    val products = pairs.map { (first, second) -> top[first] * top[second] }
    val differences = pairs.map { (first, second) ->
        if (second < ordered.size) ordered[first] - ordered[second] else 0.0
    }
    return doubleArrayOf(*top, entropy, *products.toDoubleArray(), *differences.toDoubleArray())
}

private class RouterNetwork(private val router: Decider.Router) {
    private val sizes = listOf(ROUTER_FEATURES, router.hidden.first, router.hidden.second, 1)

    fun ease(features: DoubleArray): Double {
        var values = DoubleArray(ROUTER_FEATURES) {
            val mean = router.weights[it].toDouble()
            val factor = router.weights[ROUTER_FEATURES + it].toDouble()
            ((features[it] - mean) * factor).coerceIn(-FARTHEST, FARTHEST)
        }
        var at = 2 * ROUTER_FEATURES
        for (layer in 0 until sizes.lastIndex) {
            values = layerOutput(values, at, sizes[layer + 1])
            at += (sizes[layer] + 1) * sizes[layer + 1]
            if (layer < sizes.lastIndex - 1) values = DoubleArray(values.size) { maxOf(values[it], 0.0) }
        }
        return 1.0 / (1.0 + exp(-values[0].coerceIn(-STEEPEST, STEEPEST)))
    }

    private fun layerOutput(inputs: DoubleArray, at: Int, outputs: Int) = DoubleArray(outputs) { output ->
        val biases = at + inputs.size * outputs
        inputs.indices.sumOf { inputs[it] * router.weights[at + it * outputs + output] } + router.weights[biases + output]
    }
}
