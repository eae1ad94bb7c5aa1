package pathweave.sdk.live

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.BudgetError
import pathweave.sdk.Contract
import pathweave.sdk.assertRefused
import pathweave.sdk.double
import pathweave.sdk.execution.Piece
import pathweave.sdk.execution.allStay
import pathweave.sdk.execution.footprint
import pathweave.sdk.execution.leastCapBytes
import pathweave.sdk.execution.leavesFirst
import pathweave.sdk.execution.pages
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.memory_pressure.MemoryReading
import pathweave.sdk.policies.exits.leastPlanBytes
import pathweave.sdk.policies.exits.planWithin
import pathweave.sdk.policies.exits.wholePlanBytes
import pathweave.sdk.subnetOf
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.text

class ElasticContractTest {
    private val vectors =
        Json.parseToJsonElement(File(Contract.repository, "tests/contract/elastic.json").readText())

    private val JsonElement.long: Long get() = jsonPrimitive.content.toLong()

    private fun <T> JsonElement.orNull(read: (JsonElement) -> T): T? = if (this is JsonNull) null else read(this)

    @Test
    fun `paths are divided into the same pages`() {
        for (case in vectors["pages"].items) {
            val stretches = case["stretches"].items.mapIndexed { number, stretch ->
                stretch.items.mapIndexed { at, piece ->
                    val weights = piece["weights"].jsonObject.mapValues { it.value.long }
                    Piece(Edge("b$number-$at"), null, weights, piece["working_bytes"].long)
                }
            }
            val capBytes = case["cap_bytes"].long
            assertEquals(case["least_bytes"].long, leastCapBytes(stretches.flatten()))
            if ("refused" in case.jsonObject) {
                val error = assertRefused<BudgetError> { pages(stretches, capBytes) }
                assertEquals(case["refused"].text to case["hint"].text, error.message to error.hint)
                continue
            }
            val divided = pages(stretches, capBytes)
            val sizes = divided.map { stretch -> stretch.map { it.size } }
            assertEquals(case["sizes"].items.map { one -> one.items.map { it.int } }, sizes)
            val prints = divided.flatten().map(::footprint)
            val flat = prints.map { listOf(it.loadingBytes, it.residentBytes, it.workingBytes) }
            assertEquals(case["footprints"].items.map { one -> one.items.map { it.long } }, flat)
            assertEquals(case["all_stay"].text.toBoolean(), allStay(prints, capBytes))
        }
    }

    @Test
    fun `pages leave in the same order`() {
        for (case in vectors["leaves"].items) {
            val resident = case["resident"].items.map { it.int }
            assertEquals(case["order"].items.map { it.int }, leavesFirst(resident, case["at"].int))
        }
    }

    @Test
    fun `the same remains of a plan under a cap`() {
        val bundle = Contract.reference()
        fun exits(value: JsonElement) = value.items.map { ExitChoice(it["exit"].text, it["threshold"].double) }
        for (case in vectors["plans"].items) {
            val plan = Plan(subnetOf(case["subnet"].text), exits(case["exits"]))
            assertEquals(case["least_bytes"].long, leastPlanBytes(bundle, plan), "$case")
            assertEquals(case["whole_bytes"].long, wholePlanBytes(bundle, plan), "$case")
            val kept = case["kept"].orNull(::exits)
            if (kept == null) {
                assertRefused<BudgetError> { planWithin(bundle, plan, case["cap_bytes"].long) }
            } else {
                assertEquals(kept, planWithin(bundle, plan, case["cap_bytes"].long).exits, "$case")
            }
        }
    }

    @Test
    fun `the cap follows the same way`() {
        val settings = ElasticSettings(reserveBytes = 1000, growAfterS = 1.0)
        for (case in vectors["caps"].items) {
            val ceiling = case["ceiling_bytes"].orNull { it.long }
            var state = CapState(ceiling)
            for (one in case["readings"].items) {
                val reading = MemoryReading(one["available_bytes"].long, one["stalled_share"].orNull { it.double })
                val (taken, most) = one["taken_bytes"].long to case["most_bytes"].long
                state = nextCap(state, reading, taken, most, ceiling, one["now_s"].double, settings)
                val sinceS = one["roomy_since_s"].orNull { it.double } ?: Double.POSITIVE_INFINITY
                assertEquals(CapState(one["cap_bytes"].orNull { it.long }, sinceS), state)
            }
        }
        assertTrue(vectors["caps"].items.size >= 40)
    }
}
