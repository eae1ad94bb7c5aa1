/**
 * The one cost model: what a path costs, and what a device can afford.
 *
 * Latency is additive over edges and then calibrated on whole subnets, since a composed graph saves what separate
 * blocks pay. Memory is what all blocks of the path keep resident plus the largest working set of one of them.
 */
package pathweave.sdk

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
public data class ExitAtSize(val exit: String, val rendition: String = FP32, val inputSize: ImageSize? = null)

/** What a plan costs per sample. */
public data class Cost(val latencyMs: Double, val peakBytes: Long)

/**
 * What a plan may cost. At least one limit is set.
 *
 * @throws BudgetError nothing is limited, or a limit is zero, negative or not a number.
 */
public data class Budget(val latencyMs: Double? = null, val memoryMb: Double? = null) {
    init {
        if (latencyMs == null && memoryMb == null) {
            throw BudgetError("the budget limits nothing", hint = "set latencyMs, memoryMb or both")
        }
        for ((name, limit) in listOf("latencyMs" to latencyMs, "memoryMb" to memoryMb)) {
            if (limit != null && !(limit > 0)) throw BudgetError("the budget's $name is $limit; it must be above zero")
        }
    }

    /** Whether [cost] stays within every limit. */
    public fun fits(cost: Cost): Boolean = fitsLatency(cost.latencyMs) && fitsMemory(cost.peakBytes)

    /** Whether [latencyMs] stays within the latency limit. */
    public fun fitsLatency(latencyMs: Double): Boolean = this.latencyMs == null || latencyMs <= this.latencyMs

    /** Whether [peakBytes] stays within the memory limit. */
    public fun fitsMemory(peakBytes: Long): Boolean = memoryMb == null || peakBytes <= memoryMb * MB
}

/**
 * Predicts the cost of any subnet from the costs of its edges.
 *
 * `latencyMs(subnet) = offsetMs + scale · Σ edge latency + Σ changeMs(neighbours)`, fitted on whole subnets.
 * Both costs are by input size too, which an edge names itself.
 */
public class CostModel(
    public val edgeCosts: Map<Edge, EdgeCost>,
    public val scale: Double = 1.0,
    public val offsetMs: Double = 0.0,
    public val exitCosts: Map<ExitAtSize, EdgeCost> = emptyMap(),
    /** Of an edge that follows one of another rendition; at least 0. */
    public val entryChangeMs: Map<Edge, Double> = emptyMap(),
    /** Of every exit that is tried, beyond its branch. */
    public val exitOverheadMs: Double = 0.0,
) {
    /** Predicted median latency at batch 1. */
    public fun latencyMs(subnet: Subnet): Double {
        val changes = if (entryChangeMs.isEmpty()) 0.0 else subnet.edges.zipWithNext(::changeMs).sum()
        return offsetMs + subnet.edges.sumOf(::edgeLatencyMs) + changes
    }

    /** What it costs that [after] runs in another rendition than its neighbour [before]; at least 0. */
    public fun changeMs(before: Edge, after: Edge): Double =
        if (before.rendition == after.rendition) 0.0 else entryChangeMs[after] ?: 0.0

    /** The share of one edge in a composed subnet. */
    public fun edgeLatencyMs(edge: Edge): Double = scale * edgeCosts.getValue(edge).latencyMs

    /** What trying an exit costs a sample: its branch, the decision, and a further session. */
    public fun exitLatencyMs(choice: ExitChoice, inputSize: ImageSize? = null): Double =
        exitCosts.getValue(ExitAtSize(choice.exit, choice.rendition, inputSize)).latencyMs + exitOverheadMs

    /** Predicted peak memory beyond the bare runtime. */
    public fun peakBytes(subnet: Subnet): Long {
        val costs = subnet.edges.map(edgeCosts::getValue)
        return costs.sumOf { it.residentBytes } + costs.maxOf { it.workingBytes }
    }

    /** Predicted cost of a subnet that answers every sample by itself. */
    public fun cost(subnet: Subnet): Cost = Cost(latencyMs(subnet), peakBytes(subnet))
}
