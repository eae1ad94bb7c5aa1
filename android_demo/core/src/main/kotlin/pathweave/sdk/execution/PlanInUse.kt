/** The plan that answers now, and its exchange for another one under running calls: execution/plan_in_use.py. */
package pathweave.sdk.execution

import pathweave.sdk.BudgetError
import pathweave.sdk.ClosedError
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.Plan

private const val TIMED_BATCHES = 4 // batch sizes; the one that came first goes

/**
 * A plan, the model that runs it, and where its service times go: exchanged as one.
 *
 * So no call sees half of a switch, and no service time counts for a plan that did not take it.
 */
internal class Active(val plan: Plan, val loaded: LoadedPlan, val times: ServiceTimes? = null) {
    fun leave(): Unit = loaded.calls.leave()
}

/** Holds what is active. A call takes it once and keeps it to its end, so nothing is closed under a call. */
internal class PlanInUse(workspace: Workspace) {
    /** Of all plans that are loaded here. */
    val cap = MemoryCap(workspace.memoryCapBytes)

    /** Of the plan, and of what is loaded beside it. */
    @Volatile
    var workspace: Workspace = workspace
        private set

    private val exchange = Any() // guards writes to active, so that nothing reopens a closed model
    private var active: Active? = null
    private val timedBatches = ArrayDeque<Int>() // that were asked for by a deadline; guarded by itself

    /** What is active. @throws ClosedError the model was closed. */
    fun running(): Active = synchronized(exchange) { active } ?: throw ClosedError("the model was closed")

    /** What is active, for a call that [Active.leave]s it when it ends. @throws ClosedError the model was closed. */
    fun enter(): Active = synchronized(exchange) { running().also { check(it.loaded.calls.enter()) } }

    /** Gives [work] what is active; if that gives way to another plan before it has answered, that one. */
    fun <T> call(work: (Active) -> T): T {
        while (true) {
            val taken = enter()
            try {
                return work(taken)
            } catch (_: PlanRetired) {
                replaceRetired(taken)
            } finally {
                taken.leave()
            }
        }
    }

    /** Loads what is active again for the cap of now, if that is [retired] still. */
    private fun replaceRetired(retired: Active) {
        if (running() !== retired) return
        try {
            exchange(Active(retired.plan, load(retired.plan)), expected = retired)
        } catch (error: BudgetError) {
            if (running() === retired) throw error
        }
    }

    /** [plan], loaded and run once: the first run is slower than those that follow. Throws as [LoadedPlan]. */
    fun prepare(plan: Plan): LoadedPlan = load(plan).also { it.run(zeros(it, 1)) }

    /**
     * [plan], loaded, and its steps measured if deadlines were asked for before. [workspace]: another one than that in
     * use. Throws as [LoadedPlan].
     */
    fun load(plan: Plan, workspace: Workspace? = null): LoadedPlan {
        while (true) {
            val loaded = (workspace ?: this.workspace).loadPlan(plan, cap)
            try {
                loaded.loadEach()
                val batches = if (loaded.hasSteps) synchronized(timedBatches) { timedBatches.toList() } else emptyList()
                for (batch in batches) loaded.stepped().times(zeros(loaded, batch))
                return loaded
            } catch (_: PlanRetired) { // the cap was lowered while it loaded: load it for the new cap
                loaded.close()
            } catch (error: Throwable) {
                loaded.close()
                throw error
            }
        }
    }

    /**
     * Evict the active plan's idle pages and return the workspace, for what is loaded beside the plan.
     *
     * A concurrent call loads the pages of the plan again; then both are in memory.
     */
    fun lendWorkspace(): Workspace {
        synchronized(exchange) { active }?.loaded?.release()
        return workspace
    }

    private fun zeros(loaded: LoadedPlan, batch: Int): Tensor {
        val spec = workspace.bundle.supernet.cutPointsAt(loaded.inputSize)[0].tensors[0]
        return Tensor.converted(spec.dtype, listOf(batch) + spec.shape, FloatArray((batch * spec.size).toInt()))
    }

    /** The first plan. Throws as [LoadedPlan]. */
    fun begin(plan: Plan) {
        val loaded = load(plan)
        synchronized(exchange) { active = Active(plan, loaded) }
    }

    /**
     * Make [new] what is active, with the use of its model that the caller has; with [expected] only if that still is.
     * Whether it happened. What was active is freed once its last call has ended.
     *
     * @throws ClosedError the model was closed; as if it did not happen, [new] is freed.
     */
    fun exchange(new: Active, expected: Active? = null, workspace: Workspace? = null): Boolean {
        val old = synchronized(exchange) {
            val old = active
            if (old != null && (expected == null || old === expected)) {
                active = new
                if (workspace != null) this.workspace = workspace
                old
            } else {
                null
            }
        }
        (old ?: new).leave()
        if (old == null) running()
        return old != null
    }

    /** Measure the steps of plans that are loaded from now on for this batch size too. */
    fun timeBatch(batch: Int): Unit = synchronized(timedBatches) {
        if (batch in timedBatches) return
        if (timedBatches.size == TIMED_BATCHES) timedBatches.removeFirst()
        timedBatches += batch
    }

    /**
     * Change the memory cap under running calls, and run [plan] from now on.
     *
     * Nothing is loaded beside the old plan under a lower cap: the new one loads its pages when they run, which waits
     * until calls of the old one have ended. [hurry]: these answer with the last exit that they reached. Calls whose
     * pages do not fit any more begin again with the new plan. One change at a time.
     *
     * @throws BudgetError the cap is too small for the largest block; says the least that works. Nothing changes.
     */
    fun exchangeCap(capBytes: Long?, plan: Plan, hurry: Boolean = false) {
        val new = workspace.copy(memoryCapBytes = capBytes)
        val before = workspace.memoryCapBytes
        if (capBytes == null || before != null && capBytes > before) cap.set(capBytes) // its pages may be larger
        val loaded = new.loadPlan(plan, cap)
        try {
            while (!replaceOld(Active(plan, loaded), new, hurry)) Thread.yield()
        } finally {
            loaded.calls.leave()
        }
        cap.set(capBytes)
    }

    /** Whether no other exchange came first. */
    private fun replaceOld(new: Active, workspace: Workspace, hurry: Boolean): Boolean {
        val old = enter()
        try {
            old.loaded.count() // from now on, since the new one needs its room
            check(new.loaded.calls.enter()) // one use for the plan in use, beside that of the caller
            if (!exchange(new, expected = old, workspace = workspace)) return false
            if (hurry) old.loaded.hurry()
            return true
        } finally {
            old.leave()
        }
    }

    /** Nothing is active any more; what was is freed once the calls in progress have ended. May be called twice. */
    fun close() {
        synchronized(exchange) { active.also { active = null } }?.leave()
    }
}

/** Counts users, of which the maker is the first; [last] is called when the last has left. Thread-safe. */
internal class RunningCalls(private val last: () -> Unit) {
    private var users = 1 // guarded by this

    /** One user more; false if it was freed already. */
    fun enter(): Boolean = synchronized(this) {
        if (users == 0) return false
        users++
        true
    }

    /** One user less. */
    fun leave() {
        if (synchronized(this) { --users } == 0) last()
    }
}

private const val KEPT = 256 // calls

/**
 * Takes note of calls, from any thread, and calls [wake] when one is out of bounds.
 *
 * This runs in every call: it compares and appends, nothing else.
 */
internal class ServiceTimes(private val lowMs: Double, private val highMs: Double, private val wake: () -> Unit) {
    private val callsMs = ArrayDeque<Double>() // guarded by this

    /** A call of one sample that the subnet answered took so long. */
    fun record(serviceMs: Double) {
        synchronized(this) {
            if (callsMs.size == KEPT) callsMs.removeFirst()
            callsMs.addLast(serviceMs)
        }
        if (serviceMs !in lowMs..highMs) wake()
    }

    /** The last calls, the oldest first, milliseconds. */
    fun last(): List<Double> = synchronized(this) { callsMs.toList() }
}
