package pathweave.sdk.data

import kotlinx.serialization.json.JsonElement
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.assertThrows
import pathweave.sdk.Contract
import pathweave.sdk.InputError
import pathweave.sdk.assertRefused
import pathweave.sdk.bytes
import pathweave.sdk.double
import pathweave.sdk.floats
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.supernet.SampleSize

class PreprocessingTest {
    private val vector = Contract.vectors["preprocessing"]
    private val preprocessing =
        Preprocessing(vector["scale"].double, numbers(vector["mean"]), numbers(vector["std"]))
    private val images = vector["images"].items.map {
        Image(it["pixels"].bytes, SampleSize(it["height"].int, it["width"].int), it["channels"].int)
    }

    @Test
    fun `pixels are prepared to the same bits everywhere`() {
        val prepared = prepare(images, preprocessing, listOf(3, 2, 3))
        assertEquals(listOf(2, 3, 2, 3), prepared.shape)
        assertEquals(vector["prepared"].floats, prepared.floats().toList())
    }

    @Test
    fun `an image of another size, channel count or length is refused`() {
        val size = SampleSize(2, 3)
        for (image in listOf(
            Image(ByteArray(12), SampleSize(2, 2), 3),
            Image(ByteArray(6), size, 1),
            Image(ByteArray(17), size, 3),
        )) {
            assertRefused<InputError> { prepare(listOf(image), preprocessing, listOf(3, 2, 3)) }
        }
        assertRefused<InputError> { prepare(emptyList(), preprocessing, listOf(3, 2, 3)) }
        assertRefused<InputError> { prepare(images, preprocessing, listOf(10)) }
    }

    @Test
    fun `images of any size are prepared where the manifest says how to resize`() {
        val resizing = preprocessing.copy(resize = SampleSize(4, 6), interpolation = Interpolation.BICUBIC, crop = 0.5)
        val photo = Image(ByteArray(40 * 30 * 3) { (it * 7).toByte() }, SampleSize(40, 30), 3)
        assertEquals(listOf(2, 3, 2, 3), prepare(listOf(photo, images[0]), resizing, listOf(3, 2, 3)).shape)
        val own = prepare(listOf(images[0]), resizing, listOf(3, 2, 3)).floats().toList()
        assertEquals(vector["prepared"].floats.take(own.size), own) // of the size wanted: neither cropped nor resized
        assertRefused<InputError> {
            prepare(listOf(Image(ByteArray(0), SampleSize(0, 4), 3)), resizing, listOf(3, 2, 3))
        }
    }

    @Test
    fun `values that prepare nothing are refused`() {
        assertThrows<IllegalArgumentException> { preprocessing.copy(crop = 0.0) }
        assertThrows<IllegalArgumentException> { preprocessing.copy(crop = 1.1) }
        assertThrows<IllegalArgumentException> { Preprocessing(1.0, listOf(0.0), listOf(0.0), channels = 1) }
        assertThrows<IllegalArgumentException> { Preprocessing(Double.NaN, listOf(0.0), listOf(1.0), channels = 1) }
        assertThrows<IllegalArgumentException> { Preprocessing(1.0, listOf(0.0), listOf(1.0)) }
    }

    private fun numbers(value: JsonElement) = value.items.map { it.double }
}
