package pathweave.sdk.session

import java.io.File
import java.nio.file.Path
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.Contract
import pathweave.sdk.execution.FakeProvider
import pathweave.sdk.execution.ONE_HOME
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Home

class HomesTest {
    private val bundle = Contract.reference()
    private val npu = Home("qnn")

    private fun open(provider: FakeProvider, state: File?, homes: List<Home> = listOf(Home(), npu)) =
        checkHomes(bundle, homes, state, { if (it.onProcessor) OnnxRuntime(it) else provider })

    @Test
    fun `threads from one to all cores and every provider are the homes of a device`() {
        val found = allHomes(cores = 6, providers = listOf("cpu", "xnnpack", "nnapi"))
        assertEquals(listOf("cpu-1t", "cpu-2t", "cpu-4t", "cpu-6t", "xnnpack-6t", "nnapi-1t"), found.map { "$it" })
        assertEquals(listOf(Home()), allHomes(cores = 1))
    }

    @Test
    fun `a home that works is open for the blocks that run there`() {
        val found = open(FakeProvider(left = "o2"), null)
        assertTrue(found.runtime.identity.endsWith("[cpu-1t,qnn-1t]"))
        val edges = listOf(Edge("o1"), Edge("o2")).map { found.open.of(bundle.supernet, it).map { one -> one.home } }
        assertEquals(listOf(listOf("", "qnn-1t"), listOf("")), edges)
    }

    @Test
    fun `homes of the processor are not checked and a limit of threads leaves some out`() {
        val found = checkHomes(bundle, listOf(Home(), Home(threads = 2)), null)
        assertEquals(listOf("cpu-1t", "cpu-2t") to 0, found.open.homes.map { "$it" } to found.reports.size)
        assertEquals(listOf(Edge("o1")), found.open.within(1).of(bundle.supernet, Edge("o1")))
    }

    @Test
    fun `a home that fails is left out with the reason`() {
        val found = open(FakeProvider(off = 5f), null)
        assertEquals(ONE_HOME, found.open)
        assertFalse("[" in found.runtime.identity)
        assertEquals(mapOf("qnn-1t" to "it runs no block: its answers differ from the golden ones"), found.leftOut)
    }

    @Test
    fun `what a check found is remembered until the version changes`(@TempDir folder: Path) {
        val state = folder.toFile()
        val found = open(FakeProvider(off = 5f, left = "o2"), state).reports
        val again = FakeProvider()
        assertEquals(found, open(again, state).reports)
        assertEquals(0, again.loads)
        val newer = FakeProvider(version = "2")
        assertTrue(open(newer, state).leftOut.isEmpty())
        assertTrue(newer.loads > 0)
    }

    @Test
    fun `a check that the process did not survive is begun once more and then the home is left out`(@TempDir folder: Path) {
        val state = folder.toFile()
        fun crash() = FakeProvider(before = { throw Crash() }) // as if nothing after it ran
        repeat(2) { assertTrue(runCatching { open(crash(), state) }.exceptionOrNull() is Crash) }
        val provider = FakeProvider()
        assertEquals(mapOf("qnn-1t" to "the process ended during its check"), open(provider, state).leftOut)
        assertEquals(0, provider.loads)
    }

    @Test
    fun `a damaged record means another check`(@TempDir folder: Path) {
        val state = folder.toFile()
        open(FakeProvider(), state)
        val record = state.walk().single { it.name.startsWith("home-") && it.extension == "json" }
        record.writeText("{\"home\": 1}")
        val provider = FakeProvider()
        assertTrue(open(provider, state).leftOut.isEmpty())
        assertTrue(provider.loads > 0)
    }

    private class Crash : Error()
}
