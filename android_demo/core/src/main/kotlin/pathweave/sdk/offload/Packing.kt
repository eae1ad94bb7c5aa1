/** Packets of activations for a server. */
package pathweave.sdk.offload

import java.io.ByteArrayOutputStream
import java.nio.ByteBuffer
import java.util.zip.Deflater
import pathweave.sdk.InputError
import pathweave.sdk.UsageError
import pathweave.sdk.numerics.DType
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.Edge

/** The layout that is written. */
public const val PACKET_VERSION: Int = 3

private const val MAGIC = "PWAP"
private const val DEFAULT_BITS = 8
private const val MAX_BATCH = 65_536
private const val MAX_DECODED_BYTES = 256L shl 20
private const val HEAD_BYTES = 46
private const val ENTRY_BYTES = 6
private const val PER_CHANNEL = 1
private const val DEFLATED = 2
private const val VALUES_PER_DEFLATED_BYTE = 32L

/**
 * The live tensors at cut point [position] and the rest of the path.
 *
 * [bundle]: sha256 of its manifest.json; [tail]: the edges from there to the output; [tensors]: float32
 * [batch, *shape] each.
 */
public class Activations(
    public val bundle: String,
    public val position: Int,
    public val tail: List<Edge>,
    public val tensors: List<Tensor>,
)

/**
 * The packet of [activations].
 *
 * [bits]: 1 to 8 for each tensor, by default 8. [perChannel]: one range for each index of axis 1 instead of one for the
 * sample, where further axes follow. [compress]: deflate the codes of each tensor that shrink by an eighth or more.
 *
 * @throws InputError more samples or bytes than a packet holds, another type than float32, NaN, infinity.
 * @throws UsageError bits for another number of tensors, or outside 1 to 8.
 */
public fun pack(
    activations: Activations,
    bits: List<Int>? = null,
    perChannel: Boolean = false,
    compress: Boolean = false,
): ByteArray {
    val tensors = activations.tensors
    val widths = checkedBits(bits, tensors.size)
    val batch = checkedBatch(tensors)
    val tail = activations.tail.joinToString(" ").encodeToByteArray()
    val bodies = tensors.zip(widths) { tensor, width -> body(tensor, width, perChannel, compress) }
    val size = HEAD_BYTES + tail.size + bodies.sumOf { ENTRY_BYTES + it.ranges.size + it.codes.size }
    val packet = littleEndian(ByteArray(size))
    packet.put(MAGIC.encodeToByteArray()).put(PACKET_VERSION.toByte()).put(tensors.size.toByte())
    packet.putShort(activations.position.toShort()).put(digest(activations.bundle))
    packet.putInt(batch).putShort(tail.size.toShort()).put(tail)
    for (body in bodies) packet.put(body.bits.toByte()).put(body.flags.toByte()).putInt(body.codes.size)
    for (body in bodies) packet.put(body.ranges).put(body.codes)
    return packet.array()
}

private class Body(val bits: Int, val flags: Int, val ranges: ByteArray, val codes: ByteArray)

private fun body(tensor: Tensor, bits: Int, perChannel: Boolean, compress: Boolean): Body {
    val size = tensor.size / tensor.batch
    val channels = channelsOf(tensor.shape.drop(1), perChannel)
    val sampleBytes = packedBytes(size.toLong(), bits).toInt()
    val ranges = littleEndian(ByteArray(tensor.batch * channels * RANGE_BYTES))
    val packed = ByteArray(tensor.batch * sampleBytes)
    val values = tensor.floats()
    for (sample in 0 until tensor.batch) {
        quantise(values, sample * size, channels, size / channels, bits, ranges, packed, sample * sampleBytes)
    }
    val deflated = if (compress) deflated(packed, tensor.size) else null
    val flags = (if (channels > 1) PER_CHANNEL else 0) or (if (deflated != null) DEFLATED else 0)
    return Body(bits, flags, ranges.array(), deflated ?: packed)
}

private fun checkedBits(bits: List<Int>?, tensors: Int): List<Int> {
    val widths = bits ?: List(tensors) { DEFAULT_BITS }
    if (widths.size != tensors) {
        throw UsageError("bits are given for ${widths.size} tensors; the cut point has $tensors")
    }
    widths.find { it !in 1..MAX_BITS }?.let {
        throw UsageError("activations travel in 1 to $MAX_BITS bits, not in $it")
    }
    return widths
}

private fun checkedBatch(tensors: List<Tensor>): Int {
    tensors.find { it.dtype != DType.FLOAT32 }?.let {
        throw InputError("activations must be float32, not ${it.dtype}")
    }
    val batch = tensors.map { it.batch }.distinct().singleOrNull()
        ?: throw InputError("the tensors of a packet must be batches of the same size")
    if (batch !in 1..MAX_BATCH) throw InputError("a packet holds 1 to $MAX_BATCH samples, not $batch")
    if (tensors.sumOf { it.size.toLong() * 4 } > MAX_DECODED_BYTES) {
        throw InputError("a packet holds at most $MAX_DECODED_BYTES bytes of float32", "send smaller batches")
    }
    return batch
}

private fun channelsOf(shape: List<Int>, perChannel: Boolean): Int = if (perChannel && shape.size > 1) shape[0] else 1

/** [codes] as a raw DEFLATE stream, filled up with zeros to the least length; null where that does not save an eighth. */
private fun deflated(codes: ByteArray, values: Int): ByteArray? {
    val deflater = Deflater(Deflater.BEST_SPEED, true)
    val out = ByteArrayOutputStream()
    try {
        deflater.setInput(codes)
        deflater.finish()
        val piece = ByteArray(1 shl 13)
        while (!deflater.finished()) out.write(piece, 0, deflater.deflate(piece))
    } finally {
        deflater.end()
    }
    val stream = out.toByteArray()
    val filled = stream.copyOf(maxOf(stream.size, leastDeflated(values.toLong()).toInt()))
    return filled.takeIf { it.size * 8L <= codes.size * 7L }
}

private fun leastDeflated(values: Long): Long = (values + VALUES_PER_DEFLATED_BYTE - 1) / VALUES_PER_DEFLATED_BYTE

private fun digest(bundle: String): ByteArray = bundle.chunked(2).map { it.toInt(16).toByte() }.toByteArray()

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
