/**
 * Quantised tensors in 1 to 8 bits per value, packed without gaps. Mirrors device_sdk/offload/quantisation.py.
 *
 * docs/activation_packets.md fixes every operation in float32, so that both write the same bytes.
 */
package pathweave.sdk.offload

import java.nio.ByteBuffer
import pathweave.sdk.InputError

internal const val MAX_BITS = 8
internal const val RANGE_BYTES = 5 // a scale in float32 and a zero point in one byte

private const val GROUP = 8 // values that are packed together: into as many bytes as a value has bits
private const val MARGIN = 1.0 / 1024 // of a level: rounding errors never reach a code above the largest
private val SMALLEST_SCALE = Math.scalb(1.0, -126)
private val SPAN_LIMIT = Math.scalb(1.0, 127)

/** Bytes of one sample of [size] values: whole groups of eight. */
internal fun packedBytes(size: Long, bits: Int): Long = (size + GROUP - 1) / GROUP * bits

/**
 * Writes the ranges of one sample to [ranges] and its codes to [packed] from [at] on, which hold zeros there.
 *
 * The values of the sample are those from [start] on: [channels] times [width], each channel with a range of its own.
 *
 * @throws InputError NaN, infinity, or values too far apart.
 */
internal fun quantise(
    values: FloatArray, start: Int, channels: Int, width: Int, bits: Int, ranges: ByteBuffer, packed: ByteArray, at: Int,
) {
    for (channel in 0 until channels) {
        val first = channel * width
        val range = rangeOf(values, start + first, width, bits)
        ranges.putFloat(range.scale).put(range.zeroPoint.toByte())
        val inverse = 1f / range.scale
        val offset = range.zeroPoint + 0.5f
        for (index in first until first + width) {
            val product = values[start + index] * inverse
            writeCode(packed, at, index, bits, (product + offset).toInt())
        }
    }
}

/** Reads one sample back into [values] from [start] on: `(code − zero point) · scale`. */
internal fun dequantise(
    ranges: ByteBuffer, packed: ByteArray, at: Int, bits: Int, channels: Int, width: Int, values: FloatArray, start: Int,
) {
    for (channel in 0 until channels) {
        val scale = ranges.getFloat()
        val zeroPoint = ranges.get().toInt() and 0xff
        for (index in channel * width until (channel + 1) * width) {
            values[start + index] = (readCode(packed, at, index, bits) - zeroPoint) * scale
        }
    }
}

private class Range(val scale: Float, val zeroPoint: Int)

private fun rangeOf(values: FloatArray, start: Int, width: Int, bits: Int): Range {
    var low = 0f
    var high = 0f
    for (index in start until start + width) {
        val value = values[index]
        if (value.isNaN() || value.isInfinite()) throw InputError("the activations hold NaN or infinity")
        if (value < low) low = value
        if (value > high) high = value
    }
    val span = high.toDouble() - low
    if (span >= SPAN_LIMIT) throw InputError("activations of one range must lie closer together than 1.7e+38")
    val scale = maxOf(span / ((1 shl bits) - 1 - MARGIN), SMALLEST_SCALE).toFloat()
    val product = -low * (1f / scale)
    return Range(scale, (product + 0.5f).toInt())
}

/** Puts [code] at bits `index · bits` onwards of the little-endian number that begins at byte [at]. */
private fun writeCode(packed: ByteArray, at: Int, index: Int, bits: Int, code: Int) {
    val place = index.toLong() * bits
    val byte = at + (place / 8).toInt()
    val shifted = code shl (place % 8).toInt()
    packed[byte] = (packed[byte].toInt() or shifted).toByte()
    if (shifted > 0xff) packed[byte + 1] = (shifted ushr 8).toByte()
}

private fun readCode(packed: ByteArray, at: Int, index: Int, bits: Int): Int {
    val place = index.toLong() * bits
    val byte = at + (place / 8).toInt()
    val shift = (place % 8).toInt()
    val low = packed[byte].toInt() and 0xff
    val high = if (shift + bits > 8) packed[byte + 1].toInt() and 0xff else 0
    return (low or (high shl 8)) ushr shift and ((1 shl bits) - 1)
}
