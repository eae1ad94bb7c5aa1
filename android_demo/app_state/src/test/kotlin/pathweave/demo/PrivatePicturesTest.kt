package pathweave.demo

import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.UsageError
import pathweave.sdk.data.Image
import pathweave.sdk.supernet.SampleSize

class PrivatePicturesTest {
    private val none = PrivatePictures(listOf("blue", "Green", "green", "red"))

    private fun pictures(labels: List<String?>) =
        Reference.images(labels.size).zip(labels).fold(none) { pictures, (image, label) -> pictures.with(image, label) }

    @Test
    fun `folders and typed words name classes, whatever their case and spaces`() {
        val all = pictures(listOf("red", " BLUE ", "green", "Green"))
        assertEquals(4, all.labelled)
        assertArrayEquals(intArrayOf(3, 0, 2, 1), all.samples().labels)
    }

    @Test
    fun `without any label there are none, so that the full model's answers stand in`() {
        val samples = pictures(listOf("Camera", null, "")).samples()
        assertNull(samples.labels)
        assertEquals(3 to 0, samples.images.size to samples.leftOut)
    }

    @Test
    fun `beside labelled pictures those without a label are left out and counted`() {
        val all = pictures(listOf("red", "Camera", "blue"))
        val samples = all.samples()
        assertEquals(listOf(all.all[0], all.all[2]), samples.images)
        assertArrayEquals(intArrayOf(3, 0), samples.labels)
        assertEquals(1, samples.leftOut)
    }

    @Test
    fun `a typed label has to be a class`() {
        none.requireClass(null)
        none.requireClass("  ")
        none.requireClass(" reD ")
        val error = assertThrows(UsageError::class.java) { none.requireClass("purple") }
        assertEquals("'purple' is none of the 4 classes", error.message)
        assertEquals("for example: blue, Green, green, red", error.hint)
    }

    @Test
    fun `there is room for so many bytes of pixels`() {
        val megabytes32 = Image(ByteArray(32_000_000), SampleSize(4000, 8000), 1)
        val one = none.with(megabytes32, null)
        assertTrue(one.hasRoom(32_000_000))
        assertFalse(one.hasRoom(32_000_001))
    }
}
