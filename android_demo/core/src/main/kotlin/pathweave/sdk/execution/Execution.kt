/**
 * Running a plan: segment by segment, so that what follows a taken exit is really never computed. Mirrors
 * device_sdk/execution/loaded_plan.py.
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
import pathweave.sdk.supernet.ImageSize
import pathweave.sdk.supernet.Plan

/**
 * A plan that is ready to run. [run] may be called from several threads at once.
 *
 * What follows a split is loaded too where it is the fallback: it runs here when there is no server, or when it fails.
 * The decider of [Plan.hard] is applied to the outcome. Under a memory cap a plan that needs more runs in pages, of which as many stay as there is
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
    public val inputSize: ImageSize? = plan.inputSize

    /** Who uses it; it is freed when the last one leaves. */
    internal val calls = RunningCalls(::close)

    private val found: List<PlanSegment>
    private val loaded: LoadedSegments
    private val segments: List<LoadedSegment>
    private val branch: LoadedStretch? // the fallback's, where it did not run before
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
        segments = pairs.filter { (segment, _) -> !segment.fallback }.mapIndexed { at, (segment, stretch) ->
            LoadedSegment(at, segment, stretch, segment.exit?.let { numbers.getValue(it.exit) })
        }
        branch = pairs.find { (segment, _) -> segment.fallback }?.second
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
    internal fun run(tensor: Tensor, runTail: ((List<Tensor>) -> Tensor?)?, asks: Boolean): Outcome {
        val answers = Answers(tensor.batch)
        val run = BatchRun(Waiting((0 until tensor.batch).toList(), listOf(tensor)), answers, runTail, asks)
        run.run()
        return answers.outcome(run.kept, run.asking)
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

/** [at]: its position in the plan; [stretch]: null where nothing runs; [number]: of its exit in the plan's exits. */
private class LoadedSegment(val at: Int, val segment: PlanSegment, val stretch: LoadedStretch?, val number: Int?)
