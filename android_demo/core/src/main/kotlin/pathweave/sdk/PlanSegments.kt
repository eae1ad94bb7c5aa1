/** The segments of a plan: what runs without a decision in between. Mirrors device_sdk/execution/plan_segments.py. */
package pathweave.sdk

/** The edges of a segment, and the exit at their end; null at the end of the subnet. */
internal data class PlanSegment(val edges: List<Edge>, val exit: ExitChoice?)

/**
 * The segments of [plan], in order; its split is not taken.
 *
 * Exits at which no sample leaves by its confidence are left out ([steps] has them). Behind an exit that answers
 * everything, with a threshold of 0, nothing follows.
 */
internal fun segments(supernet: Supernet, plan: Plan): List<PlanSegment> =
    divided(supernet, plan, plan.exits.filter { it.decides })

/** The segments of [plan], each up to an answer: that of any exit, or that of the end. */
internal fun steps(supernet: Supernet, plan: Plan): List<PlanSegment> = divided(supernet, plan, plan.exits)

private fun divided(supernet: Supernet, plan: Plan, exits: List<ExitChoice>): List<PlanSegment> {
    val choices = exits.associateBy { supernet.exit(it.exit).position }
    val found = mutableListOf<PlanSegment>()
    var edges = mutableListOf<Edge>()
    for ((edge, block) in supernet.walk(plan.subnet)) {
        edges += edge
        val choice = choices[block.end] ?: continue
        found += PlanSegment(edges, choice)
        if (choice.threshold <= 0) return found
        edges = mutableListOf()
    }
    return found + PlanSegment(edges, null)
}
