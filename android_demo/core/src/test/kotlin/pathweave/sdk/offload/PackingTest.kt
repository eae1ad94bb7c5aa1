package pathweave.sdk.offload

import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.boolean
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.Contract
import pathweave.sdk.InputError
import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.bytes
import pathweave.sdk.floats
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.size
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.FP32
import pathweave.sdk.text
import pathweave.sdk.texts

class PackingTest {
    private val vectors = Contract.vectors["packets"]
    private val bundle = vectors["bundle"].text
    private val shapes = vectors["shapes"].items.map { cut -> cut.items.map { shape -> shape.items.map { it.int } } }

    private fun edges(case: JsonElement) =
        case["tail"].texts.map { Edge(it.substringBefore('@'), it.substringAfter('@', FP32)) }

    private fun activations(case: JsonElement): Activations {
        val position = case["position"].int
        val tensors = case["tensors"].items.zip(shapes[position]) { values, shape ->
            Tensor.of(values.floats.toFloatArray(), listOf(case["batch"].int) + shape)
        }
        return Activations(bundle, position, edges(case), tensors)
    }

    private fun activations(vararg values: Float) =
        Activations(bundle, 2, listOf(Edge("o2")), listOf(Tensor.of(values, listOf(values.size / 40, 40))))

    @TestFactory
    fun `packets are written to the same bytes everywhere`() = vectors["written"].items.map { case ->
        DynamicTest.dynamicTest("${case["bits"]} ${case["per_channel"]}") {
            val perChannel = case["per_channel"].jsonPrimitive.boolean
            val packet = pack(activations(case), case["bits"].items.map { it.int }, perChannel)
            assertArrayEquals(case["packet"].bytes, packet)
        }
    }

    @Test
    fun `codes are compressed where that pays`() {
        val flat = activations(*FloatArray(400) { if (it == 7) 1f else 0f })
        val short = pack(flat, compress = true)
        val whole = pack(flat)
        assertTrue(short.size < whole.size)
        val random = SplitMix64(3)
        val noise = activations(*FloatArray(400) { random.uniform().toFloat() })
        assertArrayEquals(pack(noise), pack(noise, compress = true))
    }

    @Test
    fun `what has no range, and bits that there are not, are refused`() {
        for (value in listOf(Float.NaN, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY, Float.MAX_VALUE)) {
            assertRefused<InputError> { pack(activations(*FloatArray(40) { if (it == 3) value else 1f })) }
        }
        for (bits in listOf(listOf(0), listOf(9), listOf(8, 8))) {
            assertRefused<UsageError> { pack(activations(*FloatArray(40)), bits) }
        }
    }
}
