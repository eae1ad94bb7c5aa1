package pathweave.sdk.offload

import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.boolean
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.Contract
import pathweave.sdk.InputError
import pathweave.sdk.ProtocolError
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
import pathweave.sdk.supernet.Block
import pathweave.sdk.supernet.BlockKind
import pathweave.sdk.supernet.CutPoint
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.FP32
import pathweave.sdk.supernet.Golden
import pathweave.sdk.supernet.Rendition
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.TensorSpec
import pathweave.sdk.text
import pathweave.sdk.texts

class PackingTest {
    private val vectors = Contract.vectors["packets"]
    private val bundle = vectors["bundle"].text
    private val shapes = vectors["shapes"].items.map { cut -> cut.items.map { shape -> shape.items.map { it.int } } }
    private val supernet = Supernet(
        shapes.mapIndexed { index, tensors ->
            CutPoint(index, tensors.mapIndexed { number, shape -> TensorSpec("cut_${index}_$number", shape) })
        },
        (0 until shapes.size - 1).map { number ->
            val renditions = listOf(FP32, "int8").map { Rendition(it, "none", "0".repeat(64), 1, Golden(listOf(), 0.0)) }
            Block("o$number", number, number + 1, BlockKind.ORIGINAL, parameters = 0, macs = 0, renditions = renditions)
        },
    )

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

    @TestFactory
    fun `packets are read to the same values everywhere`() =
        (vectors["written"].items + vectors["read"].items).map { case ->
            DynamicTest.dynamicTest(case["tail"].toString()) {
                val found = unpack(case["packet"].bytes, supernet, bundle)
                assertEquals(case["position"].int, found.position)
                assertEquals(edges(case), found.tail)
                assertEquals(case["decoded"].items.map { it.floats }, found.tensors.map { it.floats().toList() })
            }
        }

    @TestFactory
    fun `packets that do not fit are refused everywhere`() = vectors["refused"].items.map { case ->
        DynamicTest.dynamicTest(case["name"].text) {
            assertRefused<ProtocolError> { unpack(case["packet"].bytes, supernet, bundle) }
        }
    }

    @Test
    fun `a packet cut anywhere is refused`() {
        for (case in listOf(vectors["written"].items.first(), vectors["read"].items.first())) {
            val packet = case["packet"].bytes
            for (length in packet.indices) {
                assertRefused<ProtocolError> { unpack(packet.copyOf(length), supernet, bundle) }
            }
        }
    }

    @Test
    fun `codes are compressed where that pays, and come out the same`() {
        val flat = activations(*FloatArray(400) { if (it == 7) 1f else 0f })
        val short = pack(flat, compress = true)
        val whole = pack(flat)
        assertTrue(short.size < whole.size)
        val (one, other) = listOf(short, whole).map { unpack(it, supernet, bundle).tensors.single().floats() }
        assertArrayEquals(other, one)
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
