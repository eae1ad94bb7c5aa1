package pathweave.sdk.policies.planning

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.double
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.Contract
import pathweave.sdk.double
import pathweave.sdk.execution.Workspace
import pathweave.sdk.get
import pathweave.sdk.items
import pathweave.sdk.policies.Adaptations
import pathweave.sdk.policies.exits.withFurtherExits
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.search.Candidate
import pathweave.sdk.subnetOf
import pathweave.sdk.subnetsOf
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Cost
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.text
import pathweave.sdk.texts

/** tests/contract/exits_in_search.json: which subnets compete with their exits, and the exits that deadlines need. */
class ExitsInSearchTest {
    private val vectors = Json.parseToJsonElement(
        File(Contract.repository, "tests/contract/exits_in_search.json").readText(),
    )
    private val bundle = Contract.reference()
    private val supernet = bundle.supernet

    private val JsonElement.orNull: Double? get() = if (this is JsonNull) null else jsonPrimitive.double

    @Test
    fun `the same subnets compete as in Python, in the same order`() {
        for (case in vectors["competing"].items) {
            val pool = case["pool"].items.map { one ->
                val (subnet, latencyMs, accuracy, expected) = one.items
                val cost = Cost(latencyMs.double, 1000)
                Candidate(Plan(subnetOf(subnet.text)), cost, accuracy.double, expected.orNull)
            }
            val budget = Budget(case["latency_ms"].orNull, case["memory_mb"].orNull)
            assertEquals(case["competing"].texts, subnetsOf(competing(supernet.original, pool, budget)), "$budget")
        }
    }

    @Test
    fun `deadlines get the same exits as in Python`() {
        for (case in vectors["further_exits"].items) {
            val plan = Plan(supernet.original, choices(case["exits"]))
            assertEquals(choices(case["further"]), withFurtherExits(supernet, plan).exits)
        }
    }

    private fun choices(exits: JsonElement) = exits.items.map { one ->
        ExitChoice(one["exit"].text, one["threshold"].double, one["rendition"].text)
    }

    private val inputs = Adaptations.inputs()
    private val held = (0 until inputs.count).filter { it % 3 == 0 }

    private fun find(budget: Budget, mostMs: Double = Double.POSITIVE_INFINITY): ExitsFound? {
        val costs = Adaptations.profile.costModel()
        val pool = listOf(supernet.original).map { Candidate(Plan(it), costs.cost(it), 1.0) }
        return ExitsFinder(Workspace(bundle, OnnxRuntime()), costs, batch = 64, onShare = {})
            .find(pool, budget, inputs, Adaptations.labels, held, mostMs)
    }

    @Test
    fun `where only exits make the full model fit, the plan has them, and its mean keeps the budget`() {
        val fullMs = Adaptations.profile.costModel().latencyMs(supernet.original)
        val found = (90 downTo 50 step 5).firstNotNullOfOrNull { find(Budget(latencyMs = fullMs * it / 100)) }
            ?: throw AssertionError("no budget below the full model's has exits")
        assertTrue(found.predictedMs < fullMs)
        assertEquals(supernet.original, found.plan.subnet)
        assertTrue(found.plan.exits.any { it.threshold < 1.0 }, "${found.plan.exits}")
        assertEquals(withFurtherExits(supernet, found.plan), found.plan, "deadlines have an exit at every cut point")
        assertTrue(found.accuracy in 0.0..1.0 && found.accuracyHeldOut!! in 0.0..1.0 && found.meanMs > 0)
        assertEquals(held.indices.count { it % 3 == 0 }, found.judged)
    }

    @Test
    fun `exits that measure too slow, or that nothing needs, are left out`() {
        val fullMs = Adaptations.profile.costModel().latencyMs(supernet.original)
        assertNull(find(Budget(latencyMs = fullMs * 0.7), mostMs = 0.0))
        assertNull(find(Budget(latencyMs = fullMs / 1000)), "no plan fits")
    }
}
