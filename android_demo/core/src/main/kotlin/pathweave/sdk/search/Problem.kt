/** The search port: a strategy's problem, its evaluator, and its result. */
package pathweave.sdk.search

import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Cost
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.tasks.marginScale

/** Why a search ended. [text] is how results and logs write it. */
public enum class Stopped(public val text: String) {
    DONE("done"),
    TIME_LIMIT("time limit"),
    CANCELLED("cancelled"),
    ;

    override fun toString(): String = text
}

/**
 * An evaluated plan: one entry of the plan pool (AdaptiveNet §5.3).
 *
 * [cost]: of its subnet. [accuracy]: measured on the device's own samples, 0 to 1. [expected]: posterior mean of the
 * accuracy on unseen samples; null where it was not computed.
 */
public data class Candidate(
    val plan: Plan,
    val cost: Cost,
    val accuracy: Double,
    val expected: Double? = null,
) {
    val subnet: Subnet get() = plan.subnet

    /** The measure that all ranking uses, 0 to 1: [expected], or [accuracy] where that is null. */
    val expectedAccuracy: Double get() = expected ?: accuracy
}

/** An evaluation ended early because its `shouldStop` returned true. Finished batches are kept. */
public class EvaluationStopped : RuntimeException()

/**
 * Evaluates subnets on the device's own data, in groups, so that they share work.
 *
 * Functions call `shouldStop` between batches and throw [EvaluationStopped] when it returns true. A repeated call
 * resumes after the last finished batch.
 */
public interface Evaluator {
    /** Number of samples. */
    public val sampleCount: Int

    /** Samples per batch, the smallest unit of evaluation. */
    public val batch: Int

    /** The mean score of each subnet on all samples, 0 to 1, in the order of [subnets]. */
    public fun accuracies(subnets: List<Subnet>, shouldStop: () -> Boolean = { false }): List<Double> =
        scores(subnets, 0 until sampleCount, shouldStop).map { row -> total(row) / sampleCount }

    /**
     * Sort the samples by the full model's margin, smallest first, unless some were evaluated already.
     *
     * Subnets disagree mostly on samples of small margin.
     */
    public fun orderByMargin(shouldStop: () -> Boolean = { false })

    /** The score of each subnet on each sample, 0 to 1: [subnets, samples]. Of classes 1 for the right one, else 0. */
    public fun scores(
        subnets: List<Subnet>,
        samples: IntRange,
        shouldStop: () -> Boolean = { false },
    ): List<FloatArray>

    /**
     * Margins of subnets evaluated on [samples]: [subnets, samples]; an answer is more right than wrong above 0.
     *
     * Of classes the logit of the label minus the largest of the others.
     */
    public fun margins(subnets: List<Subnet>, samples: IntRange): List<DoubleArray>

    /**
     * Distance from the full model, of subnets evaluated on [samples]: [subnets], at least 0.
     *
     * Mean squared difference of what the task compares: of classes logits, each sample's centred to a mean of 0.
     */
    public fun distances(subnets: List<Subnet>, samples: IntRange): DoubleArray

    /** The full model's margins: [samples], of those ordered or evaluated so far. */
    public fun fullModelMargins(): DoubleArray

    /** The scale on which margins become scores. */
    public fun marginScale(): Double = marginScale(fullModelMargins(), sampleCount)
}

/** The sum of [scores], in doubles. */
internal fun total(scores: FloatArray): Double = scores.sumOf { it.toDouble() }

/** Where a search reports: generations done of those planned, and what it has found. */
public fun interface SearchProgress {
    /** [done] of at most [total] generations; [note]: the best so far, empty at the start. */
    public fun report(done: Int, total: Int, note: String)
}

/** A strategy's inputs. Time and randomness come from [clock] and [random] only. */
public class SearchProblem(
    public val supernet: Supernet,
    public val costModel: CostModel,
    public val budget: Budget,
    public val evaluator: Evaluator,
    public val random: SplitMix64,
    /** Seconds, monotonic. */
    public val clock: () -> Double = { System.nanoTime() / 1e9 },
    public val progress: SearchProgress = SearchProgress { _, _, _ -> },
    public val timeLimitS: Double? = null,
    public val cancelled: () -> Boolean = { false },
    /** Candidates that [evaluator] has evaluated on all samples; every strategy starts from them. */
    public val known: List<Candidate> = emptyList(),
) {
    internal fun with(
        budget: Budget = this.budget,
        timeLimitS: Double? = this.timeLimitS,
        known: List<Candidate> = this.known,
    ) = SearchProblem(supernet, costModel, budget, evaluator, random, clock, progress, timeLimitS, cancelled, known)
}

/**
 * The outcome of a search.
 *
 * [pool]: all subnets evaluated on all samples, also those over the budget, for when the device gets faster
 * (AdaptiveNet §5.3). [subnetsEvaluated] also counts subnets dropped after part of the samples. [best] is null only if
 * the search was cancelled before the first evaluation.
 */
public data class SearchResult(
    val best: Candidate?,
    val pool: List<Candidate>,
    val subnetsEvaluated: Int,
    val generations: Int,
    val seconds: Double,
    val stopped: Stopped,
)

/** Searches for the most accurate subnet within a budget. */
public fun interface SearchStrategy {
    /**
     * Search until done, cancelled or out of time; a search that is stopped returns the best so far.
     *
     * @throws pathweave.sdk.InfeasibleBudgetError no subnet fits; thrown before the first evaluation.
     */
    public fun search(problem: SearchProblem): SearchResult
}

/** The first candidate by [BY_EXPECTED_ACCURACY] among those that fit [budget]; null if none fits. */
public fun bestWithin(pool: Iterable<Candidate>, budget: Budget): Candidate? =
    pool.filter { budget.fits(it.cost) }.minWithOrNull(BY_EXPECTED_ACCURACY)

/** Image sizes as Python orders them: the model's own, written as none, comes first. */
private val BY_SIZE = compareBy<SampleSize?>({ it?.height ?: -1 }, { it?.width ?: -1 })

private val BY_EDGE: Comparator<Edge> = compareBy<Edge>({ it.block }, { it.rendition }).thenBy(BY_SIZE) { it.inputSize }

/** Edges in the order of a path, compared one by one; of a path and its beginning, the beginning comes first. */
internal val BY_EDGES: Comparator<List<Edge>> = Comparator { one, other ->
    val differs = one.zip(other).indexOfFirst { (a, b) -> a != b }
    if (differs < 0) one.size.compareTo(other.size) else BY_EDGE.compare(one[differs], other[differs])
}

/** Highest expected accuracy, then lowest latency, then the subnet itself, so that the order is total. */
public val BY_EXPECTED_ACCURACY: Comparator<Candidate> =
    compareBy<Candidate>({ -it.expectedAccuracy }, { it.cost.latencyMs }).thenBy(BY_EDGES) { it.subnet.edges }

/** The default strategy's name. */
public const val DEFAULT_STRATEGY: String = "pathweave"

private val STRATEGIES: Map<String, () -> SearchStrategy> = mapOf(
    DEFAULT_STRATEGY to { BayesianPathSearch() },
)

/** The strategy of this name with its default settings. @throws UsageError if there is none. */
public fun makeStrategy(name: String): SearchStrategy = STRATEGIES[name]?.invoke()
    ?: throw UsageError("there is no search strategy $name", "known: " + STRATEGIES.keys.sorted().joinToString(", "))

/**
 * Evaluate the ladder, run [strategy], and rank all candidates by expected accuracy.
 *
 * The same start and the same measure for every strategy.
 */
public fun findSubnets(strategy: SearchStrategy, problem: SearchProblem): SearchResult =
    withExpectedAccuracies(strategy.search(climb(problem)), problem)

internal fun <T> SplitMix64.choice(items: List<T>): T = items[below(items.size)]
