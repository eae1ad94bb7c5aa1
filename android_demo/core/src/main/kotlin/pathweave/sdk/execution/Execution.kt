/**
 * Running a plan: segment by segment, so that what follows a taken exit is really never computed.
 *
 * A segment is the stretch from one exit of the plan to the next together with the branch at its end, composed into one
 * model (docs/bundle_format.md), or under a memory cap into several that are loaded in turns (Paging.kt). Samples that
 * an exit answers leave the batch, and so do those that it asks a server about; the others go on, here or at a server.
 */
package pathweave.sdk.execution

import java.io.Closeable
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.elements
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.runtimes.StopSignal
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Fallback
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.hardSamples
import pathweave.sdk.supernet.leaving

/**
 * A plan that is ready to run. [run] may be called from several threads at once.
 *
 * What follows a split is loaded too where it is the fallback: it runs here when there is no server, or when it fails.
 * The decider of [Plan.hard] is applied to the outcome, but that of a cascade, whose second path runs here. Under a memory cap a plan that needs more runs in pages, of which as many stay as there is
 * room for: the same answers within 1e-5, bit for bit where the pages are the same.
 *
 * @throws UsageError the plan does not fit the bundle's graph, or does not run at its input size.
 * @throws BudgetError the memory cap is too small for the largest block; says the least that works.
 * @throws BundleError a blob or a fragment is broken.
 * @throws RuntimeFailedError a segment does not load.
 */
public class LoadedPlan internal constructor(
    private val workspace: Workspace,
    private val plan: Plan,
    private val cap: MemoryCap?,
) : Closeable {
    /** [memoryCapBytes]: what all that is loaded and runs may take beyond the bare runtime, batch by batch of one. */
    public constructor(bundle: Bundle, runtime: Runtime, plan: Plan, memoryCapBytes: Long? = null) :
        this(Workspace(bundle, runtime, memoryCapBytes), plan, null)

    /** Of the images that it takes; null for the model's own. */
    public val inputSize: SampleSize? = plan.inputSize

    /** Who uses it; it is freed when the last one leaves. */
    internal val calls = RunningCalls(::close)

    private val found: List<PlanSegment>
    private val loaded: LoadedSegments
    private val segments: List<LoadedSegment>
    private val branch: LoadedStretch? // the fallback's, where it did not run before
    private val second: LoadedStretch? // a cascade's
    private val fallback = plan.split?.fallback ?: Fallback.SUBNET
    private val outputShape = workspace.bundle.supernet.cutPoints.last().tensors.last().shape
    private val hurry = StopSignal()
    private val stepping = Any() // guards the next two
    private val everyLoaded = mutableListOf<LoadedSegments>()
    private var stepped: SteppedPlan? = null

    init {
        workspace.bundle.supernet.checkPlan(plan)
        found = segments(workspace.bundle.supernet, plan)
        loaded = LoadedSegments(workspace, found, cap, prior = plan.prior)
        everyLoaded += loaded
        val numbers = plan.exits.withIndex().associate { (number, choice) -> choice.exit to number }
        val pairs = found.zip(loaded.stretches)
        segments = pairs.filter { (segment, _) -> !segment.fallback && !segment.second }.mapIndexed { at, (segment, stretch) ->
            LoadedSegment(at, segment, stretch, segment.exit?.let { numbers.getValue(it.exit) })
        }
        branch = pairs.find { (segment, _) -> segment.fallback }?.second
        second = pairs.find { (segment, _) -> segment.second }?.second
    }

    /** Whether anything answers on this device alone. */
    internal val hasSteps: Boolean = steps(workspace.bundle.supernet, plan).isNotEmpty()

    /** What is loaded for this plan now, as footprints state it. */
    internal val takenBytes: Long get() = synchronized(stepping) { everyLoaded.sumOf { it.takenBytes } }

    /** How often a page was loaded so far; null without a memory cap. */
    public val pageLoads: Int? get() = loaded.pageLoads

    /**
     * Answer a batch [batch, *input]. [runTail] goes on behind the plan's split, if it has one: it is given the tensors
     * there, and returns logits [batch, classes], or null if that failed.
     *
     * @throws RuntimeFailedError the runtime failed.
     * @throws BlobError a page had to be loaded again, and its blob is damaged.
     */
    public fun run(tensor: Tensor, runTail: ((List<Tensor>) -> Tensor?)? = null): Outcome =
        run(tensor, runTail, asks = false)

    /**
     * The same; [asks]: a server can be asked from exits. The samples for which the plan does so leave the path there
     * ([Outcome.asking]); otherwise they go on.
     */
    internal fun run(
        tensor: Tensor,
        runTail: ((List<Tensor>) -> Tensor?)?,
        asks: Boolean,
        atSize: AtSize? = null,
    ): Outcome {
        val answers = Answers(tensor.batch)
        val run = BatchRun(Waiting((0 until tensor.batch).toList(), listOf(tensor)), answers, runTail, asks)
        run.run()
        val outcome = answers.outcome(run.kept, run.asking)
        return (plan.hard as? Hard.Cascade)?.let { runSecond(it, tensor, outcome, atSize) } ?: outcome
    }

    /**
     * [outcome] once the second path has answered the samples that reached the end of the first and are hard; null: it
     * answers none. [atSize]: samples at another input size; without it the first path's answers to them stand.
     */
    private fun runSecond(cascade: Hard.Cascade, tensor: Tensor, outcome: Outcome, atSize: AtSize?): Outcome? {
        val reached = outcome.answeredBy.indices.filter { outcome.answeredBy[it] == plan.exits.size + AT_END }
        if (reached.isEmpty() || hurry.isSet) return null
        val isHard = hardSamples(cascade.decider, outcome.output.rows(reached))
        val hard = reached.filterIndexed { row, _ -> isHard[row] }
        if (hard.isEmpty()) return null
        val inputs = when {
            cascade.position > 0 -> checkNotNull(outcome.kept).of(hard)
            cascade.subnet.inputSize == plan.inputSize -> listOf(tensor.rows(hard))
            else -> listOf(atSize?.invoke(hard, cascade.subnet.inputSize) ?: return null)
        }
        val logits = checkNotNull(second).runUntil(inputs, hurry)?.last() ?: return null
        val answers = Answers(outcome)
        answers.put(hard, logits, plan.exits.size + BY_SECOND)
        return answers.outcome(outcome.kept, outcome.asking)
    }

    /** Run the rest of the path here for the samples that left it to ask a server. Throws as [run]. */
    internal fun goOn(outcome: Outcome): Outcome {
        val answers = Answers(outcome)
        for (waiting in outcome.asking) BatchRun(waiting, answers, runTail = null, asks = false).run()
        return answers.outcome(outcome.kept)
    }

    /** Runs the segments from [start] on, and collects what they answer in [answers]. */
    private inner class BatchRun(
        private val start: Waiting,
        private val answers: Answers,
        private val runTail: ((List<Tensor>) -> Tensor?)?,
        private val asks: Boolean,
    ) {
        val asking = mutableListOf<Waiting>()
        var kept: KeptActivations? = null
            private set
        private var features = start.tensors
        private var rest = start.samples // samples without an answer
        private var latest = start.latest // what the last exit says of the rest, if no time is left
        private var aside: List<Tensor> = emptyList()
        private var end = AT_END

        fun run() {
            if (segments.drop(start.segment).any(::ends)) return
            if (fallback == Fallback.SUBNET) answers.put(rest, features.last(), plan.exits.size + end) else fallBack()
        }

        /** Run one segment; whether every sample has an answer now, or waits for a server's. */
        private fun ends(segment: LoadedSegment): Boolean {
            if (segment.stretch != null && !ran(segment.stretch)) {
                latest?.let { (logits, number) -> answers.put(rest, logits, number) }
                return true
            }
            val (found, exit) = segment.segment to segment.segment.exit
            if (found.kept) kept = KeptActivations(rest, if (exit == null) features else features.dropLast(1))
            if (exit != null && segment.number != null && leave(segment, exit, segment.number)) return true
            if (found.aside) aside = features
            return found.split && answeredElsewhere()
        }

        /** Whether there was time to run it. */
        private fun ran(stretch: LoadedStretch): Boolean {
            features = (if (latest == null) stretch.run(features) else stretch.runUntil(features, hurry)) ?: return false
            return true
        }

        /** Samples that are sure leave at [exit], the plan's exit [number], and so do those that ask; whether all did. */
        private fun leave(segment: LoadedSegment, exit: ExitChoice, number: Int): Boolean {
            val logits = features.last()
            features = features.dropLast(1)
            val ends = (segment === segments.last() && !segment.segment.split) || hurry.isSet
            val leaving = leaving(exit, logits)
            val asked = rest.indices.filter { asks && !ends && leaving.asked[it] }
            val (gone, on) = rest.indices.partition { ends || leaving.answered[it] || asks && leaving.asked[it] }
            answers.put(rest, logits, number, gone)
            if (asked.isNotEmpty()) {
                val tensors = features.map { it.rows(asked) }
                asking += Waiting(asked.map(rest::get), tensors, segment.at + 1, logits.rows(asked) to number)
            }
            if (on.isEmpty()) return true
            latest = (if (gone.isEmpty()) logits else logits.rows(on)) to number
            if (gone.isNotEmpty()) {
                rest = on.map(rest::get)
                features = features.map { it.rows(on) }
            }
            return false
        }

        /** Answer what the split's server did not, without the rest of the subnet. */
        private fun fallBack() {
            val exits = plan.exits.size
            if (fallback == Fallback.ABSTAIN) {
                val shape = listOf(rest.size) + outputShape
                val nothing = FloatArray(elements(shape, Float.SIZE_BYTES)) { Float.NaN }
                answers.put(rest, Tensor.of(nothing, shape), exits + UNANSWERED)
                return
            }
            val logits = if (branch == null) latest?.first else branch.run(aside).last()
            answers.put(rest, checkNotNull(logits) { "no exit was tried" }, exits + AFTER_FAILURE)
        }

        /** The rest of the path, at a server; whether that answered. */
        private fun answeredElsewhere(): Boolean {
            val ask = runTail ?: return false
            val logits = ask(features)
            if (logits == null) end = AFTER_FAILURE else answers.put(rest, logits, plan.exits.size + AT_SERVER)
            return logits != null
        }
    }

    /**
     * The same plan exit by exit, for deadlines and interruptions; loaded when it is first asked for.
     *
     * It shares what is loaded where all exits of the plan answer by confidence. Throws as the plan itself.
     *
     * @throws UsageError the plan answers nothing on this device alone.
     */
    internal fun stepped(): SteppedPlan = synchronized(stepping) {
        if (!hasSteps) {
            throw UsageError(
                "the plan answers nothing here without its server, so it keeps no deadline",
                "use a plan with an exit before the split",
            )
        }
        stepped ?: run {
            val everyStep = steps(workspace.bundle.supernet, plan)
            val stretches = if (everyStep == found) loaded else LoadedSegments(workspace, everyStep, cap, prior = plan.prior)
            if (stretches !== loaded) everyLoaded += stretches
            SteppedPlan(everyStep, stretches.stretches, hurry).also { stepped = it }
        }
    }

    /** Under a memory cap, load all pages once, so that what fails, fails now. */
    internal fun loadEach(): Unit = loaded.loadEach()

    /** Under a memory cap, free what no call runs now; the next call loads it again. */
    internal fun release(): Unit = synchronized(stepping) { everyLoaded.forEach { it.release() } }

    /** Have calls answer with the last exit that they reached, or the first that they reach, from now on. */
    internal fun hurry(): Unit = hurry.set()

    /** See [LoadedSegments.count]: from now on until the plan is freed. */
    internal fun count(): Unit = synchronized(stepping) { everyLoaded.forEach { it.count() } }

    /** Frees the sessions, once the runs in progress have ended. May be called twice. */
    override fun close(): Unit = synchronized(stepping) { everyLoaded.forEach { it.close() } }
}

/** Some samples of a batch, by their positions, prepared at another input size; null: they cannot be. */
internal typealias AtSize = (List<Int>, SampleSize?) -> Tensor?

/** [at]: its position in the plan; [stretch]: null where nothing runs; [number]: of its exit in the plan's exits. */
private class LoadedSegment(val at: Int, val segment: PlanSegment, val stretch: LoadedStretch?, val number: Int?)

internal const val AT_END = 0 // the end of the subnet, here
internal const val AT_SERVER = 1 // the end of the subnet, at the server
internal const val AFTER_FAILURE = 2 // the split's fallback, here, since the server did not answer
internal const val UNANSWERED = 3 // nothing: the split's server did not answer, and the plan abstains without it
internal const val BY_SECOND = 4 // the end of a cascade's second path

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
 * a split falls back to without its server, plus 3 where that is nothing: then the logits are not numbers, plus 4 where
 * it was a cascade's second path. [kept]: null where the plan keeps no activations of hard samples. [asking]: the samples that left the path at an exit to ask a
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

/** What is added to each class's logit, by class. */
public fun logitOffsets(prior: Prior): FloatArray =
    FloatArray(prior.logRatios.size) { (prior.temperature * prior.logRatios[it]).toFloat() }

/** [logits] [batch, classes] under [prior], in float32; the same tensor without one. */
public fun corrected(logits: Tensor, prior: Prior?): Tensor =
    if (prior == null) logits else withOffsets(logits, logitOffsets(prior))

/** The same by sample. */
internal fun corrected(logits: List<FloatArray>, prior: Prior?): List<FloatArray> {
    val offsets = logitOffsets(prior ?: return logits)
    return logits.map { row -> FloatArray(row.size) { row[it] + offsets[it] } }
}

private fun withOffsets(logits: Tensor, offsets: FloatArray): Tensor {
    val values = logits.floats()
    for (at in values.indices) values[at] += offsets[at % offsets.size]
    return Tensor.of(values, logits.shape)
}

/** A stretch whose last output is logits, under a prior. Implements the port. */
internal class CorrectedStretch(private val stretch: LoadedStretch, prior: Prior) : LoadedStretch {
    private val offsets = logitOffsets(prior)

    override fun run(inputs: List<Tensor>): List<Tensor> = underPrior(stretch.run(inputs))

    override fun runUntil(inputs: List<Tensor>, stop: StopSignal): List<Tensor>? =
        stretch.runUntil(inputs, stop)?.let(::underPrior)

    override fun close(): Unit = stretch.close()

    private fun underPrior(outputs: List<Tensor>) = outputs.dropLast(1) + withOffsets(outputs.last(), offsets)
}
