/** Exact feasibility check of a budget, before anything is evaluated. Mirrors device_sdk/search/nearby.py. */
package pathweave.sdk.search

import java.math.BigDecimal
import java.math.MathContext
import java.math.RoundingMode
import java.util.Locale
import java.util.PriorityQueue
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.MB
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.kCheapest

private const val LABEL_LIMIT = 200_000 // partial paths that the memory-constrained search expands before it falls back
private const val SHOWN_BLOCKS = 6
private const val DIGITS = 3

/**
 * The fastest subnet that fits the budget's memory limit, if it also fits its latency limit.
 *
 * Exact for a latency limit, a memory limit and both together (see [fastestWithin] for its one bound).
 *
 * @throws InfeasibleBudgetError nothing fits. It names the subnet of least memory if the memory limit alone cannot be
 *   met, otherwise the fastest subnet within the memory limit.
 */
public fun requireFeasible(supernet: Supernet, costModel: CostModel, budget: Budget): Subnet {
    val fastest = fastestWithin(supernet, costModel, budget.memoryMb)
        ?: throw tooLittleMemory(costModel, budget, smallestSubnet(supernet, costModel))
    if (!budget.fitsLatency(costModel.latencyMs(fastest))) throw tooLittleTime(costModel, budget, fastest)
    return fastest
}

/**
 * The subnet of least peak memory, exactly.
 *
 * Peak memory is the sum of resident bytes plus the largest working set, which is not additive. Every distinct working
 * set is tried as a ceiling: among the edges under it, a shortest path minimises the resident bytes.
 */
public fun smallestSubnet(supernet: Supernet, costModel: CostModel): Subnet {
    val costs = costModel.edgeCosts
    val ceilings = supernet.edges.map { costs.getValue(it).workingBytes }.distinct().sorted()
    val found = ceilings.mapNotNull { ceiling ->
        fun resident(edge: Edge): Double = costs.getValue(edge)
            .let { if (it.workingBytes <= ceiling) it.residentBytes.toDouble() else Double.POSITIVE_INFINITY }
        kCheapest(supernet, ::resident, k = 1).first().takeIf { it.weight < Double.POSITIVE_INFINITY }?.subnet
    }
    return found.minWith(compareBy({ costModel.peakBytes(it) }, { costModel.latencyMs(it) }))
}

/**
 * The fastest subnet within a memory limit, null if there is none; without a limit the fastest of all.
 *
 * Exact: A* over partial paths, ordered by their lower bound on total latency. Partial paths that cannot meet the
 * limit, or that a faster one dominates in memory, are pruned. After more than 200,000 partial paths the subnet of
 * least memory is returned instead.
 */
public fun fastestWithin(supernet: Supernet, costModel: CostModel, memoryMb: Double?): Subnet? {
    val fastest = kCheapest(supernet, costModel::edgeLatencyMs, k = 1).first().subnet
    if (memoryMb == null || costModel.peakBytes(fastest) <= memoryMb * MB) return fastest
    val smallest = smallestSubnet(supernet, costModel)
    if (costModel.peakBytes(smallest) > memoryMb * MB) return null
    return fastestUnder(supernet, costModel, memoryMb * MB) ?: smallest
}

/** A partial path: its least possible latency in all, and what it is and costs so far. */
private class Label(
    val least: Double,
    val serial: Int,
    val node: Int,
    val latencyMs: Double,
    val resident: Long,
    val working: Long,
    val edges: List<Edge>,
)

private fun fastestUnder(supernet: Supernet, costModel: CostModel, memoryBytes: Double): Subnet? {
    val latencyAhead = cheapestToOutput(supernet, costModel::edgeLatencyMs)
    val residentAhead = cheapestToOutput(supernet) { costModel.edgeCosts.getValue(it).residentBytes.toDouble() }
    val queue = PriorityQueue<Label>(compareBy<Label>({ it.least }, { it.serial }))
    queue += Label(0.0, 0, 0, 0.0, 0L, 0L, emptyList())
    val settled = List(supernet.nodeCount) { mutableListOf<Label>() }
    var pushed = 1
    while (queue.isNotEmpty() && pushed < LABEL_LIMIT) {
        val label = queue.remove()
        if (label.node == supernet.outputNode) return Subnet(label.edges)
        if (settled[label.node].any { it.resident <= label.resident && it.working <= label.working }) continue
        settled[label.node] += label
        for ((edge, end) in supernet.edgesFrom[label.node]) {
            val cost = costModel.edgeCosts.getValue(edge)
            val (resident, working) = label.resident + cost.residentBytes to maxOf(label.working, cost.workingBytes)
            if (resident + residentAhead[end] + working > memoryBytes) continue
            val latencyMs = label.latencyMs + costModel.edgeLatencyMs(edge)
            val least = latencyMs + latencyAhead[end]
            queue += Label(least, pushed++, end, latencyMs, resident, working, label.edges + edge)
        }
    }
    return null
}

private fun cheapestToOutput(supernet: Supernet, weight: (Edge) -> Double): DoubleArray {
    val ahead = DoubleArray(supernet.nodeCount) { Double.POSITIVE_INFINITY }
    ahead[supernet.outputNode] = 0.0
    for (index in supernet.outputNode - 1 downTo 0) {
        ahead[index] = supernet.edgesFrom[index].minOf { (edge, end) -> weight(edge) + ahead[end] }
    }
    return ahead
}

private fun tooLittleTime(costModel: CostModel, budget: Budget, nearest: Subnet): InfeasibleBudgetError {
    val latencyMs = costModel.latencyMs(nearest)
    val within = budget.memoryMb?.let { " within ${digits(it, 4)} MB" }.orEmpty()
    return infeasible(
        "no subnet runs in ${digits(budget.latencyMs ?: 0.0, 4)} ms$within; " +
            "the fastest is predicted at ${digits(latencyMs)} ms (${shortened(nearest)})",
        hint = "set latencyMs to ${roundedUp(latencyMs)} or more",
        costModel,
        nearest,
    )
}

private fun tooLittleMemory(costModel: CostModel, budget: Budget, nearest: Subnet): InfeasibleBudgetError {
    val peakMb = costModel.peakBytes(nearest) / MB.toDouble()
    return infeasible(
        "no subnet runs in ${digits(budget.memoryMb ?: 0.0, 4)} MB; " +
            "the smallest is predicted at ${digits(peakMb)} MB (${shortened(nearest)})",
        hint = "set memoryMb to ${roundedUp(peakMb)} or more",
        costModel,
        nearest,
    )
}

private fun infeasible(message: String, hint: String, costModel: CostModel, nearest: Subnet) = InfeasibleBudgetError(
    message,
    nearest = nearest.edges.map { it.block },
    nearestLatencyMs = costModel.latencyMs(nearest),
    nearestPeakBytes = costModel.peakBytes(nearest),
    hint = hint,
)

private fun shortened(subnet: Subnet): String {
    val names = subnet.edges.map { it.toString() }
    val shown = if (names.size <= SHOWN_BLOCKS) names else names.take(3) + "…" + names.takeLast(2)
    return shown.joinToString(" ")
}

/** [value] with [count] significant digits. */
internal fun digits(value: Double, count: Int = DIGITS): String =
    if (value.isFinite()) BigDecimal(value).round(MathContext(count)).stripTrailingZeros().toPlainString()
    else String.format(Locale.ROOT, "%f", value)

/** [value] with three significant digits, never below it. */
private fun roundedUp(value: Double): String =
    BigDecimal(value).round(MathContext(DIGITS, RoundingMode.CEILING)).toPlainString()
