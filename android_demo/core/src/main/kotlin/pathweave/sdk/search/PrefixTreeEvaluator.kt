/** Batch-wise group evaluation of subnets with reuse of shared prefixes (AdaptiveNet §5.2, DFS-Evaluate). */
package pathweave.sdk.search

import java.io.Closeable
import java.util.concurrent.ConcurrentHashMap
import kotlin.math.abs
import pathweave.sdk.ClosedError
import pathweave.sdk.DataError
import pathweave.sdk.InputError
import pathweave.sdk.UsageError
import pathweave.sdk.data.Inputs
import pathweave.sdk.execution.corrected
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.argmax
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.nbytes

private const val PARENTS = 64 // at most this many of the best subnets are expected to have children in the next group

/**
 * Evaluates subnets on labelled samples; implements the search's [Evaluator].
 *
 * A group is evaluated batch by batch, depth first over the tree of its prefixes, so that a shared prefix runs once.
 * Features that later groups will probably need are cached. Every edge runs in its own session, with and without reuse,
 * so that results are bit-identical. Results are kept. Not for several threads: [workers] batches at a time are evaluated
 * in threads of its own, with equal results. [close] frees all.
 *
 * [labels]: [count] class indices. The output of the last cut point is [batch, classes]. At most [cacheBytes] of
 * features outlive the edge run that makes or reads them. [load]: makes one edge ready to run at every input size; one
 * session serves all.
 *
 * @throws DataError there are no samples.
 * @throws InputError inputs and labels differ in number.
 * @throws UsageError a size is out of range.
 */
public class PrefixTreeEvaluator(
    private val supernet: Supernet,
    load: (Edge) -> LoadedStretch,
    private val inputs: Inputs,
    labels: IntArray,
    private val costModel: CostModel,
    override val batch: Int = 64,
    private val cacheBytes: Long = 64_000_000,
    workers: Int = 1,
) : Evaluator, Closeable {
    private val sessions = Sessions(load)
    private val cache = FeatureCache(cacheBytes)
    private val answers = LinkedHashMap<Subnet, Answers>()
    private val references: MutableMap<Int, List<FloatArray>> = ConcurrentHashMap() // by batch: logits of the full model, without a prior
    private val touched = HashSet<Int>() // batches on which at least one subnet was evaluated
    private var prior: Prior? = null
    private var worth: Map<Prefix, Double> = emptyMap()
    private var labels = labels.toList()
    private var order = labels.indices.toList()

    /** One edge on one batch, over all calls. */
    public var edgeRuns: Int = 0
        private set

    /** What evaluating the same subnets one by one takes. */
    public var edgeRunsWithoutReuse: Int = 0
        private set

    /** Peak size of the feature cache. */
    public val peakCachedBytes: Long get() = cache.peakBytes

    override val sampleCount: Int get() = labels.size
    private val batches: IntRange get() = 0..(sampleCount - 1) / batch

    init {
        if (inputs.count != labels.size) {
            throw InputError("there are ${inputs.count} samples and ${labels.size} labels")
        }
        if (labels.isEmpty()) throw DataError("there are no samples to evaluate subnets on")
        if (batch < 1 || cacheBytes < 0) throw UsageError("batch must be at least 1 and cacheBytes at least 0")
        if (workers < 1) throw UsageError("workers must be at least 1")
    }

    private val workers = Workers(workers)

    /** Logits of the full model by sample, without a prior, and the labels in the same order. Throws as [correct]. */
    public fun fullModelLogits(): Pair<List<FloatArray>, IntArray> {
        workers.each(batches, { false }, ::referTo)
        return batches.flatMap { references.getValue(it) } to labels.toIntArray()
    }

    /**
     * Judge all answers under [prior] from now on.
     *
     * @throws UsageError something was evaluated without it.
     */
    public fun usePrior(prior: Prior?) {
        if (answers.isNotEmpty()) throw UsageError("a prior must be set before subnets are evaluated")
        this.prior = prior
    }

    override fun orderByMargin(shouldStop: () -> Boolean) {
        if (answers.isNotEmpty()) return
        workers.each(batches, shouldStop, ::referTo)
        val logits = batches.flatMap { references.getValue(it) }
        val margins = fullModelMargins()
        val sorted = margins.indices.sortedBy { abs(margins[it]) }
        for (number in batches) references[number] = samplesOf(number).map { logits[sorted[it]] }
        order = sorted.map(order::get)
        labels = sorted.map(labels::get)
    }

    /**
     * Whole batches are evaluated, also where [samples] has a part of one.
     *
     * @throws UsageError one of the subnets is not a path of the supernet.
     * @throws pathweave.sdk.RuntimeFailedError a block did not load or run.
     * @throws ClosedError the evaluator was closed.
     * @throws EvaluationStopped [shouldStop] returned true.
     */
    override fun correct(subnets: List<Subnet>, samples: IntRange, shouldStop: () -> Boolean): List<BooleanArray> {
        for (subnet in subnets) if (subnet !in answers) supernet.check(subnet)
        for (subnet in subnets) answers.getOrPut(subnet) { Answers(sampleCount) }
        if (!samples.isEmpty()) evaluate(subnets.distinct(), samples.first / batch..samples.last / batch, shouldStop)
        return subnets.map { answers.getValue(it).correct.sliceArray(samples) }
    }

    override fun margins(subnets: List<Subnet>, samples: IntRange): List<DoubleArray> = subnets.map { subnet ->
        val own = answers.getValue(subnet).margins
        DoubleArray(samples.count()) { own[samples.first + it].toDouble() }
    }

    override fun distances(subnets: List<Subnet>, samples: IntRange): DoubleArray = DoubleArray(subnets.size) {
        val own = answers.getValue(subnets[it]).distances
        samples.sumOf { at -> own[at] } / samples.count()
    }

    /** The full model runs once per batch; [edgeRuns] does not count it. */
    override fun fullModelMargins(): DoubleArray {
        val evaluated = references.keys.sorted()
        val logits = corrected(evaluated.flatMap { references.getValue(it) }, prior)
        val own = evaluated.flatMap { number -> samplesOf(number).map(labels::get) }
        return DoubleArray(logits.size) { margin(logits[it], own[it]).toDouble() }
    }

    /** Free all sessions and features; they are loaded again on demand. Results are kept. */
    public fun release() {
        sessions.release()
        cache.clear()
    }

    /** Free all sessions, features and threads. May be called twice. */
    override fun close() {
        workers.close()
        sessions.close()
        cache.clear()
    }

    /** Evaluate each subnet on those of [wanted] batches that it has no results for. */
    private fun evaluate(subnets: List<Subnet>, wanted: IntRange, shouldStop: () -> Boolean) {
        val groups = wanted.associateWith { number -> subnets.filter { number !in answers.getValue(it).batches } }
            .filterValues { it.isNotEmpty() }
        if (groups.isEmpty()) return
        val trees = groups.values.distinct().associateWith {
            buildTree(supernet, it, costModel::edgeLatencyMs, minOf(batch, sampleCount), cacheBytes)
        }
        touched += groups.keys
        valueFeatures(subnets)
        workers.each(groups.keys, shouldStop) { number ->
            val group = groups.getValue(number)
            evaluateBatch(number, group, trees.getValue(group))
        }
    }

    private fun evaluateBatch(number: Int, group: List<Subnet>, tree: PrefixNode) {
        referTo(number)
        for ((size, children) in tree.children.groupBy { it.prefix[0].inputSize }) {
            val prepared = listOf(inputsOf(number, size))
            for (child in children) visit(child, prepared, number)
        }
        synchronized(answers) {
            edgeRunsWithoutReuse += group.sumOf { it.edges.size }
            for (subnet in group) answers.getValue(subnet).batches += number
        }
    }

    private fun samplesOf(number: Int): IntRange = number * batch until minOf((number + 1) * batch, sampleCount)

    private fun inputsOf(number: Int, size: SampleSize?): Tensor = inputs.take(samplesOf(number).map(order::get), size)

    /** Run [node]'s stretch on its parent's features, then its children on the result. */
    private fun visit(node: PrefixNode, above: List<Tensor>, number: Int) {
        val features = run(node, above, number)
        if (node.children.isEmpty()) {
            answers.getValue(Subnet(node.prefix)).add(rows(features.last()), number)
            return
        }
        val key = FeatureKey(number, node.prefix)
        if (cache.keep(key, features, worth[node.prefix] ?: 0.0, pin = true)) {
            try {
                for (child in node.children) visit(child, features, number)
            } finally {
                cache.unpin(key)
            }
            return
        }
        // larger than the tree assumed: every child runs the stretch again
        for (child in node.children) visit(child.behind(node.stretch + child.stretch), above, number)
    }

    private fun Answers.add(logits: List<FloatArray>, number: Int) {
        val (reference, own) = references.getValue(number) to corrected(logits, prior)
        for ((at, sample) in samplesOf(number).withIndex()) {
            correct[sample] = argmax(own[at]) == labels[sample]
            margins[sample] = margin(own[at], labels[sample])
            // the prior adds the same to both
            distances[sample] = meanSquare(centred(logits[at]), centred(reference[at]))
        }
    }

    /** Run the full model on a batch unless its logits are stored. */
    private fun referTo(number: Int) {
        if (number in references) return
        val prepared = listOf(inputsOf(number, null))
        val features = supernet.original.edges.fold(prepared) { above, edge -> sessions[edge].run(above) }
        references[number] = rows(features.last())
    }

    /** The features at [node], computed from its longest cached prefix. */
    private fun run(node: PrefixNode, above: List<Tensor>, number: Int): List<Tensor> {
        val start = node.prefix.size - node.stretch.size
        var (features, done) = (node.prefix.size downTo start + 1).firstNotNullOfOrNull { length ->
            cache[FeatureKey(number, node.prefix.take(length))]?.let { it to length }
        } ?: (above to start)
        synchronized(answers) { edgeRuns += node.prefix.size - done }
        while (done < node.prefix.size) {
            features = sessions[node.prefix[done]].run(features)
            done++
            if (done == node.prefix.size) break
            val prefix = node.prefix.take(done)
            worth[prefix]?.let { cache.keep(FeatureKey(number, prefix), features, it) }
        }
        return features
    }

    /** Predict which features the group after this one will need, and revalue the cache. */
    private fun valueFeatures(group: List<Subnet>) {
        if (cacheBytes == 0L) return
        worth = prefixWorth(
            expectedChildren(group),
            costModel::edgeLatencyMs,
            { edge -> supernet.ends(edge).second.nbytes * minOf(batch, sampleCount) },
            roomBytes = cacheBytes / touched.size,
        )
        cache.revalue { worth[it] ?: 0.0 }
    }

    /** As many expected children as [group] has, spread equally over it and the better half of evaluated subnets. */
    private fun expectedChildren(group: List<Subnet>): Map<Subnet, Double> {
        val evaluated = answers.filterValues { it.batches.isNotEmpty() }.mapValues { (_, own) ->
            own.correct.count { it }.toDouble() / own.batches.sumOf { samplesOf(it).count() }
        }
        val best = evaluated.keys.sortedByDescending { evaluated.getValue(it) }
        val parents = (best.take(minOf(PARENTS, (best.size + 1) / 2)) + group).distinct()
        return parents.associateWith { group.size.toDouble() / parents.size }
    }
}

/**
 * A subnet's results: the evaluated batches, and per sample correctness, margin and distance.
 *
 * [distances]: mean squared difference of centred logits from the full model's.
 */
private class Answers(sampleCount: Int) {
    val correct = BooleanArray(sampleCount)
    val margins = FloatArray(sampleCount)
    val distances = DoubleArray(sampleCount)
    val batches = HashSet<Int>()
}

/** The samples of logits [batch, classes]. */
internal fun rows(logits: Tensor): List<FloatArray> {
    val (values, classes) = logits.floats() to logits.size / logits.batch
    return List(logits.batch) { values.copyOfRange(it * classes, (it + 1) * classes) }
}

/** Logits shifted to a mean of 0, which leaves the probabilities unchanged. */
private fun centred(logits: FloatArray): FloatArray {
    val mean = (logits.sumOf { it.toDouble() } / logits.size).toFloat()
    return FloatArray(logits.size) { logits[it] - mean }
}

private fun meanSquare(one: FloatArray, other: FloatArray): Double {
    var sum = 0.0
    for (at in one.indices) {
        val difference = (one[at] - other[at]).toDouble()
        sum += difference * difference
    }
    return sum / one.size
}

/** The logit of [label] minus the largest of the others; the lowest number where that is no number. */
internal fun margin(logits: FloatArray, label: Int): Float {
    var other = Float.NEGATIVE_INFINITY
    for (at in logits.indices) if (at != label && !(logits[at] <= other)) other = logits[at]
    val margin = logits[label] - other
    return if (margin.isNaN()) -Float.MAX_VALUE else margin.coerceIn(-Float.MAX_VALUE, Float.MAX_VALUE)
}

/** Loaded edges, each made ready when it is first asked for. */
private class Sessions(private val load: (Edge) -> LoadedStretch) {
    private var loaded: HashMap<Edge, LoadedStretch>? = HashMap()

    @Synchronized
    operator fun get(edge: Edge): LoadedStretch {
        val open = loaded ?: throw ClosedError("the evaluator was closed")
        return open.getOrPut(edge.at(null)) { load(edge.at(null)) }
    }

    fun release() {
        loaded?.values?.forEach { it.close() }
        loaded?.clear()
    }

    fun close() {
        release()
        loaded = null
    }
}
