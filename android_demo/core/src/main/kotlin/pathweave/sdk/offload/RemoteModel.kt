/** A model at a server, and the privacy setting for it. */
package pathweave.sdk.offload

import kotlin.math.sqrt
import pathweave.sdk.Clock
import pathweave.sdk.PathweaveError
import pathweave.sdk.UsageError
import pathweave.sdk.data.Image
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.median
import pathweave.sdk.numerics.percentile
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.supernet.ease
import pathweave.sdk.supernet.hardSamples
import pathweave.sdk.transports.Deadlines
import pathweave.sdk.transports.HttpTransport
import pathweave.sdk.transports.Transport
import pathweave.sdk.transports.base
import pathweave.sdk.transports.readAll
import pathweave.sdk.transports.requireSuccess

private const val MAX_TIMEOUT_S = 3600.0
private const val JPEG_QUALITY = 90
private val JPEG_QUALITIES = 1..95

/** What may be sent to a server, from nothing to the samples themselves. As text `never`, `activations`, `inputs`. */
public enum class Privacy {
    NEVER,

    /** Intermediate activations, not the samples. */
    ACTIVATIONS,

    /** The samples too. */
    INPUTS,
    ;

    override fun toString(): String = name.lowercase()

    /** Whether activations at cut point [position] may be sent; those at 0 are the samples. */
    internal fun allows(position: Int): Boolean = this == INPUTS || this == ACTIVATIONS && position > 0
}

/**
 * Encodes images as JPEGs: Android and the desktop have an encoder each, and share none. Called from several threads.
 */
public fun interface JpegEncoder {
    /** [image], of 1 or 3 channels, as a JPEG of this [quality], 1 to 95. */
    public fun encode(image: Image, quality: Int): ByteArray
}

/**
 * A model at a server, and what may be sent to it.
 *
 * [server]: the URL before `/v2`. [timeoutS]: for all samples of a call together. [maxBatch]: samples per request.
 * [jpegQuality]: 1 to 95, for a model that takes JPEGs (`NAME:jpeg`), which [jpegEncoder] makes; the accuracy of a plan
 * holds for the quality, and the encoder, with which it was measured. [pool]: how its answers to hard samples are pooled
 * with the device's own; null: they replace them. [share]: of the samples that reach the end of a plan that asks, kept
 * by moving its decider's limit; null: the limit stays.
 *
 * @throws UsageError a value is out of range.
 */
public class RemoteModel(
    public val server: String,
    public val model: String,
    internal val token: String? = null,
    public val privacy: Privacy = Privacy.NEVER,
    public val timeoutS: Double = 1.0,
    public val maxBatch: Int = 64,
    public val jpegQuality: Int = JPEG_QUALITY,
    public val jpegEncoder: JpegEncoder? = null,
    public val pool: LogarithmicPool? = null,
    public val share: Double? = null,
) {
    init {
        if (server.isEmpty() || model.isEmpty()) {
            throw UsageError("a remote model needs a server and the name of a model there")
        }
        if (!(timeoutS > 0 && timeoutS <= MAX_TIMEOUT_S)) {
            throw UsageError("timeoutS is $timeoutS; it must be above 0 and at most ${MAX_TIMEOUT_S.toInt()}")
        }
        if (share != null && !(share in 0.0..1.0)) throw UsageError("the share $share is not between 0 and 1")
        if (jpegQuality !in JPEG_QUALITIES) throw UsageError("the JPEG quality is $jpegQuality; it must be from 1 to 95")
        if (maxBatch < 1) throw UsageError("maxBatch is $maxBatch; it must be at least 1")
    }

    override fun toString(): String = "RemoteModel($model at $server, privacy $privacy)" // without the token
}

/**
 * Logits of the device and of a server on the same samples, weighed and added: a product of powers of both
 * distributions. Mirrors device_sdk/offload/pooling.py.
 *
 * Each weight holds its network's temperature and how much it counts. Source: logarithmic opinion pools (Genest and
 * Zidek 1986).
 *
 * @throws UsageError a weight is negative or not finite, or both are 0.
 */
public data class LogarithmicPool(public val device: Double, public val server: Double) {
    init {
        if (listOf(device, server).any { !(it.isFinite() && it >= 0) } || device + server == 0.0) {
            throw UsageError("a pool's weights are $device and $server: none may be below 0, and not both 0")
        }
    }

    /** Logits [batch, classes] of both -> theirs together, [batch, classes]. */
    internal fun pooled(device: Tensor, server: Tensor): Tensor {
        val (own, other) = device.floats() to server.floats()
        val found = FloatArray(own.size) { (this.device * own[it] + this.server * other[it]).toFloat() }
        return Tensor.of(found, device.shape)
    }
}

private const val REMEMBERED = 4096 // eases
private const val FEWEST = 64 // below, they say less than the limit that was calibrated
private const val HORIZON = 128 // samples over which what was asked too much or too little is made up for

/**
 * Which samples are hard, so that [share] of all of them are. Thread-safe.
 *
 * A sample is hard if its ease lies below a quantile of the eases seen last, its own batch's among them. The quantile is
 * the share, plus what was asked too little so far over [HORIZON] samples. No labels are needed. Logits that are no
 * answer are hard.
 */
internal class AskedShare(private val share: Double) {
    private var decider: Decider? = null // guarded by this, as all that follows
    private var eases = DoubleArray(0)
    private var owed = 0.0 // samples

    /** Which samples are hard: logits [batch, classes] -> [batch]. Another decider begins anew. */
    fun hard(decider: Decider, logits: Tensor): List<Boolean> {
        val found = ease(decider, logits)
        return synchronized(this) {
            if (decider != this.decider) {
                this.decider = decider
                eases = DoubleArray(0)
                owed = 0.0
            }
            val known = found.filter { it.isFinite() }
            eases = (eases + known).let { it.copyOfRange(maxOf(0, it.size - REMEMBERED), it.size) }
            val limit = limit()
            val hard = if (eases.size < FEWEST) hardSamples(decider, logits) else found.map { !it.isFinite() || it < limit }
            owed += share * found.size - hard.count { it }
            hard
        }
    }

    private fun limit(): Double {
        val share = share + owed / HORIZON
        if (share <= 0 || eases.isEmpty()) return Double.NEGATIVE_INFINITY
        return if (share >= 1) Double.POSITIVE_INFINITY else percentile(eases.sorted(), share)
    }
}

private const val NANOSECONDS_PER_S = 1e9
private const val KEPT = 64 // observations
private const val OLDEST_S = 1.5 // older ones do not count
private const val LEAST = 2 // the last ones always count
private const val FAILURES = 2 // in a row: then the server is out of reach
private const val SAME_CHANGE = 0.003 // weight of "bandwidth and round trip changed alike", against an observation's 1
private const val MOST_CHANGE = 1e6 // of what is estimated, in either direction
private const val LEAST_TRIP_MS = 0.05
private const val LEAST_SHARE = 0.05 // of a request's time that is its transfer
private const val MS_PER_S = 1e3

private class Observation(val atNs: Long, val sizeBytes: Long, val transferMs: Double)

/**
 * Bandwidth and round trip of an uplink, [known] before, by what requests take. Thread-safe.
 *
 * Requests of one size cannot tell the two apart: then both are taken to have changed by the same factor. Requests or
 * probes of several sizes tell. Two failures in a row put the server out of reach until a request succeeds.
 */
public class LinkEstimate(private val known: Uplink, private val clock: Clock = System::nanoTime) {
    private val seen = ArrayDeque<Observation>() // guarded by this, as what follows
    private var failures = 0
    private var lastNs: Long? = null

    /** A request of [sizeBytes] was answered after [seconds]; [serverMs] of them the server worked. */
    public fun record(sizeBytes: Long, seconds: Double, serverMs: Double = 0.0) {
        val transferMs = maxOf(MS_PER_S * seconds - serverMs, LEAST_SHARE * MS_PER_S * seconds)
        if (!(transferMs.isFinite() && transferMs > 0)) return // a clock that was set back
        synchronized(this) {
            val nowNs = clock()
            failures = 0
            lastNs = nowNs
            if (seen.size == KEPT) seen.removeFirst()
            seen += Observation(nowNs, maxOf(sizeBytes, 1L), transferMs)
        }
    }

    /** A request was not answered in time, or could not be sent. */
    public fun failed(): Unit = synchronized(this) {
        failures++
        lastNs = clock()
        if (failures == FAILURES) seen.clear() // what was before says nothing of what comes after
    }

    /** Seconds since the last request, answered or not; infinity before the first one, and after a clock jump. */
    public val quietS: Double
        get() = synchronized(this) {
            val passedS = lastNs?.let { (clock() - it) / NANOSECONDS_PER_S } ?: Double.POSITIVE_INFINITY
            if (passedS >= 0) passedS else Double.POSITIVE_INFINITY
        }

    /** The uplink now; null while the server is out of reach. */
    public val uplink: Uplink?
        get() = synchronized(this) {
            if (failures >= FAILURES) return null
            val nowNs = clock()
            val recent = seen.filter { (nowNs - it.atNs) / NANOSECONDS_PER_S in 0.0..OLDEST_S }
            val counted = if (recent.size < LEAST) seen.takeLast(LEAST) else recent
            if (counted.isEmpty()) known else fitted(known, counted)
        }
}

/** Least squares of the factors on the known round trip and time per byte; relative errors count. */
private fun fitted(known: Uplink, seen: List<Observation>): Uplink {
    val roundTripMs = maxOf(known.roundTripMs, LEAST_TRIP_MS)
    val perByteMs = 8 / (known.mbps * MS_PER_S)
    val trips = seen.map { roundTripMs / it.transferMs }
    val bytes = seen.map { perByteMs * it.sizeBytes / it.transferMs }
    val size = sqrt(trips.sumOf { it * it } + bytes.sumOf { it * it })
    val same = SAME_CHANGE * size
    val found = leastSquares(trips + same, bytes + -same, List(seen.size) { 1.0 } + 0.0)
    var (first, second) = found.map { it.coerceIn(1 / MOST_CHANGE, MOST_CHANGE) }
    if (found.min() <= 0) { // one of the two explains it all
        val total = trips.zip(bytes, Double::plus)
        first = (total.sum() / total.sumOf { it * it }).coerceIn(1 / MOST_CHANGE, MOST_CHANGE)
        second = first
    }
    return Uplink(known.mbps / second, roundTripMs * first)
}

/** The two factors x, y for which `first·x + second·y` is the nearest to [target], by the QR decomposition. */
private fun leastSquares(first: List<Double>, second: List<Double>, target: List<Double>): List<Double> {
    fun dot(one: List<Double>, other: List<Double>) = one.indices.sumOf { one[it] * other[it] }
    val length = sqrt(dot(first, first))
    val axis = first.map { it / length }
    val along = dot(axis, second)
    val across = second.indices.map { second[it] - along * axis[it] }
    val y = dot(across, target) / dot(across, across)
    val x = (dot(axis, target) - along * y) / length
    return listOf(x, y)
}

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
    private val transport: Transport = HttpTransport(model.token, model.server),
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
