/**
 * A plan under a memory cap: its path in pages that are loaded when they are needed (AdaptiveNet §6: block by block).
 *
 * Blobs are read, and their digests verified, whenever a page is loaded; nothing of them stays in memory but the
 * runtime's sessions.
 */
package pathweave.sdk.execution

import java.io.Closeable
import java.lang.Math.rint
import java.util.concurrent.locks.Condition
import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock
import pathweave.sdk.BudgetError
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.runtimes.StopSignal
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.MB
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

    /** What runs [edge], at the first home. Nothing is loaded before it does. */
    fun load(edge: Edge): LoadedStretch {
        val open = pager?.takeUnless { it.isClosed } ?: Pager(runtime, pages, cap).also { pager = it }
        return PagedStretch(open, listOf(numbers.getValue(edge.at(null).on(""))))
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

internal const val LOADING_FACTOR = 5.0 // peak while loading / weights
private const val RESIDENT_FACTOR = 1.1 // what stays / weights
internal const val SESSION_BYTES = 512L * 1024 // what a session takes besides its weights
private const val DOUBLINGS = 16
private const val HINT_STEP_BYTES = 10_000L

/**
 * What is never divided: a block, together with the branch of the exit behind it if the plan has one there.
 *
 * Without [edge] it is an exit's branch alone, which runs on given features. [weights]: bytes of each blob that it
 * needs, by name: pieces that share one count it once where they are loaded together. [workingBytes]: what it takes
 * while it runs, its inputs and outputs included.
 */
internal data class Piece(
    val edge: Edge?,
    val exit: ExitChoice?,
    val weights: Map<String, Long>,
    val workingBytes: Long,
) {
    override fun toString(): String = if (edge == null) "exit ${exit?.exit}" else "block $edge"
}

/** Memory of a page: while it is loaded, from then on, and in addition while it runs. */
internal data class Footprint(val loadingBytes: Long, val residentBytes: Long, val workingBytes: Long) {
    /** What this page takes if nothing else is there. */
    val leastBytes: Long get() = maxOf(loadingBytes, residentBytes + workingBytes)
}

/** What [pieces], loaded as one page, take. */
internal fun footprint(pieces: List<Piece>): Footprint {
    val weights = weightBytes(pieces)
    return Footprint(
        loadingBytes = rint(LOADING_FACTOR * weights).toLong() + SESSION_BYTES,
        residentBytes = rint(RESIDENT_FACTOR * weights).toLong() + SESSION_BYTES,
        workingBytes = pieces.maxOf { it.workingBytes },
    )
}

/** The smallest cap under which [pieces] run: that of the largest, alone; 0 where there are none. */
internal fun leastCapBytes(pieces: List<Piece>): Long = pieces.maxOfOrNull { footprint(listOf(it)).leastBytes } ?: 0L

/**
 * Divide each stretch into pages, so that under [capBytes] as few as possible have to be loaded again.
 *
 * 1. Everything in one page per stretch, if that can be loaded and stay. 2. Else the largest pages with which all can
 * stay, so that nothing is ever loaded twice. 3. Else pages as small as the largest piece, which has to be loaded
 * somehow: what smaller ones would save elsewhere, they pay in sessions.
 *
 * @throws BudgetError the cap is too small for the largest piece; says the least that works.
 */
internal fun pages(stretches: List<List<Piece>>, capBytes: Long): List<List<List<Piece>>> {
    val every = stretches.flatten()
    checkCap(every, capBytes)
    val smallest = every.maxOfOrNull { weightBytes(listOf(it)) } ?: 0L
    for (doublings in DOUBLINGS downTo 0) {
        val divided = stretches.map { packed(it, smallest shl doublings, capBytes) }
        if (allStay(divided.flatten().map(::footprint), capBytes)) return divided
    }
    return stretches.map { packed(it, smallest, capBytes) }
}

/** Refuse a cap under which the largest of [pieces] does not run alone ([BudgetError] with the least that works). */
internal fun checkCap(pieces: List<Piece>, capBytes: Long) {
    val least = leastCapBytes(pieces)
    if (capBytes >= least) return
    val largest = pieces.maxBy { footprint(listOf(it)).leastBytes }
    throw BudgetError(
        "a memory cap of ${megabytes(capBytes)} MB is too small: $largest alone takes ${megabytes(least)} MB",
        leastCapHint(least),
    )
}

/** What to allow at least, rounded up. */
internal fun leastCapHint(leastBytes: Long): String {
    val steps = (leastBytes + HINT_STEP_BYTES - 1) / HINT_STEP_BYTES
    return "allow at least ${megabytes(steps * HINT_STEP_BYTES)} MB"
}

internal fun megabytes(bytes: Long): String = String.format(java.util.Locale.ROOT, "%.2f", bytes / MB.toDouble())

/** Whether what takes [prints] can be loaded, one after the other, and all be there while any of it runs. */
internal fun allStay(prints: List<Footprint>, capBytes: Long): Boolean {
    var resident = 0L
    for (one in prints) {
        if (resident + one.loadingBytes > capBytes) return false
        resident += one.residentBytes
        if (resident + one.workingBytes > capBytes) return false
    }
    return resident + (prints.maxOfOrNull { it.workingBytes } ?: 0L) <= capBytes
}

/**
 * The resident pages in the order in which they should leave when a call needs page [at].
 *
 * A call passes the pages in order and the next one begins at the first, so it is known which is needed last: the one
 * that the call has just passed, before those further back, before those still to come, the last first.
 */
internal fun leavesFirst(resident: Collection<Int>, at: Int): List<Int> =
    resident.filter { it < at }.sortedDescending() + resident.filter { it > at }.sortedDescending()

/** Pages of consecutive pieces, each with at most [limit] bytes of weights and none above the cap. */
private fun packed(stretch: List<Piece>, limit: Long, capBytes: Long): List<List<Piece>> {
    val found = mutableListOf<List<Piece>>()
    for (piece in stretch) {
        val together = found.lastOrNull()?.plus(piece)
        if (together != null && weightBytes(together) <= limit && footprint(together).leastBytes <= capBytes) {
            found[found.lastIndex] = together
        } else {
            found += listOf(piece)
        }
    }
    return found
}

private fun weightBytes(pieces: List<Piece>): Long {
    val sizes = HashMap<String, Long>()
    for (piece in pieces) sizes.putAll(piece.weights)
    return sizes.values.sum()
}

/** What is loaded as one: where it comes from, and what it takes. */
internal class Page(val read: () -> Stretch, val footprint: Footprint)

/** A page in memory, and how many calls run it now. */
private class Resident(val loaded: LoadedStretch, val footprint: Footprint, var calls: Int = 0)

/**
 * Keeps what pages take, while they are loaded, there or run, below a cap. Safe from several threads.
 *
 * Requests for pages are serialised, and a waiting caller holds at most the page that it is about to run, so deadlock
 * is impossible. Calls that run a page run concurrently as long as their working sets fit side by side. [cap]: shared
 * with other pagers of the model, and may change at any time.
 */
internal class Pager(private val runtime: Runtime, private val pages: List<Page>, private val cap: MemoryCap) :
    Evictable, Closeable {
    private val resident = HashMap<Int, Resident>() // guarded by the cap, as what follows
    private var closed = false

    /** Whether it loads nothing any more. */
    val isClosed: Boolean get() = cap.guard.withLock { closed }

    /** How often a page was loaded so far. */
    @Volatile
    var loads = 0
        private set

    init {
        cap.register(this)
    }

    /** What the pages that are loaded now take, and those that run in addition. */
    val takenBytes: Long
        get() = cap.guard.withLock {
            resident.values.sumOf { it.footprint.residentBytes + it.calls * it.footprint.workingBytes }
        }

    /**
     * Gives [use] page [number], which stays until that ends. A thread takes one page at a time.
     *
     * @throws BlobError, CompositionError, RuntimeFailedError: it does not load, or the pager was closed.
     * @throws PlanRetired the page does not fit under a cap that was lowered.
     */
    fun <T> page(number: Int, use: (LoadedStretch) -> T): T {
        val page = take(number)
        try {
            return use(page.loaded)
        } finally {
            unpin(page)
            cap.take(-page.footprint.workingBytes)
        }
    }

    private fun take(number: Int): Resident = cap.turn.withLock {
        // counted as called at once, so that it is not evicted while room for its run is made
        val here = cap.guard.withLock { resident[number]?.also { it.calls++ } }
        val page = here ?: load(number)
        try {
            reserve(page.footprint.workingBytes, number, beside = page.footprint.residentBytes)
        } catch (error: Throwable) {
            unpin(page)
            throw error
        }
        page
    }

    private fun load(number: Int): Resident {
        val (page, footprint) = pages[number] to pages[number].footprint
        reserve(footprint.loadingBytes, number)
        val loaded = try {
            Resident(runtime.load(page.read()), footprint, calls = 1)
        } catch (error: Throwable) {
            cap.take(-footprint.loadingBytes)
            throw error
        }
        cap.guard.withLock {
            cap.take(footprint.residentBytes - footprint.loadingBytes)
            resident[number] = loaded
            loads++
        }
        return loaded
    }

    /** Take [sizeBytes] once there is room: pages leave for it, and calls that run others are waited for. */
    private fun reserve(sizeBytes: Long, at: Int, beside: Long = 0): Unit = cap.guard.withLock {
        while (!closed && !cap.neverFits(sizeBytes + beside) && !makeRoom(sizeBytes, at)) {
            cap.changed.awaitUninterruptibly()
        }
        if (closed) throw RuntimeFailedError("the plan was closed")
        if (cap.neverFits(sizeBytes + beside)) throw PlanRetired()
        cap.take(sizeBytes)
    }

    private fun makeRoom(sizeBytes: Long, at: Int): Boolean {
        if (cap.makeRoom(sizeBytes, keeping = this)) return true
        for (number in leavesFirst(resident.keys.toList(), at)) {
            if (resident.getValue(number).calls == 0) free(number)
            if (cap.hasRoom(sizeBytes)) return true
        }
        return false
    }

    private fun free(number: Int) {
        val page = resident.remove(number) ?: return
        page.loaded.close()
        cap.take(-page.footprint.residentBytes)
    }

    private fun unpin(page: Resident): Unit = cap.guard.withLock {
        page.calls--
        if (closed || !cap.hasRoom(0)) evictIdle()
    }

    /** Evict idle pages; they are loaded again when they are needed. */
    fun release(): Unit = cap.guard.withLock { evictIdle() }

    /** Free all pages, those that are running or loading now when that ends. May be called twice. */
    override fun close(): Unit = cap.guard.withLock {
        closed = true
        evictIdle()
        cap.unregister(this)
        cap.changed.signalAll()
    }

    override fun evictIdle(): Unit = resident.filterValues { it.calls == 0 }.keys.toList().forEach(::free)
}

internal class PagedStretch(private val pager: Pager, private val numbers: List<Int>) : LoadedStretch {
    override fun run(inputs: List<Tensor>): List<Tensor> =
        numbers.fold(inputs) { features, number -> pager.page(number) { it.run(features) } }

    override fun runUntil(inputs: List<Tensor>, stop: StopSignal): List<Tensor>? {
        var features = inputs
        for (number in numbers) {
            if (stop.isSet) return null
            features = pager.page(number) { it.runUntil(features, stop) } ?: return null
        }
        return features
    }

    override fun close(): Unit = pager.close()
}

/** The plan gave way to another one, or the cap sank below what it needs: the call begins again, with that. */
internal class PlanRetired : Exception("the plan was retired")

/** Something that holds memory which no call uses. */
internal fun interface Evictable {
    /** Free what no call uses. The caller holds [MemoryCap.guard]. */
    fun evictIdle()
}

/**
 * Counts the bytes that are taken, as footprints state them, and makes room. Thread-safe.
 *
 * [guard] guards everything here; [changed] is signalled whenever there may be more room. [turn] serialises those that
 * take pages: who waits for room holds the turn and no page, so deadlock is impossible.
 */
internal class MemoryCap(capBytes: Long? = null) {
    val guard = ReentrantLock()
    val changed: Condition = guard.newCondition()
    val turn = ReentrantLock()
    private val holders = mutableSetOf<Evictable>()

    @Volatile
    var usedBytes = 0L
        private set

    /** The most that was taken so far. */
    @Volatile
    var peakBytes = 0L
        private set

    /** The cap; null for none. */
    @Volatile
    var capBytes: Long? = capBytes
        private set

    /** Change the cap. Above a lower one idle pages leave at once, those that calls use when these end. */
    fun set(capBytes: Long?): Unit = guard.withLock {
        this.capBytes = capBytes
        makeRoom(0)
        changed.signalAll()
    }

    /** [holder] gives up what is idle when others need room. */
    fun register(holder: Evictable): Unit = guard.withLock { holders += holder }

    fun unregister(holder: Evictable): Unit = guard.withLock { holders -= holder }

    /** Whether [sizeBytes] more fit. The caller holds [guard]. */
    fun hasRoom(sizeBytes: Long): Boolean = capBytes.let { it == null || usedBytes + sizeBytes <= it }

    /** Evict what is idle, but for [keeping], until [sizeBytes] fit; whether they do. The caller holds [guard]. */
    fun makeRoom(sizeBytes: Long, keeping: Evictable? = null): Boolean {
        for (holder in holders.toList()) {
            if (hasRoom(sizeBytes)) break
            if (holder !== keeping) holder.evictIdle()
        }
        return hasRoom(sizeBytes)
    }

    /** Whether [sizeBytes] are more than the whole cap. */
    fun neverFits(sizeBytes: Long): Boolean = capBytes.let { it != null && sizeBytes > it }

    /** Count [sizeBytes] as taken, room or not; negative ones as returned. */
    fun take(sizeBytes: Long): Unit = guard.withLock {
        usedBytes += sizeBytes
        peakBytes = maxOf(peakBytes, usedBytes)
        changed.signalAll()
    }
}
