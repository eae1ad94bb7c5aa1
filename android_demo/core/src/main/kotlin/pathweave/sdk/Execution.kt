/**
 * Running a plan: segment by segment, so that what follows a taken exit is really never computed. Mirrors
 * device_sdk/execution/loaded_plan.py.
 *
 * A segment is the stretch from one exit of the plan to the next together with the branch at its end, composed into one
 * model (docs/bundle_format.md), or under a memory cap into several that are loaded in turns (Paging.kt). Samples that
 * an exit answers leave the batch; the others go on, here or at a server.
 */
package pathweave.sdk

import java.io.Closeable
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.runtimes.StopSignal

/**
 * A plan that is ready to run. [run] may be called from several threads at once.
 *
 * What follows a split is loaded too: it runs here when there is no server, or when it fails. The decider of [Plan.hard]
 * is applied to the outcome. Under a memory cap a plan that needs more runs in pages, of which as many stay as there is
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
    private val hurry = StopSignal()
    private val stepping = Any() // guards the next two
    private val everyLoaded = mutableListOf<LoadedSegments>()
    private var stepped: SteppedPlan? = null

    init {
        workspace.bundle.supernet.checkPlan(plan)
        found = segments(workspace.bundle.supernet, plan)
        loaded = LoadedSegments(workspace, found, cap)
        everyLoaded += loaded
        val numbers = plan.exits.withIndex().associate { (number, choice) -> choice.exit to number }
        segments = found.zip(loaded.stretches).map { (segment, stretch) ->
            LoadedSegment(segment, stretch, segment.exit?.let { numbers.getValue(it.exit) })
        }
    }

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
        BatchRun(tensor, runTail).run()

    private inner class BatchRun(private val tensor: Tensor, private val runTail: ((List<Tensor>) -> Tensor?)?) {
        private val answers = Answers(tensor.batch)
        private var features = listOf(tensor)
        private var rest = (0 until tensor.batch).toList() // samples without an answer
        private var latest: Pair<Tensor, Int>? = null // what the last exit says of the rest, if no time is left
        private var kept: KeptActivations? = null
        private var end = AT_END

        fun run(): Outcome {
            val left = if (plan.split?.position == 0) answeredElsewhere() else false
            if (!left) for (segment in segments) if (ends(segment)) break
            return answers.outcome(kept)
        }

        /** Run one segment; whether every sample has an answer now. */
        private fun ends(segment: LoadedSegment): Boolean {
            val outputs =
                if (latest == null) segment.stretch.run(features) else segment.stretch.runUntil(features, hurry)
            if (outputs == null) {
                latest?.let { (logits, number) -> answers.put(rest, logits, number) }
                return true
            }
            features = outputs
            if (segment.number != null && leave(segment, segment.number)) return true
            if (segment.kept) kept = KeptActivations(rest, features)
            if (segment.split && answeredElsewhere()) return true
            if (segment === segments.last()) answers.put(rest, features.last(), plan.exits.size + end)
            return segment === segments.last()
        }

        /** Samples that are sure leave at the exit with this [number]; whether all did. */
        private fun leave(segment: LoadedSegment, number: Int): Boolean {
            val logits = features.last()
            val (sure, unsure) = segment.decide(logits, everything = segment === segments.last() || hurry.isSet)
            answers.put(rest, logits, number, sure)
            features = features.dropLast(1)
            if (unsure.isEmpty()) return true
            latest = (if (sure.isEmpty()) logits else logits.rows(unsure)) to number
            if (sure.isNotEmpty()) {
                rest = unsure.map(rest::get)
                features = features.map { it.rows(unsure) }
            }
            return false
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
     */
    internal fun stepped(): SteppedPlan = synchronized(stepping) {
        stepped ?: run {
            val everyStep = steps(workspace.bundle.supernet, plan)
            val stretches = if (everyStep == found) loaded else LoadedSegments(workspace, everyStep, cap)
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

/** [number]: the position of its exit in the plan's exits; null without one. */
private class LoadedSegment(segment: PlanSegment, val stretch: LoadedStretch, val number: Int?) {
    val split: Boolean = segment.split
    val kept: Boolean = segment.kept
    private val threshold = segment.exit?.threshold ?: 0.0

    /** The samples of the batch that are answered here, and those that go on; with [everything] none do. */
    fun decide(logits: Tensor, everything: Boolean): Pair<List<Int>, List<Int>> {
        val all = (0 until logits.batch).toList()
        if (everything) return all to emptyList()
        val confidence = confidence(logits)
        return all.partition { confidence[it] >= threshold }
    }
}
