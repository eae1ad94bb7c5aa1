package pathweave.sdk.live

import kotlin.math.abs
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.assertRefused
import pathweave.sdk.data.searchPositions
import pathweave.sdk.double
import pathweave.sdk.execution.Workspace
import pathweave.sdk.get
import pathweave.sdk.items
import pathweave.sdk.numerics.argmax
import pathweave.sdk.policies.AdaptationSettings
import pathweave.sdk.policies.Adaptations
import pathweave.sdk.policies.standIns
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.search.Candidate
import pathweave.sdk.search.latencyRangeMs
import pathweave.sdk.seed
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Prior
import pathweave.sdk.tasks.ClassTargets

private const val HOUR_S = 3600.0
private const val EXPECTED_TOLERANCE = 1e-6

@Timeout(60)
class PoolSearchTest {
    private val vectors = Adaptations.vectors["pool_searches"]
    private val costs = Adaptations.profile.costModel()
    private val workspace = Workspace(Adaptations.bundle, OnnxRuntime())
    private val settings = AdaptationSettings(
        seed = vectors["seed"].seed,
        cacheBytes = Adaptations.vectors["cache_bytes"].double.toLong(),
    )
    private val search = PoolSearch(workspace, costs, Adaptations.inputs(), ClassTargets(Adaptations.labels), settings)

    private fun budget(value: JsonElement) =
        value.jsonObject.let { Budget(it["latency_ms"]?.double, it["memory_mb"]?.double) }

    private fun check(expected: JsonElement, found: List<Candidate>) {
        assertEquals(expected.jsonObject.keys.toList(), found.map { it.subnet.toString() })
        for (one in found) {
            val (accuracy, posterior) = expected[one.subnet.toString()].items.map { it.double }
            assertEquals(accuracy, one.accuracy)
            assertEquals(posterior, one.expected ?: 0.0, EXPECTED_TOLERANCE)
        }
    }

    @Test
    fun `at other budgets what Python finds is found, or nothing where nothing fits`() {
        for (case in vectors["cases"].items) {
            fun found() = search.search(budget(case["budget"]), HOUR_S) { false }
            if (case["found"] is JsonNull) assertRefused<InfeasibleBudgetError> { found() }
            else check(case["found"], found())
        }
    }

    @Test
    fun `a pool is filled as in Python, from the fastest subnet to the slowest`() {
        val notes = mutableListOf<String>()
        val limits = budget(vectors["fill"]["budget"])
        val found = search.fill(limits, 16 * HOUR_S) { done, total, note ->
            assertTrue(done < total)
            notes += note
        }
        check(vectors["fill"]["found"], found)
        assertTrue(notes.all { "plan pool at" in it || "the memory limit leaves nothing" in it }, "$notes")
        val (fastestMs, slowestMs) = latencyRangeMs(Adaptations.bundle.supernet, costs)
        val everywhere = search.fill(Budget(latencyMs = 2.0), 16 * HOUR_S) { _, _, _ -> }.map { it.cost.latencyMs }
        assertEquals(fastestMs to slowestMs, everywhere.min() to everywhere.max())
        assertTrue(found.any { it.subnet == Adaptations.bundle.supernet.original })
    }

    @Test
    fun `a search that is cancelled finds nothing, and the cap is kept`() {
        assertEquals(emptyList<Candidate>(), search.search(Budget(latencyMs = 2.25), HOUR_S) { true })
        val capped = workspace.copy(memoryCapBytes = 1_500_000)
        val settings = settings.copy(cacheBytes = 0)
        val paged = PoolSearch(capped, costs, Adaptations.inputs(), ClassTargets(Adaptations.labels), settings)
        check(vectors["cases"].items[0]["found"], paged.search(budget(vectors["cases"].items[0]["budget"]), HOUR_S) { false })
    }

    @Test
    fun `under a prior all plans of the pool have it, and are judged by it`() {
        val prior = Prior(listOf(-20.0, 20.0, -20.0))
        val labels = Adaptations.labels
        val under = PoolSearch(workspace, costs, Adaptations.inputs(), ClassTargets(labels), settings, prior)
        val filled = under.fill(Budget(latencyMs = 2.0), 16 * HOUR_S) { _, _, _ -> }
        for (found in listOf(filled, under.search(Budget(latencyMs = 2.25), HOUR_S) { false })) {
            assertTrue(found.isNotEmpty() && found.all { it.plan.prior == prior })
            val kept = searchPositions(labels, settings.holdoutShare, settings.seed).first
            val ones = kept.count { labels[it] == 1 }.toDouble() / kept.size
            assertTrue(found.all { abs(it.accuracy - ones) < 0.05 }, "only one class is left")
        }
    }

    @Test
    fun `the full model's answers stand in for labels`() {
        val inputs = Adaptations.inputs()
        val all = inputs.take((0 until inputs.count).toList(), null)
        val full = Plan(Adaptations.bundle.supernet.original)
        val answers = workspace.loadPlan(full).use { argmax(it.run(all).output) }
        val found = standIns(workspace, inputs, batch = 8, usePrior = false).first as ClassTargets
        assertEquals(answers.toList(), found.classes.toList())
    }
}
