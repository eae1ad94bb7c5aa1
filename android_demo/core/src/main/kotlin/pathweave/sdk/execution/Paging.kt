/**
 * A plan under a memory cap: its path in pages that are loaded when they are needed (AdaptiveNet §6: block by block).
 * Mirrors device_sdk/execution/paging.py.
 *
 * Blobs are read, and their digests verified, whenever a page is loaded; nothing of them stays in memory but the
 * runtime's sessions.
 */
package pathweave.sdk.execution

import java.io.Closeable
import pathweave.sdk.BudgetError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan

private const val INNER_TENSORS = 4L // what a block computes inside, in sizes of its inputs and outputs

/** The smallest cap under which [plan] runs in pages: what its largest block takes while it is loaded. */
internal fun leastMemoryCapBytes(bundle: Bundle, plan: Plan): Long = leastBytes(bundle, segments(bundle.supernet, plan))

private fun leastBytes(bundle: Bundle, found: List<PlanSegment>, batch: Int = 1): Long =
    leastCapBytes(found.flatMap { pieces(bundle, it, batch) })

/** What [segment] takes if it is one model. */
internal fun oneModelFootprint(bundle: Bundle, segment: PlanSegment, batch: Int = 1): Footprint =
    footprint(pieces(bundle, segment, batch))

/** What segments take if each is one model that stays, while one of them runs on [batch] samples. */
internal fun residentBytes(bundle: Bundle, found: List<PlanSegment>, batch: Int = 1): Long {
    val prints = found.filter { it.runs }.map { oneModelFootprint(bundle, it, batch) }
    return prints.sumOf { it.residentBytes } + (prints.maxOfOrNull { it.workingBytes } ?: 0L)
}

/** Whether the pages of all [plans], each divided for the cap, can stay loaded beside each other. */
internal fun allPagesStay(bundle: Bundle, plans: List<List<PlanSegment>>, capBytes: Long): Boolean {
    val prints = plans.flatMap { found ->
        val divided = try {
            pages(found.map { pieces(bundle, it) }, capBytes)
        } catch (_: BudgetError) {
            return false
        }
        divided.flatten().map(::footprint)
    }
    return allStay(prints, capBytes)
}

/** Every edge of the supernet at the model's own input size, the largest, as a segment of its own. */
internal fun eachEdge(bundle: Bundle): List<PlanSegment> =
    bundle.supernet.edges.filter { it.inputSize == null }.map { PlanSegment(listOf(it), null) }

/** [wanted] samples at once, or half as many again and again until [found] runs in pages under the cap. */
internal fun largestBatch(bundle: Bundle, found: List<PlanSegment>, capBytes: Long?, wanted: Int): Int =
    generateSequence(wanted) { it / 2 }.first { it <= 1 || capBytes == null || leastBytes(bundle, found, it) <= capBytes }

/** Bytes of the cap that are left when the largest block of [found] is loaded for one sample; at least 0. */
internal fun roomBesideLargest(bundle: Bundle, found: List<PlanSegment>, capBytes: Long): Long =
    maxOf(0L, capBytes - leastBytes(bundle, found))

/**
 * Edges on demand, each a page of its own: loaded when it runs, freed when another needs its room under the cap.
 *
 * Closing what it gives frees all pages; what it gives afterwards loads them again.
 *
 * @throws BudgetError the cap is too small for the largest edge; says the least that works.
 */
internal class PagedEdges(bundle: Bundle, private val runtime: Runtime, capBytes: Long, batch: Int) {
    private val numbers = HashMap<Edge, Int>()
    private val pages = eachEdge(bundle).mapIndexed { number, one ->
        numbers[one.edges[0]] = number
        Page({ bundle.stretch(one.edges, anySize = true) }, oneModelFootprint(bundle, one, batch))
    }
    private var pager: Pager? = null

    /** What is taken. */
    val cap = MemoryCap(capBytes)

    init {
        checkCap(eachEdge(bundle).flatMap { pieces(bundle, it, batch) }, capBytes)
    }

    /** What runs [edge]. Nothing is loaded before it does. */
    fun load(edge: Edge): LoadedStretch {
        val open = pager?.takeUnless { it.isClosed } ?: Pager(runtime, pages, cap).also { pager = it }
        return PagedStretch(open, listOf(numbers.getValue(edge.at(null))))
    }
}

/**
 * The segments of a plan in pages for [capBytes]. A page is loaded when it first runs, or by [loadEach].
 *
 * @throws BudgetError the cap is too small for the largest block; says the least that works.
 */
internal class PagedSegments(
    bundle: Bundle,
    runtime: Runtime,
    found: List<PlanSegment>,
    capBytes: Long,
    cap: MemoryCap,
    batch: Int,
) : Closeable {
    private val divided = pages(found.map { pieces(bundle, it, batch) }, capBytes)
    private val flat = divided.flatten()
    val pager: Pager = Pager(runtime, flat.map { Page({ read(bundle, it) }, footprint(it)) }, cap)

    /** One per segment; null where nothing runs. */
    val stretches: List<PagedStretch?> = buildList {
        var next = 0
        for (part in divided) add(if (part.isEmpty()) null else PagedStretch(pager, part.map { next++ }))
    }

    /** Load all pages once, so that what fails, fails here. */
    fun loadEach(): Unit = flat.indices.forEach { number -> pager.page(number) {} }

    override fun close(): Unit = pager.close()
}

private fun read(bundle: Bundle, page: List<Piece>): Stretch =
    bundle.stretch(page.mapNotNull { it.edge }, page.last().exit)

private fun pieces(bundle: Bundle, segment: PlanSegment, batch: Int = 1): List<Piece> {
    if (!segment.runs) return emptyList()
    val ends: List<Pair<Edge?, ExitChoice?>> =
        if (segment.edges.isEmpty()) listOf(null to segment.exit)
        else segment.edges.mapIndexed { at, edge -> edge to segment.exit.takeIf { at == segment.edges.lastIndex } }
    return ends.map { (edge, exit) ->
        val names = bundle.blobNames(listOfNotNull(edge), exit)
        Piece(edge, exit, names.associateWith(bundle::loadedSize), batch * workingBytes(bundle, edge, exit))
    }
}

/** What a block takes while it runs on one sample: its tensors, and as many as may be inside. */
private fun workingBytes(bundle: Bundle, edge: Edge?, exit: ExitChoice?): Long {
    val supernet = bundle.supernet
    var endsBytes = 0L
    if (edge != null) {
        val (start, end) = supernet.ends(edge)
        endsBytes += (start.tensors + end.tensors).sumOf { it.nbytes }
    }
    if (exit != null) {
        val branch = supernet.exit(exit.exit)
        endsBytes += supernet.exitTensor(branch).nbytes
        if (edge == null) endsBytes += supernet.cutPoints[branch.position].tensors.sumOf { it.nbytes }
    }
    return endsBytes + INNER_TENSORS * endsBytes
}
