/** Exits that a plan has for deadlines and interruptions alone. Mirrors device_sdk/policies/exits/placed_exits.py. */
package pathweave.sdk.policies.exits

import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE

/**
 * [plan] with those of [exits], in order, that it lacks: deadlines and interruptions alone end with them.
 *
 * Their threshold is one that no confidence reaches, so that ordinary runs are as without them (ADR 42).
 */
public fun withTimedExits(plan: Plan, exits: List<ExitChoice>): Plan {
    val known = plan.exits.associateBy { it.exit }
    return plan.copy(exits = exits.map { known[it.exit] ?: it.copy(threshold = UNREACHABLE_CONFIDENCE) })
}

/** [subnet] with the most accurate exit of each cut point that it passes, as the packager judged them. */
public fun timedPlan(supernet: Supernet, subnet: Subnet): Plan {
    val best = supernet.exitsAlong(subnet).groupBy { it.position }.toSortedMap().values
        .map { exits -> exits.maxBy { it.accuracy ?: 0.0 } }
    val choices = best.map { ExitChoice(it.id, UNREACHABLE_CONFIDENCE, it.renditions[0].name) }
    return withTimedExits(Plan(subnet), choices)
}

/** [plan] with an exit for deadlines and interruptions at each cut point where it has none ([timedPlan]). */
public fun withFurtherExits(supernet: Supernet, plan: Plan): Plan {
    val taken = plan.exits.map { supernet.exit(it.exit).position }.toSet()
    val further = timedPlan(supernet, plan.subnet).exits.filter { supernet.exit(it.exit).position !in taken }
    return withTimedExits(plan, (plan.exits + further).sortedBy { supernet.exit(it.exit).position })
}
