/**
 * NearbyMutate: subnets close to a latency budget, by graph operations alone.
 *
 * Source: AdaptiveNet §5.1.
 */
package pathweave.sdk.search

import java.math.BigInteger
import pathweave.sdk.SplitMix64
import pathweave.sdk.supernet.BlockKind
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.enumerateSubnets
import pathweave.sdk.supernet.kCheapest

/** Supernets with at most this many subnets are listed. */
internal const val LISTING_LIMIT: Int = 4096

private const val STRETCH_EDGES = 3 // a mutation replaces at most this many edges of the path
private const val SIZE_EVERY = 6 // one mutation in this many changes the input size, if the bundle has several
private const val TRIES = 8 // random replacements before a mutation is given up

/** The subnets of predicted latency in [[lowMs], [highMs]] that fit the budget's memory limit. */
internal class Neighbourhood(
    val supernet: Supernet,
    val costModel: CostModel,
    private val budget: Budget,
    val lowMs: Double,
    val highMs: Double,
) {
    operator fun contains(subnet: Subnet): Boolean =
        distanceMs(costModel.latencyMs(subnet)) == 0.0 && budget.fitsMemory(costModel.peakBytes(subnet))

    /** Distance of [latencyMs] from the window; 0 inside. */
    fun distanceMs(latencyMs: Double): Double = maxOf(lowMs - latencyMs, latencyMs - highMs, 0.0)

    /** All members in random order; of supernets with at most [LISTING_LIMIT] subnets. */
    fun listed(random: SplitMix64): List<Subnet> =
        random.shuffled(enumerateSubnets(supernet, LISTING_LIMIT.toLong()).filter { it in this }.toList())
}

/** Predicted latency of the fastest and of the slowest subnet. */
internal fun latencyRangeMs(supernet: Supernet, costModel: CostModel): Pair<Double, Double> {
    val fastest = kCheapest(supernet, costModel::edgeLatencyMs, k = 1).first().subnet
    val slowest = kCheapest(supernet, { -costModel.edgeLatencyMs(it) }, k = 1).first().subnet
    return costModel.latencyMs(fastest) to costModel.latencyMs(slowest)
}

/** All subnets that fit the problem's budget. */
internal fun withinBudget(problem: SearchProblem): Neighbourhood {
    val (fastestMs, slowestMs) = latencyRangeMs(problem.supernet, problem.costModel)
    val targetMs = minOf(problem.budget.latencyMs ?: slowestMs, slowestMs)
    return Neighbourhood(problem.supernet, problem.costModel, problem.budget, lowMs = fastestMs, highMs = targetMs)
}

/**
 * [subnet] with each added block alone, in the renditions of what it replaces where it has them.
 *
 * A block that ends beside the subnet is followed by the original blocks of the member that passes its end.
 */
internal fun withEachBlock(supernet: Supernet, subnet: Subnet): List<Subnet> {
    val (nodes, size, existing) = Triple(nodesOf(supernet, subnet), subnet.inputSize, supernet.edges.toHashSet())
    return supernet.blocks.filter { it.kind != BlockKind.ORIGINAL }.mapNotNull { block ->
        val first = nodes.indexOf(supernet.node(block.start, size)).takeIf { it in subnet.edges.indices }
            ?: return@mapNotNull null
        val end = nodes.indexOf(supernet.node(block.end, size))
        val name = subnet.edges[first].rendition
        val rest = if (end < 0) supernet.originalsFrom(block.end).map { it.at(size) } else subnet.edges.drop(end)
        val added = listOf(name, block.renditions[0].name).map { Edge(block.id, it, size) }.firstOrNull { it in existing }
        if (added == null || !existing.containsAll(rest)) return@mapNotNull null
        val swapped = Subnet(subnet.edges.take(first) + added + rest)
        if (end < 0) supernet.inRendition(swapped, name) else swapped
    }
}

/**
 * [subnet] with one branch replaced, and further ones as needed to stay near the budget.
 *
 * 1. replace a random stretch by another random path between its ends; 2. while the latency is outside the window,
 * apply the branch replacement outside the new stretch that brings it nearest. Null if the result is not in the
 * neighbourhood. Source: AdaptiveNet §5.1.
 */
internal fun nearbyMutate(nearby: Neighbourhood, subnet: Subnet, random: SplitMix64): Subnet? {
    val replaced = replaceRandomStretch(nearby.supernet, subnet, random) ?: return null
    var mutated = replaced.subnet
    for (step in subnet.edges.indices) {
        if (nearby.distanceMs(nearby.costModel.latencyMs(mutated)) == 0.0) break
        mutated = nearestReplacement(nearby, mutated, replaced.start, replaced.end, random) ?: break
    }
    return mutated.takeIf { it in nearby }
}

/** A subnet with one stretch or the input size replaced, and the nodes between which it changed. */
private class Replaced(val subnet: Subnet, val start: Int, val end: Int)

private fun replaceRandomStretch(supernet: Supernet, subnet: Subnet, random: SplitMix64): Replaced? {
    if (supernet.sizes.size > 1 && random.below(SIZE_EVERY) == 0) {
        val anywhere = subnet.edges.all { supernet.rendition(it).anySize }
        val others = supernet.sizes.filter { it != subnet.inputSize && (anywhere || it == null) }
        if (others.isEmpty()) return null
        return Replaced(subnet.at(random.choice(others)), 0, 0) // later replacements may touch any edge
    }
    val nodes = nodesOf(supernet, subnet)
    for (attempt in 1..TRIES) {
        val first = random.below(nodes.size - 1)
        val last = first + 1 + random.below(minOf(STRETCH_EDGES, nodes.size - 1 - first))
        val stretch = randomStretch(supernet, nodes[first], nodes[last], random)
        val edges = subnet.edges.take(first) + stretch + subnet.edges.drop(last)
        val oneSize = edges.all { it.inputSize == edges[0].inputSize }
        if (stretch != subnet.edges.subList(first, last) && oneSize) {
            return Replaced(Subnet(edges), nodes[first], nodes[last])
        }
    }
    return null
}

/** The nodes that [subnet] passes, the input first. */
private fun nodesOf(supernet: Supernet, subnet: Subnet): List<Int> =
    listOf(0) + subnet.edges.map { supernet.endNode(it) }

internal fun Supernet.endNode(edge: Edge): Int = node(block(edge.block).end, edge.inputSize)

/** A path between two nodes, uniformly at random. */
private fun randomStretch(supernet: Supernet, start: Int, end: Int, random: SplitMix64): List<Edge> {
    val pathsToEnd = HashMap<Int, BigInteger>()
    pathsToEnd[end] = BigInteger.ONE
    fun paths(node: Int): BigInteger = pathsToEnd[node] ?: BigInteger.ZERO
    for (index in end - 1 downTo start) {
        pathsToEnd[index] = supernet.edgesFrom[index].fold(BigInteger.ZERO) { sum, (_, next) -> sum + paths(next) }
    }
    val edges = mutableListOf<Edge>()
    var node = start
    while (node < end) {
        var ticket = random.below(paths(node))
        val (edge, next) = supernet.edgesFrom[node].first { (_, next) ->
            (ticket < paths(next)).also { hit -> if (!hit) ticket -= paths(next) }
        }
        edges += edge
        node = next
    }
    return edges
}

/** Edges [first] until [last] of a subnet, and what they are replaced by. */
private class Replacement(val first: Int, val last: Int, val stretch: List<Edge>)

/**
 * The subnet with the branch outside [start] … [end] replaced that brings its latency nearest to the window.
 *
 * Ties are broken at random; null if no replacement is nearer than [subnet] itself.
 */
private fun nearestReplacement(
    nearby: Neighbourhood,
    subnet: Subnet,
    start: Int,
    end: Int,
    random: SplitMix64,
): Subnet? {
    val latencyMs = nearby.costModel.latencyMs(subnet)
    var nearest = nearby.distanceMs(latencyMs)
    val best = mutableListOf<Replacement>()
    for (one in replacements(nearby.supernet, subnet, start, end)) {
        val oldMs = subnet.edges.subList(one.first, one.last).sumOf(nearby.costModel::edgeLatencyMs)
        val newMs = one.stretch.sumOf(nearby.costModel::edgeLatencyMs)
        val distance = nearby.distanceMs(latencyMs + newMs - oldMs)
        if (distance < nearest) {
            nearest = distance
            best.clear()
            best += one
        } else if (best.isNotEmpty() && distance == nearest) {
            best += one
        }
    }
    if (best.isEmpty()) return null
    val chosen = random.choice(best)
    return Subnet(subnet.edges.take(chosen.first) + chosen.stretch + subnet.edges.drop(chosen.last))
}

/**
 * Replacements of edges first … last-1 of the subnet, all outside the nodes [start] … [end].
 *
 * Either a single edge replaces all edges between two nodes of the path, or the original blocks replace a block that
 * spans several. With changes of the input size, these moves connect all subnets of one pretrained network.
 */
private fun replacements(supernet: Supernet, subnet: Subnet, start: Int, end: Int): List<Replacement> = buildList {
    val nodes = nodesOf(supernet, subnet)
    val place = nodes.withIndex().associate { (number, node) -> node to number }
    for ((first, replaced) in subnet.edges.withIndex()) {
        val node = nodes[first]
        if (node in start until end) continue
        for ((edge, reached) in supernet.edgesFrom[node]) {
            val crosses = node < end && reached > start
            val last = place[reached]
            if (last == null || edge.inputSize != subnet.inputSize || crosses) continue
            if (listOf(edge) != subnet.edges.subList(first, last)) add(Replacement(first, last, listOf(edge)))
        }
        val block = supernet.block(replaced.block)
        for (originals in supernet.originalStretches(block.start, block.end)) {
            if (originals.size > 1) add(Replacement(first, first + 1, supernet.edgesAlong(originals, subnet.inputSize)))
        }
    }
}
