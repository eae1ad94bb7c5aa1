/**
 * Latencies of subnets that were not measured: predictions, corrected by measurements of similar subnets.
 *
 * The cost model was fitted on calls back to back. Called at the pace of an application, every call also waits for
 * caches and clocks, which weighs most on short calls, and differs between renditions. Subnets that share most of their
 * blocks share the rest of the error too. A Gaussian process over log(measured / predicted) learns all of that from a
 * few measurements.
 */
package pathweave.sdk.profiling

import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.pow
import kotlin.math.sqrt
import pathweave.sdk.numerics.cholesky
import pathweave.sdk.numerics.dot
import pathweave.sdk.numerics.erfc
import pathweave.sdk.numerics.solveLower
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Subnet

internal const val PRECISE = 0.006 // relative error of a ratio: sessions of one model differ by as much
private const val BIAS = 0.03 // prior deviation of what all subnets share
private const val PER_CALL = 0.03 // prior deviation of the time per call, over the full model's latency
private const val PER_CALL_OF_RENDITION = 0.03 // the same, of what a rendition adds
private const val OF_EDGES = 0.05 // prior deviation of what subnets of the same edges share
private const val PRIOR_WORTH = 3.0 // observations that these deviations count as

/**
 * A subnet's latency over the full model's, as a log-normal distribution.
 *
 * [error]: standard deviation of the logarithm. [measured]: it was measured itself.
 */
internal class LatencyEstimate(val ratio: Double, val error: Double, val measured: Boolean) {
    /** Probability that the ratio is at most [limit]. */
    fun probabilityBelow(limit: Double) =
        if (limit.isInfinite()) 1.0 else 0.5 * erfc((ln(ratio) - ln(limit)) / (error * sqrt(2.0)))
}

/** [perCall]: 1 / predicted ratio - 1. Shares of the predicted latency by edge and by rendition add up to 1. */
private class Features(
    val predicted: Double,
    val perCall: Double,
    val edges: Map<Edge, Double>,
    val renditions: Map<String, Double>,
)

/** The inverse of the covariance is nowhere made: [root] is its Cholesky factor, [whitened] the logs solved by it. */
private class Fitted(val root: Array<DoubleArray>, val whitened: DoubleArray, val scale: Double)

/** The latency ratio of any subnet to [original], the full model, whose own measurement is not evidence. */
internal class LatencyBelief(private val original: Subnet, private val costs: CostModel) {
    private val originalMs = costs.latencyMs(original)
    private val measured = LinkedHashMap<Subnet, Ratio>()
    private val features = HashMap<Subnet, Features>()
    private var fitted: Fitted? = null

    /** Add a measurement; a second one of [subnet] is joined with the first, weighted by precision. */
    fun observe(subnet: Subnet, ratio: Ratio) {
        measured[subnet] = measured[subnet]?.let { joined(it, ratio) } ?: ratio
        fitted = null
    }

    /** The ratio of [subnet]: as measured, or as predicted and corrected. */
    fun estimate(subnet: Subnet): LatencyEstimate {
        measured[subnet]?.let { return LatencyEstimate(it.value, it.relativeError, measured = true) }
        val at = featuresOf(subnet)
        val fit = fitted ?: fit().also { fitted = it }
        val across = evidence().map { kernel(at, featuresOf(it)) }.toDoubleArray()
        val reduced = solveLower(fit.root, across)
        val variance = maxOf(kernel(at, at) - dot(reduced, reduced), 0.0) + PRECISE * PRECISE
        val bias = dot(reduced, fit.whitened)
        return LatencyEstimate(at.predicted * exp(bias), sqrt(fit.scale * variance), measured = false)
    }

    private fun fit(): Fitted {
        val evidence = evidence()
        val features = evidence.map(::featuresOf)
        val ratios = evidence.map { measured.getValue(it) }
        val covariance = Array(features.size) { row ->
            DoubleArray(features.size) { column ->
                val noise = if (row == column) PRECISE * PRECISE + ratios[row].relativeError.pow(2) else 0.0
                kernel(features[row], features[column]) + noise
            }
        }
        val logs = DoubleArray(features.size) { ln(ratios[it].value / features[it].predicted) }
        val root = cholesky(covariance)
        val whitened = solveLower(root, logs)
        return Fitted(root, whitened, (PRIOR_WORTH + dot(whitened, whitened)) / (PRIOR_WORTH + logs.size))
    }

    private fun evidence(): List<Subnet> = measured.keys.filter { it != original }

    private fun featuresOf(subnet: Subnet): Features = features.getOrPut(subnet) {
        val predicted = costs.latencyMs(subnet) / originalMs
        val totalMs = subnet.edges.sumOf { costs.edgeLatencyMs(it) }.takeIf { it > 0 } ?: 1.0
        fun <Key> shares(key: (Edge) -> Key): Map<Key, Double> =
            subnet.edges.groupBy(key).mapValues { (_, edges) -> edges.sumOf { costs.edgeLatencyMs(it) } / totalMs }
        Features(predicted, 1 / predicted - 1, shares { it }, shares { it.rendition })
    }
}

/** Prior covariance of log(measured / predicted) of two subnets. */
private fun kernel(one: Features, other: Features): Double {
    val perCall = PER_CALL * PER_CALL +
        PER_CALL_OF_RENDITION * PER_CALL_OF_RENDITION * shared(one.renditions, other.renditions)
    return BIAS * BIAS + perCall * one.perCall * other.perCall + OF_EDGES * OF_EDGES * shared(one.edges, other.edges)
}

/** The share that two distributions have in common, 0 to 1 (histogram intersection, a positive kernel). */
private fun <Key> shared(one: Map<Key, Double>, other: Map<Key, Double>): Double =
    one.entries.sumOf { (key, share) -> other[key]?.let { minOf(share, it) } ?: 0.0 }

/** Two measurements of one ratio, weighted by their precision. */
private fun joined(first: Ratio, second: Ratio): Ratio {
    val weights = listOf(first, second).map { it.relativeError.pow(-2) }
    val log = (weights[0] * ln(first.value) + weights[1] * ln(second.value)) / weights.sum()
    return Ratio(exp(log), maxOf(weights.sum().pow(-0.5), PRECISE))
}
