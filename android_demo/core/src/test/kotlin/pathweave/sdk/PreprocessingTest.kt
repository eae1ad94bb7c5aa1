package pathweave.sdk

import kotlin.math.abs
import kotlinx.serialization.json.JsonElement
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.assertThrows

class PreprocessingTest {
    private val vector = Contract.vectors["preprocessing"]
    private val preprocessing =
        Preprocessing(vector["scale"].double, numbers(vector["mean"]), numbers(vector["std"]))
    private val images = vector["images"].items.map {
        Image(it["pixels"].bytes, ImageSize(it["height"].int, it["width"].int), it["channels"].int)
    }

    @Test
    fun `pixels are prepared to the same bits everywhere`() {
        val prepared = prepare(images, preprocessing, listOf(3, 2, 3))
        assertEquals(listOf(2, 3, 2, 3), prepared.shape)
        assertEquals(vector["prepared"].floats, prepared.floats().toList())
    }

    @Test
    fun `an image of another size, channel count or length is refused`() {
        val size = ImageSize(2, 3)
        for (image in listOf(
            Image(ByteArray(12), ImageSize(2, 2), 3),
            Image(ByteArray(6), size, 1),
            Image(ByteArray(17), size, 3),
        )) {
            assertRefused<InputError> { prepare(listOf(image), preprocessing, listOf(3, 2, 3)) }
        }
        assertRefused<InputError> { prepare(emptyList(), preprocessing, listOf(3, 2, 3)) }
        assertRefused<InputError> { prepare(images, preprocessing, listOf(10)) }
    }

    @Test
    fun `values that prepare nothing are refused`() {
        assertThrows<IllegalArgumentException> { Preprocessing(1.0, listOf(0.0), listOf(0.0), channels = 1) }
        assertThrows<IllegalArgumentException> { Preprocessing(Double.NaN, listOf(0.0), listOf(1.0), channels = 1) }
        assertThrows<IllegalArgumentException> { Preprocessing(1.0, listOf(0.0), listOf(1.0)) }
    }

    @Test
    fun `confidence is the same everywhere`() {
        for (case in Contract.vectors["confidence"].items) {
            val logits = numbers(case["logits"]).map { it.toFloat() }.toFloatArray()
            val expected = case["confidence"].double
            val actual = confidence(Tensor.of(logits, listOf(1, logits.size)))[0]
            assertTrue(abs(actual - expected) <= 1e-12 * expected, "$actual instead of $expected")
        }
    }

    @Test
    fun `of equal logits the first class wins`() {
        assertEquals(listOf(1, 0), argmax(Tensor.of(floatArrayOf(0f, 2f, 2f, 5f, 5f, 1f), listOf(2, 3))).toList())
    }

    private fun numbers(value: JsonElement) = value.items.map { it.double }
}
