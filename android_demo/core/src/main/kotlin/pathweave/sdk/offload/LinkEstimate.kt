/**
 * The way to a server, kept up to date from real requests and probes. Pure except for the clock. Mirrors
 * device_sdk/offload/link_estimate.py.
 */
package pathweave.sdk.offload

import kotlin.math.sqrt
import pathweave.sdk.Clock
import pathweave.sdk.supernet.Uplink

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
