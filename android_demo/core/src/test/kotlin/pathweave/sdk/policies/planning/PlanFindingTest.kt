package pathweave.sdk.policies.planning

import kotlin.random.Random
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.BudgetError
import pathweave.sdk.CostModel
import pathweave.sdk.Decider
import pathweave.sdk.Edge
import pathweave.sdk.EdgeCost
import pathweave.sdk.Exit
import pathweave.sdk.ExitAtSize
import pathweave.sdk.ExitChoice
import pathweave.sdk.FP32
import pathweave.sdk.Golden
import pathweave.sdk.Hard
import pathweave.sdk.RemoteRef
import pathweave.sdk.Rendition
import pathweave.sdk.Subnet
import pathweave.sdk.Tensor
import pathweave.sdk.Uplink
import pathweave.sdk.argmax
import pathweave.sdk.assertRefused
import pathweave.sdk.data.Tensor
import pathweave.sdk.data.argmax
import pathweave.sdk.execution.confidence
import pathweave.sdk.execution.hardSamples
import pathweave.sdk.policies.costs.AnswersEverywhere
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.EdgeCost
import pathweave.sdk.supernet.Exit
import pathweave.sdk.supernet.ExitAtSize
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.FP32
import pathweave.sdk.supernet.Golden
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Optimised
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.Rendition
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Uplink

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
        ),
    )

    private fun rows(logits: Tensor) = logits.floats().toList().chunked(4).map { it.toFloatArray() }

    /** The right class stands out by [sure]. */
    private fun logits(sure: Float) = Tensor.of(
        FloatArray(4 * COUNT) { at -> random.nextFloat() * 2 + if (at % 4 == labels[at / 4]) sure else 0f },
        listOf(COUNT, 4),
    )

    private fun front(requirement: Requirement, remote: RemoteEvidence? = server) =
        everyPlan(PlanEvidence(labels, paths, remote), costs, large, requirement, power = null)

    @Test
    fun `each offer is what its plan does to the samples`() {
        val offers = front(Requirement(latencyMs = 10.0)).offers
        assertEquals(offers.size, offers.map { it.plan }.toSet().size)
        for (offer in offers) {
            val plan = offer.plan
            if (plan.split != null) {
                val right = argmax(server.logits).withIndex().count { (at, found) -> found == labels[at] }
                assertEquals(right / 200.0, offer.accuracy!!, 1e-12)
                assertEquals(listOf(Way(COUNT, 0.125, 1000, 0.0, 3.0)), offer.ways)
                continue
            }
            val own = ends.getValue(plan.subnet)
            val early = confidence(atExit).map { plan.exits.isNotEmpty() && it >= threshold }
            val (decider, answers) = when (val hard = plan.hard) {
                Hard.AnswerLocally -> null to null
                is Hard.Abstain -> hard.decider to null
                is Hard.Ask -> hard.decider to argmax(server.logits)
            }
            val hard = (decider?.let { hardSamples(it, own) } ?: List(COUNT) { false }).mapIndexed { at, isHard -> isHard && !early[at] }
            val answered = (0 until COUNT).filter { !hard[it] || answers != null }
            val here = if (plan.exits.isEmpty()) argmax(own) else IntArray(COUNT) { argmax(if (early[it]) atExit else own)[it] }
            val found = answered.map { if (hard[it]) answers!![it] else here[it] }
            val right = answered.indices.count { found[it] == labels[answered[it]] }
            assertEquals(right.toDouble() / answered.size, offer.accuracy!!, 1e-12, "$plan")
            val share = hard.count { it } / 200.0
            assertEquals(share, if (answers != null) offer.shareAsked else offer.shareAbstained, 1e-12, "$plan")
            assertEquals(COUNT, offer.ways.sumOf { it.samples })
            assertEquals(early.count { it } / 200.0, offer.shareEarly, 1e-12)
            val tried = 0.125 + if (plan.exits.isEmpty()) 0.0 else 0.75
            val decided = when (decider) {
                is Decider.MaxConfidence -> 0.25
                is Decider.Margin -> 0.5
                else -> 0.0
            }
            val end = costs.latencyMs(plan.subnet) + decided
            val device = (0 until COUNT).sumOf { tried + if (early[it]) 3.0 - 0.25 else end }
            assertEquals(device, offer.ways.sumOf { it.samples * it.deviceMs }, 1e-9)
            assertEquals(if (answers == null) 0 else hard.count { it }, offer.ways.sumOf { if (it.sentBytes > 0) it.samples else 0 })
            assertEquals(costs.peakBytes(plan.subnet) + if (plan.exits.isEmpty()) 0 else 7, offer.peakBytes)
        }
        assertEquals(setOf("exits", "exits + ask", "exits + abstain"), offers.map { it.plan.kind }.filter { "exits" in it }.toSet())
        assertTrue(offers.count { it.plan.hard is Hard.Ask && it.shareAsked in 0.1..0.9 } > 50)
    }

    @Test
    fun `the requirement and the network decide, without a server the device alone`() {
        val accurate = front(Requirement(latencyMs = 1000.0, coverage = 1.0))
        assertTrue("remote" == accurate.best(server.uplink).plan.kind || "ask" == accurate.best(server.uplink).plan.kind)
        assertTrue(accurate.best(null).plan.kind in setOf("subnet", "exits"))
        val quick = front(Requirement(Optimised.LATENCY_MS, coverage = 1.0))
        assertEquals(small, quick.best(server.uplink).plan.subnet)
        assertEquals("subnet", quick.best(server.uplink).plan.kind)
        val alone = front(Requirement(latencyMs = 10.0), null).offers.map { it.plan.kind }.toSet()
        assertEquals(setOf("subnet", "abstain", "exits", "exits + abstain"), alone)
        val missed = front(Requirement(latencyMs = 1.0, coverage = 1.0)).best(server.uplink)
        assertEquals(setOf("latency_ms"), missed.misses.keys)
    }

    @Test
    fun `what is kept for other networks chooses there as all plans would`() {
        for (requirement in listOf(
            Requirement(latencyMs = 20.0, coverage = 0.9),
            Requirement(Optimised.LATENCY_MS, accuracy = 0.8, coverage = 1.0),
            Requirement(Optimised.BYTES_SENT, accuracy = 0.9, latencyMs = 40.0),
        )) {
            val all = front(requirement)
            val kept = bestSomewhere(all)
            assertTrue(kept.offers.size < all.offers.size / 2)
            for (uplink in listOf(null, Uplink(8.0, 10.0), Uplink(0.7, 40.0), Uplink(1000.0, 0.0), Uplink(0.01, 100.0))) {
                assertEquals(all.best(uplink).plan, kept.best(uplink).plan)
            }
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
        assertRefused<BudgetError> { Requirement(latencyMs = 1.0, certainty = 0.9) }
        assertRefused<BudgetError> { Requirement(accuracy = 0.5, certainty = 1.0) }
        assertEquals(0.0, Requirement(bytesSent = 0.0).bytesSent)
    }
}
