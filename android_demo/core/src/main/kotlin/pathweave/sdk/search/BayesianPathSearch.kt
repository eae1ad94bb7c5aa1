/**
 * Our search: a model of accuracy proposes, exact paths within the budget, a race evaluates.
 *
 * The parts are known: Bayesian optimisation with an additive Gaussian process, Thompson sampling, racing. What makes
 * them fit is the graph: the best path of an additive draw within a budget can be found exactly (Pareto.kt).
 */
package pathweave.sdk.search

import java.math.BigInteger
import pathweave.sdk.UsageError
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.subnetCount

private val OTHER_BUDGETS = listOf(0.8, 0.9, 1.1, 1.2) // other budgets, relative to the one asked for, that the pool serves
private const val EXPECTED_PATIENCE = 2 // generations by expectation without a better subnet
private const val EXPECTED_GAIN = 0.1 // correct answers that a better subnet is better by: less is rounding
private const val EXPECTED_VARIANCE = 1e-4 // of expected log odds
private const val EXPECTED_SCATTER = 0.03 // of what they lie below the best, its share
private const val WINDOW_RATIO = 0.05 // mutations stay this close below the budget

/**
 * Bayesian search over exact paths.
 *
 * [generations] groups of [group] subnets at most, the first few evaluated on all samples, the others on growing
 * [shares] of them; ends early when [patience] generations in a row brought no better subnet. Each generation looks at
 * the best paths of [draws] draws from the belief and at [mutations] of what is best so far; [optimism] is how many
 * standard deviations count for a subnet.
 *
 * @throws UsageError a setting that makes no sense.
 */
public class BayesianPathSearch(
    private val generations: Int = 60,
    internal val group: Int = 8,
    internal val draws: Int = 6,
    internal val mutations: Int = 120,
    internal val parents: Int = 12,
    internal val optimism: Double = 1.0,
    private val shares: List<Double> = listOf(0.125, 0.25, 1.0),
    private val patience: Int = 20,
) : SearchStrategy {
    init {
        if (listOf(generations, group, draws, parents, patience).min() < 1) {
            throw UsageError("generations, group, draws, parents and patience must be at least 1")
        }
        if (mutations < 0 || !(optimism >= 0)) throw UsageError("mutations and optimism must be at least 0")
        if (shares.isEmpty() || shares.any { !(it > 0 && it <= 1) }) {
            throw UsageError("shares must lie above 0 and at most at 1")
        }
    }

    /**
     * Deterministic for the problem's random generator, unless the time limit ends it.
     *
     * 1. order the samples, and evaluate the path that the distillation errors favour, so that there is an answer;
     * 2. start the best path so far with each added block alone; 3. fit the model to what is expected of all that was
     * evaluated (Expectation.kt), evaluate the most promising subnets; again, as long as it finds better ones; 4. fit the
     * model to all that was observed; 5. advance the most promising subnets, known and new; again from 4; 6. evaluate
     * what the model favours at latencies near the budget, for the pool; 7. choose by expectation.
     */
    override fun search(problem: SearchProblem): SearchResult {
        val cheapest = requireFeasible(problem.supernet, problem.costModel, problem.budget)
        val run = SearchRun(problem, generations)
        Steps(run, cheapest).let { it.start() && it.sweep() && it.followExpectations() && it.followObservations() && it.end() }
        return run.result()
    }

    /** The steps of one search. Each returns false once the search was cancelled or ran out of time. */
    private inner class Steps(private val run: SearchRun, private val cheapest: Subnet) {
        private val problem = run.problem
        private val race = Race(run, shares)
        private val model = AdditiveModel(EdgeNumbers(problem.supernet))
        private val paths = BestPath(model.numbers, problem.costModel)
        private val proposals by lazy { Proposals(this@BayesianPathSearch, run, paths) }

        /**
         * Order the samples and evaluate the path that the distillation errors favour, also if rungs took all the time.
         *
         * Where every rung within the budget is bad, it is often far better.
         */
        fun start(): Boolean {
            val first = paths.find(problem.budget, model.fit(emptyList()).values) ?: cheapest
            return race.begin() && run.evaluate(listOf(first), atAnyTime = true) && !run.checkStop()
        }

        /** Start the best path so far with each added block alone, so that all blocks have been looked at once. */
        fun sweep(): Boolean {
            val first = run.pool.values.minWith(compareBy<Candidate> { !run.fits(it.subnet) }.then(BY_EXPECTED_ACCURACY))
            val swapped = withEachBlock(problem.supernet, first.subnet).filter { it !in run.pool }
            return race.advance(swapped) && !run.checkStop()
        }

        /**
         * Start the most promising subnets by expected accuracy, as long as that finds better ones.
         *
         * Expected accuracies on the first share suffice: these are the samples on which subnets differ. The best of
         * each generation is evaluated on all samples, so that there is a result whenever time is up.
         */
        fun followExpectations(): Boolean {
            val samples = race.first
            val count = samples.last + 1
            var stale = 0
            var best: Subnet? = null
            while (stale < EXPECTED_PATIENCE && run.generations < generations) {
                val lookedAt = run.pool.keys + run.started.keys
                val subnets = lookedAt.toList()
                val expected = expectedAccuracies(problem.evaluator, subnets, samples)
                val odds = DoubleArray(expected.size) { logOdds(expected[it] * count, count) }
                val leader = subnets.indices.maxWith(compareBy({ run.fits(subnets[it]) }, { odds[it] }))
                val group = proposals.group(model.fit(expectations(subnets, odds, model)), started = false)
                if (group.isEmpty()) break
                if (!run.evaluate(listOf(subnets[leader])) || !race.advance(group) || run.checkStop()) return false
                run.finishGeneration()
                val before = best?.let { expected[subnets.indexOf(it)] }
                if (before == null || expected[leader] > before + EXPECTED_GAIN / count) {
                    best = subnets[leader]
                    stale = 0
                } else {
                    stale++
                }
            }
            run.stale = 0
            return true
        }

        /** Advance the most promising subnets by all that was observed, until patience or generations are exhausted. */
        fun followObservations(): Boolean {
            while (run.generations < generations && run.stale < patience) {
                val group = proposals.group(model.fit(race.observations()), started = true)
                if (group.isEmpty()) return true
                val advanced = race.advance(group) && !run.checkStop()
                run.finishGeneration()
                if (!advanced) return false
            }
            return true
        }

        /** Evaluate what the model favours a little below and above the budget, for a device that changes its speed. */
        fun end(): Boolean {
            val belief = model.fit(race.observations())
            val limitMs = problem.budget.latencyMs ?: return run.evaluate(listOf(cheapest))
            val limits = OTHER_BUDGETS.map { Budget(limitMs * it, problem.budget.memoryMb) }
            return run.evaluate(listOf(cheapest) + limits.mapNotNull { paths.find(it, belief.values) })
        }
    }
}

private class ExpectedOdds(
    override val subnet: Subnet,
    override val logOdds: Double,
    override val variance: Double,
) : Observed

/** What is expected of subnets, stretched to the range of the prior mean: the belief's spreads are made for it. */
private fun expectations(subnets: List<Subnet>, odds: DoubleArray, model: AdditiveModel): List<Observed> {
    val losses = subnets.map(model::priorLoss)
    val range = (odds.max() - odds.min()).let { if (it == 0.0) 1.0 else it }
    val stretch = maxOf((losses.max() - losses.min()) / range, 1.0)
    return subnets.mapIndexed { at, subnet ->
        val below = stretch * (odds.max() - odds[at])
        val scatter = EXPECTED_SCATTER * below
        ExpectedOdds(subnet, -below, EXPECTED_VARIANCE + scatter * scatter)
    }
}

/** Where the subnets come from that a generation advances. */
private class Proposals(
    private val settings: BayesianPathSearch,
    private val run: SearchRun,
    private val paths: BestPath,
) {
    private val problem = run.problem
    private val listed: List<Subnet>
    private val nearby: Neighbourhood

    init {
        val fitting = withinBudget(problem)
        val few = subnetCount(problem.supernet) <= BigInteger.valueOf(LISTING_LIMIT.toLong())
        listed = if (few) fitting.listed(problem.random) else emptyList()
        val lowMs = maxOf(fitting.lowMs, fitting.highMs * (1 - WINDOW_RATIO))
        nearby = Neighbourhood(problem.supernet, problem.costModel, problem.budget, lowMs, fitting.highMs)
    }

    /**
     * The unfinished subnets of the highest optimistic estimate; empty if all are finished.
     *
     * They are new, or [started] too.
     */
    fun group(belief: Belief, started: Boolean): List<Subnet> {
        val open = LinkedHashSet(run.started.keys)
        open += listed
        val values = listOf(belief.values) + List(settings.draws) { belief.draw(problem.random) }
        for (value in values) paths.find(problem.budget, value)?.let { open += it }
        val parents = best(belief, open.toList() + run.pool.keys, settings.parents)
        for (number in 0 until settings.mutations) {
            nearbyMutate(nearby, parents[number % parents.size], problem.random)?.let { open += it }
        }
        val free = open.filter { it !in run.pool && (started || it !in run.started) && run.fits(it) }
        return best(belief, free, settings.group)
    }

    private fun best(belief: Belief, subnets: List<Subnet>, count: Int): List<Subnet> {
        val estimates = belief.predict(subnets).map { (mean, deviation) -> mean + settings.optimism * deviation }
        return subnets.indices.sortedByDescending { estimates[it] }.take(count).map(subnets::get)
    }
}
