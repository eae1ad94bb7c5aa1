/**
 * Families of plans that differ in one threshold, and all of them in order of a requirement. Pure.
 *
 * Mirrors policies/planning/families.py.
 */
package pathweave.sdk.policies.planning

import kotlin.math.abs
import pathweave.sdk.supernet.Limited
import pathweave.sdk.supernet.Optimised
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Requirement

/** Plans of one kind that differ in one threshold, or a single plan. */
internal class Family(val kind: String, val costs: Costs, val plan: (Int) -> Plan)

/** The best plan of all, and the best of each kind. */
internal class BestPlans(val best: Plan, val byKind: Map<String, Plan>)

/** All plans of all families: what every requirement on one network is judged by. */
internal class Families(private val families: List<Family>) {
    /** The number of plans. */
    val count: Int = families.sumOf { it.costs.count }

    /** The plans that [requirement] puts first; of equals the quickest. */
    fun best(requirement: Requirement): BestPlans {
        val byKind = sortedMapOf<String, Judged>()
        for (family in families) {
            val found = best(family, requirement)
            byKind.merge(family.kind, found) { known, new -> if (new < known) new else known }
        }
        // of kinds that come out equal the one whose plan was judged first
        val order = families.withIndex().associate { (at, family) -> family to at }
        val best = byKind.values.sortedBy { order.getValue(it.family) }
            .reduce { known, new -> if (new < known) new else known }
        return BestPlans(best.plan, byKind.mapValues { it.value.plan })
    }

    private fun best(family: Family, requirement: Requirement): Judged {
        val costs = family.costs
        val limits = requirement.limits.map { it to costs.column(it.name) }
        val optimised = costs.column(requirement.optimise.toString())
        var best: Judged? = null
        for (at in 0 until costs.count) {
            val excess = limits.sumOf { (one, column) -> excess(one, column[at]) }
            val value = optimised[at]
            val loss = if (requirement.optimise == Optimised.ACCURACY) -value else value
            val judged = Judged(family, at, excess, known(loss), known(costs.latencyMs[at]))
            if (best == null || judged < best) best = judged
        }
        return checkNotNull(best)
    }
}

private fun known(value: Double) = if (value.isNaN()) Double.POSITIVE_INFINITY else value

/** A plan of a family; the better one is the smaller one. */
private class Judged(
    val family: Family,
    private val number: Int,
    private val excess: Double,
    private val loss: Double,
    private val latencyMs: Double,
) : Comparable<Judged> {
    val plan: Plan get() = family.plan(number)

    override fun compareTo(other: Judged): Int = when {
        excess != other.excess -> excess.compareTo(other.excess)
        loss != other.loss -> loss.compareTo(other.loss)
        latencyMs != other.latencyMs -> latencyMs.compareTo(other.latencyMs)
        else -> 0
    }
}

/** By how much a value breaks a limit, in relation to it; what is unknown breaks it infinitely. */
private fun excess(one: Limited, value: Double): Double = when {
    if (one.isLeast) value >= one.limit else value <= one.limit -> 0.0
    value.isNaN() -> Double.POSITIVE_INFINITY
    one.limit != 0.0 -> abs(value - one.limit) / one.limit
    else -> value
}
