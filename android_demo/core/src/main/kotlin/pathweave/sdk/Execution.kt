/**
 * Running a plan: segment by segment, so that what follows a taken exit is really never computed.
 *
 * A segment is the stretch from one exit of the plan to the next together with the branch at its end, composed into one
 * model (docs/bundle_format.md). Samples that an exit answers leave the batch; the others go on.
 *
 * The whole subnet runs on the device: there is no offload client yet, so a plan's split is not taken.
 */
package pathweave.sdk

import java.io.Closeable
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime

/**
 * What a plan answers to a batch.
 *
 * [output]: logits [batch, classes]; [answeredBy] [batch]: the position in the plan's exits of the one that answered,
 * their number where it was the end of the subnet.
 */
public class Outcome(public val output: Tensor, public val answeredBy: IntArray)

/**
 * A plan that is ready to run. [run] may be called from several threads at once.
 *
 * What follows a split runs on the device too, in the same segment. [Plan.hard] does not change what runs: its decider
 * is applied to the outcome.
 *
 * @throws UsageError the plan does not fit the bundle's graph, or does not run at its input size.
 * @throws BundleError a blob or a fragment is broken.
 * @throws RuntimeFailedError a segment does not load.
 */
public class LoadedPlan(bundle: Bundle, runtime: Runtime, private val plan: Plan) : Closeable {
    /** Of the images that it takes; null for the model's own. */
    public val inputSize: ImageSize? = plan.inputSize

    private val loaded: List<LoadedSegment>

    init {
        bundle.supernet.checkPlan(plan)
        val ready = mutableListOf<LoadedSegment>()
        try {
            for (segment in segments(bundle.supernet, plan)) {
                val stretch = runtime.load(bundle.stretch(segment.edges, segment.exit))
                ready += LoadedSegment(stretch, segment.exit?.threshold, plan.exits.indexOf(segment.exit))
            }
        } catch (error: PathweaveError) {
            ready.forEach { it.stretch.close() }
            throw error
        }
        loaded = ready
    }

    /**
     * Answer a batch [batch, *input].
     *
     * @throws RuntimeFailedError the runtime failed.
     */
    public fun run(tensor: Tensor): Outcome {
        val answers = arrayOfNulls<FloatArray>(tensor.batch)
        val answeredBy = IntArray(tensor.batch) { plan.exits.size }
        var features = listOf(tensor)
        var rest = (0 until tensor.batch).toList() // samples without an answer
        for (segment in loaded) {
            val outputs = segment.stretch.run(features)
            val logits = outputs.last()
            val (sure, unsure) = segment.decide(logits)
            val rows = logits.floats()
            val classes = rows.size / logits.batch
            for (row in sure) {
                answers[rest[row]] = rows.copyOfRange(row * classes, (row + 1) * classes)
                if (segment.number >= 0) answeredBy[rest[row]] = segment.number
            }
            if (unsure.isEmpty()) break
            rest = unsure.map(rest::get)
            features = outputs.dropLast(1).map { if (sure.isEmpty()) it else it.rows(unsure) }
        }
        return Outcome(joined(answers.requireNoNulls()), answeredBy)
    }

    /** Frees the sessions, once the runs in progress have ended. May be called twice. */
    override fun close(): Unit = loaded.forEach { it.stretch.close() }
}

/**
 * [threshold] is null at the end of the subnet, which answers whatever is left. [number]: the position of its exit in
 * the plan's exits; negative at the end of the subnet.
 */
private class LoadedSegment(val stretch: LoadedStretch, private val threshold: Double?, val number: Int) {
    /** The samples of the batch that are answered here, and those that go on. */
    fun decide(logits: Tensor): Pair<List<Int>, List<Int>> {
        val all = (0 until logits.batch).toList()
        if (threshold == null) return all to emptyList()
        val confidence = confidence(logits)
        return all.partition { confidence[it] >= threshold }
    }
}

private fun joined(rows: Array<FloatArray>): Tensor {
    val classes = rows[0].size
    val values = FloatArray(rows.size * classes)
    for ((number, row) in rows.withIndex()) row.copyInto(values, number * classes)
    return Tensor.of(values, listOf(rows.size, classes))
}

/** Consecutive edges of a plan, and the exit at their end; null at the end of the subnet. */
internal class Segment(val edges: List<Edge>, val exit: ExitChoice?)

/** The segments of [plan], in order. Exits whose threshold no confidence reaches are left out: they answer nothing. */
internal fun segments(supernet: Supernet, plan: Plan): List<Segment> {
    val taken = plan.exits.filter { it.threshold < UNREACHABLE_CONFIDENCE }
    val choices = taken.associateBy { supernet.exit(it.exit).position }
    val found = mutableListOf<Segment>()
    var edges = mutableListOf<Edge>()
    for ((edge, block) in supernet.walk(plan.subnet)) {
        edges += edge
        choices[block.end]?.let { choice ->
            found += Segment(edges, choice)
            edges = mutableListOf()
        }
    }
    return found + Segment(edges, null)
}
