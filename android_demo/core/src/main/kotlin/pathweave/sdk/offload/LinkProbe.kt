/**
 * Small requests that keep an estimate of the way to a server up to date while nothing else is sent. Mirrors
 * device_sdk/offload/link_estimate.py and the probes of server_facts.py.
 */
package pathweave.sdk.offload

import pathweave.sdk.Clock
import pathweave.sdk.PathweaveError
import pathweave.sdk.numerics.median
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.transports.Deadlines
import pathweave.sdk.transports.HttpTransport
import pathweave.sdk.transports.Transport
import pathweave.sdk.transports.base
import pathweave.sdk.transports.readAll
import pathweave.sdk.transports.requireSuccess

private const val NANOSECONDS_PER_S = 1e9
private const val TIMEOUT_S = 1.5
private const val LARGE_S = 0.2 // that the larger probe may take by the estimate
private const val LEAST_BYTES = 500
private const val MOST_BYTES = 32_000
private const val REPLY_MAX_BYTES = 1_000L
private const val BITS_PER_BYTE = 8
private const val MEGA = 1e6
private const val ROUNDS = 9
private const val LEAST_S = 1e-6
private val MEASURING = Deadlines(idleS = 30.0, totalS = 60.0)

/** Sends two probes of different sizes to the server of [model] whenever it is called, and tells [link] what they took. */
internal class LinkProbe(
    private val model: RemoteModel,
    private val link: LinkEstimate,
    private val transport: Transport = HttpTransport(model.token),
    private val clock: Clock = System::nanoTime,
) {
    /** Probe once; a failure is told too, and never thrown. */
    operator fun invoke() {
        try {
            for (sizeBytes in listOf(1, largeBytes())) {
                link.record(sizeBytes.toLong(), probe(transport, model.server, sizeBytes, Deadlines(TIMEOUT_S, TIMEOUT_S), clock))
            }
        } catch (_: PathweaveError) {
            link.failed()
        }
    }

    private fun largeBytes(): Int {
        val most = link.uplink?.let { it.mbps * MEGA / BITS_PER_BYTE * LARGE_S } ?: LEAST_BYTES.toDouble()
        return most.coerceIn(LEAST_BYTES.toDouble(), MOST_BYTES.toDouble()).toInt()
    }
}

/**
 * Send [sizeBytes] to the [server] and have their arrival confirmed; the seconds that it took.
 *
 * @throws TransferError no confirmation in time.
 */
internal fun probe(transport: Transport, server: String, sizeBytes: Int, deadlines: Deadlines, clock: Clock): Double {
    val startedNs = clock()
    transport.send("POST", "${base(server)}/v1/probe", emptyMap(), ByteArray(sizeBytes), deadlines, REPLY_MAX_BYTES) {
        requireSuccess(it, "a probe")
        readAll(it)
    }
    return (clock() - startedNs) / NANOSECONDS_PER_S
}

/**
 * Bandwidth and round-trip time to the [server], from the medians of probes of two sizes.
 *
 * @throws TransferError a probe failed.
 */
internal fun measureUplink(transport: Transport, server: String, clock: Clock = System::nanoTime): Uplink {
    fun once(sizeBytes: Int) = probe(transport, server, sizeBytes, MEASURING, clock)
    once(1) // opens the connection
    val smallS = median(List(ROUNDS) { once(1) })
    val largeS = median(List(ROUNDS) { once(MOST_BYTES) })
    val seconds = maxOf(largeS - smallS, LEAST_S)
    return Uplink(BITS_PER_BYTE * (MOST_BYTES - 1) / seconds / MEGA, smallS * 1e3)
}
