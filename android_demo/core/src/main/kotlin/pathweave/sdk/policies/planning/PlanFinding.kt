/**
 * Plans made of subnets and a server's model, judged on private samples: a part of device_sdk/policies/planning/planner.py. Pure.
 *
 * Subnets with and without exits, with the hard samples asked about or left unanswered, and the server alone. Deciders
 * that are fitted, exits that ask and splits are judged by Python's planner only.
 */
package pathweave.sdk.policies.planning

import pathweave.sdk.data.Tensor
import pathweave.sdk.data.argmax
import pathweave.sdk.execution.ease
import pathweave.sdk.policies.costs.AnswersEverywhere
import pathweave.sdk.policies.costs.Route
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Split
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.UPLINKS
import pathweave.sdk.supernet.Uplink

private const val THRESHOLDS = 64 // of each decider
private const val THRESHOLDS_BEHIND_EXITS = 16
private val GRID = (-6..6).flatMap { half ->
    val mbps = Math.pow(10.0, half / 2.0)
    listOf(0.0, 10.0, 100.0, 1000.0).map { Uplink(mbps, it) }
}

/** What a subnet answers, and sets of its exits with thresholds. */
internal class PathEvidence(val answers: AnswersEverywhere, val exitSets: List<List<ExitChoice>>)

/**
 * Answers to the same private samples: of subnets, [paths], and of the server's model, [remote].
 *
 * [labels]: class indices, one per sample.
 */
internal class PlanEvidence(val labels: IntArray, val paths: List<PathEvidence>, val remote: RemoteEvidence?) {
    fun right(logits: Tensor): BooleanArray = argmax(logits).let { found -> BooleanArray(labels.size) { found[it] == labels[it] } }
}

/**
 * What the model of a [server] answers, [logits], and the way to it: [uplink], bytes of a request with one sample, and
 * what the server works on one.
 */
internal class RemoteEvidence(
    val server: RemoteRef,
    val logits: Tensor,
    val uplink: Uplink,
    val inputBytes: Long,
    val answerMs: Double,
)

/** Every plan that [evidence] can judge, as an offer for [requirement]. [fallback]: of plans that send everything. */
internal fun everyPlan(
    evidence: PlanEvidence,
    costs: CostModel,
    fallback: Subnet,
    requirement: Requirement,
    power: Power?,
): PlanFront {
    val sets = evidence.paths.flatMap { path -> (listOf(emptyList<ExitChoice>()) + path.exitSets).map { path.answers to it } }
    val offers = sets.flatMap { (answers, exits) -> PathPlans(evidence, costs, answers, exits).offers() } +
        listOfNotNull(evidence.remote?.let { whole(evidence, it, costs, fallback) })
    val remote = evidence.remote
    return PlanFront(
        requirement,
        power,
        remote?.uplink ?: UPLINKS.getValue("wifi"),
        remote?.inputBytes ?: 1L,
        remote?.answerMs ?: 0.0,
        evidence.labels.size,
        offers,
    )
}

/** What of [front] is the best on some network: the present one, typical ones, any of many, and none. */
internal fun bestSomewhere(front: PlanFront): PlanFront {
    val best = (listOf(null, front.uplink) + UPLINKS.values + GRID).map { front.best(it).plan }.toSet()
    return front.copy(offers = front.offers.filter { it.plan in best })
}

private fun whole(evidence: PlanEvidence, remote: RemoteEvidence, costs: CostModel, fallback: Subnet): Offer {
    val right = evidence.right(remote.logits)
    val way = Way(right.size, costs.callOverheadMs, remote.inputBytes, 0.0, remote.answerMs)
    val plan = Plan(fallback, split = Split(0, emptyList(), emptyList(), remote.server))
    return Offer(plan, share(right), costs.peakBytes(fallback), 0.0, 0.0, 0.0, listOf(way))
}

/** The plans of one subnet with [exits]. */
private class PathPlans(
    evidence: PlanEvidence,
    private val costs: CostModel,
    answers: AnswersEverywhere,
    private val exits: List<ExitChoice>,
) {
    private val subnet = answers.subnet
    private val logits = answers.end
    private val remote = evidence.remote
    private val remoteRight = remote?.let { evidence.right(it.logits) }
    private val count = evidence.labels.size
    private val route = Route(
        exits.map { choice -> answers.atExit(answers.exits.indexOfFirst { it.id == choice.exit }, costs) },
        exits.map { it.threshold },
        answers.rightAtEnd,
        costs.callOverheadMs,
    )
    private val right = route.right
    private val atEnd = (0 until count).filter { route.open[it] }
    private val early = route.answered.map { (samples, ms) -> Way(samples, ms) }
    private val endMs = route.endMs(costs.latencyMs(subnet))
    private val peakBytes = costs.peakBytes(subnet) + exitBytes(costs, Plan(subnet, exits))

    fun offers(): List<Offer> {
        val alone = offer(Plan(subnet, exits), share(right), listOf(Way(atEnd.size, endMs)))
        // hard are the samples at the end whose ease lies below a threshold
        val kinds = listOf<(Double) -> Decider>(
            { Decider.MaxConfidence(it) },
            { Decider.Margin(it) },
            { Decider.Entropy(-it) },
        )
        return listOf(alone) + kinds.flatMap { decider ->
            val ease = ease(decider(0.0), logits)
            thresholds(ease).flatMap { decided(ease, it, decider(it)) }
        }
    }

    private fun decided(ease: DoubleArray, threshold: Double, decider: Decider): List<Offer> {
        val hard = BooleanArray(count) { route.open[it] && !(ease[it] >= threshold) }
        val share = hard.count { it }.toDouble() / count
        if (share == 0.0) return emptyList()
        val decidedMs = endMs + costs.decidingMs(decider)
        val abstaining = if (share == 1.0) null else offer(
            Plan(subnet, exits, hard = Hard.Abstain(decider)),
            share(right.filterIndexed { at, _ -> !hard[at] }.toBooleanArray()),
            listOf(Way(atEnd.size, decidedMs)),
            abstained = share,
        )
        return listOfNotNull(abstaining, asking(hard, share, decider, decidedMs))
    }

    private fun asking(hard: BooleanArray, share: Double, decider: Decider, decidedMs: Double): Offer? {
        if (remote == null || remoteRight == null) return null
        val asked = hard.count { it }
        val ways = listOf(Way(atEnd.size - asked, decidedMs), Way(asked, decidedMs, remote.inputBytes, 0.0, remote.answerMs))
        val system = BooleanArray(count) { if (hard[it]) remoteRight[it] else right[it] }
        return offer(Plan(subnet, exits, hard = Hard.Ask(decider, remote.server)), share(system), ways, asked = share)
    }

    /** [ways]: of the samples that reach the end. */
    private fun offer(plan: Plan, accuracy: Double, ways: List<Way>, asked: Double = 0.0, abstained: Double = 0.0): Offer {
        val all = (early + ways).filter { it.samples > 0 }
        return Offer(plan, accuracy, peakBytes, early.sumOf { it.samples }.toDouble() / count, asked, abstained, all)
    }

    /** Values of [ease] that divide the samples at the end, evenly spread. */
    private fun thresholds(ease: DoubleArray): List<Double> {
        val distinct = atEnd.map { ease[it] }.filter { it.isFinite() }.distinct().sorted()
        val step = maxOf(1, distinct.size / if (exits.isEmpty()) THRESHOLDS else THRESHOLDS_BEHIND_EXITS)
        return distinct.filterIndexed { at, _ -> at % step == 0 }
    }
}

private fun share(right: BooleanArray): Double = right.count { it }.toDouble() / right.size
