/** How sure an answer is: what exits decide by. */
package pathweave.sdk

import kotlin.math.exp

/** The highest softmax probability of each sample: logits [batch, classes] -> [batch], above 0 and at most 1. */
public fun confidence(logits: Tensor): DoubleArray {
    val classes = logits.size / logits.batch
    return DoubleArray(logits.batch) { sample ->
        val row = DoubleArray(classes) { logits[sample * classes + it] }
        val highest = row.max()
        1.0 / row.sumOf { exp(it - highest) }
    }
}

/** The most probable class of each sample, the first of equals: logits [batch, classes] -> [batch]. */
public fun argmax(logits: Tensor): IntArray {
    val size = logits.size / logits.batch
    return IntArray(logits.batch) { sample ->
        val first = sample * size
        (0 until size).reduce { best, at -> if (logits[first + at] > logits[first + best]) at else best }
    }
}
