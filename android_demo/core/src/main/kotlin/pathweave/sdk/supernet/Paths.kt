/**
 * Exact algorithms on the paths of a supernet: count, enumerate, sample, k cheapest.
 *
 * All are dynamic programmes over the graph's nodes in order, exact in big integers. Edge weights are any additive
 * cost.
 */
package pathweave.sdk.supernet

import java.math.BigInteger
import java.util.PriorityQueue
import kotlin.math.abs
import kotlin.math.ceil
import kotlin.math.floor
import kotlin.math.max
import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError

/** The cost of one edge. */
public typealias EdgeWeight = (Edge) -> Double

private const val WINDOW_STEPS = 512 // resolution of the cost axis inside a window, in steps per window half-width

/** Number of paths 0 → N over blocks, renditions and input sizes not told apart. */
public fun architectureCount(supernet: Supernet): BigInteger = count(supernet) { leaving ->
    leaving.filter { (edge, _) -> edge.inputSize == null }.distinctBy { (edge, _) -> edge.block }
}

/** Number of paths 0 → N over renditions of blocks and input sizes. */
public fun subnetCount(supernet: Supernet): BigInteger = count(supernet) { it }

private fun count(supernet: Supernet, choices: (List<Pair<Edge, Int>>) -> List<Pair<Edge, Int>>): BigInteger {
    val toOutput = MutableList(supernet.nodeCount) { BigInteger.ZERO }
    toOutput[supernet.outputNode] = BigInteger.ONE
    for (index in supernet.outputNode - 1 downTo 0) {
        val ends = choices(supernet.edgesFrom[index]).map { (_, end) -> end }
        toOutput[index] = ends.fold(BigInteger.ZERO) { sum, end -> sum + toOutput[end] }
    }
    return toOutput[0]
}

/**
 * Every subnet, depth first in edge order.
 *
 * @throws UsageError there are more than [limit].
 */
public fun enumerateSubnets(supernet: Supernet, limit: Long): Sequence<Subnet> {
    val count = subnetCount(supernet)
    if (count > BigInteger.valueOf(limit)) {
        throw UsageError("the supernet has $count subnets, more than the limit of $limit")
    }
    return pathsFrom(supernet, 0, emptyList())
}

private fun pathsFrom(supernet: Supernet, node: Int, before: List<Edge>): Sequence<Subnet> =
    if (node == supernet.outputNode) sequenceOf(Subnet(before))
    else supernet.edgesFrom[node].asSequence().flatMap { (edge, end) -> pathsFrom(supernet, end, before + edge) }

/** A subnet and its total weight. */
public data class WeightedSubnet(val weight: Double, val subnet: Subnet)

/**
 * The [k] subnets of least total weight, cheapest first (fewer if there are fewer).
 *
 * Keeps the k best suffixes of every node and merges them lazily: O(edges · k log k).
 */
public fun kCheapest(supernet: Supernet, weight: EdgeWeight, k: Int): List<WeightedSubnet> {
    val best: List<MutableList<Suffix>> = List(supernet.nodeCount) { mutableListOf() }
    best[supernet.outputNode] += Suffix(0.0, null, null)
    for (index in supernet.outputNode - 1 downTo 0) {
        val leaving = supernet.edgesFrom[index]
        val heads = PriorityQueue<Head>()
        for ((number, step) in leaving.withIndex()) {
            val (edge, end) = step
            best[end].firstOrNull()?.let { heads += Head(weight(edge) + it.total, number, 0) }
        }
        while (heads.isNotEmpty() && best[index].size < k) {
            val head = heads.remove()
            val (edge, end) = leaving[head.number]
            best[index] += Suffix(head.total, edge, best[end][head.rank])
            val next = best[end].getOrNull(head.rank + 1) ?: continue
            heads += Head(weight(edge) + next.total, head.number, head.rank + 1)
        }
    }
    return best[0].map { WeightedSubnet(it.total, it.subnet()) }
}

/** One of the best ways from a node to the output: an edge, and how it goes on from there. */
private class Suffix(val total: Double, private val edge: Edge?, private val rest: Suffix?) {
    fun subnet(): Subnet = Subnet(generateSequence(this) { it.rest }.mapNotNull { it.edge }.toList())
}

/** The next unused suffix behind one edge. Equal totals go by edge order, the same as in Python. */
private class Head(val total: Double, val number: Int, val rank: Int) : Comparable<Head> {
    override fun compareTo(other: Head): Int =
        compareValuesBy(this, other, Head::total, Head::number, Head::rank)
}

/** [count] subnets, each drawn uniformly from all (with repetition). */
public fun sampleUniformly(supernet: Supernet, count: Int, random: SplitMix64): List<Subnet> =
    WindowSampler(supernet, { 0.0 }, low = 0.0, high = 0.0).sample(count, random)

/**
 * Draws subnets uniformly from those whose total weight lies in [[low], [high]].
 *
 * Weights are rounded to a grid, path suffixes are counted per grid cost, a path is drawn by these exact counts from
 * the window widened by the largest possible rounding error, and is drawn again if its true weight is outside: uniform
 * over the true window, with no path left out.
 */
public class WindowSampler(
    private val supernet: Supernet,
    private val weight: EdgeWeight,
    private val low: Double,
    private val high: Double,
) {
    private val step = max(max((high - low) / 2, abs(high) * 1e-2), 1e-12) / WINDOW_STEPS
    private val slack = supernet.outputIndex / 2 + 1 // grid steps: each edge rounds by at most half a step
    private val grid = supernet.edges.associateWith { Math.rint(weight(it) / step).toLong() }
    private val suffixes = countSuffixes(highest = ceil(high / step).toLong() + slack)
    private val starts = (floor(low / step).toLong() - slack).let { first ->
        suffixes[0].entries.filter { it.key >= first }.sortedBy { it.key }.map { it.key to it.value }
    }
    private val total = starts.fold(BigInteger.ZERO) { sum, (_, number) -> sum + number }

    /** `suffixes[i][c]`: number of paths i → N of grid cost c, those above [highest] left out. */
    private fun countSuffixes(highest: Long): List<Map<Long, BigInteger>> {
        val suffixes = List(supernet.nodeCount) { HashMap<Long, BigInteger>() }
        suffixes[supernet.outputNode][0] = BigInteger.ONE
        for (index in supernet.outputNode - 1 downTo 0) {
            for ((edge, end) in supernet.edgesFrom[index]) {
                val own = grid.getValue(edge)
                for ((cost, number) in suffixes[end]) {
                    if (cost + own <= highest) suffixes[index].merge(cost + own, number, BigInteger::add)
                }
            }
        }
        return suffixes
    }

    /** Up to [count] draws (with repetition); fewer if [attempts] draws in a row miss the window. */
    public fun sample(count: Int, random: SplitMix64, attempts: Int = 1000): List<Subnet> {
        val drawn = mutableListOf<Subnet>()
        var misses = 0
        while (drawn.size < count && misses < attempts && total.signum() > 0) {
            val subnet = draw(random)
            if (subnet.edges.sumOf(weight) in low..high) {
                drawn += subnet
                misses = 0
            } else {
                misses++
            }
        }
        return drawn
    }

    private fun draw(random: SplitMix64): Subnet {
        var ticket = random.below(total)
        val start = starts.first { (_, number) -> (ticket < number).also { hit -> if (!hit) ticket -= number } }
        var cost = start.first
        var index = 0
        val edges = mutableListOf<Edge>()
        while (index < supernet.outputNode) {
            val (edge, end) = supernet.edgesFrom[index].first { (edge, end) ->
                val number = suffixes[end][cost - grid.getValue(edge)] ?: BigInteger.ZERO
                (ticket < number).also { hit -> if (!hit) ticket -= number }
            }
            edges += edge
            cost -= grid.getValue(edge)
            index = end
        }
        return Subnet(edges)
    }
}
