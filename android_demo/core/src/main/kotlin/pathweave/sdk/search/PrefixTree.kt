/**
 * The prefix tree: which features to keep while a group of subnets is evaluated.
 *
 * Pure: the evaluator executes it. A node is a prefix that several subnets share and whose output is cached; a leaf is
 * a subnet. In depth-first order the live features are at most those of one chain from the root. Source: AdaptiveNet
 * §5.2 and Algorithm 1, BuildTree. Mirrors device_sdk/search/evaluation/prefix_tree.py.
 */
package pathweave.sdk.search

import pathweave.sdk.supernet.CutPoint
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.nbytes

/** Edges that a batch has run through, from the input on. */
internal typealias Prefix = List<Edge>

/**
 * A prefix of subnets; without children it is a whole subnet. The root is the empty prefix: the input.
 *
 * [stretch]: its last edges, which run on the parent's features.
 */
internal class PrefixNode(val prefix: Prefix, val stretch: List<Edge>, val children: List<PrefixNode>) {
    /** All nodes below this one, depth first. */
    fun nodes(): Sequence<PrefixNode> = children.asSequence().flatMap { sequenceOf(it) + it.nodes() }

    fun behind(stretch: List<Edge>) = PrefixNode(prefix, stretch, children)
}

/**
 * The tree in which to evaluate [subnets]; equal subnets share a leaf.
 *
 * Prefixes are cached in order of importance (predicted latency × share of subnets that have it) while the features
 * along every chain fit [cacheBytes], for batches of [batch] samples. Each branch recomputes a prefix that is not
 * cached.
 */
internal fun buildTree(
    supernet: Supernet,
    subnets: List<Subnet>,
    edgeLatencyMs: (Edge) -> Double,
    batch: Int,
    cacheBytes: Long,
): PrefixNode {
    val distinct = subnets.distinct()
    val full = PrefixNode(emptyList(), emptyList(), branches(distinct, 0))
    val shared = full.nodes().filter { it.children.isNotEmpty() }.toList()
    val importance = shared.associateWith { it.prefix.sumOf(edgeLatencyMs) * leaves(it) / distinct.size }
    val kept = HashMap<Prefix, Long>()
    for (node in shared.sortedByDescending { importance.getValue(it) }) {
        val size = supernet.ends(node.prefix.last()).second.nbytes * batch
        val above = node.prefix.indices.sumOf { kept[node.prefix.take(it)] ?: 0L }
        if (above + size + largestChain(node, kept) <= cacheBytes) kept[node.prefix] = size
    }
    return PrefixNode(emptyList(), emptyList(), keepOnly(full, kept.keys, emptyList()))
}

/** The nodes below a prefix of [depth] edges that all [subnets] share, one per edge that follows. */
private fun branches(subnets: List<Subnet>, depth: Int): List<PrefixNode> =
    subnets.groupBy { it.edges[depth] }.values.map { group ->
        val edges = group[0].edges
        val end = edges.indices.find { at -> group.any { it.edges.getOrNull(at) != edges[at] } } ?: edges.size
        val children = if (group.size > 1) branches(group, end) else emptyList()
        PrefixNode(edges.subList(0, end).toList(), edges.subList(depth, end), children)
    }

private fun leaves(node: PrefixNode): Int = node.nodes().count { it.children.isEmpty() }

/** The most bytes of kept features on a chain below [node]. */
private fun largestChain(node: PrefixNode, kept: Map<Prefix, Long>): Long =
    node.children.maxOfOrNull { (kept[it.prefix] ?: 0L) + largestChain(it, kept) } ?: 0L

/** The children of [node] with nodes that are not kept replaced by their own children. */
private fun keepOnly(node: PrefixNode, kept: Set<Prefix>, recomputed: List<Edge>): List<PrefixNode> =
    node.children.flatMap { child ->
        val stretch = recomputed + child.stretch
        if (child.children.isNotEmpty() && child.prefix !in kept) keepOnly(child, kept, stretch)
        else listOf(PrefixNode(child.prefix, stretch, keepOnly(child, kept, emptyList())))
    }
