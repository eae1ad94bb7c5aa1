/** The segments of a plan: what runs without a decision in between. Mirrors device_sdk/execution/plan_segments.py. */
package pathweave.sdk.execution

import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Fallback
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Sends
import pathweave.sdk.supernet.Supernet

/**
 * The edges of a segment, the exit at their end, and what else happens there.
 *
 * [split]: the path may go on at a server. [kept]: the activations may be sent for samples that turn out to be hard.
 * [aside]: the activations go to the fallback's branch when the server does not answer; [fallback]: it is that branch.
 * Without edges it is the exit's branch alone, or nothing.
 */
internal data class PlanSegment(
    val edges: List<Edge>,
    val exit: ExitChoice?,
    val split: Boolean = false,
    val kept: Boolean = false,
    val aside: Boolean = false,
    val fallback: Boolean = false,
) {
    /** Whether there is anything to run. */
    val runs: Boolean get() = edges.isNotEmpty() || exit != null
}

/**
 * The segments of [plan], in order; only the first can be without edges: where it is split at the input.
 *
 * Exits at which no sample leaves by its confidence are left out ([steps] has them). Behind an exit that answers
 * everything, with a threshold of 0, nothing follows. Behind a split with another fallback than the subnet, the branch
 * of an exit may follow that is otherwise left out: it takes the activations set aside for it.
 */
internal fun segments(supernet: Supernet, plan: Plan): List<PlanSegment> {
    val sends = (plan.hard as? Hard.Ask)?.sends as? Sends.Activations
    val taken = plan.exits.filter { it.decides }
    val atInput = if (plan.split?.position == 0) listOf(PlanSegment(emptyList(), null, split = true)) else emptyList()
    val last = fallbackBranch(plan)
        ?: return atInput + divided(supernet, plan, taken, plan.split?.position, kept = sends?.position)
    val divided = divided(supernet, plan, taken, plan.split?.position, aside = supernet.exit(last.exit).position)
    return if (divided.last().split) divided + PlanSegment(emptyList(), last, fallback = true) else divided
}

/** The exit that runs only when the split's server does not answer; null where there is none, or it ran before. */
internal fun fallbackBranch(plan: Plan): ExitChoice? =
    plan.exits.lastOrNull()?.takeIf { plan.split?.fallback == Fallback.EXIT && !it.decides }

/** The exits that answer without a deadline: by confidence, or in place of the split's server. */
internal fun answeringExits(plan: Plan): List<ExitChoice> {
    val branch = fallbackBranch(plan)
    return plan.exits.filter { it.decides || it == branch }
}

/**
 * The segments of [plan] on this device alone, each up to an answer: that of any exit, or that of the end.
 *
 * Without the subnet as fallback of its split, the last exit is the end; there are no steps if there is no exit.
 */
internal fun steps(supernet: Supernet, plan: Plan): List<PlanSegment> =
    divided(supernet, plan, plan.exits).filter { !plan.isHead || it.exit != null }

private fun divided(
    supernet: Supernet,
    plan: Plan,
    exits: List<ExitChoice>,
    split: Int? = null,
    kept: Int? = null,
    aside: Int? = null,
): List<PlanSegment> {
    val choices = exits.associateBy { supernet.exit(it.exit).position }
    val found = mutableListOf<PlanSegment>()
    var edges = mutableListOf<Edge>()
    for (edge in supernet.edgesHere(plan)) {
        edges += edge
        val end = supernet.block(edge.block).end
        val choice = choices[end]
        if (choice == null && end != split && end != kept && end != aside) continue
        found += PlanSegment(edges, choice, split = end == split, kept = end == kept, aside = end == aside)
        if (choice != null && choice.threshold <= 0) return found
        edges = mutableListOf()
    }
    return if (edges.isNotEmpty() || !plan.isHead) found + PlanSegment(edges, null) else found
}
