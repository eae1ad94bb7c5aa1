/** Tensors as they pass between runtimes: a shape, a type, and the elements in row-major order. */
package pathweave.sdk.numerics

import java.nio.Buffer
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.floor
import pathweave.sdk.InputError

/** Element types that a bundle may name. [onnx] is the number that ONNX gives to it. */
public enum class DType(public val text: String, public val bytes: Int, internal val onnx: Long) {
    FLOAT32("float32", 4, 1),
    FLOAT16("float16", 2, 10),
    INT64("int64", 8, 7),
    INT32("int32", 4, 6),
    INT8("int8", 1, 3),
    UINT8("uint8", 1, 2),
    BOOL("bool", 1, 9),
    ;

    /** Whether fractions are kept. */
    public val floating: Boolean get() = this == FLOAT32 || this == FLOAT16

    override fun toString(): String = text

    internal companion object {
        fun named(text: String): DType? = entries.find { it.text == text }
    }
}

/**
 * One tensor. [shape] includes the batch axis: [batch, …].
 *
 * @throws InputError the number of elements is not that of the shape, or more than an array holds.
 */
public class Tensor internal constructor(
    public val dtype: DType,
    public val shape: List<Int>,
    internal val buffer: ByteBuffer, // direct, native byte order, from 0 to its limit; never altered once it is here
) {
    /** Number of elements. */
    public val size: Int = elements(shape, dtype.bytes)

    /** Samples in the batch. */
    public val batch: Int get() = shape[0]

    init {
        if (buffer.limit() != size * dtype.bytes) {
            throw InputError("a tensor of shape $shape has ${buffer.limit() / dtype.bytes} elements")
        }
    }

    /** Element [index] of the flattened tensor as a number. */
    public operator fun get(index: Int): Double = when (dtype) {
        DType.FLOAT32 -> buffer.getFloat(index * 4).toDouble()
        DType.FLOAT16 -> halfToFloat(buffer.getShort(index * 2)).toDouble()
        DType.INT64 -> buffer.getLong(index * 8).toDouble()
        DType.INT32 -> buffer.getInt(index * 4).toDouble()
        DType.INT8 -> buffer.get(index).toDouble()
        DType.UINT8, DType.BOOL -> (buffer.get(index).toInt() and 0xff).toDouble()
    }

    /** All elements as float32. */
    public fun floats(): FloatArray =
        if (dtype == DType.FLOAT32) FloatArray(size).also { view().asFloatBuffer().get(it) }
        else FloatArray(size) { this[it].toFloat() }

    /** The samples of the batch for which [keep] holds, in order. */
    internal fun rows(keep: List<Int>): Tensor {
        val bytes = size / batch * dtype.bytes
        val kept = allocate(keep.size * bytes)
        for (row in keep) kept.put(view().also { narrow(it, row * bytes, (row + 1) * bytes) })
        return Tensor(dtype, listOf(keep.size) + shape.drop(1), kept.also(::rewind))
    }

    /** A copy in which the samples at [positions] are those of [other], in order; float32 both. */
    internal fun withRows(positions: List<Int>, other: Tensor): Tensor {
        val (all, new) = floats() to other.floats()
        val width = size / batch
        positions.forEachIndexed { row, at -> new.copyInto(all, at * width, row * width, (row + 1) * width) }
        return of(all, shape)
    }

    /** A reader of its own on the same elements. */
    internal fun view(): ByteBuffer = buffer.duplicate().order(ByteOrder.nativeOrder()).also(::rewind)

    override fun toString(): String = "Tensor($dtype, $shape)"

    public companion object {
        /** A float32 tensor with a copy of [values]. */
        public fun of(values: FloatArray, shape: List<Int>): Tensor {
            val buffer = allocate(values.size * 4)
            buffer.asFloatBuffer().put(values)
            return Tensor(DType.FLOAT32, shape, buffer)
        }

        /** An int64 tensor with a copy of [values]. */
        public fun of(values: LongArray, shape: List<Int>): Tensor {
            val buffer = allocate(values.size * DType.INT64.bytes)
            buffer.asLongBuffer().put(values)
            return Tensor(DType.INT64, shape, buffer)
        }

        /** The samples of [parts], one after the other, in float32. */
        internal fun joined(parts: List<Tensor>): Tensor {
            val all = FloatArray(parts.sumOf { it.size })
            parts.fold(0) { at, part -> part.floats().copyInto(all, at).let { at + part.size } }
            return of(all, listOf(parts.sumOf { it.batch }) + parts[0].shape.drop(1))
        }

        /** The samples of [parts], all of one type and shape, one after the other. */
        internal fun stacked(parts: List<Tensor>): Tensor {
            val all = allocate(parts.sumOf { it.size } * parts[0].dtype.bytes)
            parts.forEach { all.put(it.view()) }
            return Tensor(parts[0].dtype, listOf(parts.sumOf { it.batch }) + parts[0].shape.drop(1), all.also(::rewind))
        }

        /** Values in float32 converted to [dtype], integers rounded down. */
        internal fun converted(dtype: DType, shape: List<Int>, values: FloatArray): Tensor {
            val buffer = allocate(values.size * dtype.bytes)
            for (value in values) {
                val whole = floor(value.toDouble()).toLong()
                when (dtype) {
                    DType.FLOAT32 -> buffer.putFloat(value)
                    DType.FLOAT16 -> buffer.putShort(floatToHalf(value))
                    DType.INT64 -> buffer.putLong(whole)
                    DType.INT32 -> buffer.putInt(whole.toInt())
                    DType.INT8, DType.UINT8 -> buffer.put(whole.toByte())
                    DType.BOOL -> buffer.put(if (whole != 0L) 1 else 0)
                }
            }
            return Tensor(dtype, shape, buffer.also(::rewind))
        }

        /** Off the heap: the runtime reads it there without a copy, and takes no other. */
        internal fun allocate(bytes: Int): ByteBuffer =
            ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder())
    }
}

/** Back to the start. Called on [Buffer], since only newer platforms than Android 8 have it on ByteBuffer itself. */
internal fun rewind(buffer: Buffer) {
    buffer.rewind()
}

internal fun narrow(buffer: Buffer, start: Int, end: Int) {
    buffer.limit(end)
    buffer.position(start)
}

/** Elements of [shape]; refuses what no array of [bytes] per element holds. */
internal fun elements(shape: List<Int>, bytes: Int): Int {
    if (shape.isEmpty() || shape.any { it < 1 }) throw InputError("a tensor of shape $shape has no elements")
    val size = shape.fold(1L) { product, extent ->
        if (product > Int.MAX_VALUE) product else product * extent
    }
    if (size > Int.MAX_VALUE / bytes) throw InputError("a tensor of shape $shape does not fit into memory")
    return size.toInt()
}

private const val HALF_EXPONENT_SHIFT = 10
private const val FLOAT_EXPONENT_SHIFT = 23
private const val REBIAS = 127 - 15

/** float32 → float16, to nearest, ties to even; java.lang.Float has it only from Java 20 on. */
internal fun floatToHalf(value: Float): Short {
    val bits = value.toRawBits()
    val sign = bits ushr 16 and 0x8000
    val magnitude = bits and 0x7fffffff
    val half = when {
        magnitude > 0x7f800000 -> 0x7e00 // not a number
        magnitude >= 0x47800000 -> 0x7c00 // 65536 and above: infinity
        magnitude >= 0x38800000 -> roundedShift(magnitude - (REBIAS shl FLOAT_EXPONENT_SHIFT), 13)
        magnitude >= 0x33000000 -> { // subnormal halves: the leading one becomes explicit
            val mantissa = magnitude and 0x7fffff or 0x800000
            roundedShift(mantissa, 126 - (magnitude ushr FLOAT_EXPONENT_SHIFT))
        }
        else -> 0
    }
    return (sign or half).toShort()
}

private fun roundedShift(bits: Int, by: Int): Int {
    val shifted = bits ushr by
    val rest = bits and (1 shl by) - 1
    val half = 1 shl by - 1
    return if (rest > half || rest == half && shifted and 1 == 1) shifted + 1 else shifted
}

/** float16 → float32, exactly. */
internal fun halfToFloat(value: Short): Float {
    val bits = value.toInt() and 0xffff
    val sign = if (bits and 0x8000 != 0) -1f else 1f
    val exponent = bits ushr HALF_EXPONENT_SHIFT and 0x1f
    val mantissa = bits and 0x3ff
    return sign * when (exponent) {
        0 -> mantissa * (1f / (1 shl 24))
        0x1f -> if (mantissa == 0) Float.POSITIVE_INFINITY else Float.NaN
        else -> Float.fromBits(exponent + REBIAS shl FLOAT_EXPONENT_SHIFT or (mantissa shl 13))
    }
}

/** The most probable class of each sample, the first of equals: logits [batch, classes] -> [batch]. */
public fun argmax(logits: Tensor): IntArray {
    val size = logits.size / logits.batch
    return IntArray(logits.batch) { sample ->
        val first = sample * size
        (0 until size).reduce { best, at -> if (logits[first + at] > logits[first + best]) at else best }
    }
}

/** The most probable class, the first of equals. */
internal fun argmax(logits: FloatArray): Int {
    var best = 0
    for (at in logits.indices) if (logits[at] > logits[best]) best = at
    return best
}
