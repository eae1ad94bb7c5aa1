/**
 * Profiling: what every block costs on this device, calibrated so that whole subnets are predicted well.
 *
 * A composed subnet is faster than the sum of its blocks, since the runtime optimises across block boundaries, so a
 * line through a few measured whole subnets turns sums into predictions.
 */
package pathweave.sdk

import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime

private const val ROUNDS = 60
private const val WARMUP = 5
private const val FITTED_SUBNETS = 10
private const val LEAST_SPREAD = 0.05 // of the block sums, for a line to have an offset

/** A whole subnet that was measured: Σ of its block latencies, and its own latency, at batch 1. */
public data class MeasuredSubnet(val subnet: Subnet, val blocksMs: Double, val measuredMs: Double)

/** What one bundle costs on this device with one runtime. Valid for equal [bundle] and [runtime]. */
public class Profile(
    public val bundle: String,
    public val runtime: String,
    public val edges: Map<Edge, EdgeCost>,
    /** By exit and rendition. */
    public val exits: Map<Pair<String, String>, EdgeCost>,
    public val scale: Double,
    public val offsetMs: Double,
    /** The original path first. */
    public val fitted: List<MeasuredSubnet>,
) {
    /** Predicts subnets and plans from this profile. */
    public fun costModel(): CostModel = CostModel(edges, scale, offsetMs, exits)
}

/**
 * Measure every edge and every exit alone and a few whole subnets, all at batch 1 on the runtime's threads.
 *
 * 1. load each of them, noting its memory; 2. time them in turns; 3. time whole subnets in turns: the original, the
 * cheapest and random ones; 4. fit scale and offset to them.
 *
 * @throws BundleError a blob or a fragment is broken.
 * @throws RuntimeFailedError a block does not load or run.
 */
public fun profile(
    bundle: Bundle,
    runtime: Runtime,
    rounds: Int = ROUNDS,
    seed: Long = 0,
    clock: Clock = System::nanoTime,
): Profile {
    val supernet = bundle.supernet
    val choices = supernet.exits.flatMap { exit -> exit.renditions.map { ExitChoice(exit.id, 1.0, it.name) } }
    val costs = closing<LoadedPart, _> { parts ->
        for (edge in supernet.edges) {
            val start = supernet.cutPoints[supernet.block(edge.block).start]
            parts += LoadedPart(bundle.stretch(listOf(edge)), start, runtime)
        }
        for (choice in choices) {
            val start = supernet.cutPoints[supernet.exit(choice.exit).position]
            parts += LoadedPart(bundle.stretch(emptyList(), choice), start, runtime)
        }
        val timed = measureInterleaved(parts.map { it::run }, rounds, WARMUP, clock)
        parts.zip(timed) { part, latency -> part.cost(latency) }
    }
    val edges = supernet.edges.zip(costs).toMap()
    val exits = choices.map { it.exit to it.rendition }.zip(costs.drop(supernet.edges.size)).toMap()
    val fitted = measureFitted(bundle, runtime, CostModel(edges), rounds, seed, clock)
    val (scale, offsetMs) = fit(fitted)
    return Profile(bundle.digest, runtime.identity, edges, exits, scale, offsetMs, fitted)
}

private fun measureFitted(
    bundle: Bundle,
    runtime: Runtime,
    blocks: CostModel,
    rounds: Int,
    seed: Long,
    clock: Clock,
): List<MeasuredSubnet> {
    val supernet = bundle.supernet
    val cheapest = kCheapest(supernet, blocks::edgeLatencyMs, k = 1).map { it.subnet }
    val random = sampleUniformly(supernet, count = 3 * FITTED_SUBNETS, random = SplitMix64(seed))
    val subnets = (listOf(supernet.original) + cheapest + random).distinct().take(FITTED_SUBNETS)
    val latencies = closing<LoadedPart, _> { whole ->
        for (subnet in subnets) whole += LoadedPart(bundle.stretch(subnet.edges), supernet.cutPoints[0], runtime)
        measureInterleaved(whole.map { it::run }, rounds, WARMUP, clock)
    }
    return subnets.zip(latencies) { subnet, latency ->
        MeasuredSubnet(subnet, blocks.latencyMs(subnet), latency.medianMs)
    }
}

/**
 * Scale and offset [ms] that predict measured latencies from block sums with the least relative squared error.
 *
 * With too little to tell them apart, or a line that makes no sense, the offset is 0 and the scale the median ratio.
 */
internal fun fit(measured: List<MeasuredSubnet>): Pair<Double, Double> {
    val sums = measured.map { it.blocksMs }
    if (sums.max() - sums.min() > LEAST_SPREAD * sums.max()) {
        // least squares of scale · sum/latency + offset · 1/latency against 1, by the normal equations
        val rows = measured.map { it.blocksMs / it.measuredMs to 1 / it.measuredMs }
        val aa = rows.sumOf { (a, _) -> a * a }
        val ab = rows.sumOf { (a, b) -> a * b }
        val bb = rows.sumOf { (_, b) -> b * b }
        val a = rows.sumOf { it.first }
        val b = rows.sumOf { it.second }
        val determinant = aa * bb - ab * ab
        val scale = (a * bb - b * ab) / determinant
        val offsetMs = (aa * b - ab * a) / determinant
        if (scale > 0 && offsetMs + scale * sums.min() > 0) return scale to offsetMs
    }
    return percentile(measured.map { it.measuredMs / it.blocksMs }.sorted(), 0.5) to 0.0
}

/**
 * A stretch, loaded alone, its golden input, and the memory that it took.
 *
 * Small blocks hide in memory that the process already had, so no part of the estimate is below what must be there: the
 * weights, and the tensors that go in and come out.
 */
private class LoadedPart(stretch: Stretch, start: CutPoint, runtime: Runtime) : AutoCloseable {
    private val inputs = goldenInputs(start, seed = 0, batch = 1)
    private val loaded: LoadedStretch
    private val residentBytes: Long
    private val workingBytes: Long

    init {
        val (session, grown) = peakDuring { runtime.load(stretch) }
        loaded = session
        residentBytes = maxOf(grown ?: 0L, stretch.fragments.sumOf { it.size.toLong() })
        val (_, working) = peakDuring { run() }
        workingBytes = maxOf(working ?: 0L, (stretch.inputs + stretch.outputs).sumOf { it.nbytes })
    }

    fun run() {
        loaded.run(inputs)
    }

    fun cost(latency: Latency) = EdgeCost(latency.medianMs, latency.p95Ms, residentBytes, workingBytes)

    override fun close() = loaded.close()
}

/** Runs [work] with a list to which it adds what is to be closed in the end. */
private fun <C : AutoCloseable, T> closing(work: (MutableList<C>) -> T): T {
    val open = mutableListOf<C>()
    try {
        return work(open)
    } finally {
        open.forEach { it.close() }
    }
}
