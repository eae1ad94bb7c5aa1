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
    public val exits: Map<ExitAtSize, EdgeCost>,
    public val scale: Double,
    public val offsetMs: Double,
    /** The original path first. */
    public val fitted: List<MeasuredSubnet>,
) {
    /** Predicts subnets and plans from this profile. */
    public fun costModel(): CostModel = CostModel(edges, scale, offsetMs, exits)
}

/**
 * Measure every edge and every exit alone and a few whole subnets, all at batch 1 on the runtime's threads and at every
 * input size of the bundle.
 *
 * 1. load each block and branch once for all sizes, noting its memory; 2. time them in turns; 3. time whole subnets in
 * turns: the original at every input size, the cheapest and random ones; 4. fit scale and offset to them.
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
    val (edges, exits) = measureAlone(bundle, runtime, rounds, clock)
    val fitted = measureFitted(bundle, runtime, CostModel(edges), rounds, seed, clock)
    val (scale, offsetMs) = fit(fitted)
    return Profile(bundle.digest, runtime.identity, edges, exits, scale, offsetMs, fitted)
}

/** What every edge and every exit's branch costs by itself. One session runs a block or branch at all its sizes. */
private fun measureAlone(
    bundle: Bundle,
    runtime: Runtime,
    rounds: Int,
    clock: Clock,
): Pair<Map<Edge, EdgeCost>, Map<ExitAtSize, EdgeCost>> = closing<LoadedModel, _> { models ->
    val supernet = bundle.supernet
    fun loaded(stretch: Stretch) = LoadedModel(stretch, runtime).also { models += it }
    fun sizesOf(rendition: Rendition) = supernet.sizes.filter { it == null || rendition.anySize }

    val edges = supernet.edges.filter { it.inputSize == null }.flatMap { edge ->
        val model = loaded(bundle.stretch(listOf(edge), anySize = true))
        sizesOf(supernet.rendition(edge)).map { size ->
            val (start, end) = supernet.ends(edge.at(size))
            edge.at(size) to SizedPart(model, start, end.tensors)
        }
    }
    val exits = supernet.exits.flatMap { exit -> exit.renditions.map { exit to it } }.flatMap { (exit, rendition) ->
        val model = loaded(bundle.stretch(emptyList(), ExitChoice(exit.id, 1.0, rendition.name)))
        sizesOf(rendition).map { size ->
            val start = supernet.cutPointsAt(size)[exit.position]
            ExitAtSize(exit.id, rendition.name, size) to SizedPart(model, start, listOf(supernet.exitTensor(exit)))
        }
    }
    val parts = (edges + exits).map { (_, part) -> part }
    val timed = measureInterleaved(parts.map { it::run }, rounds, WARMUP, clock)
    val costs = parts.zip(timed) { part, latency -> part.cost(latency) }
    edges.map { it.first }.zip(costs).toMap() to exits.map { it.first }.zip(costs.drop(edges.size)).toMap()
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
    val whole = listOf(supernet.original) + supernet.inputSizes.map { supernet.anySizeOriginal.at(it.size) }
    val subnets = (whole + cheapest + random).distinct().take(whole.size + FITTED_SUBNETS - 1)
    val latencies = closing<LoadedModel, _> { models ->
        val calls = subnets.map { subnet ->
            val model = LoadedModel(bundle.stretch(subnet.edges), runtime).also { models += it }
            val inputs = goldenInputs(supernet.cutPointsAt(subnet.inputSize)[0], seed = 0, batch = 1)
            val call = { model.run(inputs) }
            call
        }
        measureInterleaved(calls, rounds, WARMUP, clock)
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
 * A stretch, loaded alone, and the memory that it keeps.
 *
 * Small blocks hide in memory that the process already had, so no part of the estimate is below what must be there: the
 * weights, and (see [SizedPart]) the tensors that go in and come out.
 */
private class LoadedModel(stretch: Stretch, runtime: Runtime) : AutoCloseable {
    private val loaded: LoadedStretch
    val residentBytes: Long

    init {
        val (session, grown) = peakDuring { runtime.load(stretch) }
        loaded = session
        residentBytes = maxOf(grown ?: 0L, stretch.fragments.sumOf { it.size.toLong() })
    }

    fun run(inputs: List<Tensor>) {
        loaded.run(inputs)
    }

    override fun close() = loaded.close()
}

/** A loaded block or branch at one input size: its golden input, and the memory that a run takes. */
private class SizedPart(private val model: LoadedModel, start: CutPoint, outputs: List<TensorSpec>) {
    private val inputs = goldenInputs(start, seed = 0, batch = 1)
    private val workingBytes: Long

    init {
        val (_, grown) = peakDuring { run() }
        workingBytes = maxOf(grown ?: 0L, (start.tensors + outputs).sumOf { it.nbytes })
    }

    fun run() = model.run(inputs)

    fun cost(latency: Latency) = EdgeCost(latency.medianMs, latency.p95Ms, model.residentBytes, workingBytes)
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
