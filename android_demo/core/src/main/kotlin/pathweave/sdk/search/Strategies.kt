/** Subnet search on the device. A new strategy is a class here and a line in [STRATEGIES]. */
package pathweave.sdk.search

import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.supernet.Subnet

/** The default strategy's name. */
public const val DEFAULT_STRATEGY: String = "pathweave"

private val STRATEGIES: Map<String, () -> SearchStrategy> = mapOf(
    "adaptivenet" to { AdaptiveNetSearch() },
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

private fun atLeastOne(names: String, vararg settings: Int) {
    if (settings.min() < 1) throw UsageError("$names must be at least 1")
}

private const val TRIES_PER_CHILD = 10

/**
 * AdaptiveNet's search: evolution near the latency budget, evaluated in groups (AdaptiveNet Algorithm 1).
 *
 * At most [generations] groups of [population] subnets. Ends early when no new subnet is left near the budget, or after
 * [patience] generations without a better subnet. [windowRatio] is ΔT / T.
 *
 * @throws UsageError a setting is out of range.
 */
public class AdaptiveNetSearch(
    private val generations: Int = 16,
    private val population: Int = 24,
    private val windowRatio: Double = 0.1,
    private val patience: Int = 5,
) : SearchStrategy {
    init {
        atLeastOne("generations, population and patience", generations, population, patience)
        if (!(windowRatio > 0 && windowRatio <= 1)) {
            throw UsageError("windowRatio is $windowRatio; it must be above 0 and at most 1")
        }
    }

    /**
     * 1. evaluate the cheapest subnet that fits, so that a result always exists; 2. NearbyInit, and the original path
     * if it fits; 3. evaluate the group; 4. NearbyMutate the better half; repeat from 3.
     */
    override fun search(problem: SearchProblem): SearchResult {
        val cheapest = requireFeasible(problem.supernet, problem.costModel, problem.budget)
        val run = SearchRun(problem, generations)
        if (!run.checkStop() && run.evaluate(listOf(cheapest))) evolve(run)
        return run.result()
    }

    private fun evolve(run: SearchRun) {
        val problem = run.problem
        val (near, nearby) = nearbyInit(problem, windowRatio, population)
        val original = problem.supernet.original
        val first = if (problem.budget.fits(problem.costModel.cost(original))) listOf(original) + near else near
        var group = filled(first.filter { it !in run.pool }, run, nearby)
        while (group.isNotEmpty() && !run.checkStop() && run.generations < generations) {
            if (!run.evaluate(group)) break
            run.finishGeneration()
            if (run.stale >= patience) break
            group = filled(emptyList(), run, nearby)
        }
    }

    /** [start], filled up with new children of the better half, then with fresh draws. */
    private fun filled(start: List<Subnet>, run: SearchRun, nearby: Neighbourhood): List<Subnet> {
        val random = run.problem.random
        val parents = run.ranked().take(maxOf(population / 2, 1))
        val group = LinkedHashSet(start.take(population))
        for (attempt in 1..TRIES_PER_CHILD * population) {
            if (group.size == population) return group.toList()
            val child = nearbyMutate(nearby, random.choice(parents).subnet, random)
            if (child != null && child !in run.pool) group += child
        }
        return group.toList() + nearby.draw(population - group.size, random, run.pool.keys + group)
    }
}
