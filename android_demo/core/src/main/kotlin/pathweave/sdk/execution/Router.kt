/** The routing network of the Hybrid paper (App. B.2). Mirrors device_sdk/supernet/deciders/router.py. */
package pathweave.sdk.execution

import kotlin.math.exp
import kotlin.math.ln
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.ROUTER_FEATURES

private const val TOP = 10 // probabilities that count
private const val FARTHEST = 5.0 // standard deviations from the mean of a feature
private const val STEEPEST = 700.0 // of the logarithm of the odds: beyond it the exponential overflows

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
