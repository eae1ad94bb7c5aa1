package pathweave.sdk.execution

import java.util.concurrent.CountDownLatch
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.Contract
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.Kernels
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.Placed
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.supernet.Home

/** A provider that computes on the processor and adds [off]; it leaves the operators of blocks with [left] to others. */
internal class FakeProvider(
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

    private fun check(provider: Runtime, stepS: Double = 20.0) =
        checkHome(bundle, npu, provider, SelfTestLimits(stepS = stepS))

    @Test
    fun `blocks that answer as they should run there and their kernels are counted`() {
        val report = check(FakeProvider(left = "o2"))
        assertTrue(report.works)
        assertEquals("qnn-1t" to "fake-1", report.home to report.runtime)
        assertEquals(blockCases(bundle).map { it.name.removePrefix("block ") }, report.blocks.map { it.block })
        val (left, taken) = report.blocks.partition { "o2" in it.block }
        assertEquals(setOf(2 to 2), taken.map { it.nodes to it.assigned }.toSet())
        assertEquals(left.map { it.block }.toSet(), report.refusedBlocks)
        assertEquals(mapOf("Conv" to 2 * left.size), report.refusals())
        assertTrue(left.all { "refuses all of it: Conv ×2" in it.failure })
    }

    @Test
    fun `a block with another answer does not run there`() {
        val report = check(FakeProvider(off = 5f))
        assertFalse(report.works)
        assertEquals("it runs no block: its answers differ from the golden ones", report.whyNot())
    }

    @Test
    fun `a home whose provider runs no block does not work`() {
        assertTrue("the provider refuses all of it" in check(FakeProvider(left = "")).whyNot())
    }

    @Test
    fun `a home that does not go on in time does not work`() {
        val never = CountDownLatch(1)
        val report = check(FakeProvider(before = { never.await() }), stepS = 0.2)
        never.countDown()
        assertFalse(report.works)
        assertTrue("did not go on" in report.whyNot())
    }

    @Test
    fun `a block that is refused does not run there and the others do`() {
        val report = check(FakeProvider(before = { if ("m1-3" in it) throw RuntimeFailedError("no such operator") }))
        assertTrue(report.works)
        assertEquals(setOf("no such operator"), report.blocks.map { it.failure }.filter { it.isNotEmpty() }.toSet())
    }
}
