/** What a plan answers to a batch, and how it is collected. Mirrors device_sdk/execution/outcome.py. */
package pathweave.sdk

/**
 * What a plan answers to a batch.
 *
 * [output]: logits [batch, classes]; [answeredBy] [batch]: the position in the plan's exits of the one that answered,
 * their number where it was the end of the subnet.
 */
public class Outcome(public val output: Tensor, public val answeredBy: IntArray)

/** The answers to a batch, collected segment by segment. Later answers to a sample replace earlier ones. */
internal class Answers(private val batch: Int) {
    private var output: FloatArray? = null
    private val answeredBy = IntArray(batch)

    /** Row i of [logits] [count, classes] answers sample `samples[i]`, for each i of [rows], by [source]. */
    fun put(samples: List<Int>, logits: Tensor, source: Int, rows: Iterable<Int> = samples.indices) {
        val values = logits.floats()
        val classes = values.size / logits.batch
        val all = output ?: FloatArray(batch * classes).also { output = it }
        for (row in rows) {
            values.copyInto(all, samples[row] * classes, row * classes, (row + 1) * classes)
            answeredBy[samples[row]] = source
        }
    }

    /** A copy of what was collected; every sample has an answer. */
    fun outcome(): Outcome {
        val all = checkNotNull(output).copyOf()
        return Outcome(Tensor.of(all, listOf(batch, all.size / batch)), answeredBy.copyOf())
    }
}
