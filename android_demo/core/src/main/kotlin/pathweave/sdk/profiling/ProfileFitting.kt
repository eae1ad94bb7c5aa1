/**
 * Fits the cost of edges within composed subnets, from measured blocks and a few measured whole subnets. Pure.
 *
 * 1. A line maps sums of block latencies to latencies of subnets, since the composed graph saves calls and
 * conversions. 2. Ridge regression of the residuals: a factor near 1 per edge, one per rendition and input size, and a
 * price per byte passed between neighbours of different renditions. The ridge keeps the factors near 1 where a few
 * dozen subnets do not determine them. Both steps down-weight outliers (Huber), which come from interference.
 */
package pathweave.sdk.profiling

import kotlin.math.abs
import kotlin.math.sqrt
import pathweave.sdk.numerics.cholesky
import pathweave.sdk.numerics.dot
import pathweave.sdk.numerics.median
import pathweave.sdk.numerics.solveLower
import pathweave.sdk.numerics.solveTransposed
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.EdgeCost
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.nbytes

// ridge weights: standard deviation of a subnet's measurement (1 %) over the prior deviation of a factor from 1 (edges
// 5 %, renditions and conversions 30 %)
private const val EDGE_WEIGHT = 0.2
private const val FREE_WEIGHT = 0.03
private const val LEAST_FACTOR = 0.5
private const val MOST_FACTOR = 2.0

private const val LEAST_SPREAD = 0.05 // of the block sums, for a line to have an offset
private const val REWEIGHTINGS = 8
private const val FAR = 2.0 // standard deviations, estimated from the median deviation
private const val DEVIATION_PER_MEDIAN = 1.48
private const val LEAST_DEVIATION = 0.005 // relative; residuals below are never outliers

internal class LatencyFit(
    val scale: Double,
    val offsetMs: Double,
    val factors: Map<Edge, Double>,
    val changesMs: Map<Edge, Double>,
)

/** `peakBytes = scale · Σ weights + offsetBytes + largest working set`. */
internal class MemoryFit(val scale: Double = 1.0, val offsetBytes: Long = 0)

/**
 * Scale and offset [ms] of the line from block sums to measured latencies with the least relative error.
 *
 * If the sums hardly vary, or the line has a negative slope or value, the offset is 0 and the scale the median ratio.
 */
internal fun fitLine(sumsMs: List<Double>, latenciesMs: List<Double>): Pair<Double, Double> {
    if (sumsMs.max() - sumsMs.min() > LEAST_SPREAD * sumsMs.max()) {
        val design = sumsMs.zip(latenciesMs) { sum, latency -> doubleArrayOf(sum / latency, 1 / latency) }
        val (scale, offsetMs) = reweighted(design, DoubleArray(sumsMs.size) { 1.0 }) { rows, wanted ->
            leastSquares(rows, wanted)
        }
        if (scale > 0 && offsetMs + scale * sumsMs.min() > 0) return scale to offsetMs
    }
    return median(sumsMs.zip(latenciesMs) { sum, latency -> latency / sum }) to 0.0
}

/**
 * Fit edge costs within composed subnets.
 *
 * [blocksMs]: latency of each edge alone; [latenciesMs]: of [subnets], as deployed.
 */
internal fun fitLatency(
    supernet: Supernet,
    blocksMs: Map<Edge, Double>,
    subnets: List<Subnet>,
    latenciesMs: List<Double>,
): LatencyFit {
    if (subnets.isEmpty()) return LatencyFit(1.0, 0.0, blocksMs.mapValues { 1.0 }, emptyMap())
    val (scale, offsetMs) = fitLine(subnets.map { it.edges.sumOf(blocksMs::getValue) }, latenciesMs)
    return Ridge(supernet, blocksMs, subnets, latenciesMs, scale, offsetMs).fit()
}

/**
 * What a line leaves unexplained, shared out over edges, renditions, the offset and conversions.
 *
 * The columns of the regression are milliseconds [subnet, column]; a coefficient is a relative correction.
 */
private class Ridge(
    private val supernet: Supernet,
    blocksMs: Map<Edge, Double>,
    private val subnets: List<Subnet>,
    private val latenciesMs: List<Double>,
    private val scale: Double,
    private val offsetMs: Double,
) {
    private val edges = blocksMs.keys.toList()
    private val places = edges.withIndex().associate { (at, edge) -> edge to at }
    private val sharesMs = DoubleArray(edges.size) { scale * blocksMs.getValue(edges[it]) }
    private val typicalMs = sharesMs.average()
    private val groups = edges.map { it.rendition to it.inputSize }.distinct()
    private val groupOf = IntArray(edges.size) { groups.indexOf(edges[it].rendition to edges[it].inputSize) }
    private val converted = subnets.map { convertedBytes(it).toDouble() }
    private val msPerByte = typicalMs / maxOf(converted.average(), 1.0) // scales bytes to the size of blocks

    /** Solve, without conversions if they would come out cheaper than free. */
    fun fit(): LatencyFit {
        val unexplained = DoubleArray(subnets.size) { 1 - (sumMs(subnets[it]) + offsetMs) / latenciesMs[it] }
        var solution = solve(unexplained, conversions = true)
        if (solution.last() < 0) solution = solve(unexplained, conversions = false) + 0.0
        val factors = DoubleArray(edges.size) {
            (1 + solution[it] + solution[edges.size + groupOf[it]]).coerceIn(LEAST_FACTOR, MOST_FACTOR)
        }
        return LatencyFit(
            scale,
            offsetMs + solution[edges.size + groups.size] * typicalMs,
            edges.withIndex().associate { (at, edge) -> edge to factors[at] },
            changesMs(solution.last() * msPerByte),
        )
    }

    private fun sumMs(subnet: Subnet): Double = subnet.edges.sumOf { sharesMs[places.getValue(it)] }

    private fun solve(unexplained: DoubleArray, conversions: Boolean): DoubleArray {
        val own = edges.size + groups.size + 1
        val design = subnets.mapIndexed { row, subnet ->
            val columns = DoubleArray(if (conversions) own + 1 else own)
            for (at in subnet.edges.map(places::getValue)) {
                columns[at] += sharesMs[at]
                columns[edges.size + groupOf[at]] += sharesMs[at]
            }
            columns[own - 1] = typicalMs
            if (conversions) columns[own] = converted[row] * msPerByte
            DoubleArray(columns.size) { columns[it] / latenciesMs[row] }
        }
        val penalties = DoubleArray(design[0].size) { if (it < edges.size) EDGE_WEIGHT else FREE_WEIGHT }
        return reweighted(design, unexplained) { rows, wanted -> ridge(rows, wanted, penalties) }
    }

    /** Bytes at the cut points where [subnet] changes its rendition. */
    private fun convertedBytes(subnet: Subnet): Long =
        subnet.edges.zipWithNext().filter { (before, after) -> before.rendition != after.rendition }
            .sumOf { (_, after) -> supernet.ends(after).first.nbytes }

    private fun changesMs(perByteMs: Double): Map<Edge, Double> =
        if (perByteMs <= 0) emptyMap()
        else edges.filter { supernet.block(it.block).start > 0 }
            .associateWith { perByteMs * supernet.ends(it).first.nbytes }
}

/** Iteratively reweighted least squares (Huber); [solve] gets the weighted rows and what they should give. */
private fun reweighted(
    design: List<DoubleArray>,
    wanted: DoubleArray,
    solve: (List<DoubleArray>, DoubleArray) -> DoubleArray,
): DoubleArray {
    var weights = DoubleArray(wanted.size) { 1.0 }
    var solution = DoubleArray(0)
    repeat(REWEIGHTINGS) {
        val roots = DoubleArray(weights.size) { at -> sqrt(weights[at]) }
        solution = solve(
            design.mapIndexed { row, values -> DoubleArray(values.size) { values[it] * roots[row] } },
            DoubleArray(wanted.size) { row -> wanted[row] * roots[row] },
        )
        val errors = DoubleArray(wanted.size) { row -> abs(wanted[row] - dot(design[row], solution)) }
        val far = FAR * maxOf(DEVIATION_PER_MEDIAN * median(errors.toList()), LEAST_DEVIATION)
        weights = DoubleArray(errors.size) { row -> far / maxOf(errors[row], far) }
    }
    return solution
}

/** Least squares of two columns, by the normal equations. */
private fun leastSquares(rows: List<DoubleArray>, wanted: DoubleArray): DoubleArray {
    val (aa, ab, bb) = Triple(rows.sumOf { it[0] * it[0] }, rows.sumOf { it[0] * it[1] }, rows.sumOf { it[1] * it[1] })
    val a = rows.indices.sumOf { rows[it][0] * wanted[it] }
    val b = rows.indices.sumOf { rows[it][1] * wanted[it] }
    val determinant = aa * bb - ab * ab
    return doubleArrayOf((a * bb - b * ab) / determinant, (aa * b - ab * a) / determinant)
}

/** Ridge regression: a system as large as there are rows, since there are far fewer of them than columns. */
private fun ridge(rows: List<DoubleArray>, wanted: DoubleArray, penalties: DoubleArray): DoubleArray {
    val scaled = rows.map { row -> DoubleArray(row.size) { row[it] / penalties[it] } }
    val kernel = Array(rows.size) { one ->
        DoubleArray(rows.size) { other -> dot(scaled[one], scaled[other]) + if (one == other) 1.0 else 0.0 }
    }
    val root = cholesky(kernel)
    val worth = solveTransposed(root, solveLower(root, wanted))
    return DoubleArray(penalties.size) { column ->
        rows.indices.sumOf { scaled[it][column] * worth[it] } / penalties[column]
    }
}

/**
 * Fit the measured peaks of whole subnets, session creation included, to weights and working sets.
 *
 * Never below weights plus largest working set, which is also the result without any measured peak.
 */
internal fun fitMemory(costs: Map<Edge, EdgeCost>, subnets: List<Subnet>, peaks: List<Long?>): MemoryFit {
    val measured = subnets.zip(peaks) { subnet, peak -> subnet to (peak ?: 0L).toDouble() }.filter { it.second > 0 }
    if (measured.isEmpty()) return MemoryFit()
    val weights = measured.map { (subnet, _) -> subnet.edges.sumOf { costs.getValue(it).residentBytes }.toDouble() }
    val above = measured.map { (subnet, peak) -> peak - subnet.edges.maxOf { costs.getValue(it).workingBytes } }
    var scale = 0.0
    var offset = 0.0
    if (weights.max() > weights.min()) {
        val rows = measured.indices.map { doubleArrayOf(weights[it] / measured[it].second, 1 / measured[it].second) }
        val found = leastSquares(rows, DoubleArray(rows.size) { above[it] / measured[it].second })
        scale = found[0]
        offset = found[1]
    }
    if (!(scale >= 1 && offset >= 0)) {
        scale = maxOf(1.0, median(weights.indices.map { above[it] / maxOf(weights[it], 1.0) }))
        offset = maxOf(0.0, median(weights.indices.map { above[it] - scale * weights[it] }))
    }
    return MemoryFit(scale, Math.rint(offset).toLong())
}
