package pathweave.sdk.execution

import kotlin.math.abs
import kotlinx.serialization.json.JsonElement
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.Contract
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.double
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.argmax
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.seed
import pathweave.sdk.subnetOf
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.text
import pathweave.sdk.texts

/** A plan of the vectors. */
fun planOf(case: JsonElement): Plan = Plan(
    subnetOf(case["subnet"].text),
    case["exits"].items.map { ExitChoice(it["exit"].text, it["threshold"].double) },
)

class ExecutionTest {
    private val bundle = Contract.reference()
    private val vectors = Contract.vectors["bundle"]
    private val plans = vectors["plans"]
    private val input = inputAt(null)

    private fun inputAt(size: SampleSize?) =
        goldenInputs(bundle.supernet.cutPointsAt(size)[0], plans["seed"].seed, plans["batch"].int)[0]

    @TestFactory
    fun `plans answer the same everywhere`() = plans["cases"].items.map { case ->
        DynamicTest.dynamicTest("${case["subnet"].text}, ${case["exits"].items.size} exits") {
            val plan = planOf(case)
            val outcome = LoadedPlan(bundle, OnnxRuntime(), plan).use { loaded ->
                assertEquals(plan.subnet.inputSize, loaded.inputSize)
                loaded.run(inputAt(loaded.inputSize))
            }
            val names = plan.exits.map { "exit ${it.exit}" } + "subnet"
            assertEquals(case["source"].texts, outcome.answeredBy.map { names[it] })
            val expected = case["output"].items.flatMap { row -> row.items.map { it.double } }
            for ((index, value) in expected.withIndex()) {
                assertTrue(abs(value - outcome.output[index]) <= plans["tolerance"].double)
            }
            val classes = bundle.manifest.task.classNames
            assertEquals(case["labels"].texts, argmax(outcome.output).map { classes[it] })
        }
    }

    @TestFactory
    fun `plans that do not run at their input size are refused everywhere`() = plans["refused"].items.map { case ->
        DynamicTest.dynamicTest("${case["subnet"].text}, ${case["exits"].texts}") {
            val plan = Plan(subnetOf(case["subnet"].text), case["exits"].texts.map { ExitChoice(it, 0.5) })
            assertRefused<UsageError> { LoadedPlan(bundle, OnnxRuntime(), plan).close() }
        }
    }

    @Test
    fun `the exits along a path are those that run at its size`() {
        val path = bundle.supernet.original
        assertEquals(listOf("x1-pooled", "x2-flat", "x3-pooled"), bundle.supernet.exitsAlong(path).map { it.id })
        val small = path.at(SampleSize(1, 1))
        assertEquals(listOf("x1-pooled", "x3-pooled"), bundle.supernet.exitsAlong(small).map { it.id })
    }

    @Test
    fun `blocks and branches whose axes are open run at every size in one session`() {
        val supernet = bundle.supernet
        for (block in supernet.blocks.filter { it.renditions[0].anySize }) {
            OnnxRuntime().load(bundle.stretch(listOf(Edge(block.id)), anySize = true)).use { loaded ->
                for (edge in supernet.sizes.map { Edge(block.id, inputSize = it) }) {
                    val (start, end) = supernet.ends(edge)
                    val answer = loaded.run(goldenInputs(start, seed = 1, batch = 3))
                    assertEquals(end.tensors.map { listOf(3) + it.shape }, answer.map { it.shape })
                }
            }
        }
        OnnxRuntime().load(bundle.stretch(emptyList(), ExitChoice("x1-pooled", 0.5))).use { loaded ->
            for (size in supernet.sizes) {
                val answer = loaded.run(goldenInputs(supernet.cutPointsAt(size)[1], seed = 1, batch = 3))
                assertEquals(listOf(listOf(3, 3)), answer.map { it.shape })
            }
        }
    }

    @Test
    fun `a stretch of a path takes the size of the path only`() {
        val edges = bundle.supernet.original.at(SampleSize(4, 4)).edges
        OnnxRuntime().load(bundle.stretch(edges)).use { loaded ->
            loaded.run(listOf(inputAt(SampleSize(4, 4))))
            assertRefused<RuntimeFailedError> { loaded.run(listOf(input)) }
        }
    }

    @Test
    fun `a sample is answered alone as in a batch`() {
        val plan = planOf(plans["cases"].items[4])
        LoadedPlan(bundle, OnnxRuntime(), plan).use { loaded ->
            val whole = loaded.run(input)
            for (sample in 0 until input.batch) {
                val alone = loaded.run(input.rows(listOf(sample)))
                assertEquals(whole.answeredBy[sample], alone.answeredBy[0])
                for (index in 0 until 3) assertEquals(whole.output[3 * sample + index], alone.output[index], 1e-6)
            }
        }
    }

    @Test
    fun `what follows a taken exit is never computed`() {
        val runtime = CountingRuntime()
        val exits = listOf(ExitChoice("x1-pooled", threshold = 1e-9), ExitChoice("x3-pooled", threshold = 1e-9))
        LoadedPlan(bundle, runtime, Plan(bundle.supernet.original, exits)).use { it.run(input) }
        assertEquals(listOf(listOf(input.batch), emptyList(), emptyList()), runtime.samples)
    }

    @Test
    fun `behind an exit that answers everything nothing is loaded`() {
        val runtime = CountingRuntime()
        val exits = listOf(ExitChoice("x1-pooled", threshold = 0.0), ExitChoice("x3-pooled", threshold = 0.5))
        LoadedPlan(bundle, runtime, Plan(bundle.supernet.original, exits)).use { it.run(input) }
        assertEquals(listOf(listOf(input.batch)), runtime.samples)
    }

    @Test
    fun `samples that are sure leave the batch`() {
        val case = plans["cases"].items[3]
        val runtime = CountingRuntime()
        LoadedPlan(bundle, runtime, planOf(case)).use { it.run(input) }
        val left = case["source"].texts.count { it != "exit x1-pooled" }
        val end = case["source"].texts.count { it == "subnet" }
        assertTrue(end in 1 until left && left < input.batch)
        assertEquals(listOf(listOf(input.batch), listOf(left), listOf(end)), runtime.samples)
    }

    @Test
    fun `a plan that does not fit the graph is refused`() {
        val original = bundle.supernet.original
        for (plan in listOf(
            Plan(subnetOf("o0 o1 o2")),
            Plan(subnetOf("o0 o2 o3")),
            Plan(subnetOf("o0 o1 o2 o9")),
            Plan(subnetOf("o0@int4 o1 o2 o3")),
            Plan(Subnet(emptyList())),
            Plan(subnetOf("m0-2 o2 o3"), listOf(ExitChoice("x1-pooled", 0.5))),
            Plan(original, listOf(ExitChoice("x3-pooled", 0.5), ExitChoice("x1-pooled", 0.5))),
            Plan(original, listOf(ExitChoice("x1-pooled", 0.5), ExitChoice("x1-pooled", 0.6))),
            Plan(original, listOf(ExitChoice("x9", 0.5))),
            Plan(original, listOf(ExitChoice("x1-pooled", 0.5, rendition = "int8"))),
        )) {
            assertRefused<UsageError> { LoadedPlan(bundle, OnnxRuntime(), plan).close() }
        }
    }

    @Test
    fun `a session is closed twice without harm and then runs no more`() {
        val loaded = OnnxRuntime().load(bundle.stretch(bundle.supernet.original.edges))
        loaded.run(listOf(input))
        loaded.close()
        loaded.close()
        assertRefused<RuntimeFailedError> { loaded.run(listOf(input)) }
    }

    @Test
    fun `what the runtime refuses is an error of ours`() {
        OnnxRuntime().load(bundle.stretch(bundle.supernet.original.edges)).use { loaded ->
            assertRefused<RuntimeFailedError> { loaded.run(listOf(Tensor.of(FloatArray(6), listOf(2, 3)))) }
            assertRefused<RuntimeFailedError> { loaded.run(listOf(input, input)) }
        }
        val good = bundle.stretch(bundle.supernet.original.edges)
        val cut = Stretch(good.fragments.drop(2), good.inputs, good.outputs, good.irVersion, good.opset)
        assertRefused<RuntimeFailedError> { OnnxRuntime().load(cut).close() }
    }

    @Test
    fun `what was loaded is freed when a later segment does not load`() {
        val runtime = CountingRuntime(loadable = 1)
        val exits = listOf(ExitChoice("x1-pooled", threshold = 0.5))
        assertRefused<RuntimeFailedError> { LoadedPlan(bundle, runtime, Plan(bundle.supernet.original, exits)).close() }
        assertEquals(1, runtime.closed)
    }
}

/** ONNX Runtime that notes how many samples each segment was run on; it loads no more than [loadable] of them. */
private class CountingRuntime(private val loadable: Int = Int.MAX_VALUE) : Runtime {
    private val runtime = OnnxRuntime()
    val samples = mutableListOf<MutableList<Int>>()
    var closed = 0

    override val identity get() = runtime.identity

    override fun load(stretch: Stretch): LoadedStretch {
        if (samples.size == loadable) throw RuntimeFailedError("enough")
        val loaded = runtime.load(stretch)
        val seen = mutableListOf<Int>().also { samples += it }
        return object : LoadedStretch {
            override fun run(inputs: List<Tensor>) = loaded.run(inputs).also { seen += inputs[0].batch }

            override fun close() {
                loaded.close()
                closed++
            }
        }
    }
}
