/**
 * The one cost model: what a path costs, and what a device can afford.
 *
 * Latency is additive over edges and then calibrated on whole subnets, since a composed graph saves what separate
 * blocks pay. Memory is what all blocks of the path keep resident plus the largest working set of one of them. Where
 * neighbours run at different homes, crossing from one to the other is added, and the offset is that of the homes by
 * their shares of the latency.
 */
package pathweave.sdk.supernet

import pathweave.sdk.BudgetError
import pathweave.sdk.UsageError

private const val MOST_SAVED = 0.9 // of the sum of the blocks, that composing them saves at several homes
private const val BITS_PER_BYTE = 8
private const val MEGA_PER_MILLI = 1e3 // Mbit/s in bits per millisecond

/** Bytes. */
public const val MB: Int = 1_000_000

/** What one block in one rendition costs by itself, measured on this device at batch 1. */
public data class EdgeCost(
    val latencyMs: Double,
    val p95LatencyMs: Double,
    val residentBytes: Long,
    val workingBytes: Long,
)

/** One exit's branch in one rendition, on paths of one input size (null: the model's own). */
public data class ExitAtSize(val exit: String, val rendition: String = FP32, val inputSize: SampleSize? = null)

/** What a plan costs per sample. */
public data class Cost(val latencyMs: Double, val peakBytes: Long)

/**
 * What a plan may cost. At least one limit is set.
 *
 * [latencyMs]: of one call with one sample, as the application sees it when nothing else runs on the device; or
 * [latencyRatio]: of the full model's latency in the same circumstances. [percentile]: of the calls that the limit holds
 * for; 50 is the median. [callsPerSecond]: the pace at which the application calls; caches are colder between rare calls.
 * [threads]: of a home; those with more are not used.
 *
 * @throws BudgetError nothing is limited, a limit is zero, negative or not a number, latency is limited twice, or the
 *   percentile does not lie between 0 and 100.
 */
public data class Budget(
    val latencyMs: Double? = null,
    val memoryMb: Double? = null,
    val latencyRatio: Double? = null,
    val percentile: Double = MEDIAN,
    val callsPerSecond: Double? = null,
    val threads: Int? = null,
) {
    init {
        if (!limitsLatency && memoryMb == null) {
            throw BudgetError("the budget limits nothing", hint = "set latencyMs, memoryMb or both")
        }
        val limits = listOf("latencyMs" to latencyMs, "memoryMb" to memoryMb, "latencyRatio" to latencyRatio)
        for ((name, limit) in limits + ("callsPerSecond" to callsPerSecond)) {
            if (limit != null && !(limit > 0)) throw BudgetError("the budget's $name is $limit; it must be above zero")
        }
        if (latencyMs != null && latencyRatio != null) {
            throw BudgetError("the budget has latencyMs and latencyRatio; one of them is enough")
        }
        if (threads != null && threads < 1) throw BudgetError("the budget has $threads threads; it must have at least 1")
        if (!(percentile > 0 && percentile < PERCENT)) {
            throw BudgetError("the budget's percentile is $percentile; it must lie between 0 and 100")
        }
    }

    /** Whether there is a latency limit of either kind. */
    public val limitsLatency: Boolean get() = latencyMs != null || latencyRatio != null

    /** The same with its latency in milliseconds, where the full model takes [fullMs]. */
    public fun resolved(fullMs: Double): Budget =
        if (latencyRatio == null) this else copy(latencyMs = latencyRatio * fullMs, latencyRatio = null)

    /** Whether [cost] stays within every limit. */
    public fun fits(cost: Cost): Boolean = fitsLatency(cost.latencyMs) && fitsMemory(cost.peakBytes)

    /** Whether [latencyMs] stays within the latency limit. */
    public fun fitsLatency(latencyMs: Double): Boolean = this.latencyMs == null || latencyMs <= this.latencyMs

    /** Whether [peakBytes] stays within the memory limit. */
    public fun fitsMemory(peakBytes: Long): Boolean = memoryMb == null || peakBytes <= memoryMb * MB

    public companion object {
        /** The percentile of half of the calls. */
        public const val MEDIAN: Double = 50.0
        private const val PERCENT = 100.0
    }
}

/**
 * What a plan is expected to cost per sample; null is unknown, never zero.
 *
 * [latencyMs] is the mean; [bytesSent] too. [accuracy]: of the samples that get an answer. [shareEarly] of the samples
 * take an exit. A server's model is asked about [shareAsked]: the hard ones, or all that reach the end of a plan that is
 * answered there; [shareAskedEarly] of them are asked about from an exit. [shareAbstained] get no answer.
 */
public data class PlanCost(
    val accuracy: Double?,
    val latencyMs: Double?,
    val p95LatencyMs: Double?,
    val bytesSent: Double,
    val peakBytes: Long,
    val energyMj: Double? = null,
    val shareEarly: Double = 0.0,
    val shareAsked: Double = 0.0,
    val shareAbstained: Double = 0.0,
    val shareAskedEarly: Double = 0.0,
    val shareSecond: Double = 0.0,
) {
    /** The share of samples that get an answer. */
    public val coverage: Double get() = 1.0 - shareAbstained
}

/**
 * The way to the server: [mbps] (10⁶ bits per second) upwards, [roundTripMs] for an empty question.
 *
 * @throws UsageError no bandwidth, or a negative round trip.
 */
public data class Uplink(val mbps: Double, val roundTripMs: Double = 0.0) {
    init {
        if (!(mbps > 0)) throw UsageError("the uplink has $mbps Mbit/s; it must be above zero")
        if (!(roundTripMs >= 0)) throw UsageError("the round trip takes $roundTripMs ms; it cannot be negative")
    }

    /** How long [sizeBytes] take, the round trip included. */
    public fun transferMs(sizeBytes: Long): Double = roundTripMs + sizeBytes * BITS_PER_BYTE / (mbps * MEGA_PER_MILLI)

    public companion object {
        /**
         * A typical uplink, for plans before a network can be measured: one of [UPLINKS].
         *
         * @throws UsageError there is none of this name.
         */
        public fun typical(name: String): Uplink =
            UPLINKS[name] ?: throw UsageError("there is no network '$name'", "known: ${UPLINKS.keys.joinToString(", ")}")
    }
}

/** Typical uplinks by name. */
public val UPLINKS: Map<String, Uplink> = mapOf(
    "wifi" to Uplink(40.0, 5.0),
    "lte" to Uplink(10.0, 50.0),
    "3g" to Uplink(1.5, 100.0),
    "ble" to Uplink(0.7, 40.0),
    "lora" to Uplink(0.005, 500.0),
)

/**
 * The stated power of a device in watts: computing, sending, and waiting for a server (HI Eq. 4).
 *
 * @throws UsageError a power is negative, or not finite.
 */
public data class Power(val activeW: Double, val radioW: Double = 0.0, val waitingW: Double = 0.0) {
    init {
        for ((name, watts) in listOf("activeW" to activeW, "radioW" to radioW, "waitingW" to waitingW)) {
            if (!(watts.isFinite() && watts >= 0)) throw UsageError("$name is $watts; it must be finite and at least 0")
        }
    }
}

/**
 * Predicts the cost of any subnet from the costs of its edges.
 *
 * `latencyMs(subnet) = offsetMs + scale · Σ edge latency + Σ changeMs(neighbours)`, fitted on whole subnets.
 * Both costs are by input size too, which an edge names itself. Changes never cost less than nothing, so the sum of edges
 * alone is a lower bound.
 *
 * [homes]: of an edge that names no home, the same edge at each of its homes. It then costs what it costs at the best of
 * them in its path ([housed]). Without an entry it runs at the first home.
 */
public class CostModel(
    public val edgeCosts: Map<Edge, EdgeCost>,
    public val scale: Double = 1.0,
    public val offsetMs: Double = 0.0,
    public val exitCosts: Map<ExitAtSize, EdgeCost> = emptyMap(),
    /** Of an edge that follows one of another rendition; at least 0. */
    public val entryChangeMs: Map<Edge, Double> = emptyMap(),
    /** Of going on behind an exit that was tried, beyond its branch. */
    public val exitOverheadMs: Double = 0.0,
    /** Of every call of a plan, beyond the models that it runs. */
    public val callOverheadMs: Double = 0.0,
    /** Of deciding about a sample at the end, by kind of decider. */
    public val decisionMs: Map<String, Double> = emptyMap(),
    /** Of a path at a home other than the first, in place of [offsetMs]. */
    public val homeOffsetMs: Map<String, Double> = emptyMap(),
    /** By the home before, and the edge at another one. */
    public val crossingMs: Map<Pair<String, Edge>, Double> = emptyMap(),
    public val homes: Map<Edge, List<Edge>> = emptyMap(),
) {
    /** Predicted median latency at batch 1. */
    public fun latencyMs(subnet: Subnet): Double = namedMs(bestAlong(subnet.edges))

    private fun namedMs(edges: List<Edge>): Double {
        val changing = entryChangeMs.isNotEmpty() || crossingMs.isNotEmpty()
        val changes = if (changing) edges.zipWithNext(::changeMs).sum() else 0.0
        return offsetMs(edges) + edges.sumOf(::ownMs) + changes
    }

    private fun ownMs(edge: Edge): Double = scale * edgeCosts.getValue(edge).latencyMs

    /** The offset of a path at its homes, by their shares of the latency of its edges. */
    private fun offsetMs(edges: List<Edge>): Double {
        if (homeOffsetMs.isEmpty()) return offsetMs
        val totalMs = edges.sumOf { edgeCosts.getValue(it).latencyMs }
        if (!(totalMs > 0)) return offsetMs
        val mixedMs = edges.sumOf { edgeCosts.getValue(it).latencyMs * (homeOffsetMs[it.home] ?: offsetMs) } / totalMs
        return maxOf(mixedMs, -MOST_SAVED * scale * totalMs)
    }

    /** True if the costs of all its edges are known. */
    public fun knows(subnet: Subnet): Boolean = subnet.edges.all { it in edgeCosts }

    /**
     * [subnet] with each edge at the home that makes its path fastest; edges that name a home keep it.
     *
     * Exact for edges and changes between neighbours, by dynamic programming along the path.
     */
    public fun housed(subnet: Subnet): Subnet = Subnet(bestAlong(subnet.edges))

    private fun bestAlong(edges: List<Edge>): List<Edge> {
        if (homes.isEmpty() || edges.isEmpty()) return edges
        val choices = edges.map { homes[it] ?: listOf(it) }
        var best = choices[0].map { Way(ownMs(it), listOf(it)) }
        for (those in choices.drop(1)) {
            best = those.map { edge ->
                val ways = best.map { way -> Way(way.ms + changeMs(way.edges.last(), edge), way.edges) }
                val least = ways.minWith(Way.ORDER)
                Way(least.ms + ownMs(edge), least.edges + edge)
            }
        }
        val names = choices.flatten().map { it.home }.distinct()
        val atOne = names.map { name -> choices.map { those -> those.find { it.home == name } ?: those[0] } }
        return (best.map { it.edges } + atOne).minBy(::namedMs) // the offset of homes may turn the order of the last few
    }

    /** The same for edges that may run at any of [homes]; see there. */
    public fun atBestHomes(homes: Map<Edge, List<Edge>>): CostModel {
        val known = homes.mapValues { (_, those) -> those.filter { it in edgeCosts } }
            .filter { (edge, those) -> those.isNotEmpty() && those != listOf(edge) }
        val fastest = known.mapValues { (_, those) -> those.map(edgeCosts::getValue).minBy { it.latencyMs } }
        return CostModel(
            fastest + edgeCosts, scale, offsetMs, exitCosts, entryChangeMs, exitOverheadMs, callOverheadMs, decisionMs,
            homeOffsetMs, crossingMs, known,
        )
    }

    /** Added where [after] has another rendition or home than its neighbour [before]; at least 0. */
    public fun changeMs(before: Edge, after: Edge): Double = when {
        before.home != after.home -> crossingMs[before.home to after] ?: 0.0
        before.rendition == after.rendition -> 0.0
        else -> entryChangeMs[after] ?: 0.0
    }

    /** The share of one edge in a composed subnet, next to neighbours of its own rendition and home. */
    public fun edgeLatencyMs(edge: Edge): Double =
        if (homes.isEmpty()) ownMs(edge) else (homes[edge] ?: listOf(edge)).minOf(::ownMs)

    /** The way to an exit for a sample that leaves there, without the branches tried on it: no session follows. */
    public fun reachMs(before: Subnet): Double = maxOf(latencyMs(before) - exitOverheadMs, 0.0)

    /** What trying an exit costs a sample that goes on: its branch, the decision, and a further session. */
    public fun exitLatencyMs(choice: ExitChoice, inputSize: SampleSize? = null): Double =
        exitCosts.getValue(ExitAtSize(choice.exit, choice.rendition, inputSize)).latencyMs + exitOverheadMs

    /** What [decider] takes for a sample that reached the end. */
    public fun decidingMs(decider: Decider): Double = decisionMs[kindOf(decider)] ?: 0.0

    /** Predicted peak memory beyond the bare runtime. */
    public fun peakBytes(subnet: Subnet): Long {
        val costs = subnet.edges.map(edgeCosts::getValue)
        return costs.sumOf { it.residentBytes } + costs.maxOf { it.workingBytes }
    }

    /** Predicted cost of a subnet that answers every sample by itself. */
    public fun cost(subnet: Subnet): Cost = Cost(latencyMs(subnet), peakBytes(subnet))
}

/** A path up to an edge at one of its homes; equal latencies go by the names of the homes, as in Python. */
private class Way(val ms: Double, val edges: List<Edge>) {
    companion object {
        val ORDER: Comparator<Way> = Comparator { one, other ->
            val byMs = one.ms.compareTo(other.ms)
            if (byMs != 0) byMs
            else one.edges.zip(other.edges) { a, b -> a.home.compareTo(b.home) }.firstOrNull { it != 0 } ?: 0
        }
    }
}
