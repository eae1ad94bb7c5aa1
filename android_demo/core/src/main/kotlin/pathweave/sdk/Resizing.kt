/**
 * Images at another size, bilinear with antialiasing: as Pillow, to 1 of 255 of 8-bit pixels.
 *
 * The triangle filter over `2 · max(scale, 1)` pixels; the 8-bit form has weights of 22 fractional bits and rounds
 * after each direction, as Pillow's. First across, then down: the bits are Pillow's where it takes this order too,
 * which newer versions do not always do.
 */
package pathweave.sdk


private const val FRACTION_BITS = 22
private const val HALF = 1 shl (FRACTION_BITS - 1)

/** What one output pixel is made of: weights of the input pixels from [first] on. */
private class Kernel(val first: Int, val weights: DoubleArray) {
    val fixed = IntArray(weights.size) { (weights[it] * (1 shl FRACTION_BITS) + 0.5).toInt() }
}

private fun kernels(from: Int, to: Int): List<Kernel> {
    val scale = from.toDouble() / to
    val support = maxOf(scale, 1.0)
    return List(to) { at ->
        val center = (at + 0.5) * scale
        val first = maxOf((center - support + 0.5).toInt(), 0)
        val end = minOf((center + support + 0.5).toInt(), from)
        val raw = DoubleArray(end - first) { triangle((it + first - center + 0.5) * (1.0 / support)) }
        val sum = raw.sum()
        Kernel(first, if (sum == 0.0) raw else DoubleArray(raw.size) { raw[it] * (1.0 / sum) })
    }
}

private fun triangle(x: Double): Double = maxOf(1.0 - kotlin.math.abs(x), 0.0)

/** [image] at another [size]; itself where it has that size. */
public fun resized(image: Image, size: ImageSize): Image {
    if (image.size == size) return image
    val (height, width) = image.size
    val across = if (width == size.width) image.pixels else {
        val kernels = kernels(width, size.width)
        pass(image.pixels, lines = height, image.channels, kernels) { line, at -> line * width + at }
    }
    if (height == size.height) return Image(across, size, image.channels)
    val turned = pass(across, lines = size.width, image.channels, kernels(height, size.height)) { column, at ->
        at * size.width + column
    }
    return Image(transposed(turned, size, image.channels), size, image.channels)
}

/** Each of [lines] resampled by [kernels]: `[line][at][channel]`, where [place] finds a pixel of the source. */
private inline fun pass(
    pixels: ByteArray,
    lines: Int,
    channels: Int,
    kernels: List<Kernel>,
    place: (line: Int, at: Int) -> Int,
): ByteArray {
    val found = ByteArray(lines * kernels.size * channels)
    var next = 0
    for (line in 0 until lines) {
        for (kernel in kernels) {
            for (channel in 0 until channels) {
                var sum = HALF
                for (number in kernel.fixed.indices) {
                    val pixel = pixels[place(line, kernel.first + number) * channels + channel].toInt() and 0xff
                    sum += pixel * kernel.fixed[number]
                }
                found[next++] = (sum shr FRACTION_BITS).coerceIn(0, 255).toByte()
            }
        }
    }
    return found
}

/** `[w][h][channel]` as `[h][w][channel]`. */
private fun transposed(pixels: ByteArray, size: ImageSize, channels: Int): ByteArray {
    val turned = ByteArray(pixels.size)
    for (column in 0 until size.width) {
        for (row in 0 until size.height) {
            for (channel in 0 until channels) {
                turned[(row * size.width + column) * channels + channel] =
                    pixels[(column * size.height + row) * channels + channel]
            }
        }
    }
    return turned
}

/** One plane [height, width] of a prepared tensor at another [size]; each direction is rounded to float. */
internal fun resizedPlane(plane: FloatArray, from: ImageSize, size: ImageSize): FloatArray {
    var (values, width) = plane to from.width
    if (width != size.width) {
        val kernels = kernels(width, size.width)
        val before = values
        values = FloatArray(from.height * size.width) { at ->
            val (row, kernel) = at / size.width to kernels[at % size.width]
            kernel.weights.indices.fold(0.0) { sum, number ->
                sum + before[row * from.width + kernel.first + number] * kernel.weights[number]
            }.toFloat()
        }
        width = size.width
    }
    if (from.height == size.height) return values
    val kernels = kernels(from.height, size.height)
    return FloatArray(size.height * width) { at ->
        val (column, kernel) = at % width to kernels[at / width]
        kernel.weights.indices.fold(0.0) { sum, number ->
            sum + values[(kernel.first + number) * width + column] * kernel.weights[number]
        }.toFloat()
    }
}
