/**
 * The ladder: the original path in every rendition at every input size.
 *
 * A rung is a network that a user has without any search: the whole network, quantised or not, at a smaller input.
 * Rungs are cheap to list and to predict, so every search evaluates those near its budget first. Mirrors
 * device_sdk/search/ladder.py.
 */
package pathweave.sdk.search

import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet

private const val ABOVE_BUDGET = 1.1 // predicted latency over the budget, up to which a rung may measure within it
private const val TIME_SHARE = 0.4 // of the search, after which no further rung is evaluated but those that always are
private const val ALWAYS = 2 // rungs of each rendition within the budget that are evaluated whatever the time limit

/**
 * All rungs, without repetition: a list per rendition, by name; in it the smallest input first.
 *
 * A block that lacks a rendition runs in its first one.
 */
public fun ladder(supernet: Supernet): List<List<Subnet>> {
    val own = supernet.cutPoints[0].tensors[0].shape.drop(1).fold(1, Int::times)
    val wholes = (listOf(supernet.original) + supernet.sizes.drop(1).map { supernet.anySizeOriginal.at(it) })
        .sortedBy { it.inputSize?.let { size -> size.height * size.width } ?: own }
    val first = supernet.original.edges[0].rendition
    val names = (listOf(first) + supernet.edges.map { it.rendition }.distinct().sorted()).distinct()
    val seen = HashSet<Subnet>()
    return names.map { name ->
        val rungs = wholes.map { if (name == first) it else supernet.inRendition(it, name) }.distinct()
        rungs.filter { it !in seen }.also { seen += rungs }
    }.filter { it.isNotEmpty() }
}

/** The rungs of a column up to the model's own input size, the size that it was trained at. */
internal fun upToOwnSize(column: List<Subnet>): List<Subnet> {
    val own = column.indexOfFirst { it.inputSize == null }
    return if (own < 0) column else column.take(own + 1)
}

/**
 * Rungs that may keep [budget], the most promising first.
 *
 * Of each rendition in turn: the slowest rung that is predicted to fit, the next slower one, which may measure within
 * the budget where predictions are up to 10 % high, then the faster ones. Without a latency, the slowest first.
 */
internal fun rungsNear(supernet: Supernet, costs: CostModel, budget: Budget): List<Subnet> {
    val ordered = columnsNear(supernet, costs, budget)
    return (0 until (ordered.maxOfOrNull { it.size } ?: 0)).flatMap { turn -> ordered.mapNotNull { it.getOrNull(turn) } }
}

/** The same by rendition. */
private fun columnsNear(supernet: Supernet, costs: CostModel, budget: Budget): List<List<Subnet>> {
    val limitMs = budget.latencyMs ?: Double.POSITIVE_INFINITY
    return ladder(supernet).map { column ->
        val slowestFirst = column.filter { budget.fitsMemory(costs.peakBytes(it)) }.sortedBy { -costs.latencyMs(it) }
        val within = slowestFirst.filter { costs.latencyMs(it) <= limitMs }
        val above = slowestFirst.filter { costs.latencyMs(it).let { ms -> ms > limitMs && ms <= ABOVE_BUDGET * limitMs } }
        within.take(1) + above.takeLast(1) + within.drop(1) + above.dropLast(1)
    }
}

/**
 * [problem] with the rungs near its budget evaluated, and the time that is left.
 *
 * 1. order the samples; 2. evaluate the two slowest rungs of each rendition that are predicted to fit and the next slower
 * one if it is near, or else the fastest subnet; 3. evaluate the other rungs, until all this has taken 40 % of the time. The
 * first two know no time limit: of a rendition the largest input within the budget is the most accurate, so the best rung
 * is among these few, also where predictions are somewhat too low or too high.
 *
 * @throws pathweave.sdk.InfeasibleBudgetError no subnet fits; thrown before the first evaluation.
 */
internal fun climb(problem: SearchProblem): SearchProblem {
    val (supernet, costs, budget) = Triple(problem.supernet, problem.costModel, problem.budget)
    val cheapest = requireFeasible(supernet, costs, budget)
    val startedS = problem.clock()
    val columns = columnsNear(supernet, costs, budget)
    val fitting = columns.flatten().filter { budget.fits(costs.cost(it)) }.toSet()
    val leading =
        if (fitting.isEmpty()) listOf(cheapest)
        else columns.flatMap { leading(it, fitting) }.sortedByDescending(costs::latencyMs)
    val run = SearchRun(problem.with(timeLimitS = null), planned = 1)
    try {
        problem.evaluator.orderByMargin(run::checkStop)
    } catch (_: EvaluationStopped) {
        return problem
    }
    evaluateEach(run, leading)
    fun leftS(share: Double) = problem.timeLimitS?.let { maxOf(0.0, share * it - (problem.clock() - startedS)) }
    val rest = SearchRun(problem.with(timeLimitS = leftS(TIME_SHARE), known = run.pool.values.toList()), planned = 1)
    evaluateEach(rest, rungsNear(supernet, costs, budget))
    return problem.with(timeLimitS = leftS(1.0), known = rest.pool.values.toList())
}

/** The first rungs of a column that fit, and the next slower one, which is among the first two. */
private fun leading(column: List<Subnet>, fitting: Set<Subnet>): List<Subnet> =
    column.take(2).filter { it !in fitting } + column.filter { it in fitting }.take(ALWAYS)

private fun evaluateEach(run: SearchRun, rungs: List<Subnet>) {
    for (rung in rungs) if (run.checkStop() || !run.evaluate(listOf(rung))) break
}
