/** Subnet search on the device. A new strategy is a class here and a line in [STRATEGIES]. */
package pathweave.sdk.search

import kotlin.math.exp
import kotlin.math.pow
import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.supernet.Subnet

/** The default strategy's name. */
public const val DEFAULT_STRATEGY: String = "pathweave"

private val STRATEGIES: Map<String, () -> SearchStrategy> = mapOf(
    "adaptivenet" to { AdaptiveNetSearch() },
    "annealing" to { SimulatedAnnealing() },
    "evolution" to { RegularisedEvolution() },
    DEFAULT_STRATEGY to { BayesianPathSearch() },
    "random" to { RandomSearch() },
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

/**
 * Simulated annealing: [steps] mutations within the budget, one after the other, from a random start.
 *
 * A mutation that loses accuracy a is accepted with probability exp(-a / t). The temperature t falls geometrically from
 * [hot] to [cold], in units of accuracy. Source: Kirkpatrick, Gelatt, Vecchi, Science 1983.
 *
 * @throws UsageError a setting is out of range.
 */
public class SimulatedAnnealing(
    private val steps: Int = 384,
    private val hot: Double = 0.05,
    private val cold: Double = 0.002,
) : SearchStrategy {
    init {
        if (steps < 1 || !(cold > 0 && cold <= hot)) {
            throw UsageError("steps must be at least 1, cold above 0 and hot at least cold")
        }
    }

    override fun search(problem: SearchProblem): SearchResult {
        val cheapest = requireFeasible(problem.supernet, problem.costModel, problem.budget)
        val fitting = withinBudget(problem)
        val run = SearchRun(problem, steps)
        val random = problem.random
        var going = !run.checkStop() && run.evaluate(listOf(cheapest))
        var at = fitting.draw(1, random).firstOrNull() ?: cheapest
        going = going && !run.checkStop() && run.evaluate(listOf(at))
        for (step in 0 until if (going) steps else 0) {
            val new = mutate(fitting, at, random) ?: at
            if (run.checkStop() || !run.evaluate(listOf(new))) break
            val gain = run.pool.getValue(new).accuracy - run.pool.getValue(at).accuracy
            if (accepted(gain, step, random.uniform())) at = new
            run.finishGeneration()
        }
        return run.result()
    }

    private fun accepted(gain: Double, step: Int, ticket: Double): Boolean {
        val temperature = hot * (cold / hot).pow(step.toDouble() / maxOf(steps - 1, 1))
        return gain >= 0 || ticket < exp(gain / temperature)
    }
}

/**
 * Regularised evolution: the oldest member is removed, regardless of fitness (Real et al., AAAI 2019, Algorithm 1).
 *
 * [population] random subnets within the budget; then the best of [tournament] random ones is mutated. [children] are
 * made and evaluated at a time, as by parallel workers, so that they share work; as many of the oldest are removed.
 * Mutations over the budget are drawn again; latency is not otherwise used. At most [generations] groups.
 *
 * @throws UsageError a setting is out of range.
 */
public class RegularisedEvolution(
    private val generations: Int = 40,
    private val population: Int = 48,
    private val tournament: Int = 12,
    private val children: Int = 8,
) : SearchStrategy {
    init {
        atLeastOne("generations, population, tournament and children", generations, population, tournament, children)
    }

    override fun search(problem: SearchProblem): SearchResult {
        val cheapest = requireFeasible(problem.supernet, problem.costModel, problem.budget)
        val fitting = withinBudget(problem)
        val run = SearchRun(problem, generations)
        var going = !run.checkStop() && run.evaluate(listOf(cheapest))
        var group = listOf(cheapest) + fitting.draw(population - 1, problem.random, setOf(cheapest))
        val alive = ArrayDeque(group)
        val most = maxOf(group.size, children)
        while (going && run.generations < generations && run.evaluate(group)) {
            run.finishGeneration()
            group = children(run, alive, fitting)
            alive += group
            while (alive.size > most) alive.removeFirst()
            going = !run.checkStop()
        }
        return run.result()
    }

    private fun children(run: SearchRun, alive: List<Subnet>, fitting: Neighbourhood): List<Subnet> = List(children) {
        val random = run.problem.random
        val drawn = List(tournament) { random.choice(alive) }
        val parent = drawn.map(run.pool::getValue).minWith(BY_EXPECTED_ACCURACY).subnet
        mutate(fitting, parent, random) ?: parent
    }
}

/**
 * Random search, the baseline for all others: distinct subnets within the budget, uniformly at random.
 *
 * [generations] groups of [group].
 *
 * @throws UsageError a setting is out of range.
 */
public class RandomSearch(private val generations: Int = 16, private val group: Int = 24) : SearchStrategy {
    init {
        atLeastOne("generations and group", generations, group)
    }

    override fun search(problem: SearchProblem): SearchResult {
        val cheapest = requireFeasible(problem.supernet, problem.costModel, problem.budget)
        val fitting = withinBudget(problem)
        val run = SearchRun(problem, generations)
        var next = listOf(cheapest)
        while (next.isNotEmpty() && !run.checkStop() && run.evaluate(next) && run.generations < generations) {
            if (run.pool.size > 1) run.finishGeneration()
            next = fitting.draw(group, problem.random, run.pool.keys)
        }
        return run.result()
    }
}
