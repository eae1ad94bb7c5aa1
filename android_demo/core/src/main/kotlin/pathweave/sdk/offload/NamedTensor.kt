/** Tensors of the Open Inference Protocol: a name, a datatype, a shape, and the values as they travel. */
package pathweave.sdk.offload

import java.nio.ByteBuffer
import java.nio.ByteOrder
import pathweave.sdk.ProtocolError
import pathweave.sdk.numerics.DType
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.floatToHalf
import pathweave.sdk.numerics.halfToFloat

private const val SHOWN_CHARACTERS = 60
private const val LENGTH_BYTES = 4

/** Element types of the protocol. [BYTES], one axis of byte strings, is sent and not read; BF16 is not supported. */
public enum class Datatype(internal val bytes: Int, internal val floating: Boolean = false) {
    BOOL(1),
    INT8(1),
    INT16(2),
    INT32(4),
    INT64(8),
    UINT8(1),
    UINT16(2),
    UINT32(4),
    UINT64(8),
    FP16(2, floating = true),
    FP32(4, floating = true),
    FP64(8, floating = true),
    BYTES(0), // of any length
    ;

    internal companion object {
        /** What a reply may hold. */
        fun named(text: String): Datatype? = entries.find { it.name == text && it != BYTES }
    }
}

/**
 * A tensor of a message. [data]: the values in row-major order, little-endian; a BOOL is one byte, 0 or 1. Byte strings
 * stand each behind its length, in 4 bytes.
 *
 * @throws ProtocolError [data] has another length than [shape] and [datatype] say, or not as many strings.
 */
public class NamedTensor(
    public val name: String,
    public val datatype: Datatype,
    public val shape: List<Int>,
    public val data: ByteArray,
) {
    /** Bytes of the values. */
    public val sizeBytes: Int get() = data.size

    init {
        if (datatype == Datatype.BYTES && shape != listOf(countStrings(data))) {
            throw ProtocolError("${shown(name)}: the data are not strings of shape $shape")
        }
        val expected = if (datatype == Datatype.BYTES) data.size.toLong() else sizeBytes(shape, datatype)
        if (expected != data.size.toLong()) {
            throw ProtocolError("${shown(name)}: $datatype of shape $shape takes $expected bytes, not ${data.size}")
        }
    }

    /** All values as doubles; integers above 2⁵³ lose digits. */
    internal fun doubles(): DoubleArray {
        val values = littleEndian(data)
        return DoubleArray(data.size / datatype.bytes) { at ->
            when (datatype) {
                Datatype.BOOL, Datatype.UINT8 -> (values.get(at).toInt() and 0xff).toDouble()
                Datatype.INT8 -> values.get(at).toDouble()
                Datatype.INT16 -> values.getShort(2 * at).toDouble()
                Datatype.UINT16 -> (values.getShort(2 * at).toInt() and 0xffff).toDouble()
                Datatype.INT32 -> values.getInt(4 * at).toDouble()
                Datatype.UINT32 -> values.getInt(4 * at).toUInt().toDouble()
                Datatype.INT64 -> values.getLong(8 * at).toDouble()
                Datatype.UINT64 -> values.getLong(8 * at).toULong().toDouble()
                Datatype.FP16 -> halfToFloat(values.getShort(2 * at)).toDouble()
                Datatype.FP32 -> values.getFloat(4 * at).toDouble()
                Datatype.FP64 -> values.getDouble(8 * at)
                Datatype.BYTES -> throw ProtocolError("${shown(name)} holds byte strings, not numbers")
            }
        }
    }

    /** Whether no value is NaN or infinite. */
    internal fun isFinite(): Boolean = !datatype.floating || doubles().all { it.isFinite() }

    public companion object {
        /** Byte strings by [name], with a copy of their values. */
        public fun of(name: String, strings: List<ByteArray>): NamedTensor {
            val data = littleEndian(ByteArray(strings.sumOf { LENGTH_BYTES + it.size }))
            for (string in strings) data.putInt(string.size).put(string)
            return NamedTensor(name, Datatype.BYTES, listOf(strings.size), data.array())
        }

        /** [tensor] by [name], with a copy of its values. */
        public fun of(name: String, tensor: Tensor): NamedTensor {
            val datatype = when (tensor.dtype) {
                DType.FLOAT32 -> Datatype.FP32
                DType.FLOAT16 -> Datatype.FP16
                DType.INT64 -> Datatype.INT64
                DType.INT32 -> Datatype.INT32
                DType.INT8 -> Datatype.INT8
                DType.UINT8 -> Datatype.UINT8
                DType.BOOL -> Datatype.BOOL
            }
            val data = littleEndian(ByteArray(tensor.size * datatype.bytes))
            val values = tensor.view()
            if (ByteOrder.nativeOrder() == ByteOrder.LITTLE_ENDIAN) {
                data.put(values)
            } else {
                for (at in 0 until tensor.size) put(data, datatype, tensor[at])
            }
            return NamedTensor(name, datatype, tensor.shape, data.array())
        }
    }
}

/** How many byte strings [data] holds, each behind its length; -1 where it is cut short. */
private fun countStrings(data: ByteArray): Int {
    val values = littleEndian(data)
    var (count, at) = 0 to 0
    while (at < data.size) {
        if (data.size - at < LENGTH_BYTES) return -1
        val size = values.getInt(at)
        at += LENGTH_BYTES
        if (size !in 0..data.size - at) return -1
        at += size
        count++
    }
    return count
}

/** Bytes that values of this [shape] take. */
internal fun sizeBytes(shape: List<Int>, datatype: Datatype): Long =
    shape.fold(datatype.bytes.toLong()) { product, extent ->
        if (extent == 0) 0L else if (product > Long.MAX_VALUE / extent) Long.MAX_VALUE else product * extent
    }

/** Writes a [value] that a tensor holds. */
internal fun put(data: ByteBuffer, datatype: Datatype, value: Double) {
    when (datatype) {
        Datatype.FP16 -> data.putShort(floatToHalf(value.toFloat()))
        Datatype.FP32 -> data.putFloat(value.toFloat())
        Datatype.FP64 -> data.putDouble(value)
        else -> putInteger(data, datatype, value.toLong())
    }
}

/** Writes the lowest bytes of [value]. */
internal fun putInteger(data: ByteBuffer, datatype: Datatype, value: Long) {
    when (datatype.bytes) {
        1 -> data.put(value.toByte())
        2 -> data.putShort(value.toShort())
        4 -> data.putInt(value.toInt())
        else -> data.putLong(value)
    }
}

internal fun littleEndian(bytes: ByteArray): ByteBuffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)

/** A name from outside, for messages. */
internal fun shown(text: String): String {
    val short = if (text.length <= SHOWN_CHARACTERS) text else text.take(SHOWN_CHARACTERS - 3) + "…"
    return "'" + short.map { if (it.isISOControl()) '?' else it }.joinToString("") + "'"
}
