/**
 * What remains of a plan when memory shrinks (MEEdge §3.4), decided by the footprints of its parts.
 *
 * 1. Exits that only deadlines need stay as far as there is room beside all others, by placement. 2. What does not fit
 * at once runs in pages, with the same answers. 3. If the largest block does not even fit alone, the path ends with the
 * last exit up to which everything stays loaded, or else with the last that fits at all.
 */
package pathweave.sdk.policies.exits

import pathweave.sdk.BudgetError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.execution.PlanSegment
import pathweave.sdk.execution.allPagesStay
import pathweave.sdk.execution.allStay
import pathweave.sdk.execution.answeringExits
import pathweave.sdk.execution.leastCapHint
import pathweave.sdk.execution.leastMemoryCapBytes
import pathweave.sdk.execution.megabytes
import pathweave.sdk.execution.oneModelFootprint
import pathweave.sdk.execution.segments
import pathweave.sdk.execution.steps
import pathweave.sdk.policies.placement.ExitCandidate
import pathweave.sdk.policies.placement.placeExactly
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE

/**
 * [plan], or what fits of it under the cap.
 *
 * @throws BudgetError not even the path to the first exit fits; says the least that works.
 */
internal fun planWithin(bundle: Bundle, plan: Plan, capBytes: Long?): Plan {
    if (capBytes == null) return plan
    val kept = withExitsThatStay(bundle, plan, capBytes)
    if (leastMemoryCapBytes(bundle, kept) <= capBytes) return kept
    val shorter = plan.exits.reversed().map { endingWith(plan, it) }
    val fitting = shorter.filter { leastMemoryCapBytes(bundle, it) <= capBytes }
    val staying = fitting.filter { allPagesStay(bundle, forms(bundle, it), capBytes) }
    return staying.firstOrNull() ?: fitting.firstOrNull() ?: throw BudgetError(
        "a memory cap of ${megabytes(capBytes)} MB is too small for any part of the plan",
        leastCapHint(leastPlanBytes(bundle, plan)),
    )
}

/** The least cap under which any part of [plan] that answers runs. */
internal fun leastPlanBytes(bundle: Bundle, plan: Plan): Long {
    val timedOut = plan.copy(exits = answeringExits(plan))
    return (listOf(timedOut) + plan.exits.map { endingWith(plan, it) }).minOf { leastMemoryCapBytes(bundle, it) }
}

/** The least cap under which all of [plan] stays loaded as it is without a cap, every exit included. */
internal fun wholePlanBytes(bundle: Bundle, plan: Plan): Long {
    val prints = forms(bundle, plan).flatten().filter { it.runs }.map { oneModelFootprint(bundle, it) }
    var low = 0L
    var high = 1L
    while (!allStay(prints, high)) high *= 2
    while (high - low > 1) {
        val middle = (low + high) / 2
        if (allStay(prints, middle)) high = middle else low = middle
    }
    return high
}

/** What is loaded for a plan: its segments, and beside them its steps where these are others. */
private fun forms(bundle: Bundle, plan: Plan): List<List<PlanSegment>> {
    val (ordinary, stepped) = segments(bundle.supernet, plan) to steps(bundle.supernet, plan)
    return if (stepped == ordinary) listOf(ordinary) else listOf(ordinary, stepped)
}

/** [plan] without those exits for deadlines alone that would have pages loaded again and again. */
private fun withExitsThatStay(bundle: Bundle, plan: Plan, capBytes: Long): Plan {
    val timed = plan.exits - answeringExits(plan).toSet()
    val (candidates, fullMacs) = candidates(bundle, plan, timed)
    var limitBytes: Long? = null
    var found = plan
    while (found.exits.any { it in timed } && !allPagesStay(bundle, forms(bundle, found), capBytes)) {
        val placed = placeExactly(candidates, fullMacs, limitBytes)
        limitBytes = maxOf(0L, placed.memoryBytes - 1)
        found = plan.copy(exits = plan.exits.filter { it !in timed || it.exit in placed.exits })
    }
    return found
}

/** Exits as placement takes them, timed in MACs; without a measured accuracy the later one counts as the better. */
private fun candidates(bundle: Bundle, plan: Plan, exits: List<ExitChoice>): Pair<List<ExitCandidate>, Double> {
    val supernet = bundle.supernet
    val reached = HashMap<Int, Long>()
    var total = 0L
    for ((_, block) in supernet.walk(plan.subnet)) {
        total += block.macs
        reached[block.end] = total
    }
    val candidates = exits.map { choice ->
        val exit = supernet.exit(choice.exit)
        ExitCandidate(
            exit.id,
            exit.position,
            accuracy = exit.accuracy ?: (exit.position.toDouble() / supernet.outputIndex),
            reachTime = reached.getValue(exit.position).toDouble(),
            branchTime = exit.macs.toDouble(),
            memoryBytes = oneModelFootprint(bundle, PlanSegment(emptyList(), choice)).residentBytes,
        )
    }
    return candidates to maxOf(total, 1L).toDouble()
}

/** The path up to [last], which answers everything: nothing behind it is loaded, and no server is asked. */
private fun endingWith(plan: Plan, last: ExitChoice): Plan {
    val before = plan.exits.take(plan.exits.indexOf(last)).map { it.withoutAsking() }.filter { it.decides }
    return Plan(plan.subnet, before + last.copy(threshold = 0.0, askBelow = 0.0)).withPrior(plan.prior)
}

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
