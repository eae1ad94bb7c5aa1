/**
 * A plan under a memory cap: its path in pages that are loaded when they are needed (AdaptiveNet §6: block by block).
 * Mirrors device_sdk/execution/paging.py.
 *
 * Blobs are read, and their digests verified, whenever a page is loaded; nothing of them stays in memory but the
 * runtime's sessions.
 */
package pathweave.sdk

import java.io.Closeable
import pathweave.sdk.runtimes.Runtime

private const val INNER_TENSORS = 4L // what a block computes inside, in sizes of its inputs and outputs

/** The smallest cap under which [plan] runs in pages: what its largest block takes while it is loaded. */
internal fun leastMemoryCapBytes(bundle: Bundle, plan: Plan): Long =
    leastCapBytes(segments(bundle.supernet, plan).flatMap { pieces(bundle, it) })

/** What [segment] takes if it is one model. */
internal fun oneModelFootprint(bundle: Bundle, segment: PlanSegment): Footprint = footprint(pieces(bundle, segment))

/** What segments take if each is one model that stays, while one of them runs. */
internal fun residentBytes(bundle: Bundle, found: List<PlanSegment>): Long {
    val prints = found.filter { it.runs }.map { oneModelFootprint(bundle, it) }
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
) : Closeable {
    private val divided = pages(found.map { pieces(bundle, it) }, capBytes)
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

private fun pieces(bundle: Bundle, segment: PlanSegment): List<Piece> {
    if (!segment.runs) return emptyList()
    val ends: List<Pair<Edge?, ExitChoice?>> =
        if (segment.edges.isEmpty()) listOf(null to segment.exit)
        else segment.edges.mapIndexed { at, edge -> edge to segment.exit.takeIf { at == segment.edges.lastIndex } }
    return ends.map { (edge, exit) ->
        val names = bundle.blobNames(listOfNotNull(edge), exit)
        Piece(edge, exit, names.associateWith(bundle::loadedSize), workingBytes(bundle, edge, exit))
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
