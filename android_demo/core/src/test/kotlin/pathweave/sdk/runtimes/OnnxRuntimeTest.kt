package pathweave.sdk.runtimes

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.Contract
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.execution.goldenInputs

/** Stands in for Android's class of this shape. */
object KeptVariables {
    val kept = mutableMapOf<String, String>()

    @JvmStatic
    fun setenv(name: String, value: String, overwrite: Boolean) {
        if (overwrite || name !in kept) kept[name] = value
    }
}

class OnnxRuntimeTest {
    @Test
    fun `threads that wait sleep unless it is said otherwise`() {
        for (runtime in listOf(OnnxRuntime(), OnnxRuntime(threads = 2), OnnxRuntime(threads = 1, spinUs = 50))) {
            assertEquals(setOf("0"), runtime.spinning().values.toSet())
            assertFalse("spin" in runtime.identity)
        }
    }

    @Test
    fun `threads spin as long as it is said, which profiles tell apart`() {
        val runtime = OnnxRuntime(threads = 2, spinUs = 50)
        assertEquals("1", runtime.spinning()["session.intra_op.allow_spinning"])
        assertEquals("50", runtime.spinning()["session.intra_op.spin_duration_us"])
        assertTrue(runtime.identity.endsWith("-2t-spin50us"))
    }

    @Test
    fun `a spin time out of its range is refused`() {
        for (wrong in listOf(-1, 1_000_001)) {
            val error = assertRefused<UsageError> { OnnxRuntime(threads = 2, spinUs = wrong) }
            assertTrue("microseconds" in error.hint!!)
        }
    }

    @Test
    fun `spinning does not change an answer`() {
        val bundle = Contract.reference()
        val stretch = bundle.stretch(bundle.supernet.original.edges)
        val inputs = goldenInputs(bundle.supernet.cutPoints[0], 1L, 2)
        val (sleeps, spins) = listOf(0, 50).map { spinUs ->
            OnnxRuntime(threads = 2, spinUs = spinUs).load(stretch).use { loaded ->
                loaded.run(inputs).last().let { output -> List(output.size) { output[it] } }
            }
        }
        assertEquals(sleeps, spins)
    }

    @Test
    fun `a variable is set where the system offers it`() {
        assertTrue(setVariable("ORT_DISABLE_TELEMETRY", "1", KeptVariables::class.java.name))
        assertEquals("1", KeptVariables.kept["ORT_DISABLE_TELEMETRY"])
        assertFalse(setVariable("ORT_DISABLE_TELEMETRY", "1", "no.such.Class"))
    }
}
