/** Packets of activations for a server. Mirrors device_sdk/offload/packing.py; the layout: docs/activation_packets.md. */
package pathweave.sdk.offload

import java.io.ByteArrayOutputStream
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.zip.DataFormatException
import java.util.zip.Deflater
import java.util.zip.Inflater
import pathweave.sdk.InputError
import pathweave.sdk.ProtocolError
import pathweave.sdk.UsageError
import pathweave.sdk.numerics.DType
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.CutPoint
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.FP32
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.TensorSpec

/** The layout that is written and read; others are refused. */
public const val PACKET_VERSION: Int = 3

private const val MAGIC = "PWAP"
private const val DEFAULT_BITS = 8
private const val MAX_BATCH = 65_536
private const val MAX_DECODED_BYTES = 256L shl 20
private const val HEAD_BYTES = 46
private const val ENTRY_BYTES = 6
private const val DIGEST_BYTES = 32
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

private class Entry(val bits: Int, val channels: Int, val deflated: Boolean, val stored: Int)

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

/**
 * Decodes [packet], checked against the graph of [bundle]. All sizes are checked before anything is decoded.
 *
 * @throws ProtocolError not a packet, another layout version, a wrong length, another bundle, or a tail that does not
 *   lead from the cut point to the output.
 */
public fun unpack(packet: ByteArray, supernet: Supernet, bundle: String): Activations {
    if (packet.size < HEAD_BYTES) throw ProtocolError("the packet of activations ends after ${packet.size} bytes")
    val reader = littleEndian(packet)
    if (reader.text(MAGIC.length) != MAGIC) throw ProtocolError("this is not a packet of activations")
    val version = reader.byte()
    if (version != PACKET_VERSION) {
        val hint = "use one version of Pathweave on both sides"
        throw ProtocolError("the packet has layout $version; known is $PACKET_VERSION", hint)
    }
    val count = reader.byte()
    val position = reader.short()
    if (!reader.bytes(DIGEST_BYTES).contentEquals(digest(bundle))) {
        throw ProtocolError("the activations belong to another version of the bundle")
    }
    val batch = reader.getInt()
    if (batch !in 1..MAX_BATCH) throw ProtocolError("the packet says that it holds ${batch.toUInt()} samples")
    val tail = readTail(reader, reader.short(), supernet, position)
    val cut = supernet.cutPoints[position]
    val entries = readEntries(reader, count, cut, batch)
    val expected = entries.sumOf { batch.toLong() * it.channels * RANGE_BYTES + it.stored }
    if (reader.remaining().toLong() != expected) {
        val takes = packet.size - reader.remaining() + expected
        throw ProtocolError("the packet has ${packet.size} bytes; $batch samples at cut point $position take $takes")
    }
    return Activations(bundle, position, tail, cut.tensors.zip(entries) { spec, one -> tensor(reader, spec, one, batch) })
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

private fun tensor(reader: ByteBuffer, spec: TensorSpec, entry: Entry, batch: Int): Tensor {
    val ranges = littleEndian(reader.bytes(batch * entry.channels * RANGE_BYTES))
    checkRanges(ranges, entry.bits)
    val size = spec.size.toInt()
    val sampleBytes = packedBytes(spec.size, entry.bits).toInt()
    val stored = reader.bytes(entry.stored)
    val packed = if (entry.deflated) inflated(stored, batch * sampleBytes) else stored
    val values = FloatArray(batch * size)
    for (sample in 0 until batch) {
        val width = size / entry.channels
        dequantise(ranges, packed, sample * sampleBytes, entry.bits, entry.channels, width, values, sample * size)
    }
    return Tensor.of(values, listOf(batch) + spec.shape)
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

private fun readTail(reader: ByteBuffer, length: Int, supernet: Supernet, position: Int): List<Edge> {
    if (reader.remaining() < length) throw ProtocolError("the packet of activations ends within its tail")
    val words = reader.text(length).split(" ")
    if (words.any { ':' in it }) throw ProtocolError("the packet's tail runs at another input size than the model's own")
    val tail = words.map { Edge(it.substringBefore('@'), it.substringAfter('@', FP32)) }
    try {
        supernet.checkStretch(tail, start = position, end = supernet.outputIndex)
    } catch (error: UsageError) {
        throw ProtocolError("the packet's tail does not fit the bundle: ${error.message}", cause = error)
    }
    if (supernet.cutPoints[position].tensors.any { it.dtype != DType.FLOAT32 }) {
        throw ProtocolError("the tensors at cut point $position cannot be sent in packets")
    }
    return tail
}

private fun readEntries(reader: ByteBuffer, count: Int, cut: CutPoint, batch: Int): List<Entry> {
    if (count != cut.tensors.size) {
        throw ProtocolError("the packet holds $count tensors; cut point ${cut.index} has ${cut.tensors.size}")
    }
    if (reader.remaining() < count * ENTRY_BYTES) throw ProtocolError("the packet of activations ends within its entries")
    if (cut.tensors.sumOf { it.nbytes * batch } > MAX_DECODED_BYTES) {
        throw ProtocolError("the packet decodes to more than $MAX_DECODED_BYTES bytes")
    }
    return cut.tensors.map { spec -> entry(reader.byte(), reader.byte(), reader.getInt(), spec, batch) }
}

private fun entry(bits: Int, flags: Int, stored: Int, spec: TensorSpec, batch: Int): Entry {
    if (bits !in 1..MAX_BITS) throw ProtocolError("the packet has values of $bits bits; 1 to $MAX_BITS are possible")
    val perChannel = flags and PER_CHANNEL != 0
    val deflated = flags and DEFLATED != 0
    if (flags and (PER_CHANNEL or DEFLATED).inv() != 0 || perChannel && spec.shape.size < 2) {
        throw ProtocolError("the packet has flags $flags that tensor ${spec.name} cannot have")
    }
    val whole = batch * packedBytes(spec.size, bits)
    val least = if (deflated) leastDeflated(batch * spec.size) else whole
    if (stored.toUInt().toLong() !in least..whole) {
        throw ProtocolError(
            "the packet gives ${stored.toUInt()} bytes of codes to tensor ${spec.name}; $batch samples take $least to $whole",
        )
    }
    return Entry(bits, channelsOf(spec.shape, perChannel), deflated, stored)
}

private fun checkRanges(ranges: ByteBuffer, bits: Int) {
    val levels = (1 shl bits) - 1
    for (at in 0 until ranges.limit() step RANGE_BYTES) {
        val scale = ranges.getFloat(at)
        val largest = scale * levels
        if (!(scale > 0) || largest.isInfinite()) {
            throw ProtocolError("a scale of the packet is not a number above zero")
        }
        if (ranges.get(at + 4).toInt() and 0xff > levels) {
            throw ProtocolError("a zero point of the packet lies above $levels")
        }
    }
}

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

/** The [size] bytes that [stored] decompresses to; never produces more than one byte beyond them. */
private fun inflated(stored: ByteArray, size: Int): ByteArray {
    val inflater = Inflater(true)
    try {
        inflater.setInput(stored)
        val codes = ByteArray(size + 1)
        var count = 0
        while (!inflater.finished() && count < codes.size) {
            val more = inflater.inflate(codes, count, codes.size - count)
            if (more == 0 && (inflater.needsInput() || inflater.needsDictionary())) break
            count += more
        }
        val rest = stored.copyOfRange(stored.size - inflater.remaining, stored.size)
        if (count != size || !inflater.finished() || rest.any { it.toInt() != 0 }) {
            throw ProtocolError("compressed codes of the packet do not hold $size bytes")
        }
        return codes.copyOf(size)
    } catch (error: DataFormatException) {
        throw ProtocolError("compressed codes of the packet are damaged", cause = error)
    } finally {
        inflater.end()
    }
}

private fun digest(bundle: String): ByteArray = bundle.chunked(2).map { it.toInt(16).toByte() }.toByteArray()

private fun ByteBuffer.byte(): Int = get().toInt() and 0xff

private fun ByteBuffer.short(): Int = getShort().toInt() and 0xffff

private fun ByteBuffer.bytes(count: Int): ByteArray = ByteArray(count).also { get(it) }

private fun ByteBuffer.text(length: Int): String = bytes(length).decodeToString()
