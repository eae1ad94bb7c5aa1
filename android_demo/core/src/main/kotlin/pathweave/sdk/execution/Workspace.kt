/** Where what a bundle has becomes something that runs: device_sdk/execution/workspace.py and loaded_segments.py. */
package pathweave.sdk.execution

import java.io.Closeable
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Fallback
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.Sends
import pathweave.sdk.supernet.Supernet

/**
 * One bundle, one runtime, and the bytes that all that is loaded may take beyond the bare runtime; null for no limit.
 *
 * What needs more than the cap runs in pages. [prior]: of classes, applied to all logits of what is loaded here but plans,
 * which have their own. [homes]: that are open here.
 */
internal data class Workspace(
    val bundle: Bundle,
    val runtime: Runtime,
    val memoryCapBytes: Long? = null,
    val prior: Prior? = null,
    val homes: OpenHomes = ONE_HOME,
) {
    /** [plan], ready to run; [cap]: the model's, which its plans share. Throws as [LoadedPlan]. */
    fun loadPlan(plan: Plan, cap: MemoryCap? = null): LoadedPlan = LoadedPlan(this, plan, cap)

    /** [wanted] samples at once, or half as many again and again until [found] runs in pages under the cap. */
    fun largestBatch(found: List<PlanSegment>, wanted: Int): Int = largestBatch(bundle, found, memoryCapBytes, wanted)

    /** [edges] and the branch of an exit behind them, or that alone, ready to run. Throws as [LoadedSegments]. */
    fun loadStretch(edges: List<Edge>, exit: ExitChoice? = null): LoadedStretch =
        checkNotNull(LoadedSegments(this, listOf(PlanSegment(edges, exit))).stretches[0])

    /** What they take if they are one model. */
    fun footprint(edges: List<Edge>, exit: ExitChoice? = null): Footprint =
        oneModelFootprint(bundle, PlanSegment(edges, exit))

    /** Whether they run as one model under the cap. */
    fun fits(edges: List<Edge>, exit: ExitChoice? = null): Boolean =
        memoryCapBytes == null || footprint(edges, exit).leastBytes <= memoryCapBytes

    /** Bytes for features that are kept: under a cap at most half of what the largest edge leaves. */
    fun roomForFeatures(wantedBytes: Long): Long {
        if (memoryCapBytes == null) return wantedBytes
        return minOf(wantedBytes, roomBesideLargest(bundle, eachEdge(bundle), memoryCapBytes) / 2)
    }
}

/**
 * Segments that are ready to run on up to [batch] samples: each is one model, or under a memory cap all of them share it
 * in pages.
 *
 * [cap]: that of the model, shared with its other plans; pages are loaded when they first run. Without it the segments
 * have a cap of their own, and all pages are loaded once, so that what fails, fails here. [prior]: of classes, applied to
 * the logits of exits and of the output.
 *
 * @throws BudgetError the cap is too small for the largest block; says the least that works.
 * @throws BlobError, CompositionError, RuntimeFailedError: a segment does not load.
 */
internal class LoadedSegments(
    workspace: Workspace,
    found: List<PlanSegment>,
    private val cap: MemoryCap? = null,
    batch: Int = 1,
    prior: Prior? = workspace.prior,
) : Closeable {
    private val paged: PagedSegments? = workspace.memoryCapBytes?.let {
        PagedSegments(workspace.bundle, workspace.runtime, found, it, cap ?: MemoryCap(it), batch)
    }

    /** One per segment, in order; null where nothing runs. */
    val stretches: List<LoadedStretch?> =
        underPrior(workspace.bundle, found, paged?.stretches ?: loadWhole(workspace, found), prior)
    private val wholeBytes = if (paged == null) residentBytes(workspace.bundle, found, batch) else 0L
    private var counted = false // guarded by this

    init {
        if (paged != null && cap == null) loadEach()
    }

    /** What is loaded here now, as footprints state it. */
    val takenBytes: Long get() = paged?.pager?.takenBytes ?: wholeBytes

    /** How often a page was loaded so far; null without a memory cap. */
    val pageLoads: Int? get() = paged?.pager?.loads

    /** Load all pages once, so that what fails, fails now: then they are closed. */
    fun loadEach() {
        val paged = paged ?: return
        try {
            paged.loadEach()
        } catch (error: Throwable) {
            close()
            throw error
        }
    }

    /**
     * Count what is loaded without pages under the model's cap until it is closed: something else needs its room.
     *
     * It is not counted before, since nothing makes it go.
     */
    fun count(): Unit = synchronized(this) {
        if (cap == null || counted) return
        counted = true
        cap.take(wholeBytes)
    }

    /** Evict idle pages; they are loaded again when they are needed. Without a memory cap this does nothing. */
    fun release() {
        paged?.pager?.release()
    }

    /** Free the sessions. May be called twice. */
    override fun close() {
        stretches.forEach { it?.close() }
        paged?.close()
        synchronized(this) {
            if (counted) cap?.take(-wholeBytes)
            counted = false
        }
    }
}

private fun underPrior(
    bundle: Bundle,
    found: List<PlanSegment>,
    stretches: List<LoadedStretch?>,
    prior: Prior?,
): List<LoadedStretch?> {
    if (prior == null) return stretches
    return found.zip(stretches) { segment, stretch ->
        if (stretch != null && endsInLogits(bundle, segment)) CorrectedStretch(stretch, prior) else stretch
    }
}

private fun endsInLogits(bundle: Bundle, segment: PlanSegment): Boolean {
    val supernet = bundle.supernet
    return segment.exit != null || supernet.block(segment.edges.last().block).end == supernet.outputIndex
}

private fun loadWhole(workspace: Workspace, found: List<PlanSegment>): List<LoadedStretch?> {
    val (bundle, runtime) = workspace.bundle to workspace.runtime
    val ready = mutableListOf<LoadedStretch?>()
    try {
        for (one in found) ready += if (one.runs) runtime.load(bundle.stretch(one.edges, one.exit)) else null
    } catch (error: Throwable) {
        ready.forEach { it?.close() }
        throw error
    }
    return ready
}

/**
 * The edges of a segment, the exit at their end, and what else happens there.
 *
 * [split]: the path may go on at a server. [kept]: the activations may be sent for samples that turn out to be hard.
 * [aside]: the activations go to the fallback's branch when the server does not answer; [fallback]: it is that branch.
 * [second]: the rest of a cascade's second path.
 * Without edges it is the exit's branch alone, or nothing.
 */
internal data class PlanSegment(
    val edges: List<Edge>,
    val exit: ExitChoice?,
    val split: Boolean = false,
    val kept: Boolean = false,
    val aside: Boolean = false,
    val fallback: Boolean = false,
    val second: Boolean = false,
) {
    /** Whether there is anything to run. */
    val runs: Boolean get() = edges.isNotEmpty() || exit != null
}

/**
 * The segments of [plan], in order; only the first can be without edges: where it is split at the input.
 *
 * Exits at which no sample leaves by its confidence are left out ([steps] has them). Behind an exit that answers
 * everything, with a threshold of 0, nothing follows. Behind a split with another fallback than the subnet, the branch
 * of an exit may follow that is otherwise left out: it takes the activations set aside for it. The rest of a cascade's
 * second path comes last: it takes the activations kept where it leaves the first, or the input.
 */
internal fun segments(supernet: Supernet, plan: Plan): List<PlanSegment> {
    val sends = (plan.hard as? Hard.Ask)?.sends as? Sends.Activations
    val taken = plan.exits.filter { it.decides }
    val atInput = if (plan.split?.position == 0) listOf(PlanSegment(emptyList(), null, split = true)) else emptyList()
    (plan.hard as? Hard.Cascade)?.let { cascade ->
        val first = divided(supernet, plan, taken, kept = cascade.position.takeIf { it > 0 })
        return first + PlanSegment(supernet.secondEdges(plan), null, second = true)
    }
    val last = fallbackBranch(plan)
        ?: return atInput + divided(supernet, plan, taken, plan.split?.position, kept = sends?.position)
    val divided = divided(supernet, plan, taken, plan.split?.position, aside = supernet.exit(last.exit).position)
    return if (divided.last().split) divided + PlanSegment(emptyList(), last, fallback = true) else divided
}

/** The exit that runs only when the split's server does not answer; null where there is none, or it ran before. */
internal fun fallbackBranch(plan: Plan): ExitChoice? =
    plan.exits.lastOrNull()?.takeIf { plan.split?.fallback == Fallback.EXIT && !it.decides }

/** The exits that answer without a deadline: by confidence, or in place of the split's server. */
internal fun answeringExits(plan: Plan): List<ExitChoice> {
    val branch = fallbackBranch(plan)
    return plan.exits.filter { it.decides || it == branch }
}

/**
 * The segments of [plan] on this device alone, each up to an answer: that of any exit, or that of the end.
 *
 * Without the subnet as fallback of its split, the last exit is the end; there are no steps if there is no exit.
 */
internal fun steps(supernet: Supernet, plan: Plan): List<PlanSegment> =
    divided(supernet, plan, plan.exits).filter { !plan.isHead || it.exit != null }

private fun divided(
    supernet: Supernet,
    plan: Plan,
    exits: List<ExitChoice>,
    split: Int? = null,
    kept: Int? = null,
    aside: Int? = null,
): List<PlanSegment> {
    val choices = exits.associateBy { supernet.exit(it.exit).position }
    val found = mutableListOf<PlanSegment>()
    var edges = mutableListOf<Edge>()
    for (edge in supernet.edgesHere(plan)) {
        edges += edge
        val end = supernet.block(edge.block).end
        val choice = choices[end]
        if (choice == null && end != split && end != kept && end != aside) continue
        found += PlanSegment(edges, choice, split = end == split, kept = end == kept, aside = end == aside)
        if (choice != null && choice.threshold <= 0) return found
        edges = mutableListOf()
    }
    return if (edges.isNotEmpty() || !plan.isHead) found + PlanSegment(edges, null) else found
}
