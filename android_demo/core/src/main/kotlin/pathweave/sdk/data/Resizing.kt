/**
 * Images at another size, with antialiasing: the bits of Pillow 13 (before it, 1 of 255 apart where the height shrinks
 * much more than the width). Mirrors `fit_image` of device_sdk/data/preprocessing.py.
 *
 * A filter over `support · max(scale, 1)` pixels; the 8-bit form has weights of 22 fractional bits and rounds after each
 * direction.
 */
package pathweave.sdk.data

import kotlin.math.abs
import pathweave.sdk.supernet.ImageSize

private const val FRACTION_BITS = 22
private const val HALF = 1 shl (FRACTION_BITS - 1)
private const val CUBIC = -0.5 // the free coefficient of bicubic convolution

/** How pixels between pixels are found; [support] in pixels to either side. As text `bilinear`, `bicubic`. */
public enum class Interpolation(internal val support: Double) {
    BILINEAR(1.0) {
        override fun weight(x: Double): Double = maxOf(1.0 - abs(x), 0.0)
    },
    BICUBIC(2.0) {
        override fun weight(x: Double): Double {
            val at = abs(x)
            return when {
                at < 1.0 -> ((CUBIC + 2.0) * at - (CUBIC + 3.0)) * at * at + 1
                at < 2.0 -> (((at - 5) * at + 8) * at - 4) * CUBIC
                else -> 0.0
            }
        }
    },
    ;

    internal abstract fun weight(x: Double): Double

    override fun toString(): String = name.lowercase()
}

/** A region of an image, in pixels from its upper left corner. */
public data class Box(val left: Float, val top: Float, val right: Float, val bottom: Float)

/** What one output pixel is made of: weights of the input pixels from [first] on. */
private class Kernel(val first: Int, val weights: DoubleArray) {
    val fixed = IntArray(weights.size) {
        val scaled = weights[it] * (1 shl FRACTION_BITS)
        (if (weights[it] < 0) scaled - 0.5 else scaled + 0.5).toInt()
    }
}

/** One direction: [length] pixels, of which those from [start] to [end] become [to]. */
private class Direction(val length: Int, val start: Float, val end: Float, val to: Int) {
    val needed get() = to != length || start != 0f || end != to.toFloat()

    fun kernels(interpolation: Interpolation): List<Kernel> {
        val scale = (end - start).toDouble() / to
        val stretch = maxOf(scale, 1.0)
        val support = interpolation.support * stretch
        return List(to) { at ->
            val center = start + (at + 0.5) * scale
            val first = maxOf((center - support + 0.5).toInt(), 0)
            val after = minOf((center + support + 0.5).toInt(), length)
            val raw = DoubleArray(after - first) { interpolation.weight((it + first - center + 0.5) * (1.0 / stretch)) }
            val sum = raw.sum()
            Kernel(first, if (sum == 0.0) raw else DoubleArray(raw.size) { raw[it] / sum })
        }
    }
}

/** Whether the rows are done before the columns: Pillow takes the other order where that leaves much less to do. */
private fun acrossFirst(across: Direction, down: Direction): Boolean {
    val fewer = down.length - down.to
    return !(fewer > 0 && fewer > 2 * (across.length - across.to))
}

/**
 * [image] as a model takes it that wants [size] ([Preprocessing.resize] unless given): cropped and resized.
 *
 * An image of [size] stays as it is; one of [Preprocessing.resize] is resized without cropping.
 */
public fun fitted(image: Image, preprocessing: Preprocessing, size: ImageSize? = preprocessing.resize): Image {
    if (size == null || image.size == size) return image
    val crop = if (image.size == preprocessing.resize) null else preprocessing.crop
    val box = crop?.let { centralBox(image.size, size, it) }
    return resized(image, size, preprocessing.interpolation, box)
}

/** The central region of an [image] with the aspect ratio of [size]; see [Preprocessing.crop]. */
private fun centralBox(image: ImageSize, size: ImageSize, share: Double): Box {
    val scale = minOf(image.height.toDouble() / size.height, image.width.toDouble() / size.width) * share
    val (halfHeight, halfWidth) = size.height * scale / 2 to size.width * scale / 2
    val (middle, center) = image.height / 2.0 to image.width / 2.0
    return Box(
        left = maxOf(center - halfWidth, 0.0).toFloat(),
        top = maxOf(middle - halfHeight, 0.0).toFloat(),
        right = minOf(center + halfWidth, image.width.toDouble()).toFloat(),
        bottom = minOf(middle + halfHeight, image.height.toDouble()).toFloat(),
    )
}

/** [image], or the region [box] of it, at another [size]. */
public fun resized(
    image: Image,
    size: ImageSize,
    interpolation: Interpolation = Interpolation.BILINEAR,
    box: Box? = null,
): Image {
    val (height, width) = image.size
    val across = Direction(width, box?.left ?: 0f, box?.right ?: width.toFloat(), size.width)
    val down = Direction(height, box?.top ?: 0f, box?.bottom ?: height.toFloat(), size.height)
    val passes = listOf<(Image) -> Image>(
        { if (across.needed) rowsResampled(it, across.kernels(interpolation)) else it },
        { if (down.needed) columnsResampled(it, down.kernels(interpolation)) else it },
    )
    return (if (acrossFirst(across, down)) passes else passes.reversed()).fold(image) { found, pass -> pass(found) }
}

private fun rowsResampled(image: Image, kernels: List<Kernel>): Image {
    val (height, width) = image.size
    val channels = image.channels
    val found = ByteArray(height * kernels.size * channels)
    var next = 0
    for (row in 0 until height) {
        for (kernel in kernels) {
            val start = (row * width + kernel.first) * channels
            for (channel in 0 until channels) {
                found[next++] = weighted(image.pixels, start + channel, channels, kernel.fixed)
            }
        }
    }
    return Image(found, ImageSize(height, kernels.size), channels)
}

private fun columnsResampled(image: Image, kernels: List<Kernel>): Image {
    val line = image.size.width * image.channels
    val found = ByteArray(kernels.size * line)
    var next = 0
    for (kernel in kernels) {
        val start = kernel.first * line
        for (at in 0 until line) found[next++] = weighted(image.pixels, start + at, line, kernel.fixed)
    }
    return Image(found, ImageSize(kernels.size, image.size.width), image.channels)
}

/** The sum of the values of [pixels] from [start] on, [step] apart, by [weights], rounded to 8 bits. */
private fun weighted(pixels: ByteArray, start: Int, step: Int, weights: IntArray): Byte {
    var sum = HALF
    var at = start
    for (weight in weights) {
        sum += (pixels[at].toInt() and 0xff) * weight
        at += step
    }
    return (sum shr FRACTION_BITS).coerceIn(0, 255).toByte()
}

/** One plane [height, width] of a prepared tensor at another [size], bilinear; each direction is rounded to float. */
internal fun resizedPlane(plane: FloatArray, from: ImageSize, size: ImageSize): FloatArray {
    val across = Direction(from.width, 0f, from.width.toFloat(), size.width)
    val down = Direction(from.height, 0f, from.height.toFloat(), size.height)

    fun rows(values: FloatArray): FloatArray {
        if (!across.needed) return values
        val kernels = across.kernels(Interpolation.BILINEAR)
        return FloatArray(values.size / from.width * size.width) { at ->
            val kernel = kernels[at % size.width]
            val start = at / size.width * from.width + kernel.first
            kernel.weights.indices.fold(0.0) { sum, number -> sum + values[start + number] * kernel.weights[number] }
                .toFloat()
        }
    }

    fun columns(values: FloatArray): FloatArray {
        if (!down.needed) return values
        val kernels = down.kernels(Interpolation.BILINEAR)
        val width = values.size / from.height
        return FloatArray(size.height * width) { at ->
            val kernel = kernels[at / width]
            val start = kernel.first * width + at % width
            kernel.weights.indices.fold(0.0) { sum, number ->
                sum + values[start + number * width] * kernel.weights[number]
            }.toFloat()
        }
    }
    return if (acrossFirst(across, down)) columns(rows(plane)) else rows(columns(plane))
}
