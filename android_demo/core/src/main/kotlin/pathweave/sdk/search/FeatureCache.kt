/** Feature cache with a byte cap: features that the current group shares and that later groups may need. */
package pathweave.sdk.search

import java.util.PriorityQueue
import kotlin.math.expm1
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.nbytes

/** A batch, and the edges that it has run through. */
internal data class FeatureKey(val batch: Int, val prefix: Prefix)

internal fun List<Tensor>.bytes(): Long = sumOf { it.size.toLong() * it.dtype.bytes }

/**
 * Holds all features that outlive one edge run.
 *
 * [keptBytes], the sum of the arrays' sizes, never exceeds [capBytes]: entries are evicted before one is added. Pinned
 * entries are not evicted; of the others the least valuable is evicted first. An unpinned entry of value 0 is dropped
 * at once. Thread-safe. Source: AdaptiveNet §5.2, there without persistence. Mirrors device_sdk/search/evaluation/prefix_tree.py.
 */
internal class FeatureCache(private val capBytes: Long) {
    private class Entry(val features: List<Tensor>, val bytes: Long) {
        var worth = 0.0
        var serial = 0 // marks the entry's current item in the queue; older items are stale
        var pinned = false
    }

    private class Item(val worth: Double, val serial: Int, val key: FeatureKey)

    private val entries = HashMap<FeatureKey, Entry>()
    private val byWorth = PriorityQueue<Item>(compareBy<Item>({ it.worth }, { it.serial })) // with stale items in it
    private var serials = 0
    var keptBytes: Long = 0L
        private set
    var peakBytes: Long = 0L
        private set

    /** The features cached under [key], or null. */
    @Synchronized
    operator fun get(key: FeatureKey): List<Tensor>? = entries[key]?.features

    /**
     * Cache [features]; with [pin] until [unpin]. Returns false if they do not fit.
     *
     * To make room, unpinned entries of lower value are evicted; for a pinned entry, any unpinned ones.
     */
    @Synchronized
    fun keep(key: FeatureKey, features: List<Tensor>, worth: Double, pin: Boolean = false): Boolean {
        val entry = entries[key] ?: Entry(features, features.bytes()).also { new ->
            if (!makeRoom(new.bytes, if (pin) null else worth)) return false
            entries[key] = new
            keptBytes += new.bytes
            peakBytes = maxOf(peakBytes, keptBytes)
        }
        entry.pinned = entry.pinned || pin
        note(key, entry, worth)
        return true
    }

    /** Make a pinned entry evictable. */
    @Synchronized
    fun unpin(key: FeatureKey) {
        val entry = entries.getValue(key)
        entry.pinned = false
        note(key, entry, entry.worth)
    }

    /** Update the value of every entry, for instance at the start of a generation. */
    @Synchronized
    fun revalue(worth: (Prefix) -> Double) {
        byWorth.clear()
        for ((key, entry) in entries.toList()) note(key, entry, worth(key.prefix))
    }

    /** Drop everything. */
    @Synchronized
    fun clear() {
        entries.clear()
        byWorth.clear()
        keptBytes = 0
    }

    private fun note(key: FeatureKey, entry: Entry, worth: Double) {
        entry.worth = worth
        entry.serial = serials++
        if (entry.pinned) return
        if (worth > 0) byWorth += Item(worth, entry.serial, key) else drop(key)
    }

    /** Evict unpinned entries until [bytes] fit; if [worth] is given, only those of lower value. */
    private fun makeRoom(bytes: Long, worth: Double?): Boolean {
        while (keptBytes + bytes > capBytes) {
            val least = byWorth.peek() ?: break
            val entry = entries[least.key]
            val outdated = entry == null || entry.pinned || entry.serial != least.serial
            if (!outdated && worth != null && least.worth >= worth) return false
            byWorth.remove()
            if (!outdated) drop(least.key)
        }
        return keptBytes + bytes <= capBytes
    }

    private fun drop(key: FeatureKey) {
        entries.remove(key)?.let { keptBytes -= it.bytes }
    }
}

private class PrefixStats(val latencyMs: Double, val bytes: Long) {
    /** Expected children that share at least this prefix and start from no longer one. */
    var users = 0.0

    /** Probability of at least one such child (Poisson). */
    val needed: Double get() = -expm1(-users)

    val worthAlone: Double get() = latencyMs * needed / bytes
}

/**
 * Latency saved per byte, for the prefixes whose features are chosen for [roomBytes] of cache.
 *
 * A later group is modelled as [children], expected per parent. A child shares its parent's path up to an edge drawn
 * uniformly from the parent's edges (AdaptiveNet §5.1 replaces a random branch), and starts from the longest cached
 * prefix of that path. Worth = predicted latency saved × probability that a child needs the feature / its bytes.
 * Greedy: prefixes are chosen in order of worth, and each choice lowers the worth of shorter and longer prefixes on its
 * path.
 */
internal fun prefixWorth(
    children: Map<Subnet, Double>,
    edgeLatencyMs: (Edge) -> Double,
    featureBytes: (Edge) -> Long,
    roomBytes: Long,
): Map<Prefix, Double> {
    val stats = prefixStats(children, edgeLatencyMs, featureBytes)
    val kept = HashMap<Prefix, Double>()
    var room = roomBytes
    val queue = PriorityQueue(compareByDescending<Pair<Double, Prefix>> { it.first }.thenBy(BY_EDGES) { it.second })
    for ((prefix, stat) in stats) queue += stat.worthAlone to prefix
    while (true) {
        val (_, prefix) = queue.poll() ?: break
        val stat = stats.getValue(prefix)
        if (stat.bytes > room) continue
        val savedMs = stat.latencyMs - (keptBelow(prefix, kept)?.let { stats.getValue(it).latencyMs } ?: 0.0)
        val now = savedMs * stat.needed / stat.bytes
        val next = queue.peek()
        if (next != null && now < next.first) { // its worth fell since it was queued: queue it again
            queue += now to prefix
            continue
        }
        if (now <= 0) break
        kept[prefix] = now
        room -= stat.bytes
        serve(prefix, stats, kept)
    }
    return kept
}

/** The proper prefixes of the parents. */
private fun prefixStats(
    children: Map<Subnet, Double>,
    edgeLatencyMs: (Edge) -> Double,
    featureBytes: (Edge) -> Long,
): Map<Prefix, PrefixStats> {
    val stats = LinkedHashMap<Prefix, PrefixStats>()
    for ((parent, count) in children) {
        var latencyMs = 0.0
        for (length in 1 until parent.edges.size) {
            val edge = parent.edges[length - 1]
            latencyMs += edgeLatencyMs(edge)
            val prefix = parent.edges.take(length)
            val stat = stats.getOrPut(prefix) { PrefixStats(latencyMs, featureBytes(edge)) }
            stat.users += count * (1 - length.toDouble() / parent.edges.size)
        }
    }
    return stats
}

/** The longest chosen prefix that is shorter than [prefix]. */
private fun keptBelow(prefix: Prefix, kept: Map<Prefix, Double>): Prefix? =
    (prefix.size - 1 downTo 1).firstNotNullOfOrNull { length -> prefix.take(length).takeIf { it in kept } }

/** Children that start from [prefix] no longer use shorter prefixes, down to the next chosen one. */
private fun serve(prefix: Prefix, stats: Map<Prefix, PrefixStats>, kept: Map<Prefix, Double>) {
    val served = stats.getValue(prefix).users
    for (length in prefix.size - 1 downTo 1) {
        val shorter = prefix.take(length)
        stats.getValue(shorter).let { it.users = maxOf(it.users - served, 0.0) }
        if (shorter in kept) return
    }
}

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
