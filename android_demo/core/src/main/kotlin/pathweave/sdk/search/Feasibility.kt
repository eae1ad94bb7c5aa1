/** Exact feasibility check of a budget, before anything is evaluated. */
package pathweave.sdk.search

import java.math.BigDecimal
import java.math.MathContext
import java.math.RoundingMode
import java.util.Locale
import java.util.PriorityQueue
import kotlin.math.abs
import kotlin.math.pow
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

internal fun digits(value: Double, count: Int = DIGITS): String =
    if (value.isFinite()) BigDecimal(value).round(MathContext(count)).stripTrailingZeros().toPlainString()
    else String.format(Locale.ROOT, "%f", value)

/** [value] with three significant digits, never below it. */
private fun roundedUp(value: Double): String =
    BigDecimal(value).round(MathContext(DIGITS, RoundingMode.CEILING)).toPlainString()

private const val FRONT_LIMIT = 4096 // paths kept per node; larger fronts are thinned out evenly over their cost
private val PRICES = (-4..4).map { 4.0.pow(it) } // Lagrange multipliers for memory, relative to value / excess
private const val ROUNDING = 1e-9
private const val TIGHTENINGS = 8

internal class EdgeNumbers(val supernet: Supernet) {
    private val numbers = supernet.edges.withIndex().associate { (number, edge) -> edge to number }

    /** The number of the first edge that leaves a node; the others follow. */
    val firstFrom: IntArray = supernet.edgesFrom.runningFold(0) { sum, leaving -> sum + leaving.size }.toIntArray()

    val count: Int get() = supernet.edges.size

    fun of(edge: Edge): Int = numbers.getValue(edge)

    fun of(subnet: Subnet): IntArray = IntArray(subnet.edges.size) { of(subnet.edges[it]) }

    fun sum(values: DoubleArray, subnet: Subnet): Double = subnet.edges.sumOf { values[of(it)] }
}

/** The Pareto front of paths from a node to the output, sorted by cost: the first edge, and the rank of the rest. */
private class Front(val cost: DoubleArray, val value: DoubleArray, val edge: IntArray, val rank: IntArray)

private val OUTPUT = Front(DoubleArray(1), DoubleArray(1), IntArray(1), IntArray(1))

/** Where the merge of fronts stands behind one edge: its next path there. */
private class Head(val edge: Int, private val front: Front, private val ownCost: Double, private val ownValue: Double) {
    var rank = 0
    var cost = 0.0
    var value = 0.0

    /** Whether there is a path of this rank. */
    fun read(): Boolean {
        if (rank >= front.cost.size) return false
        cost = front.cost[rank] + ownCost
        value = front.value[rank] + ownValue
        return true
    }
}

private val BY_COST = compareBy<Head>({ it.cost }, { -it.value }, { it.edge })

/**
 * Pareto fronts of an additive cost and an additive value; exact while fronts stay under 4,096 paths.
 *
 * [value] and [cost] are by edge number. Paths that cost more than [limit] are pruned.
 */
internal class ParetoPaths(
    private val numbers: EdgeNumbers,
    private val value: DoubleArray,
    private val cost: DoubleArray,
    limit: Double = Double.POSITIVE_INFINITY,
) {
    private val supernet = numbers.supernet
    private val fronts = Array(supernet.nodeCount) { OUTPUT }

    init {
        val spare = cheapestFromInput()
        for (index in supernet.outputNode - 1 downTo 0) fronts[index] = front(index, limit - spare[index])
    }

    /** Merges the fronts behind all edges, each sorted by cost; keeps what is worth more than all that is cheaper. */
    private fun front(index: Int, limit: Double): Front {
        val first = numbers.firstFrom[index]
        val heads = PriorityQueue(BY_COST)
        for ((number, step) in supernet.edgesFrom[index].withIndex()) {
            val head = Head(number, fronts[step.second], cost[first + number], value[first + number])
            if (head.read()) heads += head
        }
        val kept = GrowingFront()
        while (true) {
            val head = heads.poll() ?: break
            if (head.cost > limit) break
            kept.offer(head)
            head.rank++
            if (head.read()) heads += head
        }
        return kept.thinned(FRONT_LIMIT)
    }

    /** The path of the highest value that costs at most [limit]; null if there is none. */
    fun best(limit: Double = Double.POSITIVE_INFINITY): Subnet? {
        val costs = fronts[0].cost
        var place = costs.indexOfLast { it <= limit }
        if (place < 0) return null
        val edges = mutableListOf<Edge>()
        var index = 0
        while (index < supernet.outputNode) {
            val front = fronts[index]
            val (edge, end) = supernet.edgesFrom[index][front.edge[place]]
            place = front.rank[place]
            index = end
            edges += edge
        }
        return Subnet(edges)
    }

    private fun cheapestFromInput(): DoubleArray {
        val reached = DoubleArray(supernet.nodeCount) { Double.POSITIVE_INFINITY }
        reached[0] = 0.0
        for ((index, leaving) in supernet.edgesFrom.withIndex()) {
            for ((number, step) in leaving.withIndex()) {
                val total = reached[index] + cost[numbers.firstFrom[index] + number]
                reached[step.second] = minOf(reached[step.second], total)
            }
        }
        return reached
    }
}

/** A front that paths are offered to in ascending order of cost. */
private class GrowingFront {
    private var size = 0
    private var cost = DoubleArray(64)
    private var value = DoubleArray(64)
    private var edge = IntArray(64)
    private var rank = IntArray(64)

    fun offer(head: Head) {
        val last = size - 1
        if (last >= 0 && head.cost == cost[last]) { // of equal costs the highest value counts, then the first edge
            val better = head.value > value[last] || head.value == value[last] && head.edge < edge[last]
            if (!better) return
            size--
        } else if (last >= 0 && head.value <= value[last]) {
            return
        }
        if (size == cost.size) grow()
        cost[size] = head.cost
        value[size] = head.value
        edge[size] = head.edge
        rank[size] = head.rank
        size++
    }

    private fun grow() {
        cost = cost.copyOf(2 * size)
        value = value.copyOf(2 * size)
        edge = edge.copyOf(2 * size)
        rank = rank.copyOf(2 * size)
    }

    fun thinned(limit: Int): Front {
        val kept = if (size <= limit) IntArray(size) { it } else {
            val step = (size - 1).toDouble() / (limit - 1)
            IntArray(limit) { if (it == limit - 1) size - 1 else Math.rint(it * step).toInt() }
        }
        return Front(
            DoubleArray(kept.size) { cost[kept[it]] },
            DoubleArray(kept.size) { value[kept[it]] },
            IntArray(kept.size) { edge[kept[it]] },
            IntArray(kept.size) { rank[kept[it]] },
        )
    }
}

/** Finds the subnet of the highest total value within a budget. */
internal class BestPath(val numbers: EdgeNumbers, private val costModel: CostModel) {
    private val supernet = numbers.supernet
    private val latency = DoubleArray(numbers.count) { costModel.edgeLatencyMs(supernet.edges[it]) }

    /**
     * The subnet of the highest total [value] (by edge number) that fits [budget]; null if none is found.
     *
     * Exact for a latency limit, as far as latency is additive. Peak memory is not additive (resident bytes plus the
     * largest working set). Where its limit binds, a Lagrangian relaxation is solved for several multipliers, paths of
     * neighbouring multipliers are crossed, and the best path that fits is returned: a heuristic.
     */
    fun find(budget: Budget, value: DoubleArray): Subnet? {
        val best = bestInTime(budget, value)
        if (best == null || budget.fitsMemory(costModel.peakBytes(best))) return best
        val excess = costModel.peakBytes(best) - (budget.memoryMb ?: 0.0) * MB
        val worth = maxOf(best.edges.sumOf { abs(value[numbers.of(it)]) }, ROUNDING)
        val relaxed = mutableListOf(best)
        for (price in PRICES) {
            val priced = DoubleArray(value.size) { number ->
                val cost = costModel.edgeCosts.getValue(supernet.edges[number])
                value[number] - price * worth / excess * (cost.residentBytes + cost.workingBytes)
            }
            val subnet = bestInTime(budget, priced)
            if (subnet != null && subnet != relaxed.last()) relaxed += subnet
        }
        val crossed = relaxed.zipWithNext().flatMap { (one, other) -> crossed(one, other) }
        return (relaxed + crossed).filter { budget.fits(costModel.cost(it)) }.maxByOrNull { numbers.sum(value, it) }
    }

    /** Both one-point crossovers of two paths, at every inner node that they share. */
    private fun crossed(a: Subnet, b: Subnet): List<Subnet> {
        fun places(subnet: Subnet) =
            subnet.edges.withIndex().associate { (at, edge) -> supernet.endNode(edge) to at + 1 }
        val (inA, inB) = places(a) to places(b)
        return (inA.keys intersect inB.keys - supernet.outputNode).sorted().flatMap { node ->
            val (atA, atB) = inA.getValue(node) to inB.getValue(node)
            listOf(
                Subnet(a.edges.take(atA) + b.edges.drop(atB)),
                Subnet(b.edges.take(atB) + a.edges.drop(atA)),
            )
        }
    }

    private fun bestInTime(budget: Budget, value: DoubleArray): Subnet? {
        val wantedMs = budget.latencyMs ?: return ParetoPaths(numbers, value, latency).best()
        // the order of summation changes the last digits, and a cost model may add terms to the sum of its edges
        var limitMs = (wantedMs - costModel.offsetMs) * (1 + ROUNDING)
        val paths = ParetoPaths(numbers, value, latency, limitMs)
        for (attempt in 1..TIGHTENINGS) {
            val subnet = paths.best(limitMs) ?: return null
            val excessMs = costModel.latencyMs(subnet) - wantedMs
            if (excessMs <= 0) return subnet
            limitMs = minOf(limitMs, numbers.sum(latency, subnet)) * (1 - ROUNDING) - excessMs
        }
        return null
    }
}
