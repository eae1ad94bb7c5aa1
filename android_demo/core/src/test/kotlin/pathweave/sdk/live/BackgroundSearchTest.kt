package pathweave.sdk.live

import java.io.File
import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.CountDownLatch
import kotlin.math.abs
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.Contract
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.double
import pathweave.sdk.get
import pathweave.sdk.items
import pathweave.sdk.search.Candidate
import pathweave.sdk.subnetOf
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Cost
import pathweave.sdk.supernet.Plan
import pathweave.sdk.text

private const val WAIT_MS = 30_000L
private val BUDGET = Budget(latencyMs = 1.0)
private val FOUND = Candidate(Plan(subnetOf("a")), Cost(1.0, 1), 0.5)

@Timeout(60)
class BackgroundSearchTest {
    private val outcomes = CopyOnWriteArrayList<SearchOutcome>()
    private val vectors =
        Json.parseToJsonElement(File(Contract.repository, "tests/contract/switching.json").readText())

    private fun background(search: Search) = BackgroundSearch(search) { outcomes += it }

    private fun BackgroundSearch.begin(ratio: Double = 2.0, nowS: Double = 0.0, cooldownS: Double = 60.0) =
        begin(BUDGET, ratio, nowS, cooldownS)

    private fun nothingFits(): Nothing = throw InfeasibleBudgetError("nothing fits", emptyList(), 1.0, 1L)

    @Test
    fun `what was found is handed over`() {
        val background = background { _, _ -> listOf(FOUND) }
        assertTrue(background.begin())
        background.await(WAIT_MS)
        val outcome = outcomes.single()
        assertEquals(SearchOutcome(BUDGET, 2.0, listOf(FOUND), outcome.seconds, null), outcome)
        assertTrue(outcome.seconds >= 0)
    }

    @Test
    fun `one search at a time`() {
        val mayEnd = CountDownLatch(1)
        val begun = CopyOnWriteArrayList<Budget>()
        val background = background { budget, _ ->
            begun += budget
            mayEnd.await()
            emptyList()
        }
        assertTrue(background.begin())
        assertTrue(background.begin(cooldownS = 0.0), "under way, not a second one")
        mayEnd.countDown()
        background.await(WAIT_MS)
        assertEquals(listOf(BUDGET), begun)
    }

    @Test
    fun `searches begin where Python's do, after cooldowns, jumps of the clock and what was in vain`() {
        for (case in vectors["searches"].items) {
            var fits = true
            val background = background { _, _ -> if (fits) emptyList() else nothingFits() }
            for (step in case["steps"].items) {
                fits = step["fits"].text == "true"
                val cooldownS = case["cooldown_s"].double
                val begun = background.begin(step["ratio"].double, step["now_s"].double, cooldownS)
                assertEquals(step["begun"].text == "true", begun, "$step of $case")
                background.await(WAIT_MS)
            }
        }
        assertEquals(setOf(null, "nothing fits"), outcomes.map { it.failure }.toSet())
    }

    @Test
    fun `a failure of the device may be tried again, and an error ends no app`() {
        var error: Throwable = RuntimeFailedError("out of memory")
        val background = background { _, _ -> throw error }
        assertTrue(background.begin(cooldownS = 0.0))
        background.await(WAIT_MS)
        assertEquals(listOf("out of memory"), outcomes.map { it.failure })
        error = IllegalStateException("a mistake")
        assertTrue(background.begin(cooldownS = 0.0))
        background.await(WAIT_MS)
        assertEquals(1, outcomes.size)
        assertTrue(background.begin(cooldownS = 0.0))
        background.await(WAIT_MS)
    }

    @Test
    fun `calls go first`() {
        val here = nicenessOfThisThread()
        assumeTrue(here != null && hasRenice(), "this system has no priorities of threads")
        val there = CopyOnWriteArrayList<Int?>()
        val background = background { _, _ ->
            there += nicenessOfThisThread()
            emptyList()
        }
        background.begin()
        background.await(WAIT_MS)
        assertEquals(listOf(maxOf(10, here!!)), there.toList())
        assertEquals(here, nicenessOfThisThread(), "that of this thread stays")
    }

    private fun hasRenice() = System.getenv("PATH").orEmpty().split(File.pathSeparator).any { File(it, "renice").canExecute() }

    @Test
    fun `after the stop nothing is handed over and nothing begins`() {
        val began = CountDownLatch(1)
        val background = background { _, cancelled ->
            began.countDown()
            while (!cancelled()) Thread.onSpinWait()
            listOf(FOUND)
        }
        background.begin()
        began.await()
        background.stop()
        background.stop()
        assertEquals(emptyList<SearchOutcome>(), outcomes.toList())
        assertFalse(background.begin(cooldownS = 0.0))
    }

    @Test
    fun `a pool is filled at the latencies at which Python fills it`() {
        for (case in vectors["rungs"].items) {
            val found = rungsMs(case["fastest_ms"].double, case["slowest_ms"].double, case["budget_ms"].double)
            val expected = case["rungs_ms"].items.map { it.double }
            assertEquals(expected.size, found.size, "$case")
            assertTrue(expected.zip(found).all { (one, other) -> abs(one - other) <= 1e-12 * one }, "$case: $found")
        }
    }
}
