package pathweave.sdk.policies.planning

import kotlin.random.Random
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.BudgetError
import pathweave.sdk.assertRefused
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.argmax
import pathweave.sdk.numerics.percentile
import pathweave.sdk.policies.costs.AnswersEverywhere
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.EdgeCost
import pathweave.sdk.supernet.Exit
import pathweave.sdk.supernet.ExitAtSize
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.FP32
import pathweave.sdk.supernet.Golden
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Kind
import pathweave.sdk.supernet.Optimised
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.Rendition
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.UPLINKS
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.supernet.confidence
import pathweave.sdk.supernet.hardSamples

private const val COUNT = 200

class PlanFindingTest {
    private val random = Random(5)
    private val labels = IntArray(COUNT) { random.nextInt(4) }
    private val small = Subnet(listOf(Edge("s")))
    private val large = Subnet(listOf(Edge("k"), Edge("l")))
    private val costs = CostModel(
        mapOf(
            Edge("s") to EdgeCost(2.0, 2.0, 10, 5),
            Edge("k") to EdgeCost(3.0, 3.0, 20, 20),
            Edge("l") to EdgeCost(5.0, 5.0, 20, 20),
        ),
        exitCosts = mapOf(ExitAtSize("x") to EdgeCost(0.5, 0.5, 7, 5)),
        exitOverheadMs = 0.25,
        callOverheadMs = 0.125,
        decisionMs = mapOf("max_confidence" to 0.25, "margin" to 0.5),
    )
    private val server = RemoteEvidence(RemoteRef("big:images"), logits(4f), Uplink(8.0, 10.0), 1000, 3.0)
    private val ends = mapOf(small to logits(0.5f), large to logits(1f))
    private val atExit = logits(0.7f)
    private val threshold = confidence(atExit).sorted()[3 * COUNT / 4]
    private val exit = Exit("x", 1, "pooled", 0, 0, listOf(Rendition(FP32, "onnxruntime", "", 0, Golden(emptyList(), 0.0))))
    private val paths = listOf(
        PathEvidence(AnswersEverywhere(small, emptyList(), emptyList(), listOf(rows(ends.getValue(small))), labels), emptyList()),
        PathEvidence(
            AnswersEverywhere(large, listOf(exit), listOf(1), listOf(rows(atExit), rows(ends.getValue(large))), labels),
            listOf(listOf(ExitChoice("x", threshold))),
            listOf("x"),
        ),
    )

    private fun rows(logits: Tensor) = logits.floats().toList().chunked(4).map { it.toFloatArray() }

    /** The right class stands out by [sure]. */
    private fun logits(sure: Float) = Tensor.of(
        FloatArray(4 * COUNT) { at -> random.nextFloat() * 2 + if (at % 4 == labels[at / 4]) sure else 0f },
        listOf(COUNT, 4),
    )

    private fun planner(remote: RemoteEvidence? = server, kinds: Set<Kind> = Kind.entries.toSet() - Kind.CASCADE) =
        Planner(PlanEvidence(labels, paths, remote), costs, kinds)

    /** The best plans of each kind for several requirements and networks. */
    private fun somePlans(): Set<Plan> {
        val planner = planner(kinds = Kind.entries.toSet())
        val wanted = listOf(
            Requirement(latencyMs = 10.0, coverage = 1.0),
            Requirement(Optimised.LATENCY_MS, accuracy = 0.8),
            Requirement(Optimised.LATENCY_MS, accuracy = 0.9, coverage = 1.0),
            Requirement(Optimised.BYTES_SENT, accuracy = 0.9, p95LatencyMs = 25.0),
            Requirement(accuracy = 0.9, peakBytes = 65),
        )
        val uplinks = listOf(Uplink(8.0, 10.0), Uplink(80.0, 0.0))
        return wanted.flatMap { one -> uplinks.flatMap { planner.nearest(one, it, null).byKind.values } }.toSet()
    }

    @Test
    fun `each plan costs what it does to the samples`() {
        val asksEarly = listOf(ExitChoice("x", threshold, askBelow = confidence(atExit).sorted()[COUNT / 3]))
        val found = somePlans()
        for (plan in found + Plan(large, asksEarly, hard = Hard.Ask(Decider.Margin(0.2), server.server))) {
            val cost = expectedCost(PlanEvidence(labels, paths, server), costs, plan, server.uplink, null)
            if (plan.split != null) {
                assertEquals(0.125 + server.uplink.transferMs(1000) + 3, cost.latencyMs!!, 1e-9)
                continue
            }
            val own = ends.getValue(plan.subnet)
            val choice = plan.exits.singleOrNull()
            val sure = confidence(atExit)
            val early = List(COUNT) { choice != null && sure[it] >= choice.threshold }
            val askedEarly = List(COUNT) { choice != null && sure[it] < choice.askBelow }
            val (decider, answers) = when (val hard = plan.hard) {
                Hard.AnswerLocally -> null to null
                is Hard.Abstain -> hard.decider to null
                is Hard.Ask -> hard.decider to argmax(server.logits)
                is Hard.Cascade -> hard.decider to argmax(ends.getValue(hard.subnet))
            }
            val atEnd = decider?.let { hardSamples(it, own) } ?: List(COUNT) { false }
            val hard = List(COUNT) { askedEarly[it] || atEnd[it] && !early[it] }
            val answered = (0 until COUNT).filter { !hard[it] || answers != null }
            val right = answered.count { at ->
                val here = argmax(if (early[at]) atExit else own)[at]
                (if (hard[at]) answers!![at] else here) == labels[at]
            }
            if (answered.isNotEmpty()) assertEquals(right.toDouble() / answered.size, cost.accuracy!!, 1e-12, "$plan")
            val share = hard.count { it } / 200.0
            val second = plan.second
            val counted = if (second != null) cost.shareSecond else if (answers != null) cost.shareAsked else cost.shareAbstained
            assertEquals(share, counted, 1e-12, "$plan")
            assertEquals(early.count { it } / 200.0, cost.shareEarly, 1e-12)
            assertEquals(askedEarly.count { it } / 200.0, cost.shareAskedEarly, 1e-12)
            val tried = 0.125 + if (choice == null) 0.0 else 0.75
            val decided = decider?.let(costs::decidingMs) ?: 0.0
            val each = List(COUNT) { at ->
                val here = tried + if (early[at] || askedEarly[at]) 3.0 - 0.25 else costs.latencyMs(plan.subnet) + decided
                here + when {
                    !hard[at] || answers == null -> 0.0
                    second != null -> costs.latencyMs(second) + 0.125
                    else -> server.uplink.transferMs(1000) + 3
                }
            }
            assertEquals(each.average(), cost.latencyMs!!, 1e-9)
            assertEquals(percentile(each.sorted(), 0.95), cost.p95LatencyMs!!, 1e-9)
            assertEquals(if (answers == null || second != null) 0.0 else 1000 * share, cost.bytesSent, 1e-9)
            val behind = second?.let(costs::peakBytes) ?: 0
            assertEquals(costs.peakBytes(plan.subnet) + behind + if (choice == null) 0 else 7, cost.peakBytes)
        }
        val kinds = found.map { it.kind }.toSet()
        assertTrue(kinds.containsAll(setOf("exits", "exits + ask", "exits + abstain", "remote", "ask", "cascade")), "$kinds")
        assertTrue(found.any { (it.hard as? Hard.Ask)?.decider is Decider.Logistic })
    }

    @Test
    fun `the requirement and the network decide, without a server the device alone`() {
        val uplink = server.uplink
        fun kind(requirement: Requirement, on: Uplink?) = planner().nearest(requirement, on, null).choice.plan.kind
        val accurate = Requirement(latencyMs = 1000.0, coverage = 1.0)
        assertTrue(kind(accurate, uplink) in setOf("remote", "ask", "exits + ask", "exits + ask early"))
        assertTrue(kind(accurate, null) in setOf("subnet", "exits"))
        val quick = planner().nearest(Requirement(Optimised.LATENCY_MS, coverage = 1.0), uplink, null).choice.plan
        assertEquals(Plan(small), quick)
        val alone = planner(null).nearest(Requirement(latencyMs = 10.0), null, null).byKind.keys
        assertEquals(setOf("subnet", "abstain", "exits", "exits + abstain"), alone)
        val missed = planner().nearest(Requirement(latencyMs = 1.0, coverage = 1.0), uplink, null).choice
        assertEquals(setOf("latency_ms"), missed.misses.keys)
    }

    @Test
    fun `what is kept for other networks is as good there as what planning finds`() {
        val planner = planner()
        for (requirement in listOf(
            Requirement(latencyMs = 20.0, coverage = 0.9),
            Requirement(Optimised.LATENCY_MS, accuracy = 0.8, coverage = 1.0),
            Requirement(Optimised.BYTES_SENT, accuracy = 0.9, latencyMs = 40.0),
        )) {
            val kept = planner.front(requirement, null)
            assertEquals(kept.offers.size, kept.offers.map { it.plan }.toSet().size)
            for (uplink in UPLINKS.values + server.uplink) {
                val (found, best) = kept.best(uplink) to planner.nearest(requirement, uplink, null).choice
                assertEquals(best.misses.keys, found.misses.keys)
                assertEquals(requirement.excess(best.cost), requirement.excess(found.cost), 1e-9)
                if (best.misses.isEmpty()) assertTrue(requirement.value(found.cost) >= requirement.value(best.cost) - 1e-9)
            }
            if (requirement.latencyMs != null) assertTrue(kept.best(null).cost.latencyMs != null)
            assertEquals(kept, decodeFront(encodeFront(kept)))
        }
    }

    @Test
    fun `requirements that make no sense are refused`() {
        assertRefused<BudgetError> { Requirement() }
        assertRefused<BudgetError> { Requirement(latencyMs = 0.0) }
        assertRefused<BudgetError> { Requirement(accuracy = 1.5) }
        assertRefused<BudgetError> { Requirement(coverage = 0.0) }
        assertRefused<BudgetError> { Requirement(bytesSent = -1.0) }
        assertRefused<BudgetError> { Requirement(peakBytes = 5, certainty = 0.9) }
        assertRefused<BudgetError> { Requirement(accuracy = 0.5, certainty = 1.0) }
        assertEquals(0.0, Requirement(bytesSent = 0.0).bytesSent)
    }
}
