/** Client for one model of a server with the Open Inference Protocol (Pathweave, Triton, KServe). */
package pathweave.sdk.offload

import java.util.UUID
import pathweave.sdk.Clock
import pathweave.sdk.DeadlineError
import pathweave.sdk.ProtocolError
import pathweave.sdk.RefusedError
import pathweave.sdk.TransferError
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.decodeJson
import pathweave.sdk.transports.Deadlines
import pathweave.sdk.transports.Reply
import pathweave.sdk.transports.Transport
import pathweave.sdk.transports.base
import pathweave.sdk.transports.readAll
import pathweave.sdk.transports.requireSuccess

private const val MAX_METADATA_BYTES = 4L shl 20
private const val BINARY_EXTENSION = "binary_tensor_data"
private const val SHOWN_CHARACTERS = 80
private const val NANOSECONDS_PER_S = 1e9
private val LENGTH = Regex("[0-9]{1,9}")

/** An input or output tensor of a model; an axis of -1 may have any size. */
public class TensorMetadata(public val name: String, public val datatype: String, public val shape: List<Int>) {
    /** Whether [tensor] has this name, datatype and shape. */
    internal fun fits(tensor: NamedTensor): Boolean =
        tensor.name == name && tensor.datatype.name == datatype && sidesFit(tensor.shape, shape)
}

/**
 * A model's inputs and outputs. Only Pathweave servers state [classNames] and [bundle] (its digest).
 *
 * [binary]: whether the server supports binary tensor data. [task]: what the model is for, [content]: the media type of
 * the byte strings that it takes, if the server says so.
 */
public class ModelMetadata(
    public val inputs: List<TensorMetadata>,
    public val outputs: List<TensorMetadata>,
    public val versions: List<String> = emptyList(),
    public val classNames: List<String>? = null,
    public val bundle: String? = null,
    public val binary: Boolean = false,
    public val task: String? = null,
    public val content: String? = null,
)

/** Whether [shape] matches [wanted], in which an axis of -1 matches any size. */
internal fun sidesFit(shape: List<Int>, wanted: List<Int>): Boolean =
    shape.size == wanted.size && shape.zip(wanted).all { (actual, side) -> side == -1 || side == actual }

/**
 * Sends inference requests for one [model] to one server. Thread-safe.
 *
 * [baseUrl]: the part before `/v2`. [version]: of the model; null for the one that the server chooses. Each request has a unique id. A reply is accepted only if it repeats the id and matches
 * the model's metadata, so stale or mismatched replies are refused. A request whose connection is cut is sent once
 * more: the server may have closed one that was kept.
 *
 * @throws UsageError [baseUrl] is not an address.
 */
internal class InferenceClient(
    baseUrl: String,
    private val model: String,
    private val transport: Transport,
    private val maxReplyBytes: Long,
    private val clock: Clock = System::nanoTime,
    version: Long? = null,
) {
    private val server = base(baseUrl) + "/v2"
    private val url = "$server/models/${quoted(model)}" + (version?.let { "/versions/$it" } ?: "")

    /**
     * The model's metadata, within [timeoutS].
     *
     * @throws TransferError no connection, time-out, refused, or a reply that breaks the protocol.
     */
    fun metadata(timeoutS: Double): ModelMetadata {
        val untilNs = untilNs(timeoutS)
        val what = "metadata of the model $model"
        val (name, known) = get(url, untilNs, what) { it["name"].text() to modelMetadata(it) }
        if (name != model) throw ProtocolError("the server sent metadata of ${shown(name)} instead of $model")
        val binary = try {
            get(server, untilNs, "metadata of the server") { reply ->
                reply.nullable("extensions")?.items().orEmpty().map { it.text() }.contains(BINARY_EXTENSION)
            }
        } catch (_: RefusedError) { // a server without metadata of its own gets plain JSON
            false
        }
        return with(known) { ModelMetadata(inputs, outputs, versions, classNames, bundle, binary, task, content) }
    }

    /**
     * All outputs of the model for [inputs]. [metadata]: of the model.
     *
     * @throws TransferError no connection, time-out, refused, or a reply that breaks the protocol: an id, model, version,
     *   output, datatype, shape or batch that does not match, NaN or infinity.
     */
    fun infer(inputs: List<NamedTensor>, timeoutS: Double, metadata: ModelMetadata): InferResponse {
        val untilNs = untilNs(timeoutS)
        val outputs = metadata.outputs.map { RequestedOutput(it.name, metadata.binary) }
        val request = InferRequest(inputs, outputs, UUID.randomUUID().toString().replace("-", ""))
        val message = encodeRequest(request, metadata.binary)
        val response = try {
            sent(message, untilNs)
        } catch (error: TransferError) {
            if (error.javaClass != TransferError::class.java) throw error
            sent(message, untilNs)
        }
        check(response, request, metadata)
        return response
    }

    private fun sent(message: EncodedMessage, untilNs: Long): InferResponse =
        transport.send("POST", "$url/infer", message.headers, message.body, left(untilNs), maxReplyBytes) { reply ->
            requireSuccess(reply, "inference by the model $model")
            decodeResponse(readAll(reply), headerLength(reply))
        }

    private fun <T> get(url: String, untilNs: Long, what: String, decode: (JsonPlace) -> T): T {
        val data = transport.get(url, deadlines = left(untilNs), maxBytes = MAX_METADATA_BYTES) { reply ->
            requireSuccess(reply, what)
            readAll(reply)
        }
        return try {
            decode(decodeJson(data))
        } catch (error: JsonError) {
            throw ProtocolError("$what: ${error.message}", cause = error)
        }
    }

    private fun untilNs(timeoutS: Double): Long = clock() + (timeoutS * NANOSECONDS_PER_S).toLong()

    private fun left(untilNs: Long): Deadlines {
        val leftS = (untilNs - clock()) / NANOSECONDS_PER_S
        if (leftS <= 0) throw DeadlineError("no time is left for the request")
        return Deadlines(idleS = leftS, totalS = leftS)
    }

    private fun check(response: InferResponse, request: InferRequest, metadata: ModelMetadata) {
        if (response.id != request.id) throw ProtocolError("the reply answers another request")
        if (response.modelName != model) {
            throw ProtocolError("the reply comes from another model, ${shown(response.modelName)}")
        }
        val version = response.modelVersion.orEmpty()
        if (version.isNotEmpty() && metadata.versions.isNotEmpty() && version !in metadata.versions) {
            throw ProtocolError("the reply comes from another version, '${version.take(SHOWN_CHARACTERS)}'")
        }
        checkOutputs(response.outputs, metadata.outputs)
        val batches = batches(request.inputs, metadata.inputs) + batches(response.outputs, metadata.outputs)
        if (batches.size > 1) throw ProtocolError("request and reply have different batch sizes: ${batches.sorted()}")
    }
}

private fun modelMetadata(reply: JsonPlace): ModelMetadata {
    fun tensors(place: JsonPlace) = place.items().map { one ->
        val shape = one["shape"].items().map { it.whole(Int.MIN_VALUE.toLong(), Int.MAX_VALUE.toLong()).toInt() }
        TensorMetadata(one["name"].text(), one["datatype"].text(), shape)
    }
    val own = reply.nullable("pathweave")
    return ModelMetadata(
        tensors(reply["inputs"]),
        tensors(reply["outputs"]),
        reply.nullable("versions")?.items().orEmpty().map { it.text() },
        own?.nullable("class_names")?.items()?.map { it.text() },
        own?.nullable("bundle")?.text(),
        task = own?.nullable("task")?.text(),
        content = own?.nullable("content")?.text(),
    )
}

private fun checkOutputs(outputs: List<NamedTensor>, announced: List<TensorMetadata>) {
    val expected = announced.associateBy { it.name }
    if (outputs.map { it.name }.toSet() != expected.keys) {
        throw ProtocolError("the reply has other outputs than the model")
    }
    for (tensor in outputs) {
        val known = expected.getValue(tensor.name)
        if (!known.fits(tensor)) {
            throw ProtocolError(
                "output ${tensor.name} is ${tensor.datatype} ${tensor.shape}, not as in the metadata " +
                    "${known.datatype} ${known.shape}",
            )
        }
        if (!tensor.isFinite()) throw ProtocolError("output ${tensor.name} holds NaN or infinity")
    }
}

private fun batches(tensors: List<NamedTensor>, announced: List<TensorMetadata>): Set<Int> {
    val names = announced.filter { it.shape.firstOrNull() == -1 }.map { it.name }
    return tensors.filter { it.name in names && it.shape.isNotEmpty() }.map { it.shape[0] }.toSet()
}

private fun headerLength(reply: Reply): Int? {
    val text = reply.header(HEADER_LENGTH) ?: return null
    if (!LENGTH.matches(text)) throw ProtocolError("$HEADER_LENGTH is '${text.take(40)}'")
    return text.toInt()
}

/** [text] as one segment of a path: all but letters, digits and `-._~` percent-encoded. */
internal fun quoted(text: String): String = text.toByteArray().joinToString("") { byte ->
    val sign = (byte.toInt() and 0xff).toChar()
    val plain = sign in 'a'..'z' || sign in 'A'..'Z' || sign in '0'..'9' || sign in "-._~"
    if (plain) sign.toString() else "%%%02X".format(byte)
}
