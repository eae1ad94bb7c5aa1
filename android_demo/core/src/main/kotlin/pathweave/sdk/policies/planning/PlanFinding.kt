/**
 * One planner over subnets, exits, deciders, abstention and asking a server: the best plan for a requirement. Pure.
 *
 * A part of device_sdk/policies/planning/planner.py and front.py, which judge routers, splits and views of samples too,
 * and cascades whose second path goes on where it leaves the first.
 * Plans that differ in a threshold alone are judged together in closed form, exits with asking are optimised together, and
 * the plan that wins is judged again sample by sample.
 */
package pathweave.sdk.policies.planning

import kotlin.math.abs
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Kind
import pathweave.sdk.supernet.Limited
import pathweave.sdk.supernet.Optimised
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.PlanCost
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Split
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.UPLINKS
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.supernet.ease

private val GRID = (-6..6).flatMap { half ->
    val mbps = Math.pow(10.0, half / 2.0)
    listOf(0.0, 10.0, 100.0, 1000.0).map { Uplink(mbps, it) }
}
private val UNFITTED = listOf(Decider.MaxConfidence(0.0), Decider.Entropy(0.0), Decider.Margin(0.0))

/** A plan that runs here, the way of the samples through it, and all thresholds of its deciders. */
private class LocalPlan(
    val path: PathEvidence,
    val route: SampleRoute,
    val abstaining: List<Ranking>,
    val asking: List<Ranking>,
) {
    val plan: Plan get() = route.plan
}

/** Deciders for a subnet; [pays]: left-out samples show that asking gains. */
private class Deciders(val known: List<Decider>, val pays: Boolean)

/** What a planner found: the [choice], and the best plan of each kind, or of a kind that breaks limits the nearest. */
internal class Nearest(val choice: Choice, val byKind: Map<String, Plan>)

/** Chooses among all plans that [evidence] can judge. */
internal class Planner(
    private val evidence: PlanEvidence,
    private val costs: CostModel,
    private val kinds: Set<Kind> = Kind.entries.toSet(),
) {
    private val remote = evidence.remote
    private val fitted = mutableMapOf<Pair<Subnet, Boolean>, Deciders>()
    private val local = evidence.paths.flatMap { path ->
        (listOf(emptyList<ExitChoice>()) + path.exitSets).map { prepared(path, it) }
    }
    private val joint = remote?.takeIf { Kind.ASK in kinds }?.let { server ->
        JointPlans(evidence, costs, local.filter { it.plan.exits.isEmpty() }.map { it.asking }, server)
    }
    private val here = mutableMapOf<Power?, List<Family>>()
    private var ofServer: List<Ranking>? = null // of its answers, the same whatever the way there

    private fun prepared(path: PathEvidence, exits: List<ExitChoice>): LocalPlan {
        val route = SampleRoute(Plan(path.answers.subnet, exits), path, evidence, costs, null)
        val asking = if (remote == null) emptyList() else rankings(route, deciders(path, remote).known)
        return LocalPlan(path, route, rankings(route, deciders(path, null).known), asking)
    }

    /** Those of a fixed score, and those fitted to the subnet's logits: to gain where [server] can be asked. */
    private fun deciders(path: PathEvidence, server: RemoteEvidence?): Deciders =
        fitted.getOrPut(path.answers.subnet to (server != null)) {
            val outcomes = outcomes(path.logits, server)
            val twoNumbers = fitLogistic(path.logits, outcomes.withoutLosses(), TOP_TWO, byClass = false)
            val best = fitBestLogistic(path.logits, outcomes)
            val eases = UNFITTED.map { ease(it, path.logits) } + listOfNotNull(best?.eases)
            val pays = server == null || eases.any { askingPays(it, outcomes.gains) }
            Deciders(UNFITTED + listOfNotNull(twoNumbers, best?.decider), pays)
        }

    /** What asking does to [own] logits: nothing where they are right, or still wrong after it. */
    private fun outcomes(own: Tensor, server: RemoteEvidence?): Outcomes {
        val right = evidence.right(own)
        val there = server?.let { evidence.right(it.asked(own)) } ?: return Outcomes(right)
        val easy = BooleanArray(right.size) { right[it] || !there[it] }
        return Outcomes(easy, BooleanArray(right.size) { right[it] && !there[it] })
    }

    /** The best plan over [uplink], or where none keeps all limits, the one that comes nearest to it. */
    fun nearest(requirement: Requirement, uplink: Uplink?, power: Power?): Nearest {
        val families = Families(families(uplink, power))
        val plans = families.best(requirement)
        val byKind = plans.byKind.toMutableMap()
        var best = certain(plans, requirement, uplink, power)
        var cost = cost(best, uplink, power)
        var late: PlanCost? = null
        val search = joint?.search(requirement, uplink, power)
        for (asksEarly in listOf(false, true)) {
            val value = if (requirement.misses(cost).isEmpty()) requirement.value(cost) else Double.NEGATIVE_INFINITY
            val plan = search?.best(value, asksEarly) ?: continue
            val found = cost(plan, uplink, power)
            if (requirement.misses(found).isNotEmpty()) continue
            late = cost.takeIf { plan.asksEarly }
            best = plan
            cost = found
            byKind[plan.kind] = plan
        }
        return Nearest(Choice(best, cost, families.count, requirement.misses(cost), late), byKind)
    }

    /**
     * The best plan; instead of a cascade the best one without a second path, where the cascade is not more accurate by a
     * standard error: the best by a hair of so many is the luckiest.
     */
    private fun certain(plans: BestPlans, requirement: Requirement, uplink: Uplink?, power: Power?): Plan {
        if (plans.best.second == null || requirement.optimise != Optimised.ACCURACY) return plans.best
        val rival = plans.byKind.values.filter { it.second == null }
            .map { it to cost(it, uplink, power) }
            .filter { (_, cost) -> cost.coverage == 1.0 && requirement.misses(cost).isEmpty() }
            .maxByOrNull { (_, cost) -> requirement.value(cost) }?.first ?: return plans.best
        val (own, others) = listOf(plans.best, rival).map { route(evidence, costs, it, uplink).correct }
        return if (isCertainGain(DoubleArray(own.size) { own[it] - others[it] })) plans.best else rival
    }

    private fun cost(plan: Plan, uplink: Uplink?, power: Power?) = expectedCost(evidence, costs, plan, uplink, power)

    /** The plans of which each is the best on some network: those for the present one, for typical ones and for none. */
    fun front(requirement: Requirement, power: Power?): PlanFront {
        val present = remote?.uplink ?: UPLINKS.getValue("wifi")
        val networks = if (remote == null) emptyList() else (listOf(present) + UPLINKS.values).distinct()
        val found = (networks + null).map { nearest(requirement, it, power) }
        val plans = found.flatMap { listOf(it.choice.plan) + it.byKind.values }
        val offers = plans.distinct().map { route(evidence, costs, it, present).offer() }
        val (inputBytes, answerMs) = (remote?.inputBytes ?: 1L) to (remote?.answerMs ?: 0.0)
        return bestSomewhere(PlanFront(requirement, power, present, inputBytes, answerMs, evidence.count, offers))
    }

    private fun families(uplink: Uplink?, power: Power?): List<Family> =
        here.getOrPut(power) { familiesHere(power) } +
            local.flatMap { one -> asking(one, uplink, power) + whole(one, uplink, power) }

    /** Plans that need no server, kept for all networks. */
    private fun familiesHere(power: Power?): List<Family> = local.flatMap { one ->
        val abstaining = if (one.abstaining.isEmpty() || Kind.ABSTAIN !in kinds) null else abstaining(one.plan, Sweep(one.abstaining), power)
        val alone = Family(one.plan.kind, Costs.of(one.route.cost(power))) { _ -> one.plan }
        listOfNotNull(alone, abstaining) + if (Kind.CASCADE in kinds) cascading(one, power) else emptyList()
    }

    /** The plan with each slower and more accurate subnet behind it, at every threshold. */
    private fun cascading(one: LocalPlan, power: Power?): List<Family> {
        if (one.abstaining.isEmpty()) return emptyList()
        val (ownMs, ownAccuracy) = costs.latencyMs(one.plan.subnet) to evidence.credit(one.path.logits).average()
        val sweep = Sweep(one.abstaining)
        return evidence.paths
            .filter { costs.latencyMs(it.answers.subnet) > ownMs && evidence.credit(it.logits).average() > ownAccuracy }
            .map { it.answers }
            .map { other ->
                fun at(decider: Decider) = one.plan.copy(hard = Hard.Cascade(decider, other.subnet))
                val asking = one.route.cascading(Hard.Cascade(UNFITTED[0], other.subnet))
                Family(at(UNFITTED[0]).kind, sweep.costs(asking, power, SHARES_CERTAINTY)) { at(sweep.decider(it)) }
            }
    }

    private fun abstaining(plan: Plan, sweep: Sweep, power: Power?): Family {
        fun at(number: Int) = plan.copy(hard = Hard.Abstain(sweep.decider(number)))
        return Family(plan.copy(hard = Hard.Abstain(UNFITTED[0])).kind, sweep.costs(null, power), ::at)
    }

    private fun asking(one: LocalPlan, uplink: Uplink?, power: Power?): List<Family> {
        if (remote == null || one.asking.isEmpty() || Kind.ASK !in kinds) return emptyList()
        if (!deciders(one.path, remote).pays) return emptyList()
        val sweep = Sweep(one.asking)
        fun at(number: Int) = one.plan.copy(hard = Hard.Ask(sweep.decider(number), remote.server))
        val asking = Asking(evidence.credit(remote.asked(one.route.logits)), remote.call(uplink))
        return listOf(Family(at(0).kind, sweep.costs(asking, power), ::at))
    }

    /** The server's model answers everything, or everything that it is sure of; the subnet is the fallback. */
    private fun whole(one: LocalPlan, uplink: Uplink?, power: Power?): List<Family> {
        if (remote == null || Kind.ASK !in kinds) return emptyList()
        if (one.plan.exits.isNotEmpty() || one.plan.inputSize != null) return emptyList()
        val plan = one.plan.copy(split = Split(0, emptyList(), emptyList(), remote.server))
        val route = SampleRoute(plan, one.path, evidence, costs, uplink)
        val ranked = ofServer ?: rankings(route, UNFITTED).also { ofServer = it }
        val sweep = Sweep(ranked, route)
        val certain = Family(plan.kind, Costs.of(route.cost(power))) { _ -> plan }
        return listOfNotNull(certain, abstaining(plan, sweep, power).takeIf { Kind.ABSTAIN in kinds })
    }
}

/** What [plan] is expected to cost per sample over [uplink], by [evidence]; null: the way to the server is unknown. */
internal fun expectedCost(
    evidence: PlanEvidence,
    costs: CostModel,
    plan: Plan,
    uplink: Uplink?,
    power: Power?,
): PlanCost =
    route(evidence, costs, plan, uplink).cost(power)

private fun route(evidence: PlanEvidence, costs: CostModel, plan: Plan, uplink: Uplink?): SampleRoute {
    val path = evidence.paths.first { it.answers.subnet == plan.subnet }
    return SampleRoute(plan, path, evidence, costs, uplink).finished(uplink)
}

private fun rankings(route: SampleRoute, deciders: List<Decider>) = deciders.mapNotNull { Ranking.of(route, it) }

/** What of [front] is the best on some network: the present one, typical ones, any of many, and none. */
internal fun bestSomewhere(front: PlanFront): PlanFront {
    val best = (listOf(null, front.uplink) + UPLINKS.values + GRID).map { front.best(it).plan }.toSet()
    return front.copy(offers = front.offers.filter { it.plan in best })
}

internal class Family(val kind: String, val costs: Costs, val plan: (Int) -> Plan)

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
