/**
 * Plans made of subnets and a server's model, judged on private samples: a part of device_sdk/policies/planning/planner.py. Pure.
 *
 * Subnets alone, with the hard samples asked about or left unanswered, and the server alone. Deciders that are fitted,
 * exits and splits are judged by Python's planner only.
 */
package pathweave.sdk.planning

import pathweave.sdk.CostModel
import pathweave.sdk.Decider
import pathweave.sdk.Hard
import pathweave.sdk.Plan
import pathweave.sdk.Power
import pathweave.sdk.RemoteRef
import pathweave.sdk.Split
import pathweave.sdk.Subnet
import pathweave.sdk.Tensor
import pathweave.sdk.UPLINKS
import pathweave.sdk.Uplink
import pathweave.sdk.argmax
import pathweave.sdk.confidence
import pathweave.sdk.entropy
import pathweave.sdk.margin

private const val THRESHOLDS = 64 // of each decider
private val GRID = (-6..6).flatMap { half ->
    val mbps = Math.pow(10.0, half / 2.0)
    listOf(0.0, 10.0, 100.0, 1000.0).map { Uplink(mbps, it) }
}

/**
 * Logits on the same private samples: of subnets, [ends], and of the server's model, [remote].
 *
 * [labels]: class indices, one per sample.
 */
internal class PlanEvidence(val labels: IntArray, val ends: Map<Subnet, Tensor>, val remote: RemoteEvidence?) {
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
    val offers = evidence.ends.keys.flatMap { subnet -> SubnetPlans(evidence, costs, subnet).offers() } +
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
    val way = Way(right.size, 0.0, remote.inputBytes, 0.0, remote.answerMs)
    val plan = Plan(fallback, split = Split(0, emptyList(), emptyList(), remote.server))
    return Offer(plan, share(right), costs.peakBytes(fallback), 0.0, 0.0, 0.0, listOf(way))
}

/** The plans of one subnet. */
private class SubnetPlans(evidence: PlanEvidence, costs: CostModel, private val subnet: Subnet) {
    private val logits = evidence.ends.getValue(subnet)
    private val right = evidence.right(logits)
    private val remote = evidence.remote
    private val remoteRight = remote?.let { evidence.right(it.logits) }
    private val count = right.size
    private val peakBytes = costs.peakBytes(subnet)
    private val deviceMs = costs.latencyMs(subnet)

    fun offers(): List<Offer> {
        val alone = offer(Plan(subnet), share(right), listOf(Way(count, deviceMs)))
        // hard are the samples whose ease lies below a threshold
        val kinds = listOf<Pair<DoubleArray, (Double) -> Decider>>(
            confidence(logits) to { Decider.MaxConfidence(it) },
            margin(logits) to { Decider.Margin(it) },
            DoubleArray(count).also { ease -> entropy(logits).forEachIndexed { at, value -> ease[at] = -value } } to
                { Decider.Entropy(-it) },
        )
        return listOf(alone) + kinds.flatMap { (ease, decider) -> thresholds(ease).flatMap { decided(ease, it, decider(it)) } }
    }

    private fun decided(ease: DoubleArray, threshold: Double, decider: Decider): List<Offer> {
        val hard = BooleanArray(count) { !(ease[it] >= threshold) }
        val share = hard.count { it }.toDouble() / count
        if (share == 0.0) return emptyList()
        val abstaining = if (share == 1.0) null else offer(
            Plan(subnet, hard = Hard.Abstain(decider)),
            share(right.filterIndexed { at, _ -> !hard[at] }.toBooleanArray()),
            listOf(Way(count, deviceMs)),
            abstained = share,
        )
        return listOfNotNull(abstaining, asking(hard, share, decider))
    }

    private fun asking(hard: BooleanArray, share: Double, decider: Decider): Offer? {
        if (remote == null || remoteRight == null) return null
        val asked = hard.count { it }
        val ways = listOf(Way(count - asked, deviceMs), Way(asked, deviceMs, remote.inputBytes, 0.0, remote.answerMs))
        val system = BooleanArray(count) { if (hard[it]) remoteRight[it] else right[it] }
        val plan = Plan(subnet, hard = Hard.Ask(decider, remote.server))
        return offer(plan, share(system), ways.filter { it.samples > 0 }, asked = share)
    }

    private fun offer(plan: Plan, accuracy: Double, ways: List<Way>, asked: Double = 0.0, abstained: Double = 0.0) =
        Offer(plan, accuracy, peakBytes, 0.0, asked, abstained, ways)

    /** Values of [ease] that divide the samples, evenly spread. */
    private fun thresholds(ease: DoubleArray): List<Double> {
        val distinct = ease.filter { it.isFinite() }.distinct().sorted()
        val step = maxOf(1, distinct.size / THRESHOLDS)
        return distinct.filterIndexed { at, _ -> at % step == 0 }
    }
}

private fun share(right: BooleanArray): Double = right.count { it }.toDouble() / right.size
