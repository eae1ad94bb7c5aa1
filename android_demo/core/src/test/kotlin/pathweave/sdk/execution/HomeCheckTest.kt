package pathweave.sdk.execution

import java.io.File
import java.nio.file.Path
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.Contract
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.assertRefused
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.Kernels
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.Placed
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.supernet.Home

/** A provider that computes on the processor and adds [off]; it leaves the operators of blocks with [left] to others. */
private class FakeProvider(
    private val version: String = "1",
    private val off: Float = 0f,
    private val left: String = "none",
    private val before: (owner: String) -> Unit = {},
) : Runtime {
    private val runtime = OnnxRuntime()
    var loads = 0

    override val identity get() = "fake-$version"

    override fun load(stretch: Stretch): LoadedStretch {
        loads++
        val owner = stretch.owners.first()
        before(owner)
        val mine = left !in owner
        return Fake(runtime.load(stretch), if (mine) off else 0f, mine)
    }

    private class Fake(private val inner: LoadedStretch, private val off: Float, mine: Boolean) :
        LoadedStretch by inner, Placed {
        override val kernels = Kernels(mapOf((if (mine) "fake" else "cpu") to mapOf("Conv" to 2)), "fake")

        override fun run(inputs: List<Tensor>): List<Tensor> {
            if (kernels.assigned == 0) throw RuntimeFailedError("runs none of the kernels")
            return inner.run(inputs).map { output ->
                if (off == 0f) output else Tensor.of(FloatArray(output.size) { (output[it] + off).toFloat() }, output.shape)
            }
        }
    }
}

class HomeCheckTest {
    private val bundle = Contract.reference()
    private val npu = Home("qnn")

    private fun open(provider: FakeProvider, state: File?, homes: List<Home> = listOf(Home(), npu), stepS: Double = 20.0) =
        openHomes(bundle, homes, state, SelfTestLimits(stepS = stepS)) { if (it.onProcessor) OnnxRuntime(it) else provider }

    @Test
    fun `a home whose blocks answer as they should is open and its kernels are counted`() {
        val found = open(FakeProvider(left = "o2"), null)
        assertEquals(listOf("cpu-1t", "qnn-1t"), found.runtime.homes)
        val report = found.reports.single()
        val blocks = blockCases(bundle).size
        val left = blockCases(bundle).count { "o2" in it.name }
        assertEquals(2 * blocks to 2 * (blocks - left), report.nodes to report.assigned)
        assertEquals(mapOf("Conv" to 2 * left), report.refused)
        assertNull(report.failure)
    }

    @Test
    fun `homes of the processor are not checked`() {
        val found = openHomes(bundle, listOf(Home(), Home(threads = 2)), null)
        assertEquals(listOf("cpu-1t", "cpu-2t") to emptyList<HomeReport>(), found.runtime.homes to found.reports)
    }

    @Test
    fun `a home with another answer is left out and the report says how far off it is`() {
        val found = open(FakeProvider(off = 5f), null)
        assertEquals(listOf("cpu-1t"), found.runtime.homes)
        assertTrue(Regex("block .* is off by 5.00, and .* is allowed").matches(found.reports.single().failure!!))
    }

    @Test
    fun `a home whose provider runs no block is left out`() {
        val failure = open(FakeProvider(left = ""), null).reports.single().failure!!
        assertTrue("runs none of the" in failure)
    }

    @Test
    fun `a home that does not go on in time is left out`() {
        val found = open(FakeProvider(before = { Thread.sleep(60_000) }), null, stepS = 0.2)
        assertEquals(listOf("cpu-1t"), found.runtime.homes)
        assertTrue("did not go on" in found.reports.single().failure!!)
    }

    @Test
    fun `a usual home that does not work is an error since nothing else was wished for`() {
        val error = assertRefused<RuntimeFailedError> { open(FakeProvider(off = 5f), null, listOf(npu, Home())) }
        assertTrue("qnn-1t" in error.message!!)
    }

    @Test
    fun `what a check found is remembered until the version changes`(@TempDir folder: Path) {
        val state = folder.toFile()
        val first = FakeProvider(off = 5f)
        val found = open(first, state).reports
        val again = FakeProvider()
        assertEquals(found, open(again, state).reports)
        assertEquals(0, again.loads)
        val newer = FakeProvider(version = "2")
        assertNull(open(newer, state).reports.single().failure)
        assertTrue(newer.loads > 0)
    }

    @Test
    fun `a check that the process did not survive is begun once more and then the home is left out`(@TempDir folder: Path) {
        val state = folder.toFile()
        fun crash() = FakeProvider(before = { throw Crash() }) // as if nothing after it ran
        repeat(2) { assertTrue(runCatching { open(crash(), state) }.exceptionOrNull() is Crash) }
        val provider = FakeProvider()
        assertEquals("the process ended during its check", open(provider, state).reports.single().failure)
        assertEquals(0, provider.loads)
    }

    @Test
    fun `a damaged record means another check`(@TempDir folder: Path) {
        val state = folder.toFile()
        open(FakeProvider(), state)
        state.walk().filter { it.name.startsWith("home-") && it.extension == "json" }.single().writeText("{\"nodes\": -1}")
        val provider = FakeProvider()
        assertNull(open(provider, state).reports.single().failure)
        assertTrue(provider.loads > 0)
    }

    private class Crash : Error()
}
