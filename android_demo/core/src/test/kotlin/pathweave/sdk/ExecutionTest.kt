package pathweave.sdk

import kotlin.math.abs
import kotlinx.serialization.json.JsonElement
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.Runtime

/** A plan of the vectors. */
fun planOf(case: JsonElement): Plan = Plan(
    subnetOf(case["subnet"].text),
    case["exits"].items.map { ExitChoice(it["exit"].text, it["threshold"].double) },
)

class ExecutionTest {
    private val bundle = Contract.reference()
    private val vectors = Contract.vectors["bundle"]
    private val plans = vectors["plans"]
    private val input = goldenInputs(bundle.supernet.cutPoints[0], plans["seed"].seed, plans["batch"].int)[0]

    @TestFactory
    fun `plans answer the same everywhere`() = plans["cases"].items.map { case ->
        DynamicTest.dynamicTest("${case["subnet"].text}, ${case["exits"].items.size} exits") {
            val plan = planOf(case)
            val outcome = LoadedPlan(bundle, OnnxRuntime(), plan).use { it.run(input) }
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
        val exits = listOf(ExitChoice("x1-pooled", threshold = 0.0), ExitChoice("x3-pooled", threshold = 0.0))
        LoadedPlan(bundle, runtime, Plan(bundle.supernet.original, exits)).use { it.run(input) }
        assertEquals(listOf(listOf(input.batch), emptyList(), emptyList()), runtime.samples)
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
