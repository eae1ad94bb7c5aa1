/**
 * Fits the cost of edges at several homes, and of crossing between them, from measured whole subnets. Pure.
 *
 * 1. Each home by its own subnets, as ProfileFitting.kt does it. 2. What subnets at several homes take beyond that is
 * explained by their crossings: a time per crossing and one per byte that crosses, for each pair of homes, none below 0.
 */
package pathweave.sdk.profiling

import kotlin.math.sqrt
import pathweave.sdk.numerics.cholesky
import pathweave.sdk.numerics.dot
import pathweave.sdk.numerics.solveLower
import pathweave.sdk.numerics.solveTransposed
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.EdgeCost
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.nbytes

private const val RIDGE = 1e-3 // of the columns' scale: pairs that few subnets cross share what these show
private const val LEAST_SCALE = 1e-12
private const val BYTES_PER_MB = 1e6

/** Cost of going on at home [after] behind home [before]: a session more, and the tensors between them. */
public data class Crossing(val before: String, val after: String, val fixedMs: Double, val msPerMb: Double) {
    /** Of a crossing with tensors of [nbytes]. */
    public fun ms(nbytes: Long): Double = fixedMs + msPerMb * nbytes / BYTES_PER_MB
}

/** [scale] and [offsetMs] of the first home; [factors] of all edges relative to it; the others' offsets. */
internal data class HomesFit(
    val scale: Double,
    val offsetMs: Double,
    val factors: Map<Edge, Double>,
    val changesMs: Map<Edge, Double>,
    val homeOffsetMs: Map<String, Double>,
    val crossings: List<Crossing> = emptyList(),
)

/**
 * Fit edges at all their homes, as [fitLatency] does it for one, and crossings.
 *
 * [blocksMs]: latency of each edge alone, at each of its homes; [latenciesMs]: of [subnets], as deployed.
 */
internal fun fitHomes(
    supernet: Supernet,
    blocksMs: Map<Edge, Double>,
    subnets: List<Subnet>,
    latenciesMs: List<Double>,
): HomesFit {
    val timed = subnets.zip(latenciesMs)
    val fits = blocksMs.keys.map { it.home }.distinct().associateWith { name ->
        val alone = timed.filter { (subnet, _) -> homesOf(subnet) == setOf(name) }
        fitLatency(supernet, blocksMs.filterKeys { it.home == name }, alone.map { it.first }, alone.map { it.second })
    }
    val first = fits[""] ?: fits.values.first()
    val fit = HomesFit(
        scale = first.scale,
        offsetMs = first.offsetMs,
        factors = fits.values.flatMap { one -> one.factors.map { (edge, factor) -> edge to factor * one.scale / first.scale } }
            .toMap(),
        changesMs = fits.values.flatMap { it.changesMs.toList() }.toMap(),
        homeOffsetMs = fits.filter { (name, one) -> name.isNotEmpty() && one !== first }.mapValues { it.value.offsetMs },
    )
    val mixed = timed.filter { (subnet, _) -> homesOf(subnet).size > 1 }
    return if (mixed.isEmpty()) fit else fit.copy(crossings = crossings(supernet, withoutCrossings(fit, blocksMs), mixed))
}

private fun homesOf(subnet: Subnet): Set<String> = subnet.edges.map { it.home }.toSet()

private fun withoutCrossings(fit: HomesFit, blocksMs: Map<Edge, Double>) = CostModel(
    blocksMs.mapValues { (edge, ms) -> EdgeCost(fit.factors.getValue(edge) * ms, 0.0, 0, 0) },
    scale = fit.scale,
    offsetMs = fit.offsetMs,
    entryChangeMs = fit.changesMs,
    homeOffsetMs = fit.homeOffsetMs,
)

/** Relative least squares of what [costs] leaves unexplained, with a ridge, no coefficient below 0. */
private fun crossings(supernet: Supernet, costs: CostModel, mixed: List<Pair<Subnet, Double>>): List<Crossing> {
    val crossed = mixed.map { (subnet, _) -> crossed(supernet, subnet) }
    val pairs = crossed.flatten().map { it.first }.distinct().sortedWith(compareBy({ it.first }, { it.second }))
    val design = mixed.mapIndexed { row, (_, ms) ->
        DoubleArray(2 * pairs.size).also { columns ->
            for ((pair, nbytes) in crossed[row]) {
                val place = 2 * pairs.indexOf(pair)
                columns[place] += 1 / ms
                columns[place + 1] += nbytes / BYTES_PER_MB / ms
            }
        }
    }
    val left = DoubleArray(mixed.size) { row -> (mixed[row].second - costs.latencyMs(mixed[row].first)) / mixed[row].second }
    val solution = nonNegative(design, left)
    return pairs.mapIndexed { number, (before, after) ->
        Crossing(before, after, solution[2 * number], solution[2 * number + 1])
    }
}

/** The pairs of homes between which [subnet] crosses, each with the bytes that cross. */
private fun crossed(supernet: Supernet, subnet: Subnet): List<Pair<Pair<String, String>, Long>> =
    subnet.edges.zipWithNext().filter { (before, after) -> before.home != after.home }
        .map { (before, after) -> (before.home to after.home) to supernet.ends(after).first.nbytes }

/** Ridge regression, again without the most negative coefficient until there is none. */
private fun nonNegative(design: List<DoubleArray>, wanted: DoubleArray): DoubleArray {
    val width = design[0].size
    val scales = DoubleArray(width) { column -> maxOf(sqrt(design.sumOf { it[column] * it[column] }), LEAST_SCALE) }
    val active = (0 until width).toMutableList()
    val solution = DoubleArray(width)
    while (active.isNotEmpty()) {
        val columns = active.map { column -> DoubleArray(design.size) { design[it][column] / scales[column] } }
        val normal = Array(active.size) { one ->
            DoubleArray(active.size) { dot(columns[one], columns[it]) + if (one == it) RIDGE else 0.0 }
        }
        val right = DoubleArray(active.size) { dot(columns[it], wanted) }
        val root = cholesky(normal)
        val own = solveTransposed(root, solveLower(root, right))
        if (own.min() >= 0) {
            active.forEachIndexed { at, column -> solution[column] = own[at] / scales[column] }
            break
        }
        active.removeAt(own.indices.minBy { own[it] })
    }
    return solution
}
