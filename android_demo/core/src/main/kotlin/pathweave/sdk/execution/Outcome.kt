/** What a plan answers to a batch, and how it is collected. Mirrors device_sdk/execution/loaded_plan.py. */
package pathweave.sdk.execution

import pathweave.sdk.numerics.Tensor

internal const val AT_END = 0 // the end of the subnet, here
internal const val AT_SERVER = 1 // the end of the subnet, at the server
internal const val AFTER_FAILURE = 2 // the split's fallback, here, since the server did not answer
internal const val UNANSWERED = 3 // nothing: the split's server did not answer, and the plan abstains without it

/**
 * The tensors at the cut point whose activations the plan may send: of [samples], positions in the batch, in order.
 */
public class KeptActivations internal constructor(public val samples: List<Int>, public val tensors: List<Tensor>) {
    /** The tensors of the samples [wanted], all of which got there. */
    public fun of(wanted: List<Int>): List<Tensor> {
        val rows = wanted.map { samples.binarySearch(it) }
        return tensors.map { it.rows(rows) }
    }
}

/**
 * Samples between two segments of a plan: their positions in the batch, in order, and what the next segment takes.
 *
 * [tensors]: at the cut point, [count, …] each; [segment]: the number of the next segment; [latest]: what the last exit
 * says of them, logits [count, classes] and its position in the plan's exits, if they passed one.
 */
internal class Waiting(
    val samples: List<Int>,
    val tensors: List<Tensor>,
    val segment: Int = 0,
    val latest: Pair<Tensor, Int>? = null,
)

/**
 * What a plan answers to a batch.
 *
 * [output]: logits [batch, classes]; [answeredBy] [batch]: the position in the plan's exits of the one that answered;
 * their number where it was the end of the subnet here, that plus 1 where it was at the server, plus 2 where it was what
 * a split falls back to without its server, plus 3 where that is nothing: then the logits are not numbers. [kept]: null
 * where the plan sends no activations of hard samples. [asking]: the samples that left the path at an exit to ask a
 * server, a group for each exit; until it answers, what the exit says stands for them.
 */
public class Outcome internal constructor(
    public val output: Tensor,
    public val answeredBy: IntArray,
    public val kept: KeptActivations? = null,
    internal val asking: List<Waiting> = emptyList(),
)

/** The answers to a batch, collected segment by segment. Later answers to a sample replace earlier ones. */
internal class Answers(private val batch: Int) {
    private var output: FloatArray? = null
    private var shape: List<Int> = emptyList() // of one sample's answer
    private val answeredBy = IntArray(batch)

    /** A copy of the answers of [outcome], to be replaced in part. */
    constructor(outcome: Outcome) : this(outcome.output.batch) {
        output = outcome.output.floats()
        shape = outcome.output.shape.drop(1)
        outcome.answeredBy.copyInto(answeredBy)
    }

    /** Row i of [logits] [count, classes] answers sample `samples[i]`, for each i of [rows], by [source]. */
    fun put(samples: List<Int>, logits: Tensor, source: Int, rows: Iterable<Int> = samples.indices) {
        val values = logits.floats()
        val classes = values.size / logits.batch
        val all = output ?: FloatArray(batch * classes).also {
            output = it
            shape = logits.shape.drop(1)
        }
        for (row in rows) {
            values.copyInto(all, samples[row] * classes, row * classes, (row + 1) * classes)
            answeredBy[samples[row]] = source
        }
    }

    /** A copy of what was collected; every sample has an answer. */
    fun outcome(kept: KeptActivations? = null, asking: List<Waiting> = emptyList()): Outcome =
        Outcome(Tensor.of(checkNotNull(output), listOf(batch) + shape), answeredBy.copyOf(), kept, asking)
}
