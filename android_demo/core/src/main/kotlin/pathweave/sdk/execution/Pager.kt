/** Pages of a plan, loaded when they are needed and freed when something else needs their room: execution/pager.py. */
package pathweave.sdk.execution

import java.io.Closeable
import kotlin.concurrent.withLock
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.runtimes.StopSignal

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

/** Consecutive pages that run as one stretch. */
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
