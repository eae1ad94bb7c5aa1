/**
 * What `AdaptiveModel` keeps for live update: the pool, the private samples if it may, and the thread. Mirrors
 * device_sdk/session/live_keeper.py.
 */
package pathweave.sdk.session

import java.io.Closeable
import pathweave.sdk.UsageError
import pathweave.sdk.data.Inputs
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.live.LiveSettings
import pathweave.sdk.live.LiveUpdate
import pathweave.sdk.live.PlanPool
import pathweave.sdk.live.PoolSearch
import pathweave.sdk.live.poolOf
import pathweave.sdk.policies.Found
import pathweave.sdk.policies.AdaptationSettings
import pathweave.sdk.policies.standInLabels
import pathweave.sdk.profiling.Profile
import pathweave.sdk.search.SearchProgress
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.Subnet

private const val FILL_SHARE = 1.0 // of the time that the adaptation took, for the other latencies of the pool
private const val FILL_LEAST_S = 5.0

/** Private inputs with labels [count] or null, and how they are searched on. */
internal class PrivateSamples(
    val inputs: Inputs,
    val labels: IntArray?,
    val settings: AdaptationSettings,
    val profile: Profile,
)

/** Starts and stops live update. [state]: null keeps the pool in memory alone, where private samples always stay. */
internal class LiveKeeper(private val state: DeviceState?, private val inUse: PlanInUse) : Closeable {
    private var pool: PlanPool? = null // guarded by this, as what follows
    private var live: LiveUpdate? = null
    private var search: PoolSearch? = null

    /** Whether live update runs. */
    val isRunning: Boolean get() = current() != null

    /** What is ready ahead of being needed. */
    val warmSubnets get() = current()?.warmSubnets.orEmpty()

    /** Of the last adaptation's pool, the best first; none without an adaptation. */
    val subnets: List<Subnet>
        get() = (synchronized(this) { pool } ?: state?.loadPool())?.candidates.orEmpty()
            .sortedByDescending { it.expected ?: it.accuracy }.map { it.subnet }

    /**
     * Keep the pool of an adaptation; its settings say whether to fill it at all latencies, and to search again.
     *
     * Without a latency budget there is nothing to keep, and no pool.
     */
    fun remember(found: Found, samples: PrivateSamples, progress: SearchProgress) {
        forget()
        val own = poolOf(found) ?: return
        synchronized(this) { pool = own }
        val settings = samples.settings
        if (!settings.fillPool && !settings.keepSamples) return
        val search = poolSearch(samples, found.plan.prior)
        if (settings.fillPool) {
            val limitS = maxOf(FILL_LEAST_S, FILL_SHARE * found.seconds)
            poolOf(found, search.fill(found.goal.budget, limitS, progress))?.let(::remember)
        }
        if (settings.keepSamples) synchronized(this) { this.search = search }
    }

    private fun remember(pool: PlanPool) {
        synchronized(this) { this.pool = pool }
        state?.savePool(pool)
    }

    /** Drop the private samples. */
    fun forget(): Unit = synchronized(this) { search = null }

    /**
     * Watch the plan in use with the pool, at another [budget] if there is one.
     *
     * @throws UsageError nothing was adapted, or the plan in use cannot be watched; says why.
     */
    fun start(budget: Budget?, settings: LiveSettings) {
        close()
        val pool = pool(budget, inUse.running().plan)
        val search = synchronized(this) { search }?.let { kept ->
            { wanted: Budget, cancelled: () -> Boolean -> kept.search(wanted, settings.searchTimeLimitS, cancelled) }
        }
        val started = LiveUpdate(inUse, state?.log, pool, settings, search, ::remember)
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

    private fun poolSearch(samples: PrivateSamples, prior: Prior?): PoolSearch {
        val (workspace, settings) = inUse.lendWorkspace() to samples.settings
        val labels = samples.labels ?: standInLabels(workspace, samples.inputs, settings.batch, usePrior = prior != null).first
        return PoolSearch(workspace, samples.profile.costModel(), samples.inputs, labels, settings, prior)
    }

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
            throw UsageError("live update keeps a latency budget, and there is none", "set Goal(latencyMs = …)")
        }
        return known.copy(budget = budget)
    }
}
