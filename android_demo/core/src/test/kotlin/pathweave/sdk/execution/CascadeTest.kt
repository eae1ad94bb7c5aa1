package pathweave.sdk.execution

import kotlin.math.abs
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.Contract
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.subnetOf
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE
import pathweave.sdk.supernet.confidence
import pathweave.sdk.supernet.decodePlan
import pathweave.sdk.supernet.encodePlan

private const val BATCH = 12
private const val TOLERANCE = 1e-5

class CascadeTest {
    private val bundle = Contract.reference()
    private val supernet = bundle.supernet
    private val original = supernet.original
    private val always = Decider.MaxConfidence(UNREACHABLE_CONFIDENCE)

    /** The same as the original up to cut point 2. */
    private val alike: Subnet = subnetOf("o0 o1 s2 o3")

    private fun inputAt(size: SampleSize?) = goldenInputs(supernet.cutPointsAt(size)[0], seed = 7, batch = BATCH)[0]

    private fun run(plan: Plan, atSize: AtSize? = null): Outcome =
        LoadedPlan(bundle, OnnxRuntime(), plan).use { it.run(inputAt(plan.inputSize), null, asks = false, atSize = atSize) }

    private fun assertSame(wanted: Tensor, found: Tensor, samples: List<Int>) {
        val classes = wanted.size / wanted.batch
        for (sample in samples) for (at in sample * classes until (sample + 1) * classes) {
            assertTrue(abs(wanted[at] - found[at]) <= TOLERANCE, "sample $sample")
        }
    }

    @Test
    fun `hard samples are answered by the second path, the others by the first`() {
        val (first, second) = run(Plan(alike)).output to run(Plan(original)).output
        val middle = confidence(first).sorted()[BATCH / 2]
        val outcome = run(Plan(alike, hard = Hard.Cascade(Decider.MaxConfidence(middle), original)))
        val (hard, easy) = (0 until BATCH).partition { confidence(first)[it] < middle }
        assertTrue(hard.isNotEmpty() && easy.isNotEmpty())
        assertEquals(hard, outcome.answeredBy.indices.filter { outcome.answeredBy[it] == BY_SECOND })
        assertSame(second, outcome.output, hard)
        assertSame(first, outcome.output, easy)
    }

    @Test
    fun `the second path goes on where it leaves the first`() {
        val plan = Plan(alike, hard = Hard.Cascade(always, original, position = 2))
        assertEquals(original.edges.drop(2), segments(supernet, plan).last().edges)
        assertSame(run(Plan(original)).output, run(plan).output, (0 until BATCH).toList())
    }

    @Test
    fun `a second path at another size takes samples prepared for it, or leaves the answers of the first`() {
        val size = supernet.sizes.first { it != null }
        val plan = Plan(supernet.original, hard = Hard.Cascade(always, supernet.original.at(size)))
        val resized = inputAt(size)
        val outcome = run(plan) { samples, wanted -> resized.rows(samples).also { assertEquals(size, wanted) } }
        assertSame(run(Plan(supernet.original.at(size))).output, outcome.output, (0 until BATCH).toList())
        assertTrue(run(plan).answeredBy.all { it == AT_END })
    }

    @Test
    fun `samples that an exit answers take neither path`() {
        val exit = supernet.exitsAlong(original).first()
        val outcome = run(Plan(original, listOf(ExitChoice(exit.id, 0.0)), hard = Hard.Cascade(always, alike)))
        assertTrue(outcome.answeredBy.all { it == 0 })
    }

    @Test
    fun `a cascade survives JSON and has a kind`() {
        val plan = Plan(alike, hard = Hard.Cascade(Decider.Margin(0.25), original, 1))
        assertEquals(plan, decodePlan(encodePlan(plan)))
        assertEquals("cascade" to original, plan.kind to plan.second)
    }

    @Test
    fun `a cascade that does not fit is refused`() {
        fun refused(hard: Hard.Cascade) = assertRefused<UsageError> { supernet.checkPlan(Plan(alike, hard = hard)) }.message
        assertEquals("the second path of a cascade is the same as the first", refused(Hard.Cascade(always, alike)))
        assertEquals("the path does not pass cut point 99", refused(Hard.Cascade(always, original, 99)))
        assertRefused<UsageError> { Hard.Cascade(always, original, -1) }
    }
}
