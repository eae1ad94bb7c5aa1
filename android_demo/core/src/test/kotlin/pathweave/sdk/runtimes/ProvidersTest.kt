package pathweave.sdk.runtimes

import java.io.File
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.Contract
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.assertRefused
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.Home

/** Providers that this machine's ONNX Runtime lacks: it runs their sessions on the processor, as where all is refused. */
class ProvidersTest {
    private val bundle = Contract.reference()
    private val stretch = bundle.stretch(bundle.supernet.original.edges)
    private val home = Home("xnnpack")
    private val refusesAll = OnnxProvider("xnnpack") { _, _ -> }
    private val runsAll = OnnxProvider("cpu") { _, _ -> }

    private fun inputs(batch: Int) = goldenInputs(bundle.supernet.cutPoints[0], 1L, batch)

    private fun List<Tensor>.values() = last().let { output -> List(output.size) { output[it] } }

    private fun profiles() = File(System.getProperty("java.io.tmpdir")).listFiles().orEmpty()
        .filter { it.name.startsWith("pathweave-profile.") }.toSet()

    @Test
    fun `a provider that is not built in is refused and those that are here are named`() {
        for (name in listOf("xnnpack", "nnapi", "qnn", "coreml")) {
            val error = assertRefused<RuntimeFailedError> { OnnxRuntime(Home(name)) }
            assertTrue("ExecutionProvider" in error.message!!)
            assertEquals("it has CPUExecutionProvider", error.hint)
        }
    }

    @Test
    fun `a cluster of cores is refused since threads are not bound to cores`() {
        val error = assertRefused<RuntimeFailedError> { OnnxRuntime(Home(threads = 2, cluster = "big")) }
        assertTrue("cpu-2t" in error.hint!!)
    }

    @Test
    fun `providers that are built in have their short names`() {
        assertEquals(listOf("cpu"), availableProviders())
    }

    @Test
    fun `options that the runtime refuses are our error`() {
        val unknown = OnnxProvider("xnnpack") { options, _ -> options.addXnnpack(emptyMap()) }
        val error = assertRefused<RuntimeFailedError> { OnnxRuntime(home, 0, unknown).load(stretch) }
        assertTrue("refused the model" in error.message!!)
    }

    @Test
    fun `a session whose provider runs nothing answers with an error each time`() {
        val before = profiles()
        OnnxRuntime(home, 0, refusesAll).load(stretch).use { loaded ->
            repeat(2) {
                val error = assertRefused<RuntimeFailedError> { loaded.run(inputs(1)) }
                assertTrue(error.message!!.startsWith("xnnpack-1t runs none of the"), error.message)
            }
            assertRefused<RuntimeFailedError> { loaded.runUntil(inputs(1), StopSignal()) }
            val kernels = (loaded as Placed).kernels!!
            assertEquals(0, kernels.assigned)
            assertEquals(kernels.count, kernels.refused.values.sum())
            assertTrue("Conv" in kernels.refused)
        }
        assertEquals(before, profiles())
    }

    @Test
    fun `what the provider runs is counted in the first run and answers are the same`() {
        val before = profiles()
        val expected = OnnxRuntime().load(stretch).use { it.run(inputs(2)).values() }
        OnnxRuntime(home, 0, runsAll).load(stretch).use { loaded ->
            repeat(2) { assertEquals(expected, loaded.run(inputs(2)).values()) }
            val kernels = (loaded as Placed).kernels!!
            assertTrue(kernels.count > 0)
            assertEquals(kernels.count to emptyMap<String, Int>(), kernels.assigned to kernels.refused)
        }
        assertEquals(before, profiles())
    }

    @Test
    fun `a session that never ran leaves no profile`() {
        val before = profiles()
        OnnxRuntime(home, 0, runsAll).load(stretch).close()
        assertEquals(before, profiles())
    }

    @Test
    fun `a stopped first run is no look at what ran where`() {
        OnnxRuntime(home, 0, runsAll).load(stretch).use { loaded ->
            loaded.runUntil(inputs(1), StopSignal().also { it.set() })
            assertEquals(null, (loaded as Placed).kernels)
            loaded.run(inputs(1))
            assertTrue(loaded.kernels!!.assigned > 0)
        }
    }

    @Test
    fun `a provider for fixed shapes runs a batch sample by sample`() {
        val single = OnnxProvider("cpu", oneSample = true) { _, _ -> }
        val expected = OnnxRuntime().load(stretch).use { it.run(inputs(3)) }
        OnnxRuntime(home, 0, single).load(stretch).use { loaded ->
            val found = loaded.run(inputs(3))
            assertEquals(expected.map { it.shape }, found.map { it.shape })
            found.values().zip(expected.values()).forEach { (one, other) -> assertEquals(other, one, 1e-6) }
        }
    }

    @Test
    fun `a profile that cannot be read tells nothing`() {
        for (text in listOf("", "{}", "[{\"cat\": \"Node\"}]", "[{\"cat\": \"Node\", \"name\": \"a_kernel_time\", \"args\": {}}]")) {
            assertEquals(0, Kernels.of(text.toByteArray(), "CPUExecutionProvider").count)
        }
    }
}
