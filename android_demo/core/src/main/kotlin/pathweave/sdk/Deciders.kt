/** Which samples are hard, by their logits: what exits, abstention and asking a server decide by. */
package pathweave.sdk

import kotlin.math.exp
import kotlin.math.ln

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

/** Which samples [decider] calls hard: logits [batch, classes] -> [batch]. */
internal fun hardSamples(decider: Decider, logits: Tensor): List<Boolean> {
    val threshold = decider.threshold
    return when (decider) {
        is Decider.MaxConfidence -> confidence(logits).map { it < threshold }
        is Decider.Entropy -> entropy(logits).map { it > threshold }
        is Decider.Margin -> margin(logits).map { it < threshold }
    }
}

/** The [score] of each sample by exp(logit − highest logit) of its classes. */
private inline fun scores(logits: Tensor, score: (powers: DoubleArray) -> Double): DoubleArray {
    val classes = logits.size / logits.batch
    return DoubleArray(logits.batch) { sample ->
        val row = DoubleArray(classes) { logits[sample * classes + it] }
        val highest = row.max()
        score(DoubleArray(classes) { exp(row[it] - highest) })
    }
}

private fun probabilities(powers: DoubleArray): DoubleArray {
    val sum = powers.sum()
    return DoubleArray(powers.size) { powers[it] / sum }
}
