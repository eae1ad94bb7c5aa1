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
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.nbytes
import pathweave.sdk.tasks.Accuracy
import pathweave.sdk.tasks.AnswerTask
import pathweave.sdk.tasks.ClassTargets
import pathweave.sdk.tasks.Targets
import pathweave.sdk.tasks.flattened
import pathweave.sdk.tasks.margin

private const val PARENTS = 64 // at most this many of the best subnets are expected to have children in the next group

/**
 * Evaluates subnets on labelled samples; implements the search's [Evaluator].
 *
 * A group is evaluated batch by batch, depth first over the tree of its prefixes, so that a shared prefix runs once.
 * Features that later groups will probably need are cached. Every edge runs in its own session, with and without reuse,
 * so that results are bit-identical. Results are kept. Not for several threads: [workers] batches at a time are evaluated
 * in threads of its own, with equal results. [close] frees all.
 *
 * [targets] are those of [task], by default of classification. At most [cacheBytes] of features outlive the edge run that
 * makes or reads them. [load]: makes one edge ready to run at every input size; one session serves all.
 *
 * @throws DataError there are no samples.
 * @throws InputError inputs and labels differ in number.
 * @throws UsageError a size is out of range.
 */
public class PrefixTreeEvaluator(
    private val supernet: Supernet,
    load: (Edge) -> LoadedStretch,
    private val inputs: Inputs,
    targets: Targets,
    private val costModel: CostModel,
    override val batch: Int = 64,
    private val cacheBytes: Long = 64_000_000,
    workers: Int = 1,
    private val task: AnswerTask = Accuracy(supernet.cutPoints.last().tensors.last().shape.last()),
) : Evaluator, Closeable {
    private val sessions = Sessions(load)
    private val cache = FeatureCache(cacheBytes)
    private val answers = LinkedHashMap<Subnet, Answers>()
    private val references: MutableMap<Int, Reference> = ConcurrentHashMap() // by batch: of the full model, without a prior
    private val touched = HashSet<Int>() // batches on which at least one subnet was evaluated
    private var prior: Prior? = null
    private var worth: Map<Prefix, Double> = emptyMap()
    private var targets = targets
    private var order = (0 until targets.count).toList()

    /** One edge on one batch, over all calls. */
    public var edgeRuns: Int = 0
        private set

    /** What evaluating the same subnets one by one takes. */
    public var edgeRunsWithoutReuse: Int = 0
        private set

    /** Peak size of the feature cache. */
    public val peakCachedBytes: Long get() = cache.peakBytes

    override val sampleCount: Int get() = targets.count
    private val batches: IntRange get() = 0..(sampleCount - 1) / batch

    init {
        if (inputs.count != targets.count) {
            throw InputError("there are ${inputs.count} samples and ${targets.count} labels")
        }
        if (targets.count == 0) throw DataError("there are no samples to evaluate subnets on")
        if (batch < 1 || cacheBytes < 0) throw UsageError("batch must be at least 1 and cacheBytes at least 0")
        if (workers < 1) throw UsageError("workers must be at least 1")
    }

    private val workers = Workers(workers)

    /** Of a classifier, the full model's logits by sample, without a prior, and the labels in order. Throws as [scores]. */
    public fun fullModelLogits(): Pair<List<FloatArray>, IntArray> {
        workers.each(batches, { false }, ::referTo)
        return batches.flatMap { references.getValue(it).logits } to (targets as ClassTargets).classes
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
        val margins = fullModelMargins()
        val sorted = margins.indices.sortedBy { abs(margins[it]) }
        val all = Reference.joined(batches.map(references::getValue))
        for (number in batches) references[number] = all.at(samplesOf(number).map(sorted::get))
        order = sorted.map(order::get)
        targets = targets.at(sorted)
    }

    /**
     * Whole batches are evaluated, also where [samples] has a part of one.
     *
     * @throws UsageError one of the subnets is not a path of the supernet.
     * @throws pathweave.sdk.RuntimeFailedError a block did not load or run.
     * @throws ClosedError the evaluator was closed.
     * @throws EvaluationStopped [shouldStop] returned true.
     */
    override fun scores(subnets: List<Subnet>, samples: IntRange, shouldStop: () -> Boolean): List<FloatArray> {
        for (subnet in subnets) if (subnet !in answers) supernet.check(subnet)
        for (subnet in subnets) answers.getOrPut(subnet) { Answers(sampleCount) }
        if (!samples.isEmpty()) evaluate(subnets.distinct(), samples.first / batch..samples.last / batch, shouldStop)
        return subnets.map { answers.getValue(it).scores.sliceArray(samples) }
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
        val all = Reference.joined(evaluated.map(references::getValue))
        if (!task.classifies) return DoubleArray(all.margins.size) { all.margins[it].toDouble() }
        val logits = corrected(all.logits, prior)
        val own = evaluated.flatMap { samplesOf(it) }.map((targets as ClassTargets).classes::get)
        return DoubleArray(logits.size) { margin(logits[it], own[it]).toDouble() }
    }

    override fun marginScale(): Double = task.marginScale(fullModelMargins(), sampleCount)

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
            answers.getValue(Subnet(node.prefix)).add(features.last(), number)
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

    private fun Answers.add(output: Tensor, number: Int) {
        val own = corrected(output, prior)
        val wanted = targets.at(samplesOf(number).toList())
        val (ownScores, ownMargins) = task.scores(own, wanted) to task.margins(own, wanted)
        val compared = task.compared(output) // a prior adds the same to both
        val reference = references.getValue(number).compared
        for ((at, sample) in samplesOf(number).withIndex()) {
            scores[sample] = ownScores[at]
            margins[sample] = ownMargins[at]
            distances[sample] = meanSquare(compared[at], reference[at])
        }
    }

    /** Run the full model on a batch unless what counts of its answers is stored. */
    private fun referTo(number: Int) {
        if (number in references) return
        val prepared = listOf(inputsOf(number, null))
        val features = supernet.original.edges.fold(prepared) { above, edge -> sessions[edge].run(above) }
        val output = features.last()
        references[number] = if (task.classifies) {
            Reference(flattened(output), task.compared(output), FloatArray(output.batch))
        } else {
            val margins = task.margins(output, targets.at(samplesOf(number).toList()))
            Reference(List(output.batch) { NOTHING }, task.compared(output), margins)
        }
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
            total(own.scores) / own.batches.sumOf { samplesOf(it).count() }
        }
        val best = evaluated.keys.sortedByDescending { evaluated.getValue(it) }
        val parents = (best.take(minOf(PARENTS, (best.size + 1) / 2)) + group).distinct()
        return parents.associateWith { group.size.toDouble() / parents.size }
    }
}

private val NOTHING = FloatArray(0)

/** Of the full model's answers by sample: logits of a classifier, what is compared, margins of other tasks. */
private class Reference(val logits: List<FloatArray>, val compared: List<FloatArray>, val margins: FloatArray) {
    fun at(positions: List<Int>) =
        Reference(positions.map(logits::get), positions.map(compared::get), positions.map(margins::get).toFloatArray())

    companion object {
        fun joined(parts: List<Reference>) = Reference(
            parts.flatMap { it.logits },
            parts.flatMap { it.compared },
            parts.flatMap { it.margins.asList() }.toFloatArray(),
        )
    }
}

/** A subnet's results: the evaluated batches, and per sample score, margin and distance from the full model. */
private class Answers(sampleCount: Int) {
    val scores = FloatArray(sampleCount)
    val margins = FloatArray(sampleCount)
    val distances = DoubleArray(sampleCount)
    val batches = HashSet<Int>()
}

private fun meanSquare(one: FloatArray, other: FloatArray): Double {
    var sum = 0.0
    for (at in one.indices) {
        val difference = (one[at] - other[at]).toDouble()
        sum += difference * difference
    }
    return sum / one.size
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
