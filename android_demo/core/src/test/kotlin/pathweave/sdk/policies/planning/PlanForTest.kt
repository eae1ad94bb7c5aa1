package pathweave.sdk.policies.planning

import java.io.File
import java.nio.file.Path
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.drawnImages
import pathweave.sdk.logs.readLog
import pathweave.sdk.numerics.argmax
import pathweave.sdk.session.logPath
import pathweave.sdk.supernet.Requirement

private const val COUNT = 61

@Timeout(60)
class PlanForTest {
    private val images = drawnImages(COUNT)
    private val labels = SplitMix64(4).let { random -> IntArray(COUNT) { random.below(3) } }

    private fun open(state: File? = null) =
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, selfTested = { true }, stateFolder = state)

    @Test
    fun `two thirds of the samples choose and a third judges, as the plan in use then answers`(@TempDir folder: Path) {
        open(folder.toFile()).use { model ->
            val planned = model.planFor(images, labels, Requirement(latencyMs = 1e6, coverage = 1.0))
            assertEquals(planned.choice.plan, model.plan)
            val right = List(COUNT) { argmax(model.classify(images[it]).output)[0] == labels[it] }
            val (judging, choosing) = right.indices.partition { it % 3 == 0 }
            assertEquals(COUNT to judging.size, planned.samples to planned.judged)
            assertEquals(choosing.count { right[it] }.toDouble() / choosing.size, planned.choice.cost.accuracy!!, 1e-12)
            assertEquals(judging.count { right[it] }.toDouble() / judging.size, planned.heldOut!!.accuracy!!, 1e-12)
            assertTrue(planned.notes.isEmpty())
        }
        val logged = readLog(logPath(folder.toFile(), Contract.reference())).last()
        assertEquals("plan_chosen", logged.event)
        assertEquals("$COUNT", logged.fields["samples"])
        assertEquals("0.0" to "{}", logged.fields["share_asked_early"] to logged.fields["saved"])
    }

    @Test
    fun `a few samples all choose, and what no plan keeps is refused`() {
        open().use { model ->
            val before = model.plan
            val few = model.planFor(images.take(20), labels.copyOf(20), Requirement(latencyMs = 1e6, coverage = 1.0))
            assertEquals(0, few.judged)
            assertNull(few.heldOut)
            model.use(before)
            assertRefused<InfeasibleBudgetError> { model.planFor(images, labels, Requirement(latencyMs = 1e-9, coverage = 1.0)) }
            assertRefused<UsageError> { model.planFor(images, labels, Requirement(latencyMs = 1.0), followNetwork = true) }
            assertRefused<UsageError> { model.planFor(images, labels, Requirement(accuracy = 0.5, certainty = 0.9)) }
            assertEquals(before, model.plan)
        }
    }
}
