/**
 * Escalation of hard samples to a server's model; after a failure or time-out the device's result is used. Mirrors
 * device_sdk/offload/escalation.py.
 */
package pathweave.sdk.offload

import java.io.Closeable
import pathweave.sdk.Clock
import pathweave.sdk.InputError
import pathweave.sdk.UsageError
import pathweave.sdk.data.Image
import pathweave.sdk.data.prepare
import pathweave.sdk.numerics.Tensor
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
internal class Escalator(
    val model: RemoteModel,
    private val device: DeviceModel,
    private val listener: RequestListener? = null,
    transport: Transport = HttpTransport(model.token),
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
     * [tensors]: prepared, [n, *input]; [images]: the same samples as raw pixels. Where they are null or of several sizes,
     * and the server takes images, pixels are recovered from the tensors. Tensors of a plan with another input size are
     * prepared again from the images. More than `maxBatch` samples are sent in several requests; if one fails, all do.
     * [digest]: of the bundle that the server's model must come from; empty for any.
     */
    fun answer(tensors: Tensor, images: List<Image>?, digest: String = ""): RemoteReply {
        if (model.privacy != Privacy.INPUTS) return RemoteReply(null, "the privacy setting is ${model.privacy}")
        if (calls.closed) return RemoteReply(null, "it was closed")
        val own = try {
            preparedAgain(tensors, images)
        } catch (error: InputError) {
            return RemoteReply(null, error.message)
        }
        unfit(own)?.let { return RemoteReply(null, it) }
        val pixels = images?.takeIf { all -> all.size == own.batch && all.map { it.size }.distinct().size == 1 }
        val reply = calls.run { untilNs -> ask(own, pixels, digest, untilNs) }
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
    fun requestBytes(tensors: Tensor, images: List<Image>?): Long {
        val agreed = agreement ?: return 0L
        return filled(agreed, tensors, images).sizeBytes + overheadBytes
    }

    /** Of the bundle that the server's model comes from; empty if it states none, or before the first request. */
    val digest: String get() = agreement?.metadata?.bundle.orEmpty()

    /** Send nothing from now on. Idempotent. */
    override fun close(): Unit = calls.close()

    private fun preparedAgain(tensors: Tensor, images: List<Image>?): Tensor {
        if (images == null || tensors.shape.drop(1) == device.inputShape) return tensors
        return prepare(images, device.preprocessing, device.inputShape)
    }

    /** The local reason not to send these samples, or null. */
    private fun unfit(tensors: Tensor): String? {
        val shape = tensors.shape.drop(1)
        if (shape != device.inputShape) return "the tensors are $shape, not ${device.inputShape}"
        return if (tensors.floats().all { it.isFinite() }) null else "the tensors hold NaN or infinity"
    }

    /** In the call's thread: 1 compare the metadata, 2 send the samples in batches, 3 concatenate the logits. */
    private fun ask(tensors: Tensor, images: List<Image>?, digest: String, untilNs: Long): Tensor {
        val agreed = agreed(untilNs) // 1
        if (digest.isNotEmpty() && agreed.metadata.bundle != digest) {
            throw UsageError(
                "the server's ${model.model} is not the one that the plan was made for",
                "calibrate again with this server",
            )
        }
        val logits = (0 until tensors.batch).chunked(model.maxBatch).map { batch -> // 2
            val input = filled(agreed, tensors.rows(batch), images?.slice(batch))
            val (leftS, startedNs) = calls.leftS(untilNs) to clock()
            val response = client.infer(listOf(input), leftS, agreed.metadata)
            val seconds = (clock() - startedNs) / NANOSECONDS_PER_S
            val found = checkedLogits(response.outputs[0], batch.size, device.outputShape)
            listener?.answered(input.sizeBytes + overheadBytes, batch.size, seconds)
            Tensor.of(found, listOf(batch.size) + device.outputShape)
        }
        return logits.singleOrNull() ?: Tensor.joined(logits) // 3
    }

    private fun filled(agreed: Agreement, tensors: Tensor, images: List<Image>?): NamedTensor {
        val encode = model.jpegEncoder?.let { encoder -> { image: Image -> encoder.encode(image, model.jpegQuality) } }
        return filled(agreed, tensors, images, device.preprocessing, encode)
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
