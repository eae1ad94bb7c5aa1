/** The few lines of protobuf's wire format that composing and checking ONNX fragments takes. */
package pathweave.sdk.bundles

import java.io.ByteArrayOutputStream

internal const val VARINT = 0
internal const val FIXED64 = 1
internal const val LENGTH_DELIMITED = 2
internal const val FIXED32 = 5
private const val LONGEST_VARINT_SHIFT = 63

/** Builds one message. */
internal class ProtobufWriter(capacity: Int = 32) {
    private val out = ByteArrayOutputStream(capacity)

    fun integer(number: Int, value: Long): ProtobufWriter = apply {
        varint(number.toLong() shl 3 or VARINT.toLong())
        varint(value)
    }

    fun bytes(number: Int, value: ByteArray): ProtobufWriter = apply {
        head(number, value.size)
        out.write(value, 0, value.size)
    }

    fun text(number: Int, value: String): ProtobufWriter = bytes(number, value.toByteArray())

    fun message(number: Int, fill: ProtobufWriter.() -> Unit): ProtobufWriter =
        bytes(number, ProtobufWriter().apply(fill).toByteArray())

    fun toByteArray(): ByteArray = out.toByteArray()

    /** The head of a field of [size] bytes, which follow. */
    fun head(number: Int, size: Int): ProtobufWriter = apply {
        varint(number.toLong() shl 3 or LENGTH_DELIMITED.toLong())
        varint(size.toLong())
    }

    private fun varint(value: Long) {
        var rest = value
        while (rest ushr 7 != 0L) {
            out.write((rest and 0x7f or 0x80).toInt())
            rest = rest ushr 7
        }
        out.write(rest.toInt())
    }
}

/** One field of wire type [kind]: an [integer], or, where that is null, the bytes from [start] to [end] of the data. */
internal class ProtobufField(val number: Long, val kind: Int, val integer: Long?, val start: Int, val end: Int) {
    val size: Int get() = end - start
}

/** The data is not a message. */
internal class ProtobufError(message: String) : Exception(message)

/** Reads the fields of one message, which lies in [data] from [position] to [end]. Nothing is copied. */
internal class ProtobufReader(private val data: BlobBytes, private var position: Int, private val end: Int) {
    val atEnd: Boolean get() = position >= end

    /** The next field, or null at the end; throws [ProtobufError]. */
    fun next(): ProtobufField? {
        if (position >= end) return null
        val tag = varint()
        val number = tag ushr 3
        val kind = (tag and 7).toInt()
        val length = when (kind) {
            VARINT -> return ProtobufField(number, kind, varint(), 0, 0)
            LENGTH_DELIMITED -> varint()
            FIXED64 -> 8L
            FIXED32 -> 4L
            else -> throw ProtobufError("unknown wire type $kind")
        }
        if (length < 0 || length > end - position) throw ProtobufError("truncated field")
        val start = position
        position += length.toInt()
        return ProtobufField(number, kind, null, start, position)
    }

    /** The varint here. */
    fun varint(): Long {
        var value = 0L
        var shift = 0
        while (true) {
            if (position >= end || shift > LONGEST_VARINT_SHIFT) throw ProtobufError("truncated or overlong varint")
            val byte = data[position++].toInt()
            value = value or ((byte and 0x7f).toLong() shl shift)
            if (byte >= 0) return value
            shift += 7
        }
    }
}

/** The integers of one field: one, or a packed list, of which the first [most] are read. */
internal fun integersIn(data: BlobBytes, field: ProtobufField, most: Int): List<Long> {
    field.integer?.let { return listOf(it) }
    val reader = ProtobufReader(data, field.start, field.end)
    return buildList { while (!reader.atEnd && size < most) add(reader.varint()) }
}

/** Calls [use] with every field of the message in [data] from [start] to [end]. */
internal inline fun readFields(
    data: BlobBytes,
    start: Int = 0,
    end: Int = data.size,
    use: (ProtobufField) -> Unit,
) {
    val reader = ProtobufReader(data, start, end)
    while (true) use(reader.next() ?: return)
}
