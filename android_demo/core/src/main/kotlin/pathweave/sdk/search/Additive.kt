/**
 * A Gaussian process over subnet accuracy whose mean is additive over edges, refitted during the search.
 *
 * The log odds of a correct answer are a constant, minus a cost per edge, plus an interaction of blocks. A sample of
 * the edge costs is additive, so an exact path algorithm finds its best subnet (Thompson sampling). The interaction
 * kernel correlates subnets that share blocks. An edge's cost is that of its block, plus a small term for its rendition
 * and input size. The prior means come from the block and rendition errors that the packager measured.
 */
package pathweave.sdk.search

import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.sqrt
import pathweave.sdk.SplitMix64
import pathweave.sdk.numerics.cholesky
import pathweave.sdk.numerics.dot
import pathweave.sdk.numerics.median
import pathweave.sdk.numerics.normal
import pathweave.sdk.numerics.normals
import pathweave.sdk.numerics.solveLower
import pathweave.sdk.numerics.solveTransposed
import pathweave.sdk.supernet.BlockKind
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.tasks.byMargin

private const val CONSTANT_MEAN = 2.5 // log odds of a typical deployed model
private const val CONSTANT_SPREAD = 1.5
private const val SLOPE_MEAN = 4.0 // log odds lost per unit of relative squared feature error
private const val SLOPE_SPREAD = 4.0
private const val ERROR_PER_SPAN = 0.05 // default for an added block without a measured error, per replaced block
private const val RENDITION_ERROR = 0.01 // default for a rendition other than the first, without a measured error
private const val SIZE_ERROR = 0.2 // default for an input size without a measured error
private const val SIZE_WEIGHT = 1.2 // converts a size's squared error to block error of equal log-odds loss
private const val LARGEST_ERROR = 2.0 // the feature carries no information; larger errors are equivalent
private const val LEAST_ERROR = 0.02 // floor of a block's error in the prior standard deviation
private const val LEAST_RENDITION_ERROR = 0.002 // the same for a rendition
private val OWN_SPREADS = listOf(1.0, 3.0) // grid: prior log-odds deviation of blocks and renditions, per unit of error
private val JOINT_SPREADS = listOf(0.05, 0.1, 0.2, 0.4) // grid: prior log-odds deviation of the interaction
private const val JITTER = 1e-9 // added to a covariance's diagonal for numerical stability
private const val LEAST_NOISE = 0.1 // of the sampling variance
private const val FEW = 8 // with fewer observations the hyperparameters stay at their defaults

/** A noisy observation of one subnet's log odds of a correct answer; [variance]: its noise. */
internal interface Observed {
    val subnet: Subnet
    val logOdds: Double
    val variance: Double
}

/**
 * [correct] answers out of [samples].
 *
 * [noise] is the part of the sampling variance that this subnet does not share with the others on the same samples,
 * [unseen] the variance of [correct] from answers that were extrapolated instead of computed.
 */
internal class Observation(
    override val subnet: Subnet,
    private val correct: Double,
    private val samples: Int,
    private val noise: Double = 1.0,
    private val unseen: Double = 0.0,
) : Observed {
    override val logOdds: Double get() = logOdds(correct, samples)

    override val variance: Double
        get() {
            val share = (correct + 0.5) / (samples + 1)
            val slope = samples * share * (1 - share) // correct answers per unit of log odds
            return noise / slope + unseen / (slope * slope)
        }
}

/** The prior over the accuracy of a supernet's subnets. Values of edges are arrays by edge number. */
internal class AdditiveModel(val numbers: EdgeNumbers) {
    private val edges = numbers.supernet.edges
    private val blockNumbers: IntArray
    val blockCount: Int
    val errors: DoubleArray

    // prior standard deviations of edge costs around the value that the error predicts; renditions of a block share the
    // block's part, and edges without error have cost 0 with no uncertainty
    private val ofBlock: DoubleArray
    private val ofRendition: DoubleArray

    init {
        val (blocks, renditions) = blockErrors(numbers.supernet) to renditionErrors(numbers.supernet)
        val own = edges.map { blocks.getValue(it.block) to renditions.getValue(it) }
        errors = DoubleArray(edges.size) { own[it].first + own[it].second }
        ofBlock = DoubleArray(edges.size) { own[it].first.let { error -> if (error > 0) error + LEAST_ERROR else 0.0 } }
        ofRendition = DoubleArray(edges.size) {
            own[it].second.let { error -> if (error > 0) error + LEAST_RENDITION_ERROR else 0.0 }
        }
        val places = edges.map { it.block }.distinct().sorted().withIndex().associate { (at, block) -> block to at }
        blockNumbers = IntArray(edges.size) { places.getValue(edges[it].block) }
        blockCount = places.size
    }

    fun blockOf(edge: Int): Int = blockNumbers[edge]

    /**
     * Prior covariance of the sum of a path's edge values with every edge's: [edges].
     *
     * `SLOPE_SPREAD² · errors ⊗ errors + own² · (same block · ofBlock ⊗ ofBlock + diagonal of ofRendition²)`; [own]:
     * log-odds deviation per unit of error.
     */
    fun covariances(path: IntArray, own: Double): DoubleArray {
        val slope = SLOPE_SPREAD * SLOPE_SPREAD * path.sumOf { errors[it] }
        val blocks = DoubleArray(blockCount).also { for (edge in path) it[blockNumbers[edge]] += ofBlock[edge] }
        val sums = DoubleArray(edges.size) {
            slope * errors[it] + own * own * (blocks[blockNumbers[it]] * ofBlock[it])
        }
        for (edge in path) sums[edge] += own * own * (ofRendition[edge] * ofRendition[edge])
        return sums
    }

    /** Prior variance of the sum of a path's edge values. */
    fun variance(path: IntArray, own: Double): Double {
        val slope = SLOPE_SPREAD * path.sumOf { errors[it] }
        return slope * slope + own * own * path.sumOf { ofBlock[it] * ofBlock[it] + ofRendition[it] * ofRendition[it] }
    }

    /** Sample the edge values' deviations from the prior mean, with this covariance: [edges]. */
    fun draw(own: Double, random: SplitMix64): DoubleArray {
        val slope = SLOPE_SPREAD * normal(random)
        val blocks = normals(blockCount, random)
        val renditions = normals(edges.size, random)
        return DoubleArray(edges.size) {
            slope * errors[it] + own * (ofBlock[it] * blocks[blockNumbers[it]]) + own * ofRendition[it] * renditions[it]
        }
    }

    /** Log odds lost against the original path, by the prior mean of the slope. */
    fun priorLoss(subnet: Subnet): Double = SLOPE_MEAN * numbers.sum(errors, subnet)

    /** The posterior given [observations]; with enough of them the spreads maximise the marginal likelihood. */
    fun fit(observations: List<Observed>): Belief {
        if (observations.size < FEW) return Belief(this, observations, OWN_SPREADS[0], JOINT_SPREADS[1])
        val beliefs = OWN_SPREADS.flatMap { own -> JOINT_SPREADS.map { Belief(this, observations, own, it) } }
        return beliefs.maxBy { it.logLikelihood }
    }
}

/** A subnet as the model sees it: its edges by number, and the blocks that it has. */
private class Described(model: AdditiveModel, subnet: Subnet) {
    val edges = model.numbers.of(subnet)
    val blocks = IntArray(edges.size) { model.blockOf(edges[it]) }
}

/** The posterior given observations. [own], [joint]: prior deviations of edge values and of the interaction. */
internal class Belief(
    private val model: AdditiveModel,
    observations: List<Observed>,
    private val own: Double,
    private val joint: Double,
) {
    private val observed = observations.map { Described(model, it.subnet) }
    private val hasBlock = observed.map { one ->
        BooleanArray(model.blockCount).also { for (block in one.blocks) it[block] = true }
    }

    /** Covariance of each observation's edges, summed, with every edge: [observations][edges]. */
    private val withEdges = Array(observed.size) { model.covariances(observed[it].edges, own) }
    private val kernel = Array(observed.size) { row ->
        kernel(observed[row]).also { it[row] += observations[row].variance }
    }
    private val root = cholesky(kernel)
    private val whitened =
        solveLower(root, DoubleArray(observed.size) { observations[it].logOdds - prior(observed[it]) })

    /** What each observation's residual is worth: `kernel⁻¹ · residuals`. */
    private val weights = solveTransposed(root, whitened)

    /** Log marginal likelihood of the observations, up to a constant. */
    val logLikelihood: Double get() = -0.5 * dot(whitened, whitened) - root.indices.sumOf { ln(root[it][it]) }

    /** Posterior mean and standard deviation of the log odds of a correct answer. */
    fun predict(subnets: List<Subnet>): List<Pair<Double, Double>> = subnets.map { subnet ->
        val described = Described(model, subnet)
        val across = solveLower(root, kernel(described))
        val alone = model.variance(described.edges, own) + CONSTANT_SPREAD * CONSTANT_SPREAD + joint * joint
        val mean = prior(described) + dot(across, whitened)
        mean to sqrt(maxOf(alone - dot(across, across), 0.0))
    }

    /** Posterior mean of what each edge adds to the log odds: [edges]. */
    val values: DoubleArray by lazy {
        val learnt = fromObservations(weights)
        DoubleArray(learnt.size) { -SLOPE_MEAN * model.errors[it] + learnt[it] }
    }

    /**
     * Sample what each edge adds to the log odds from the posterior: [edges].
     *
     * Matheron's rule: a prior sample, corrected by the residual between the observations and those that the sample
     * implies. It needs no Cholesky factor over all edges.
     */
    fun draw(random: SplitMix64): DoubleArray {
        val prior = model.draw(own, random)
        val noise = normals(observed.size, random)
        val wouldBe = DoubleArray(observed.size) { row ->
            val ofEdges = observed[row].edges.sumOf { prior[it] }
            var unexplained = 0.0
            for (at in 0..row) unexplained += unexplainedRoot[row][at] * noise[at]
            ofEdges + unexplained
        }
        val corrections = fromObservations(solveTransposed(root, solveLower(root, wouldBe)))
        return DoubleArray(prior.size) { values[it] + prior[it] - corrections[it] }
    }

    /** The edges' covariance with the observations, times [weights] of these. */
    private fun fromObservations(weights: DoubleArray): DoubleArray {
        val sums = DoubleArray(model.numbers.count)
        for ((row, weight) in weights.withIndex()) {
            val own = withEdges[row]
            for (edge in sums.indices) sums[edge] += own[edge] * weight
        }
        return sums
    }

    /** Cholesky factor of the observations' covariance without the edges' part: [observations][observations]. */
    private val unexplainedRoot: Array<DoubleArray> by lazy {
        cholesky(
            Array(observed.size) { row ->
                DoubleArray(observed.size) { column ->
                    val ofEdges = observed[row].edges.sumOf { withEdges[column][it] }
                    kernel[row][column] - ofEdges + if (row == column) JITTER else 0.0
                }
            },
        )
    }

    private fun prior(subnet: Described): Double =
        CONSTANT_MEAN - SLOPE_MEAN * subnet.edges.sumOf { model.errors[it] }

    /** Prior covariance with the observed subnets: [observations]. */
    private fun kernel(subnet: Described) = DoubleArray(observed.size) { number ->
        val (other, blocks) = observed[number] to hasBlock[number]
        val shared = subnet.blocks.count { blocks[it] }
        val together = subnet.edges.size + other.edges.size - shared
        val alike = shared.toDouble() / together
        val ofEdges = subnet.edges.sumOf { withEdges[number][it] }
        ofEdges + CONSTANT_SPREAD * CONSTANT_SPREAD + joint * joint * (alike * alike)
    }
}

/** Log odds of [correct] out of [samples] answers, with half an answer added to both counts. */
internal fun logOdds(correct: Double, samples: Int): Double = ln((correct + 0.5) / (samples - correct + 0.5))

/**
 * Chance of a correct answer to a sample like each of [samples]: [subnets, samples], or its expected score.
 *
 * A logistic function of the margin; see [pathweave.sdk.tasks.marginScale]. The subnets have been evaluated on [samples].
 */
internal fun smoothed(evaluator: Evaluator, subnets: List<Subnet>, samples: IntRange): List<DoubleArray> {
    val scale = evaluator.marginScale()
    return evaluator.margins(subnets, samples).map { byMargin(it, scale) }
}

/**
 * Fraction of the sampling variance of accuracies that subnets do not share, 0 to 1.
 *
 * [chances]: of correct answers [subnets, samples]. All subnets are evaluated on the same samples, whose difficulty they
 * share; only samples on which they disagree add variance to their differences.
 */
internal fun unsharedNoise(chances: List<DoubleArray>): Double {
    val samples = chances[0].size
    val average = (chances.sumOf { it.sum() } + 0.5) / (chances.size * samples + 1)
    val variance = (0 until samples).sumOf { at ->
        val mean = chances.sumOf { it[at] } / chances.size
        chances.sumOf { (it[at] - mean) * (it[at] - mean) } / chances.size
    } / samples
    return (variance / (average * (1 - average))).coerceIn(LEAST_NOISE, 1.0)
}

/**
 * Relative squared feature error of each block against the original blocks that it replaces.
 *
 * Of an original block 0, or in a family what its member loses there against the largest. A missing error is the median
 * error per replaced block of the other added blocks, times the number of those that this one replaces.
 */
internal fun blockErrors(supernet: Supernet): Map<String, Double> {
    val added = supernet.blocks.filter { it.kind != BlockKind.ORIGINAL }
    val spans = added.associate { it.id to (supernet.replaced(it) ?: 1) }
    val known = added.mapNotNull { block -> block.distillationError?.let { it / spans.getValue(block.id) } }
    val perSpan = if (known.isEmpty()) ERROR_PER_SPAN else median(known)
    return supernet.blocks.associate { block ->
        val own = block.distillationError
        block.id to when (block.kind) {
            BlockKind.ORIGINAL -> minOf(own ?: 0.0, LARGEST_ERROR)
            else -> minOf(own ?: (perSpan * spans.getValue(block.id)), LARGEST_ERROR)
        }
    }
}

/**
 * Relative squared feature error of each edge against its block's first rendition.
 *
 * The error of an input size is added once per path: to the edges that start at the input.
 */
internal fun renditionErrors(supernet: Supernet): Map<Edge, Double> {
    val errors = HashMap<Edge, Double>()
    for (size in supernet.sizes) {
        val error = supernet.inputSizes.find { it.size == size }?.error
        val relative = if (error == null) SIZE_ERROR else minOf(error, 1.0)
        val ofSize = if (size == null) 0.0 else SIZE_WEIGHT * (relative * relative)
        for (block in supernet.blocks) {
            for ((place, rendition) in block.renditions.withIndex()) {
                val own = if (place == 0) 0.0 else minOf(rendition.error ?: RENDITION_ERROR, LARGEST_ERROR)
                errors[Edge(block.id, rendition.name, size)] = own + if (block.start == 0) ofSize else 0.0
            }
        }
    }
    return errors
}
