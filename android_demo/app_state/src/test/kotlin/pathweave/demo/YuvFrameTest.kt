package pathweave.demo

import java.nio.ByteBuffer
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertSame
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.data.Image
import pathweave.sdk.supernet.SampleSize

class YuvFrameTest {
    private fun plane(values: List<Int>, width: Int, rowStride: Int = width, pixelStride: Int = 1): Plane {
        val bytes = ByteBuffer.allocate(rowStride * (values.size / width))
        for ((at, value) in values.withIndex()) {
            bytes.put((at / width) * rowStride + (at % width) * pixelStride, value.toByte())
        }
        return Plane(bytes, rowStride, pixelStride)
    }

    private fun Image.colours(): List<List<Int>> = pixels.map { it.toInt() and 0xff }.chunked(channels)

    private fun one(y: Int, u: Int, v: Int): List<Int> =
        rgbOf(plane(listOf(y), 1), plane(listOf(u), 1), plane(listOf(v), 1), SampleSize(1, 1), 0).colours()[0]

    @Test
    fun `colours are those of BT 601 with full range`() {
        assertEquals(listOf(0, 0, 0), one(0, 128, 128))
        assertEquals(listOf(255, 255, 255), one(255, 128, 128))
        for ((yuv, rgb) in listOf(
            Triple(76, 85, 255) to listOf(255, 0, 0),
            Triple(150, 44, 21) to listOf(0, 255, 0),
            Triple(29, 255, 107) to listOf(0, 0, 255),
        )) {
            val (y, u, v) = yuv
            assertTrue(one(y, u, v).zip(rgb).all { (got, wanted) -> got in wanted - 2..wanted + 2 }, "$yuv: ${one(y, u, v)}")
        }
    }

    @Test
    fun `frames are turned upright clockwise`() {
        val (y, grey) = plane(listOf(10, 20, 30, 40, 50, 60), 3) to plane(listOf(128, 128), 2)
        fun turned(degrees: Int) = rgbOf(y, grey, grey, SampleSize(2, 3), degrees)
        fun lumas(degrees: Int) = turned(degrees).colours().map { it[0] }
        assertEquals(listOf(10, 20, 30, 40, 50, 60), lumas(0))
        assertEquals(listOf(40, 10, 50, 20, 60, 30), lumas(90))
        assertEquals(listOf(60, 50, 40, 30, 20, 10), lumas(180))
        assertEquals(listOf(30, 60, 20, 50, 10, 40), lumas(270))
        assertEquals(lumas(270), lumas(-90))
        assertEquals(listOf(SampleSize(2, 3), SampleSize(3, 2)), listOf(turned(0).size, turned(90).size))
        assertThrows(IllegalArgumentException::class.java) { turned(45) }
    }

    @Test
    fun `strides of the planes are heeded`() {
        val y = plane(listOf(10, 20, 30, 40), 2, rowStride = 8)
        val half = plane(listOf(128), 1, rowStride = 8, pixelStride = 2)
        val image = rgbOf(y, half, half, SampleSize(2, 2), 0)
        assertEquals(listOf(10, 20, 30, 40), image.colours().map { it[1] })
    }

    @Test
    fun `models of one channel get grey`() {
        val image = Image(byteArrayOf(-1, 0, 0, 10, 10, 10), SampleSize(1, 2), 3)
        assertEquals(listOf(listOf(76), listOf(10)), withChannels(image, 1).colours())
        assertSame(image, withChannels(image, 3))
    }
}
