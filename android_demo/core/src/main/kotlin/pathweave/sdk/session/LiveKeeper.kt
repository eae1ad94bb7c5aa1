/** What `AdaptiveModel` keeps for live update: the pool and the thread. Mirrors device_sdk/session/live_keeper.py. */
package pathweave.sdk.session

import java.io.Closeable
import pathweave.sdk.UsageError
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.live.LiveSettings
import pathweave.sdk.live.LiveUpdate
import pathweave.sdk.live.PlanPool
import pathweave.sdk.live.poolOf
import pathweave.sdk.policies.Adaptation
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet

/** Starts and stops live update. [state]: null keeps the pool in memory alone. */
internal class LiveKeeper(private val state: DeviceState?, private val inUse: PlanInUse) : Closeable {
    private var pool: PlanPool? = null // guarded by this, as what follows
    private var live: LiveUpdate? = null

    /** Whether live update runs. */
    val isRunning: Boolean get() = current() != null

    /** What is ready ahead of being needed. */
    val warmSubnets get() = current()?.warmSubnets.orEmpty()

    /** Of the last adaptation's pool, the best first; none without an adaptation. */
    val subnets: List<Subnet>
        get() = (synchronized(this) { pool } ?: state?.loadPool())?.candidates.orEmpty()
            .sortedByDescending { it.expected ?: it.accuracy }.map { it.subnet }

    /** Keep the pool of an adaptation. Without a latency budget there is nothing to keep, and no pool. */
    fun remember(adaptation: Adaptation) {
        if (adaptation.budget.latencyMs != null) synchronized(this) { pool = poolOf(adaptation) }
    }

    /**
     * Watch the plan in use with the pool, at another [budget] if there is one.
     *
     * @throws UsageError nothing was adapted, or the plan in use cannot be watched; says why.
     */
    fun start(budget: Budget?, settings: LiveSettings) {
        close()
        val started = LiveUpdate(inUse, state?.log, pool(budget, inUse.running().plan), settings)
        synchronized(this) { live = started }
        started.start()
    }

    /** The plans of the watched pool lose all exits that are not [held]. */
    fun keepExits(held: Set<String>) {
        current()?.apply {
            keepExits(held)
            follow()
        }
    }

    /** Another plan was taken on purpose: watch that, while live update runs. */
    fun follow() {
        current()?.follow()
    }

    /** The memory cap changed: watch the plan in use, and prepare others under that cap. */
    fun resized() {
        current()?.apply {
            dropWarm()
            follow()
        }
    }

    /** Watch no longer. May be called twice. */
    override fun close() {
        synchronized(this) { live.also { live = null } }?.close()
    }

    private fun current(): LiveUpdate? = synchronized(this) { live }

    private fun pool(budget: Budget?, plan: Plan): PlanPool {
        val known = (synchronized(this) { pool } ?: state?.loadPool())
            ?: throw UsageError("there is no plan pool to switch in", "adapt to a latency budget first")
        if (plan.split != null) {
            throw UsageError("a plan that is split with a server cannot be watched", "adapt again, without split")
        }
        if (known.find(plan.subnet) == null) {
            throw UsageError("the plan in use is not in the plan pool", "adapt first")
        }
        if (budget == null) return known
        if (budget.latencyMs == null) {
            throw UsageError("live update keeps a latency budget, and there is none", "set Budget(latencyMs = …)")
        }
        return known.copy(budget = budget)
    }
}
