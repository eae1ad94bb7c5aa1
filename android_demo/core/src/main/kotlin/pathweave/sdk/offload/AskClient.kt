/** Escalation of hard samples to a server's model; after a failure or time-out the device's result is used. */
package pathweave.sdk.offload

import java.io.Closeable
import pathweave.sdk.Clock
import pathweave.sdk.InputError
import pathweave.sdk.UsageError
import pathweave.sdk.data.AnyPreprocessing
import pathweave.sdk.data.Image
import pathweave.sdk.data.RawImages
import pathweave.sdk.data.RawSamples
import pathweave.sdk.data.RawTexts
import pathweave.sdk.data.fitted
import pathweave.sdk.data.kinds.TextPreprocessing
import pathweave.sdk.data.kinds.lengthened
import pathweave.sdk.data.prepare
import pathweave.sdk.data.resized
import pathweave.sdk.data.unprepare
import pathweave.sdk.numerics.DType
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.transports.HttpTransport
import pathweave.sdk.transports.Transport

private const val NANOSECONDS_PER_S = 1e9

/** Told of what requests take. */
internal interface RequestListener {
    /** A request of [sizeBytes] with so many [samples] got its answer after [seconds]. */
    fun answered(sizeBytes: Long, samples: Int, seconds: Double)

    /** A call got no answer. */
    fun failed()
}

/**
 * Runs samples on the server's [model]. Never throws, never exceeds the time-out. Thread-safe.
 *
 * Before the first request, and after any failure, the server model's metadata is compared with the [device]'s model.
 * [listener] is told of every request that got an answer, and of every call without one.
 */
internal class AskClient(
    val model: RemoteModel,
    private val device: DeviceModel,
    private val listener: RequestListener? = null,
    transport: Transport = HttpTransport(model.token, model.server),
    private val clock: Clock = System::nanoTime,
    breaker: CircuitBreaker = CircuitBreaker(clock),
) : Closeable {
    private val client = makeClient(model, transport, device.outputShape, clock)
    private val calls = RemoteCalls(model.timeoutS, clock, breaker)
    private val overheadBytes = requestOverheadBytes(model.model)

    @Volatile
    private var agreement: Agreement? = null

    /**
     * The server's outputs [n, *output] for all samples, or the reason of the failure.
     *
     * [tensors]: prepared, [n, *input]; [raw]: the same samples as pixels or texts. Where they are null, or images of
     * several sizes, and the server takes images, pixels are recovered from the tensors. Tensors of a plan with another
     * input size are prepared again from images; tokens are padded. More than `maxBatch` samples are sent in several
     * requests; if one fails, all do. [digest]: of the bundle that the server's model must come from; empty for any.
     */
    fun answer(tensors: Tensor, raw: RawSamples?, digest: String = ""): RemoteReply {
        if (model.privacy != Privacy.INPUTS) return RemoteReply(null, "the privacy setting is ${model.privacy}")
        if (calls.closed) return RemoteReply(null, "it was closed")
        val own = try {
            atOwnSize(tensors, raw)
        } catch (error: InputError) {
            return RemoteReply(null, error.message)
        }
        unfit(own)?.let { return RemoteReply(null, it) }
        val sent = raw?.takeIf { it.count == own.batch && !isOfSeveralSizes(it) }
        val reply = calls.run { untilNs -> ask(own, sent, digest, untilNs) }
        if (reply.output == null) {
            agreement = null
            listener?.failed()
        }
        return reply
    }

    /** Whether the server would be asked now: not while it is left alone after failures. */
    val ready: Boolean get() = calls.ready

    /** Ask again now, although the last calls failed: the server was seen to answer. */
    fun tryAgain(): Unit = calls.tryAgain()

    /** What a request with these samples takes on the wire, once the model's metadata is known; else 0. */
    fun requestBytes(tensors: Tensor, raw: RawSamples?): Long {
        val agreed = agreement ?: return 0L
        return filled(agreed, tensors, raw).sizeBytes + overheadBytes
    }

    /** Of the bundle that the server's model comes from; empty if it states none, or before the first request. */
    val digest: String get() = agreement?.metadata?.bundle.orEmpty()

    /** Send nothing from now on. Idempotent. */
    override fun close(): Unit = calls.close()

    private fun atOwnSize(tensors: Tensor, raw: RawSamples?): Tensor {
        if (tensors.shape.drop(1) == device.inputShape) return tensors
        val texts = device.preprocessing as? TextPreprocessing
        return when {
            texts != null && tensors.shape.size == 3 && tensors.shape[2] < texts.maxTokens -> lengthened(tensors, texts)
            raw is RawImages -> prepare(raw.images, device.preprocessing.ofImages(), device.inputShape)
            else -> tensors
        }
    }

    private fun isOfSeveralSizes(raw: RawSamples) = raw is RawImages && raw.images.map { it.size }.distinct().size != 1

    /** The local reason not to send these samples, or null. */
    private fun unfit(tensors: Tensor): String? {
        val shape = tensors.shape.drop(1)
        if (shape != device.inputShape) return "the tensors are $shape, not ${device.inputShape}"
        return if (tensors.dtype == DType.INT64 || tensors.floats().all { it.isFinite() }) null else "the tensors hold NaN or infinity"
    }

    /** In the call's thread: 1 compare the metadata, 2 send the samples in batches, 3 concatenate the logits. */
    private fun ask(tensors: Tensor, raw: RawSamples?, digest: String, untilNs: Long): Tensor {
        val agreed = agreed(untilNs) // 1
        if (digest.isNotEmpty() && agreed.metadata.bundle != digest) {
            throw UsageError(
                "the server's ${model.model} is not the one that the plan was made for",
                "calibrate again with this server",
            )
        }
        val logits = (0 until tensors.batch).chunked(model.maxBatch).map { batch -> // 2
            val input = filled(agreed, tensors.rows(batch), raw?.at(batch))
            val (leftS, startedNs) = calls.leftS(untilNs) to clock()
            val response = client.infer(listOf(input), leftS, agreed.metadata)
            val seconds = (clock() - startedNs) / NANOSECONDS_PER_S
            val found = checkedLogits(response.outputs[0], batch.size, device.outputShape)
            listener?.answered(input.sizeBytes + overheadBytes, batch.size, seconds)
            Tensor.of(found, listOf(batch.size) + device.outputShape)
        }
        return logits.singleOrNull() ?: Tensor.joined(logits) // 3
    }

    private fun filled(agreed: Agreement, tensors: Tensor, raw: RawSamples?): NamedTensor {
        val encode = model.jpegEncoder?.let { encoder -> { image: Image -> encoder.encode(image, model.jpegQuality) } }
        return filled(agreed, tensors, raw, device.preprocessing, encode)
    }

    private fun agreed(untilNs: Long): Agreement {
        agreement?.let { return it }
        val found = agree(client.metadata(calls.leftS(untilNs)), device)
        calls.leftS(untilNs) // throws if the deadline passed, so that a late result is not kept
        return found.also { agreement = it }
    }
}

/** Bytes that the protocol adds to the values of a request for [model]. */
internal fun requestOverheadBytes(model: String): Long {
    val input = NamedTensor("activations", Datatype.UINT8, listOf(1, 0), ByteArray(0))
    val message = encodeRequest(InferRequest(listOf(input), listOf(RequestedOutput("logits", true)), "0".repeat(32)))
    val lines = message.headers.entries.sumOf { (name, value) -> "$name: $value\r\n".length }
    return (message.body.size + lines + "/v2/models/${quoted(model)}/infer".length).toLong()
}

private const val JPEG = "image/jpeg"
private const val TEXT = "text/plain; charset=utf-8"
private const val NEEDS_TEXTS = "call the model with texts"
private const val MAX_SENT_SIDE = 1024 // pixels; limit of the size to which a server can make a device resize images
private const val NEEDS_ENCODER = "give the RemoteModel a jpegEncoder, or name another model of the server"
private val RESIZABLE = setOf(1, 3) // channels
private val FRACTIONS = setOf("FP16", "FP32", "FP64")

/** What the device's model takes and gives, without the batch: [inputShape] [c, h, w] for images. */
internal class DeviceModel(
    val classNames: List<String>,
    val inputShape: List<Int>,
    val outputShape: List<Int>,
    val preprocessing: AnyPreprocessing,
    val task: String = "classification",
    val inputType: DType = DType.FLOAT32,
)

internal enum class SentAs {
    IMAGES, // raw pixels
    TENSORS, // prepared
    JPEG,
    TEXTS,
    ;

    override fun toString(): String = name.lowercase()
}

internal class Agreement(val sends: SentAs, val metadata: ModelMetadata) {
    /** The model's only input. */
    val input: TensorMetadata get() = metadata.inputs[0]
}

/**
 * What to send to the model of [metadata]: images, tensors, JPEGs or texts, whichever it takes.
 *
 * @throws UsageError classes, task, input or output are not those of the [device]; the message says which.
 */
internal fun agree(metadata: ModelMetadata, device: DeviceModel): Agreement {
    val (wanted, output) = onlyOnes(metadata)
    if (metadata.task != null && metadata.task != device.task) {
        throw misfit("it is for ${metadata.task.take(40)}, the device's model for ${device.task}")
    }
    if (metadata.classNames != null && metadata.classNames != device.classNames) {
        throw misfit("its classes are not the device's")
    }
    if (output.datatype !in FRACTIONS || !isBatchOf(device.outputShape, output.shape)) {
        throw misfit("its output is ${output.datatype} ${output.shape}, the device's is ${device.outputShape}")
    }
    val channels = device.inputShape.first().takeIf { device.inputShape.size == 3 }
    if (wanted.datatype == "UINT8" && channels != null && takesImages(wanted.shape, channels)) {
        return Agreement(SentAs.IMAGES, metadata)
    }
    val type = if (device.inputType == DType.INT64) "INT64" else "FP32"
    if (wanted.datatype == type && isBatchOf(device.inputShape, wanted.shape)) return Agreement(SentAs.TENSORS, metadata)
    if (takes(JPEG, metadata) && channels in RESIZABLE) return Agreement(SentAs.JPEG, metadata)
    if (takes(TEXT, metadata) && device.preprocessing is TextPreprocessing) return Agreement(SentAs.TEXTS, metadata)
    throw misfit("its input is ${wanted.datatype} ${wanted.shape}, the device's ${device.inputShape}")
}

private fun onlyOnes(metadata: ModelMetadata): Pair<TensorMetadata, TensorMetadata> {
    val (inputs, outputs) = metadata.inputs.size to metadata.outputs.size
    if (inputs != 1 || outputs != 1) throw misfit("it has $inputs inputs and $outputs outputs, not one and one")
    return metadata.inputs[0] to metadata.outputs[0]
}

/**
 * The samples as the model's input tensor; JPEGs have the height and width of [tensors] and are made by [jpeg].
 *
 * [tensors]: prepared, [n, ...]; [raw]: the same samples before, images all of one size, or null to recover pixels.
 *
 * @throws InputError the pixels cannot be recovered or resized, or texts are to be sent and only their tokens are known.
 * @throws UsageError JPEGs are sent, and there is no encoder.
 */
internal fun filled(
    agreement: Agreement,
    tensors: Tensor,
    raw: RawSamples?,
    preprocessing: AnyPreprocessing,
    jpeg: ((Image) -> ByteArray)? = null,
): NamedTensor {
    val input = agreement.input
    if (agreement.sends == SentAs.TENSORS) {
        val exact = tensors.dtype == DType.FLOAT32 || tensors.dtype == DType.INT64
        return NamedTensor.of(input.name, if (exact) tensors else Tensor.of(tensors.floats(), tensors.shape))
    }
    if (agreement.sends == SentAs.TEXTS) {
        val texts = raw as? RawTexts
            ?: throw InputError("the server takes texts, and only their tokens are at hand", NEEDS_TEXTS)
        return NamedTensor.of(input.name, texts.texts.map { it.toByteArray() })
    }
    val given = (raw as? RawImages)?.images ?: unprepare(tensors, preprocessing.ofImages())
    if (agreement.sends == SentAs.JPEG) {
        val encode = jpeg ?: throw UsageError("the server's model takes JPEGs, and there is no encoder", NEEDS_ENCODER)
        val size = SampleSize(tensors.shape[2], tensors.shape[3])
        return NamedTensor.of(input.name, given.map { encode(fitted(it, preprocessing.ofImages(), size)) })
    }
    val pixels = given.map { fitted(it, input.shape) }
    val (size, channels) = pixels[0].size to pixels[0].channels
    val data = ByteArray(pixels.sumOf { it.pixels.size })
    pixels.forEachIndexed { number, image -> image.pixels.copyInto(data, number * image.pixels.size) }
    return NamedTensor(input.name, Datatype.UINT8, listOf(pixels.size, size.height, size.width, channels), data)
}

/** [image] at the height and width of [shape] [-1, h, w, c], in which -1 is any. */
private fun fitted(image: Image, shape: List<Int>): Image {
    val (height, width) = image.size
    val size = SampleSize(if (shape[1] == -1) height else shape[1], if (shape[2] == -1) width else shape[2])
    if (image.size == size) return image
    if (image.channels !in RESIZABLE) {
        throw InputError("the server needs images ${shape.drop(1)}; these cannot be resized: ${image.size}")
    }
    return resized(image, size)
}

/** Whether the input is a batch of byte strings of this media type, and the server reads bytes. */
private fun takes(content: String, metadata: ModelMetadata): Boolean {
    val wanted = metadata.inputs[0]
    return wanted.datatype == "BYTES" && wanted.shape == listOf(-1) && metadata.content == content && metadata.binary
}

/** Whether [shape] is [-1, h, w, c] with sides of at most [MAX_SENT_SIDE]. */
private fun takesImages(shape: List<Int>, channels: Int): Boolean =
    shape.size == 4 && shape[0] == -1 && (shape[3] == -1 || shape[3] == channels) &&
        shape.subList(1, 3).all { it == -1 || it in 1..MAX_SENT_SIDE }

private fun isBatchOf(shape: List<Int>, wanted: List<Int>): Boolean =
    wanted.firstOrNull() == -1 && sidesFit(shape, wanted.drop(1))

private fun misfit(why: String) =
    UsageError("the server's model does not fit: $why", "name another model of the server")

/** Suffix of the bundle's name in the name of the model that runs tails. */
public const val TAIL: String = ":tail"

private val PACKET_SHAPE = listOf(1, -1) // one packet of any length: not a batch

internal fun runsTails(model: String): Boolean = model.endsWith(TAIL)

/**
 * Runs tails of [bundle] (its digest) at a server. Never throws, never exceeds the time-out.
 *
 * [version]: of the bundle: a server in a rollout has several. [outputShape]: of the bundle's output, without the batch.
 */
internal class TailClient(
    val model: RemoteModel,
    private val bundle: String,
    private val outputShape: List<Int>,
    version: Long? = null,
    transport: Transport = HttpTransport(model.token, model.server),
    clock: Clock = System::nanoTime,
    breaker: CircuitBreaker = CircuitBreaker(clock),
) : Closeable {
    private val client = makeClient(model, transport, outputShape, clock, version)
    private val calls = RemoteCalls(model.timeoutS, clock, breaker)

    @Volatile
    private var metadata: ModelMetadata? = null

    /**
     * The output [batch, *output] of the tail of [activations], or the reason of the failure.
     *
     * [bits]: of the values of each tensor on the way; by default 8. [perChannel], [compress]: as for [pack].
     */
    fun run(
        activations: Activations,
        bits: List<Int>? = null,
        perChannel: Boolean = false,
        compress: Boolean = false,
    ): RemoteReply {
        if (!model.privacy.allows(activations.position)) {
            val sent = if (activations.position == 0) "the input" else "activations"
            return RemoteReply(null, "the privacy setting ${model.privacy} forbids to send $sent")
        }
        val reply = calls.run { untilNs ->
            ask(activations.tensors[0].batch, untilNs) { pack(activations, bits, perChannel, compress) }
        }
        if (reply.output == null) metadata = null
        return reply
    }

    /** Whether the server would be asked now: not while it is left alone after failures. */
    val ready: Boolean get() = calls.ready

    /** Send nothing from now on. Idempotent. */
    override fun close(): Unit = calls.close()

    private fun ask(samples: Int, untilNs: Long, packed: () -> ByteArray): Tensor {
        val metadata = fitting(untilNs)
        val packet = packed()
        val input = NamedTensor(metadata.inputs[0].name, Datatype.UINT8, listOf(1, packet.size), packet)
        val response = client.infer(listOf(input), calls.leftS(untilNs), metadata)
        return Tensor.of(checkedLogits(response.outputs[0], samples, outputShape), listOf(samples) + outputShape)
    }

    /** The metadata of the server's model, checked to run tails of this bundle. */
    private fun fitting(untilNs: Long): ModelMetadata {
        metadata?.let { return it }
        val found = client.metadata(calls.leftS(untilNs))
        if (found.bundle != bundle) {
            throw UsageError("the server has another version of the bundle", "fetch the bundle again")
        }
        val inputs = found.inputs.map { it.datatype to it.shape }
        if (inputs != listOf("UINT8" to PACKET_SHAPE) || found.outputs.size != 1) {
            throw UsageError("the server's model does not run tails", "its name ends in $TAIL")
        }
        return found.also { metadata = it }
    }
}
