/** The segments of a plan: what runs without a decision in between. Mirrors device_sdk/execution/plan_segments.py. */
package pathweave.sdk

/**
 * The edges of a segment, the exit at their end, and what else happens there.
 *
 * [split]: the path may go on at a server. [kept]: the activations may be sent for samples that turn out to be hard.
 */
internal data class PlanSegment(
    val edges: List<Edge>,
    val exit: ExitChoice?,
    val split: Boolean = false,
    val kept: Boolean = false,
)

/**
 * The segments of [plan], in order. A split at the input comes before all of them.
 *
 * Exits at which no sample leaves by its confidence are left out ([steps] has them). Behind an exit that answers
 * everything, with a threshold of 0, nothing follows.
 */
internal fun segments(supernet: Supernet, plan: Plan): List<PlanSegment> {
    val sends = (plan.hard as? Hard.Ask)?.sends as? Sends.Activations
    val taken = plan.exits.filter { it.decides }
    return divided(supernet, plan, taken, plan.split?.position, sends?.position)
}

/** The segments of [plan] on this device alone, each up to an answer: that of any exit, or that of the end. */
internal fun steps(supernet: Supernet, plan: Plan): List<PlanSegment> = divided(supernet, plan, plan.exits)

private fun divided(
    supernet: Supernet,
    plan: Plan,
    exits: List<ExitChoice>,
    split: Int? = null,
    kept: Int? = null,
): List<PlanSegment> {
    val choices = exits.associateBy { supernet.exit(it.exit).position }
    val found = mutableListOf<PlanSegment>()
    var edges = mutableListOf<Edge>()
    for ((edge, block) in supernet.walk(plan.subnet)) {
        edges += edge
        val choice = choices[block.end]
        if (choice == null && block.end != split && block.end != kept) continue
        found += PlanSegment(edges, choice, split = block.end == split, kept = block.end == kept)
        if (choice != null && choice.threshold <= 0) return found
        edges = mutableListOf()
    }
    return found + PlanSegment(edges, null)
}
