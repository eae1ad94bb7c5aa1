/** The ladder: the original path of each member in every rendition at every input size, and the race of its rungs. */
package pathweave.sdk.search

import kotlin.math.sqrt
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet

private const val ABOVE_BUDGET = 1.1 // predicted latency over the budget, up to which a rung may measure within it
private const val TIME_SHARE = 0.4 // of the search, after which no further rung is evaluated but those that race
private val SHARES = listOf(0.125, 0.25, 0.5) // of the samples, after which rungs leave the race
private const val SURELY = 3.0 // standard errors by which a rung is less accurate that leaves

/**
 * All rungs, without repetition: a list per member and rendition, by name; in it the smallest input first.
 *
 * A block that lacks a rendition runs in its first one.
 */
public fun ladder(supernet: Supernet): List<List<Subnet>> {
    val atSizes = supernet.sizes.sortedBy { pixels(supernet, it) }.map(supernet::originalsAt)
    val others = supernet.edges.map { it.rendition }.distinct().sorted()
    val seen = HashSet<Subnet>()
    return supernet.originals.withIndex().flatMap { (member, original) ->
        val wholes = atSizes.map { it[member] }
        val first = original.edges[0].rendition
        (listOf(first) + others).distinct().map { name ->
            val rungs = wholes.map { if (name == first) it else supernet.inRendition(it, name) }.distinct()
            rungs.filter { it !in seen }.also { seen += rungs }
        }
    }.filter { it.isNotEmpty() }
}

internal fun upToOwnSize(column: List<Subnet>): List<Subnet> {
    val own = column.indexOfFirst { it.inputSize == null }
    return if (own < 0) column else column.take(own + 1)
}

private fun pixels(supernet: Supernet, size: SampleSize?): Int =
    size?.let { it.height * it.width } ?: supernet.cutPoints[0].tensors[0].shape.drop(1).fold(1, Int::times)

/** [rungs] by input, the largest first. */
internal fun largestFirst(supernet: Supernet, rungs: List<Subnet>): List<Subnet> =
    rungs.sortedBy { -pixels(supernet, it.inputSize) }

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
 * 1. order the samples; 2. race the largest input of each column (a member in a rendition) that is predicted to fit,
 * and the next larger one if it is near, or else evaluate the fastest subnet; 3. race the second largest input of the
 * columns that are still in; 4. evaluate the other rungs, those that lost a race last, until all this has taken 40 % of
 * the time. The races know no time limit: in a column the largest input within the budget is the most accurate, so the
 * best rung is among these few, also where predictions are somewhat too low or too high.
 *
 * @throws pathweave.sdk.InfeasibleBudgetError no subnet fits; thrown before the first evaluation.
 */
internal fun climb(problem: SearchProblem): SearchProblem {
    val (supernet, costs, budget) = Triple(problem.supernet, problem.costModel, problem.budget)
    val cheapest = requireFeasible(supernet, costs, budget)
    val startedS = problem.clock()
    val columns = columnsNear(supernet, costs, budget)
    val fitting = columns.flatten().filter { budget.fits(costs.cost(it)) }.toSet()
    val run = SearchRun(problem.with(timeLimitS = null), planned = 1)
    val race = Race(run, SHARES)
    if (!race.begin()) return problem
    if (fitting.isEmpty()) {
        run.evaluate(listOf(cheapest))
    } else if (raced(run, race, columns.flatMap { largest(it, fitting) }, fitting)) {
        val stillIn = columns.filter { column -> column.any { it in run.pool } }
        raced(run, race, stillIn.flatMap { second(it, fitting) }, fitting)
    }
    fun leftS(share: Double) = problem.timeLimitS?.let { maxOf(0.0, share * it - (problem.clock() - startedS)) }
    val rest = SearchRun(problem.with(timeLimitS = leftS(TIME_SHARE), known = run.pool.values.toList()), planned = 1)
    evaluateEach(rest, rungsNear(supernet, costs, budget).sortedBy { it in run.started })
    return problem.with(timeLimitS = leftS(1.0), known = rest.pool.values.toList())
}

/** The first rung of a column that fits, and the next slower one, which is among the first two. */
private fun largest(column: List<Subnet>, fitting: Set<Subnet>): List<Subnet> =
    column.filter { it in fitting }.take(1) + column.take(2).filter { it !in fitting }

private fun second(column: List<Subnet>, fitting: Set<Subnet>): List<Subnet> =
    column.filter { it in fitting }.drop(1).take(1)

/** Evaluate [rungs] on growing shares of the samples, without those that have lost; false if it was stopped. */
private fun raced(run: SearchRun, race: Race, rungs: List<Subnet>, fitting: Set<Subnet>): Boolean {
    var running = rungs.sortedByDescending(run.problem.costModel::latencyMs)
    while (running.isNotEmpty()) {
        if (!race.advance(running)) return false
        running = inTheRace(run, running, fitting).filter { it !in run.pool }
    }
    return true
}

/**
 * [rungs] without those that are surely less accurate than another rung that fits, on the same samples.
 *
 * Surely: by three standard errors of the difference, which sums the squared differences of the samples' scores.
 */
private fun inTheRace(run: SearchRun, rungs: List<Subnet>, fitting: Set<Subnet>): List<Subnet> {
    val evaluator = run.problem.evaluator
    val samples = 0 until rungs.minOf { run.started[it] ?: evaluator.sampleCount }
    val rivals = (run.pool.keys + rungs).filter { it in fitting }
    if (rivals.isEmpty()) return rungs
    val best = evaluator.scores(rivals, samples).maxBy(::total)
    return rungs.zip(evaluator.scores(rungs, samples)).filter { (_, row) ->
        val squares = row.indices.sumOf { at -> (row[at].toDouble() - best[at]).let { it * it } }
        total(best) - total(row) <= SURELY * sqrt(squares)
    }.map { it.first }
}

private fun evaluateEach(run: SearchRun, rungs: List<Subnet>) {
    for (rung in rungs) if (run.checkStop() || !run.evaluate(listOf(rung))) break
}
