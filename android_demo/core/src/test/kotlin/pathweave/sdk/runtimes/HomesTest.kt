package pathweave.sdk.runtimes

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.CompositionError
import pathweave.sdk.Contract
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.bundles.compose
import pathweave.sdk.execution.LoadedPlan
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.subnetOf
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Home
import pathweave.sdk.supernet.Plan

/** A home that notes what it loads, and what of it is open; it refuses blocks whose owners have this text. */
private class NotedHome(private val threads: Int = 1, private val refuses: String = "none") : Runtime {
    private val runtime = OnnxRuntime(threads)
    val loaded = mutableListOf<List<String>>()
    var open = 0

    override val identity = "noted-${threads}t"
    override val concurrency = 4 / threads

    override fun load(stretch: Stretch): LoadedStretch {
        if (stretch.owners.any { refuses in it }) throw RuntimeFailedError("refused")
        loaded += stretch.owners.distinct()
        open++
        val inner = runtime.load(stretch)
        return object : LoadedStretch by inner {
            override fun close() {
                open--
                inner.close()
            }
        }
    }
}

class HomesTest {
    private val bundle = Contract.reference()
    private val path = subnetOf("o0 o1~cpu-2t o2~cpu-2t o3")
    private val inputs = goldenInputs(bundle.supernet.cutPoints[0], 1L, 3)
    private val plain = subnetOf("o0 o1 o2 o3")

    private fun List<Tensor>.values() = last().let { output -> List(output.size) { output[it] } }

    private fun homes(one: Runtime, two: Runtime) = HomesRuntime(mapOf(Home() to one, Home(threads = 2) to two), "noted-1")

    @Test
    fun `a path at several homes answers as at one`() {
        val expected = OnnxRuntime().load(bundle.stretch(plain.edges)).use { it.run(inputs).values() }
        val runtime = homes(OnnxRuntime(), OnnxRuntime(threads = 2))
        runtime.load(bundle.stretch(path.edges)).use { loaded ->
            loaded.run(inputs).values().zip(expected).forEach { (one, other) -> assertEquals(other, one, 1e-5) }
        }
    }

    @Test
    fun `each run of equal home is a session of its own`() {
        val (one, two) = NotedHome() to NotedHome(threads = 2)
        homes(one, two).load(bundle.stretch(path.edges)).close()
        assertEquals(listOf(listOf("block o0@fp32"), listOf("block o3@fp32")), one.loaded)
        assertEquals(1, two.loaded.size)
        assertTrue(two.loaded[0].containsAll(listOf("block o1@fp32", "block o2@fp32")))
        assertEquals(0 to 0, one.open to two.open)
    }

    @Test
    fun `the branch of an exit runs at the home of the block before it`() {
        val stretch = bundle.stretch(path.edges.take(2), ExitChoice("x2-flat", 0.5))
        assertEquals(listOf("", "cpu-2t"), stretch.parts.map { it.home })
        assertTrue("exit x2-flat@fp32" in stretch.parts.last().owners)
        assertEquals("exit_x2-flat", stretch.outputs.last().name)
        assertRefused<CompositionError> { compose(stretch) }
    }

    @Test
    fun `one home named throughout is one stretch there`() {
        val stretch = bundle.stretch(subnetOf("o0~cpu-2t o1~cpu-2t").edges)
        assertEquals("cpu-2t" to 0, stretch.home to stretch.parts.size)
    }

    @Test
    fun `a home that is not open is refused and those that are open are named`() {
        val elsewhere = bundle.stretch(subnetOf("o0 o1~qnn-1t o2 o3").edges)
        val error = assertRefused<RuntimeFailedError> { homes(OnnxRuntime(), OnnxRuntime(2)).load(elsewhere).close() }
        assertTrue("qnn-1t" in error.message!!)
        assertTrue("cpu-1t, cpu-2t" in error.hint!!)
        for (names in listOf("o0 o1~cpu-2t", "o0~cpu-2t o1~cpu-2t")) {
            val stretch = bundle.stretch(subnetOf(names).edges)
            assertRefused<RuntimeFailedError> { OnnxRuntime().load(stretch).close() }
        }
        OnnxRuntime(2).load(bundle.stretch(subnetOf("o0~cpu-2t o1~cpu-2t").edges)).close()
    }

    @Test
    fun `parts that were loaded are closed when a later one is refused`() {
        val (one, two) = NotedHome(refuses = "o3") to NotedHome(threads = 2)
        assertRefused<RuntimeFailedError> { homes(one, two).load(bundle.stretch(path.edges)) }
        assertEquals(0 to 0, one.open to two.open)
    }

    @Test
    fun `a run ends between two parts once it is stopped`() {
        val stop = StopSignal().also { it.set() }
        homes(OnnxRuntime(), OnnxRuntime(2)).load(bundle.stretch(path.edges)).use { loaded ->
            assertNull(loaded.runUntil(inputs, stop))
            assertEquals(loaded.run(inputs).values(), loaded.runUntil(inputs, StopSignal())!!.values())
        }
    }

    @Test
    fun `all homes are part of the identity and the fewest runs at once count`() {
        val runtime = homes(NotedHome(), NotedHome(threads = 2))
        assertEquals("noted-1[cpu-1t,cpu-2t]", runtime.identity)
        assertEquals(2, runtime.concurrency)
        assertEquals(listOf("cpu-1t", "cpu-2t"), runtime.homes)
        assertRefused<UsageError> { HomesRuntime(emptyMap(), "noted-1") }
    }

    @Test
    fun `renditions for one provider run at a home that has it`() {
        val (one, two) = NotedHome() to NotedHome(threads = 2)
        val runtime = HomesRuntime(mapOf(Home() to one, Home("qnn") to two), "noted-1")
        val stretch = bundle.stretch(plain.edges)
        fun only(provider: String) = stretch.run {
            Stretch(fragments, inputs, outputs, irVersion, opset, freeAxes, owners, providers = listOf(provider))
        }
        runtime.load(only("QNNExecutionProvider")).close()
        assertEquals(0 to 1, one.loaded.size to two.loaded.size)
        assertRefused<RuntimeFailedError> { runtime.load(only("CUDAExecutionProvider")) }
    }

    @Test
    fun `a plan in pages under a memory cap runs at its homes`() {
        val runtime = homes(OnnxRuntime(), OnnxRuntime(2))
        val whole = LoadedPlan(bundle, OnnxRuntime(), Plan(plain)).use { it.run(inputs[0]).output }
        LoadedPlan(bundle, runtime, Plan(path), memoryCapBytes = 1L shl 20).use { loaded ->
            val output = loaded.run(inputs[0]).output
            for (at in 0 until whole.size) assertEquals(whole[at], output[at], 1e-5)
        }
    }
}
