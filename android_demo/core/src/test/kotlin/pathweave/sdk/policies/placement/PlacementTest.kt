package pathweave.sdk.policies.placement

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.Contract
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.double
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.supernet.Exit
import pathweave.sdk.supernet.Family
import pathweave.sdk.text
import pathweave.sdk.texts

class PlacementTest {
    private val cases =
        Json.parseToJsonElement(File(Contract.repository, "tests/contract/placements.json").readText()).items

    private fun candidates(case: JsonElement) = case["candidates"].items.map {
        ExitCandidate(
            it["exit"].text,
            it["position"].int,
            it["accuracy"].double,
            it["reach_time"].double,
            it["branch_time"].double,
            it["memory_bytes"].jsonPrimitive.long,
        )
    }

    private fun limit(case: JsonElement) =
        case["memory_bytes"].takeIf { it !is JsonNull }?.let { (it as JsonPrimitive).long }

    private fun stopTimes(case: JsonElement) =
        StopTimes(case["until"].items.map { it.double }, case["weight"].items.map { it.double })

    @Test
    fun `the same exits are placed everywhere`() {
        assertTrue(cases.size > 100)
        for (case in cases) {
            val exact = placeExactly(candidates(case), case["full_time"].double, limit(case), stopTimes(case))
            val greedy = placeExactly(candidates(case), case["full_time"].double, limit(case), stopTimes(case)) { true }
            assertTrue(exact.optimal)
            for ((name, found) in listOf("exact" to exact, "greedy" to greedy)) {
                assertEquals(case[name]["exits"].texts, found.exits, "$name of $case")
                assertEquals(case[name]["expectation"].double, found.expectation)
                assertEquals(case[name]["memory_bytes"].jsonPrimitive.long, found.memoryBytes)
            }
        }
    }

    @Test
    fun `once it is late the greedy choice is returned and not called optimal`() {
        for (case in cases.filter { candidates(it).isNotEmpty() }) {
            val found = placeExactly(candidates(case), case["full_time"].double, limit(case), stopTimes(case)) { true }
            assertEquals(case["greedy"]["exits"].texts, found.exits)
        }
        val one = ExitCandidate("x", 1, 0.5, 1.0, 0.0, 1)
        assertFalse(placeExactly(listOf(one), 2.0, 1) { true }.optimal)
    }

    @Test
    fun `without measurements an exit is reached along the member that passes its cut point`() {
        val exits = List(4) { Exit("x$it", it + 1, "flat", 1, 1, listOf(Family.rendition("fp32")), accuracy = 0.5) }
        val (candidates, fullTime) = candidatesByMacs(Family.supernet(exits = exits + exits[0].copy("y", accuracy = null)))
        assertEquals(listOf("x0", "x1", "x2", "x3"), candidates.map { it.exit })
        assertEquals(listOf(10.0, 100.0, 1_010.0, 10_100.0), candidates.map { it.reachTime })
        assertEquals(101_010.0, fullTime) // of the largest
    }

    @Test
    fun `impossible limits and stop times are refused`() {
        assertRefused<UsageError> { placeExactly(emptyList(), 0.0, null) }
        assertRefused<UsageError> { placeExactly(emptyList(), 1.0, -1) }
        assertRefused<UsageError> { StopTimes(listOf(0.5), listOf(1.0)) }
        assertRefused<UsageError> { StopTimes(listOf(1.0), listOf(-1.0)) }
    }
}
