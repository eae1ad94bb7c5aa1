/**
 * Requests and replies of the Open Inference Protocol. Pure.
 *
 * A message is JSON. A tensor's values are in the JSON (`data`, row-major, flat or nested by shape) or follow it as bytes
 * (`parameters.binary_data_size`, in the order of the tensors). The header `Inference-Header-Content-Length` then states
 * the length of the JSON.
 *
 * Byte strings are only sent, and only as bytes. Refused: byte strings in a reply, BF16, shared memory, and JSON values out of range of their type (NaN, infinity, 300 as INT8).
 * Sources: KServe's "Open Inference Protocol" and Triton's "Binary Tensor Data Extension".
 */
package pathweave.sdk.offload

import java.io.ByteArrayOutputStream
import java.math.BigInteger
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.ProtocolError
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.jsonOf
import pathweave.sdk.numerics.DType
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.floatToHalf
import pathweave.sdk.numerics.halfToFloat

/** The header that states the length of the JSON before binary data. */
public const val HEADER_LENGTH: String = "Inference-Header-Content-Length"

private const val MAX_RANK = 16
private const val MAX_SIZE = Int.MAX_VALUE.toLong()

/** A requested output, as bytes or as JSON. */
public data class RequestedOutput(public val name: String, public val binary: Boolean)

/** A request. Without [outputs] all outputs are returned, as bytes if [binaryOutput]. */
public class InferRequest(
    public val inputs: List<NamedTensor>,
    public val outputs: List<RequestedOutput> = emptyList(),
    public val id: String? = null,
    public val binaryOutput: Boolean = false,
)

/** The reply to one request; [id] is the request's. */
public class InferResponse(
    public val modelName: String,
    public val outputs: List<NamedTensor>,
    public val modelVersion: String? = null,
    public val id: String? = null,
)

/** The bytes of a message and the headers that describe them. */
public class EncodedMessage internal constructor(public val body: ByteArray, public val headers: Map<String, String>)

/**
 * The body of [request] and its headers; the inputs are sent as bytes, or in the JSON if not [binary].
 *
 * Fractions in JSON read as the same number in every language, but may be written in another way than Python's.
 *
 * @throws ProtocolError a tensor has values that JSON cannot represent.
 */
public fun encodeRequest(request: InferRequest, binary: Boolean = true): EncodedMessage {
    val fields = listOfNotNull(
        request.id?.let { "id" to JsonPrimitive(it) },
        if (request.binaryOutput) "parameters" to jsonOf("binary_data_output" to JsonPrimitive(true)) else null,
        "inputs" to JsonArray(request.inputs.map { described(it, binary) }),
        if (request.outputs.isEmpty()) null else "outputs" to JsonArray(request.outputs.map(::described)),
    )
    val head = jsonOf(*fields.toTypedArray()).toString().toByteArray()
    if (!binary || request.inputs.isEmpty()) {
        return EncodedMessage(head, mapOf("Content-Type" to "application/json"))
    }
    val body = ByteArrayOutputStream(head.size + request.inputs.sumOf { it.sizeBytes })
    body.write(head)
    for (tensor in request.inputs) body.write(tensor.data)
    val headers = mapOf("Content-Type" to "application/octet-stream", HEADER_LENGTH to head.size.toString())
    return EncodedMessage(body.toByteArray(), headers)
}

/**
 * The reply in [body]; [headerLength]: the header's value, null if it was missing.
 *
 * @throws ProtocolError anything is wrong: not JSON, fields missing, cut short, trailing bytes, a datatype, shape or
 *   count of values that does not fit, or something that is not supported.
 */
public fun decodeResponse(body: ByteArray, headerLength: Int?): InferResponse {
    val length = headerLength ?: body.size
    if (length !in 0..body.size) throw ProtocolError("$HEADER_LENGTH is $length, the body has ${body.size} bytes")
    return try {
        val message = decodeJson(body.copyOf(length))
        InferResponse(
            modelName = message["model_name"].text(),
            modelVersion = message.nullable("model_version")?.text(),
            id = message.nullable("id")?.text(),
            outputs = decodedTensors(message["outputs"].items(), body, length),
        )
    } catch (error: JsonError) {
        throw ProtocolError("the message breaks the protocol: ${error.message}", cause = error)
    }
}

private fun described(tensor: NamedTensor, binary: Boolean): JsonElement = jsonOf(
    "name" to JsonPrimitive(tensor.name),
    "datatype" to JsonPrimitive(tensor.datatype.name),
    "shape" to JsonArray(tensor.shape.map(::JsonPrimitive)),
    if (binary) {
        "parameters" to jsonOf("binary_data_size" to JsonPrimitive(tensor.sizeBytes))
    } else {
        "data" to JsonArray(jsonValues(tensor))
    },
)

private fun described(output: RequestedOutput): JsonElement = jsonOf(
    "name" to JsonPrimitive(output.name),
    "parameters" to jsonOf("binary_data" to JsonPrimitive(output.binary)),
)

private fun jsonValues(tensor: NamedTensor): List<JsonPrimitive> {
    if (!tensor.isFinite()) throw ProtocolError("${shown(tensor.name)} holds NaN or infinity, which JSON cannot")
    val values = littleEndian(tensor.data)
    return when (tensor.datatype) {
        Datatype.BOOL -> tensor.data.map { JsonPrimitive(it.toInt() != 0) }
        Datatype.INT64 -> List(tensor.data.size / 8) { JsonPrimitive(values.getLong(8 * it)) }
        Datatype.UINT64 -> List(tensor.data.size / 8) { JsonPrimitive(BigInteger(values.getLong(8 * it).toULong().toString())) }
        else -> tensor.doubles().map { JsonPrimitive(if (tensor.datatype.floating) it as Number else it.toLong()) }
    }
}

/** [length]: of the JSON in [body], behind which the values of binary tensors follow. */
private fun decodedTensors(described: List<JsonPlace>, body: ByteArray, length: Int): List<NamedTensor> {
    val names = described.map { it["name"].text() }
    names.groupBy { it }.values.find { it.size > 1 }?.let { throw ProtocolError("${shown(it[0])} appears twice") }
    var start = length
    val decoded = described.zip(names) { tensor, name ->
        val size = checkedSize(tensor, name)
        val read = if (size == null) fromJson(tensor, name) else fromBytes(tensor, name, size, body, start)
        start += size ?: 0
        read
    }
    if (start != body.size) throw ProtocolError("${body.size - start} bytes follow the last tensor")
    return decoded
}

/** Bytes behind the JSON; null for values in it. */
private fun checkedSize(tensor: JsonPlace, name: String): Int? {
    val parameters = tensor.nullable("parameters")
    if (parameters?.nullable("shared_memory_region") != null) {
        throw ProtocolError("${shown(name)}: shared memory is not supported")
    }
    val size = parameters?.nullable("binary_data_size")?.whole(least = 0, most = MAX_SIZE)?.toInt()
    if ((size == null) == (tensor.optional("data") == null)) {
        throw ProtocolError("${shown(name)} needs either data or binary_data_size")
    }
    return size
}

private fun datatype(tensor: JsonPlace, name: String): Datatype {
    val text = tensor["datatype"].text()
    return Datatype.named(text) ?: throw ProtocolError("${shown(name)}: datatype ${shown(text)} is not supported")
}

private fun shape(tensor: JsonPlace, name: String): List<Int> {
    val extents = tensor["shape"].items()
    if (extents.size > MAX_RANK) throw ProtocolError("${shown(name)}: more than $MAX_RANK axes")
    return extents.map { it.whole(least = 0, most = MAX_SIZE).toInt() }
}

private fun fromBytes(tensor: JsonPlace, name: String, size: Int, body: ByteArray, start: Int): NamedTensor {
    val (datatype, shape) = datatype(tensor, name) to shape(tensor, name)
    val expected = sizeBytes(shape, datatype)
    if (size.toLong() != expected) {
        throw ProtocolError("${shown(name)}: $datatype of shape $shape takes $expected bytes, binary_data_size is $size")
    }
    if (body.size - start < size) throw ProtocolError("${shown(name)} is cut short: ${body.size - start} of $size bytes")
    val data = body.copyOfRange(start, start + size)
    if (datatype == Datatype.BOOL && data.any { it.toInt() !in 0..1 }) {
        throw ProtocolError("${shown(name)}: a BOOL is 0 or 1")
    }
    return NamedTensor(name, datatype, shape, data)
}

private fun fromJson(tensor: JsonPlace, name: String): NamedTensor {
    val (datatype, shape) = datatype(tensor, name) to shape(tensor, name)
    val values = values(tensor["data"], shape)
    val count = sizeBytes(shape, Datatype.BOOL)
    if (values.size.toLong() != count) {
        throw ProtocolError("${shown(name)}: shape $shape needs $count values, there are ${values.size}")
    }
    val data = littleEndian(ByteArray(values.size * datatype.bytes))
    for (value in values) {
        when {
            datatype == Datatype.BOOL -> data.put(if (value.flag()) 1 else 0)
            datatype.floating -> put(data, datatype, value.number())
            else -> putInteger(data, datatype, integer(value, datatype, name))
        }
    }
    val read = NamedTensor(name, datatype, shape, data.array())
    if (!read.isFinite()) throw ProtocolError("${shown(name)}: a value is too large for $datatype")
    return read
}

/** The values of `data`, flat or nested as [shape] says. */
private fun values(data: JsonPlace, shape: List<Int>): List<JsonPlace> {
    val outer = data.items()
    if (outer.firstOrNull()?.isArray != true) return outer
    fun level(place: JsonPlace, depth: Int): List<JsonPlace> {
        if (depth == shape.size) return listOf(place)
        val items = place.items()
        if (items.size != shape[depth]) throw place.wrong("${shape[depth]} elements, as the shape says")
        return items.flatMap { level(it, depth + 1) }
    }
    return level(data, 0)
}

private fun integer(value: JsonPlace, datatype: Datatype, name: String): Long {
    val number = value.integer()
    val bits = 8 * datatype.bytes
    val (least, most) = if (datatype.name.startsWith("U")) {
        BigInteger.ZERO to BigInteger.ONE.shiftLeft(bits) - BigInteger.ONE
    } else {
        BigInteger.ONE.shiftLeft(bits - 1).negate() to BigInteger.ONE.shiftLeft(bits - 1) - BigInteger.ONE
    }
    if (number !in least..most) throw ProtocolError("${shown(name)}: $number is no $datatype")
    return number.toLong()
}

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
