/** Plans with exits that ask a server, at their end or from an exit, all limits chosen together (EE-HI). Pure. */
package pathweave.sdk.policies.planning

import pathweave.sdk.policies.costs.ExitSamples
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Optimised
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Uplink

private const val COARSE = 7 // limits per exit in the first look at all paths
private const val FINE = 12 // around the best of them
private const val MOST_STEPS = 150 // of a look at all paths with few exits, and of one at all with many
private const val FEW_EXITS = 3 // of a path: these are searched to the end within the steps
private val NOTHING_HARD = Decider.MaxConfidence(0.0) // no confidence lies below it

private const val HALF = 0.5 // above, an answer that counts by its margin is right

/**
 * A subnet without exits, all ways to decide at its end, and the exits that it may take.
 *
 * [exitBytes]: what each exit adds; [looks]: the grids of the first look, and their tables: exits that ask too come
 * second.
 */
internal class JointPath(
    val rankings: List<Ranking>,
    serverRight: BooleanArray,
    val exits: List<ExitSamples>,
    val exitBytes: List<Long>,
) {
    val route: SampleRoute = rankings[0].route
    val hasManyExits: Boolean = exits.size > FEW_EXITS
    private val withoutCall = AskingEnd(
        rankings.map { it.bySample() },
        BooleanArray(route.count) { route.correct[it] > HALF },
        serverRight,
        route.deviceMs[0],
        RemoteCall(0, 0.0, 0.0),
        rankings.map { route.decidingMs(it.kind) },
        route.decidingMs(NOTHING_HARD),
    )
    val looks: List<Pair<JointGrid, JointTable>> = listOf(false, true).map { early ->
        JointGrid.of(exits, withoutCall.eases, COARSE, early).let { it to JointTable(exits.last(), withoutCall, it) }
    }

    fun end(call: RemoteCall) = withoutCall.calling(call)
}

/**
 * The best plans of exits and a decision for requirements, their limits found together.
 *
 * A coarse grid on every path comes first, then a fine one around the best of them: exact on each grid unless the search
 * has to end early ([MOST_STEPS]). A path with more than [FEW_EXITS] is searched twice, first with some of them, evenly
 * spaced. Paths whose bound says that they hold nothing better are left out.
 */
internal class JointPlans(
    evidence: PlanEvidence,
    costs: CostModel,
    rankings: List<List<Ranking>>,
    private val remote: RemoteEvidence,
) {
    private val paths = evidence.paths.zip(rankings).flatMap { (path, ranked) ->
        val right = evidence.right(remote.logits)
        fewAndAll(path.worthwhile).map { ids ->
            val exits = ids.map { path.atExit(it, costs).later(costs.callOverheadMs) }
            JointPath(ranked, right, exits, exits.map { exitBytes(costs, Plan(path.answers.subnet, listOf(it.choice))) })
        }
    }

    /** The search of the plan that [requirement] puts first; null where what it is on is not known. */
    fun search(requirement: Requirement, uplink: Uplink?, power: Power?): JointLooks? {
        val isOnEnergy = requirement.optimise == Optimised.ENERGY_MJ || requirement.energyMj != null
        if (uplink == null || isOnEnergy && power == null) return null
        val call = remote.call(uplink)
        val rates = Rates.of(requirement, call, power)
        return JointLooks(remote, paths.map { BoundedPath(it, it.end(call), rates) }, requirement, rates)
    }
}

/** A path with what asking takes, and its bounds: exits that ask too come second. */
internal class BoundedPath(val path: JointPath, val end: AskingEnd, rates: Rates) {
    val bounds: List<JointBounds> = JointBounds(path.exits, end, rates, asksEarly = true).let { early ->
        listOf(JointBounds(path.exits, end, rates, asksEarly = false, like = early), early)
    }
}

/** The search for one requirement on one network. */
internal class JointLooks(
    private val remote: RemoteEvidence,
    private val paths: List<BoundedPath>,
    private val requirement: Requirement,
    private val rates: Rates,
) {
    /** The best plan with a value above [betterThan]; [asksEarly]: exits may ask too. */
    fun best(betterThan: Double, asksEarly: Boolean): Plan? {
        val look = if (asksEarly) 1 else 0
        val efforts = listOf(Effort(MOST_STEPS), Effort(MOST_STEPS))
        var best: Pair<BoundedPath, JointLimits>? = null
        var value = betterThan
        for (one in paths.sortedWith(compareBy({ it.path.hasManyExits }, { it.bounds[look].least }))) {
            if (one.bounds[look].least >= objectiveOf(requirement, value)) continue
            val (grid, table) = one.path.looks[look]
            val effort = efforts[if (one.path.hasManyExits) 1 else 0]
            val found = search(one, one.end, look, grid, table, effort).run(value) ?: continue
            best = one to found
            value = found.value
        }
        return best?.let { (path, found) -> plan(path.path, refined(path, found, look)) }
    }

    /** The best of a fine grid around what a first look found, for the same decider. */
    private fun refined(at: BoundedPath, chosen: JointLimits, look: Int): JointLimits {
        val (ease, exits) = at.end.eases[chosen.decider] to at.path.exits
        val fine = at.path.looks[look].first.around(chosen.exits, chosen.decider, chosen.hardEases, exits, ease, FINE)
        val end = at.end.decidedBy(chosen.decider)
        val found = search(at, end, look, fine, JointTable(exits.last(), end, fine), Effort(MOST_STEPS)).run(chosen.value)
        return found?.run { JointLimits(this.exits, chosen.decider, hardEases, value) } ?: chosen
    }

    private fun search(
        at: BoundedPath,
        end: AskingEnd,
        look: Int,
        grid: JointGrid,
        table: JointTable,
        effort: Effort,
    ): JointSearch {
        val memory = JointMemory(at.path.route.peakBytes, at.path.exitBytes, requirement.peakBytes)
        return JointSearch(at.path.exits, end, requirement, rates, at.bounds[look], table, memory, grid, effort)
    }

    private fun plan(path: JointPath, found: JointLimits): Plan {
        val plan = Plan(path.route.plan.subnet, found.exits)
        if (found.hardEases == 0 && !plan.asksEarly) return plan
        val ranking = path.rankings[found.decider]
        val decider = if (found.hardEases == 0) NOTHING_HARD else ranking.decider(found.hardEases - 1)
        return plan.copy(hard = Hard.Ask(decider, remote.server))
    }
}

/** [FEW_EXITS] of them, evenly spaced, and all of them; nothing twice. */
private fun fewAndAll(exits: List<String>): List<List<String>> = when {
    exits.isEmpty() -> emptyList()
    exits.size <= FEW_EXITS -> listOf(exits)
    else -> listOf(List(FEW_EXITS) { exits[Math.rint(it * (exits.size - 1) / (FEW_EXITS - 1.0)).toInt()] }, exits)
}
