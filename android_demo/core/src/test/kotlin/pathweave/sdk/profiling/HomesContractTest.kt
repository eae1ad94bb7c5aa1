package pathweave.sdk.profiling

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.Contract
import pathweave.sdk.double
import pathweave.sdk.execution.OpenHomes
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.subnetOf
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.EdgeCost
import pathweave.sdk.supernet.Home
import pathweave.sdk.text
import pathweave.sdk.texts

/** Costs at several homes, the homes that paths get, and what is fitted: as in Python. */
class HomesContractTest {
    private val vectors = Json.parseToJsonElement(File(Contract.repository, "tests/contract/homes.json").readText())
    private val supernet = Contract.reference().supernet
    private val homes = OpenHomes(
        vectors["homes"].texts.map(Home::parse),
        vectors["refused"].jsonObject.mapValues { it.value.texts.toSet() },
    )
    private val costs = vectors["costs"].let { one ->
        CostModel(
            byEdge(one["edges_ms"]).mapValues { (_, ms) -> EdgeCost(ms, ms, 10, 10) },
            scale = one["scale"].double,
            offsetMs = one["offset_ms"].double,
            entryChangeMs = byEdge(one["entry_change_ms"]),
            homeOffsetMs = one["home_offset_ms"].jsonObject.mapValues { it.value.double },
            crossingMs = one["crossing_ms"].items.map { it.items }.associate { (before, edge, ms) ->
                (before.text to edgeOf(edge.text)) to ms.double
            },
        )
    }
    private val paths = vectors["paths"].texts.map(::subnetOf)

    private fun edgeOf(text: String): Edge = subnetOf(text).edges.single()

    private fun byEdge(element: JsonElement): Map<Edge, Double> =
        element.jsonObject.entries.associate { (text, ms) -> edgeOf(text) to ms.double }

    @TestFactory
    fun `paths get the homes that make them fastest`() = vectors["housed"].items.mapIndexed { number, case ->
        DynamicTest.dynamicTest("$number: ${case["housed"].text}") {
            val path = subnetOf(case["path"].text)
            val within = homes.within(case["threads"].takeIf { it !is JsonNull }?.int)
            val free = costs.atBestHomes(within.ofEach(supernet, path.edges))
            assertEquals(case["housed"].text, free.housed(path).toString())
            assertEquals(case["latency_ms"].double, free.latencyMs(path), 1e-9)
            assertEquals(case["latency_ms"].double, costs.latencyMs(free.housed(path)), 1e-9)
            assertEquals(case["first"].text, within.first(supernet, path).toString())
        }
    }

    @Test
    fun `the same subnets show what further homes cost`() {
        assertEquals(vectors["further"].texts, subnetsAtHomes(homes, paths, costs).map { "$it" })
    }

    @Test
    fun `the same latencies lead to the same costs and crossings`() {
        val expected = vectors["fit"]
        val subnets = paths + vectors["further"].texts.map(::subnetOf)
        val blocksMs = costs.edgeCosts.mapValues { it.value.latencyMs }
        val fit = fitHomes(supernet, blocksMs, subnets, expected["latencies_ms"].items.map { it.double })
        near(expected["scale"].double, fit.scale)
        near(expected["offset_ms"].double, fit.offsetMs)
        near(byEdge(expected["factors"]), fit.factors)
        near(byEdge(expected["changes_ms"]), fit.changesMs)
        near(expected["home_offset_ms"].jsonObject.mapValues { it.value.double }, fit.homeOffsetMs)
        val crossings = expected["crossings"].items.map { it.items }
        assertEquals(crossings.map { (before, after) -> before.text to after.text }, fit.crossings.map { it.before to it.after })
        for ((known, found) in crossings.zip(fit.crossings)) {
            near(known[2].double, found.fixedMs)
            near(known[3].double, found.msPerMb)
        }
    }

    private fun <Key> near(expected: Map<Key, Double>, found: Map<Key, Double>) {
        assertEquals(expected.keys, found.keys)
        for ((key, value) in expected) near(value, found.getValue(key))
    }

    private fun near(expected: Double, found: Double) = assertEquals(expected, found, 1e-7 * maxOf(1.0, Math.abs(expected)))
}
