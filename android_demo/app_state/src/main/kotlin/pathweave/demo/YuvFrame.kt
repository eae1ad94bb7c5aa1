/** Camera frames as pictures. */
package pathweave.demo

import java.nio.ByteBuffer
import pathweave.sdk.data.Image
import pathweave.sdk.supernet.SampleSize

private const val QUARTER_TURN = 90
private const val SHIFT = 16 // of the fixed-point factors below
private const val HALF = 1 shl (SHIFT - 1)
private const val RED_V = 91_881 // 1.402, as BT.601 with full range has it
private const val GREEN_U = 22_554 // 0.344136
private const val GREEN_V = 46_802 // 0.714136
private const val BLUE_U = 116_130 // 1.772
private const val CHANNELS = 3

/** One plane of a frame: [rowStride] and [pixelStride] in bytes, as android.media.Image.Plane has them. */
class Plane(val bytes: ByteBuffer, val rowStride: Int, val pixelStride: Int) {
    internal fun at(row: Int, column: Int): Int =
        bytes.get(row * rowStride + column * pixelStride).toInt() and 0xff
}

/**
 * A frame in YUV 4:2:0 with full range, as Android's cameras give it, as an RGB picture.
 *
 * [u] and [v] have half the rows and columns of [y], rounded up. [degrees]: by how much the frame has to be turned
 * clockwise to stand upright: 0, 90, 180 or 270.
 */
fun rgbOf(y: Plane, u: Plane, v: Plane, size: SampleSize, degrees: Int): Image {
    require(degrees % QUARTER_TURN == 0) { "frames turn by quarters, not by $degrees degrees" }
    val turns = Math.floorMod(degrees / QUARTER_TURN, 4)
    val (height, width) = size
    val upright = if (turns % 2 == 0) size else SampleSize(width, height)
    val (first, down, right) = when (turns) { // where the first pixel goes, and the ones below and beside another
        0 -> Triple(0, width, 1)
        1 -> Triple(height - 1, -1, height)
        2 -> Triple(height * width - 1, -width, -1)
        else -> Triple((width - 1) * height, 1, -height)
    }
    val pixels = ByteArray(height * width * CHANNELS)
    for (row in 0 until height) {
        var at = (first + row * down) * CHANNELS
        for (column in 0 until width) {
            val luma = y.at(row, column) shl SHIFT
            val blueness = u.at(row / 2, column / 2) - 128
            val redness = v.at(row / 2, column / 2) - 128
            pixels[at] = byte(luma + RED_V * redness)
            pixels[at + 1] = byte(luma - GREEN_U * blueness - GREEN_V * redness)
            pixels[at + 2] = byte(luma + BLUE_U * blueness)
            at += right * CHANNELS
        }
    }
    return Image(pixels, upright, CHANNELS)
}

private fun byte(scaled: Int): Byte = ((scaled + HALF) shr SHIFT).coerceIn(0, 255).toByte()

/** A picture of three channels in one, as [Image.channels] of the model asks; others stay as they are. */
fun withChannels(image: Image, channels: Int): Image {
    if (channels != 1 || image.channels == 1) return image
    val grey = ByteArray(image.size.height * image.size.width) { at ->
        fun colour(channel: Int) = image.pixels[at * CHANNELS + channel].toInt() and 0xff
        // as Pillow's mode L
        ((19_595 * colour(0) + 38_470 * colour(1) + 7_471 * colour(2) + HALF) shr SHIFT).toByte()
    }
    return Image(grey, image.size, 1)
}
