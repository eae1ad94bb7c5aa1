/**
 * The server runs the rest of a path on activations that the device sends (Auto-Split §3). Mirrors
 * device_sdk/offload/tail.py.
 */
package pathweave.sdk.offload

import java.io.Closeable
import pathweave.sdk.Clock
import pathweave.sdk.UsageError
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.transports.HttpTransport
import pathweave.sdk.transports.Transport

/** Suffix of the bundle's name in the name of the model that runs tails. */
public const val TAIL: String = ":tail"

private val PACKET_SHAPE = listOf(1, -1) // one packet of any length: not a batch

/** Whether a model of this name at a server runs tails. */
internal fun runsTails(model: String): Boolean = model.endsWith(TAIL)

/**
 * Runs tails of [bundle] (its digest) at a server. Never throws, never exceeds the time-out.
 *
 * [outputShape]: of the bundle's output, without the batch.
 */
internal class TailClient(
    val model: RemoteModel,
    private val bundle: String,
    private val outputShape: List<Int>,
    transport: Transport = HttpTransport(model.token),
    clock: Clock = System::nanoTime,
    breaker: CircuitBreaker = CircuitBreaker(clock),
) : Closeable {
    private val client = makeClient(model, transport, outputShape, clock)
    private val calls = RemoteCalls(model.timeoutS, clock, breaker)

    @Volatile
    private var metadata: ModelMetadata? = null

    /**
     * The output [batch, *output] of the tail of [activations], or the reason of the failure.
     *
     * [bits]: of the values of each tensor on the way; by default 8.
     */
    fun run(activations: Activations, bits: List<Int>? = null): RemoteReply {
        if (!model.privacy.allows(activations.position)) {
            val sent = if (activations.position == 0) "the input" else "activations"
            return RemoteReply(null, "the privacy setting ${model.privacy} forbids to send $sent")
        }
        val reply = calls.run { untilNs -> ask(activations, bits, untilNs) }
        if (reply.output == null) metadata = null
        return reply
    }

    /** Whether the server would be asked now: not while it is left alone after failures. */
    val ready: Boolean get() = calls.ready

    /** Send nothing from now on. Idempotent. */
    override fun close(): Unit = calls.close()

    private fun ask(activations: Activations, bits: List<Int>?, untilNs: Long): Tensor {
        val metadata = fitting(untilNs)
        val packet = pack(activations, bits)
        val input = NamedTensor(metadata.inputs[0].name, Datatype.UINT8, listOf(1, packet.size), packet)
        val response = client.infer(listOf(input), calls.leftS(untilNs), metadata)
        val samples = activations.tensors[0].batch
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
