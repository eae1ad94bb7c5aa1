/**
 * The memory cap of an open model: changed on demand, and with the system's memory. Mirrors
 * device_sdk/session/elastic_memory.py.
 */
package pathweave.sdk.session

import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit.NANOSECONDS
import kotlin.concurrent.thread
import pathweave.sdk.ClosedError
import pathweave.sdk.LOG
import pathweave.sdk.UsageError
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.live.CapState
import pathweave.sdk.live.ElasticSettings
import pathweave.sdk.live.nextCap
import pathweave.sdk.logs.AdaptationLog
import pathweave.sdk.logs.resized
import pathweave.sdk.memory_pressure.MemoryPressure
import pathweave.sdk.memory_pressure.MemoryReading
import pathweave.sdk.policies.exits.leastPlanBytes
import pathweave.sdk.policies.exits.planWithin
import pathweave.sdk.policies.exits.wholePlanBytes
import pathweave.sdk.supernet.Plan

private const val JOIN_MS = 10_000L
private const val NS_PER_S = 1e9

/**
 * Changes the cap under running calls. Elastic.kt decides when, ElasticPlan.kt what remains.
 *
 * The plan that was taken on purpose is remembered, and comes back as far as there is room. [resized]: called after a
 * change.
 */
internal class ElasticMemory(
    private val inUse: PlanInUse,
    private val log: AdaptationLog?,
    private val resized: () -> Unit,
) {
    private var made: Pair<Plan, Plan>? = null // what runs, and of what it is a part; guarded by this
    private var bounds: Pair<Plan, Pair<Long, Long>>? = null // asked for at every reading
    private val watching = Any() // guards the next

    @Volatile
    private var watch: Watch? = null

    private val bundle get() = inUse.workspace.bundle

    /** The cap; null for none. */
    val capBytes: Long? get() = inUse.workspace.memoryCapBytes

    /**
     * Change it now. The memory is kept to once the calls in progress have ended.
     *
     * @throws BudgetError not even the path to the plan's first exit fits; says the least that works. Nothing changes.
     * @throws UsageError it is not above 0.
     */
    fun setCap(capBytes: Long?) {
        if (capBytes != null && capBytes <= 0) {
            throw UsageError("the memory cap is $capBytes bytes; it must be above 0")
        }
        resize(capBytes, "asked")
        watch?.allow(capBytes)
    }

    /** Follow the system's memory from now on; the cap that was set is the most. Throws as [MemoryPressure.read]. */
    fun watch(pressure: MemoryPressure, settings: ElasticSettings) {
        pressure.read()
        synchronized(watching) {
            stop()
            watch = Watch(pressure, settings, capBytes)
        }
    }

    /** Whether the system's memory is followed. */
    val isWatching: Boolean get() = watch != null

    /** Stay with the cap in use. May be called twice. */
    fun stop() {
        synchronized(watching) { watch.also { watch = null } }?.stop()
    }

    /** One decision of a watch, done. */
    private fun follow(state: CapState, reading: MemoryReading, ceiling: Long?, settings: ElasticSettings): CapState {
        val (leastBytes, mostBytes) = boundsBytes()
        val active = inUse.enter()
        val takenBytes = try {
            active.loaded.takenBytes
        } finally {
            active.leave()
        }
        val nowS = System.nanoTime() / NS_PER_S
        val wanted = nextCap(state, reading, takenBytes, mostBytes, ceiling, nowS, settings)
        val capBytes = wanted.capBytes?.let { maxOf(it, leastBytes) }
        if (capBytes != state.capBytes) {
            val sinks = capBytes != null && (state.capBytes == null || capBytes < state.capBytes)
            resize(capBytes, if (sinks) "pressure" else "room", reading.availableBytes)
        }
        return CapState(capBytes, wanted.roomySinceS)
    }

    /** The least cap under which any part of the plan runs, and what all of it takes. */
    private fun boundsBytes(): Pair<Long, Long> = synchronized(this) {
        val plan = whole()
        val known = bounds?.takeIf { it.first == plan }
            ?: (plan to (leastPlanBytes(bundle, plan) to wholePlanBytes(bundle, plan))).also { bounds = it }
        known.second
    }

    /** The plan that was taken on purpose, of which what runs now may be a part. */
    private fun whole(): Plan {
        val plan = inUse.running().plan
        return made?.takeIf { it.first == plan }?.second?.withExitsOf(bundle.exits) ?: plan
    }

    private fun resize(capBytes: Long?, why: String, availableBytes: Long? = null) {
        val (oldCapBytes, plan) = synchronized(this) {
            val (before, whole) = this.capBytes to whole()
            if (capBytes == before) return
            val plan = planWithin(bundle, whole, capBytes)
            inUse.exchangeCap(capBytes, plan, hurry = why == "pressure")
            made = plan to whole
            before to plan
        }
        resized()
        log?.write(resized(why, oldCapBytes, capBytes, availableBytes, plan))
    }

    /** The thread that reads the system's memory. */
    private inner class Watch(
        private val pressure: MemoryPressure,
        private val settings: ElasticSettings,
        private var ceilingBytes: Long?,
    ) {
        private var state = CapState(ceilingBytes) // this and the ceiling are guarded by this
        private val stopped = CountDownLatch(1)
        private val thread = thread(isDaemon = true, name = "pathweave-memory") { follow() }

        /** The user set another cap. */
        fun allow(capBytes: Long?): Unit = synchronized(this) {
            ceilingBytes = capBytes
            state = CapState(capBytes)
        }

        fun stop() {
            stopped.countDown()
            if (Thread.currentThread() !== thread) thread.join(JOIN_MS)
        }

        private fun follow() {
            var noted = false
            while (!stopped.await((settings.intervalS * NS_PER_S).toLong(), NANOSECONDS)) {
                try {
                    val reading = pressure.read()
                    synchronized(this) { state = follow(state, reading, ceilingBytes, settings) }
                    noted = false
                } catch (_: ClosedError) {
                    return
                } catch (error: Exception) { // a thread that ends would leave the memory unwatched without a word
                    if (!noted) LOG.warning("the memory cap stays as it is: ${error.message}")
                    noted = true
                }
            }
        }
    }
}
