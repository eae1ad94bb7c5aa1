/** Plans that are ready before they are needed. Mirrors device_sdk/live/live_update.py. */
package pathweave.sdk.live

import pathweave.sdk.execution.LoadedPlan
import pathweave.sdk.search.Candidate
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet

/** A plan, the model that runs it, of which this is one use, and how long it took to make it ready. */
internal class PreparedPlan(val plan: Plan, val loaded: LoadedPlan, val prepareMs: Double)

/** Prepared plans under a cap of bytes, by the predicted peak of their subnets. Thread-safe. */
internal class WarmPlans {
    private val ready = LinkedHashMap<Subnet, PreparedPlan>() // guarded by this

    /** The subnets that are ready. */
    val subnets: Set<Subnet> get() = synchronized(this) { ready.keys.toSet() }

    /** Keep the first of [candidates] that fit under the cap together and drop the rest; those to be prepared. */
    fun want(candidates: List<Candidate>, capBytes: Long): List<Candidate> {
        var left = capBytes
        val wanted = candidates.filter { one -> (one.cost.peakBytes <= left).also { if (it) left -= one.cost.peakBytes } }
        val subnets = wanted.map { it.subnet }.toSet()
        return synchronized(this) {
            drop { it !in subnets }
            wanted.filter { it.subnet !in ready }
        }
    }

    /** Keep a plan until [want] drops it. */
    fun put(prepared: PreparedPlan) {
        synchronized(this) { ready.put(prepared.plan.subnet, prepared) }?.loaded?.calls?.leave()
    }

    /** The prepared model of just this plan, if there is one; it is not kept any longer. */
    fun take(plan: Plan): PreparedPlan? = synchronized(this) {
        ready[plan.subnet]?.takeIf { it.plan == plan }?.also { ready -= plan.subnet }
    }

    /** Drop all. */
    fun clear(): Unit = synchronized(this) { drop { true } }

    private fun drop(which: (Subnet) -> Boolean) {
        for (subnet in ready.keys.filter(which)) ready.remove(subnet)?.loaded?.calls?.leave()
    }
}
