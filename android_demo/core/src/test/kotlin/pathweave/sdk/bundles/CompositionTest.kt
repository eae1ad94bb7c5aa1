package pathweave.sdk.bundles

import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.CompositionError
import pathweave.sdk.Contract
import pathweave.sdk.assertRefused
import pathweave.sdk.bytes
import pathweave.sdk.double
import pathweave.sdk.files.sha256
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.numerics.DType
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.supernet.TensorSpec
import pathweave.sdk.text

class CompositionTest {
    private val vector = Contract.vectors["composition"]
    private val values = vector["answer"]["input"].items.map { it.double.toFloat() }
    private val input = Tensor.of(values.toFloatArray(), listOf(1, 3))

    private fun stretch(
        fragments: List<ByteArray>,
        outputs: List<TensorSpec>,
        freeAxes: Map<String, Set<Int>> = emptyMap(),
    ): Stretch {
        val (irVersion, opset) = vector["ir_version"].int.toLong() to vector["opset"].int.toLong()
        return Stretch(fragments.map(BlobBytes::of), listOf(spec(vector["input"])), outputs, irVersion, opset, freeAxes)
    }

    private val fragments = vector["fragments"].items.map { it.bytes }

    @Test
    fun `fragments compose to the same bytes everywhere, and the model answers`() {
        val stretch = stretch(fragments, listOf(spec(vector["output"])))
        assertArrayEquals(vector["model"].bytes, compose(stretch))
        assertEquals(vector["model_sha256"].text, sha256(compose(stretch)))
        assertEquals(listOf(vector["answer"]["output"].items.map { it.double }), answers(stretch))
    }

    @Test
    fun `axes that stay open compose to the same bytes everywhere`() {
        val axes = vector["any_size"]["free_axes"].jsonObject
        val free = axes.mapValues { (_, numbers) -> numbers.items.map { it.int }.toSet() }
        val stretch = stretch(fragments, listOf(spec(vector["output"])), free)
        assertArrayEquals(vector["any_size"]["model"].bytes, compose(stretch))
        assertEquals(listOf(vector["answer"]["output"].items.map { it.double }), answers(stretch))
    }

    @Test
    fun `an exit is composed like a block and answers last`() {
        val exit = vector["exit"]
        val stretch = stretch(fragments + exit["fragment"].bytes, listOf(spec(vector["output"]), spec(exit["output"])))
        assertArrayEquals(exit["model"].bytes, compose(stretch))
        val expected = listOf(vector["answer"]["output"], exit["answer"]).map { one -> one.items.map { it.double } }
        assertEquals(expected, answers(stretch))
    }

    @TestFactory
    fun `fragments that make no model are refused`() = Contract.vectors["refused_fragments"].items.map { case ->
        DynamicTest.dynamicTest(case["name"].text) {
            val stretch = stretch(case["fragments"].items.map { it.bytes }, listOf(spec(vector["output"])))
            assertRefused<CompositionError> { compose(stretch) }
        }
    }

    @Test
    fun `the table of operators and element types is the one that Python has`() {
        val table = Contract.vectors["fragment_table"]
        assertEquals(table["operators"].items.map { it.text }.toSet(), OPERATORS)
        assertEquals(table["element_types"].items.map { it.int.toLong() }.toSet(), ELEMENT_TYPES)
    }

    private fun answers(stretch: Stretch): List<List<Double>> = OnnxRuntime().load(stretch).use { loaded ->
        loaded.run(listOf(input)).map { output -> List(output.size) { output[it] } }
    }

    private fun spec(value: JsonElement) =
        TensorSpec(value["name"].text, value["shape"].items.map { it.int }, DType.named(value["dtype"].text)!!)
}
