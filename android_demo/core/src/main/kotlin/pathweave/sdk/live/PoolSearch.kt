/** Searching for subnets at other latencies than an adaptation's budget, to have them when the device changes. */
package pathweave.sdk.live

import java.util.logging.Level
import kotlin.concurrent.thread
import kotlin.math.pow
import pathweave.sdk.BudgetError
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.LOG
import pathweave.sdk.PathweaveError
import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.data.Inputs
import pathweave.sdk.execution.Workspace
import pathweave.sdk.policies.AdaptationSettings
import pathweave.sdk.policies.Found
import pathweave.sdk.policies.atBestHomes
import pathweave.sdk.policies.atNamedHomes
import pathweave.sdk.policies.makeEvaluator
import pathweave.sdk.policies.searchPositions
import pathweave.sdk.policies.withPrior
import pathweave.sdk.search.BY_EDGES
import pathweave.sdk.search.BY_EXPECTED_ACCURACY
import pathweave.sdk.search.Candidate
import pathweave.sdk.search.Evaluator
import pathweave.sdk.search.PrefixTreeEvaluator
import pathweave.sdk.search.SearchProblem
import pathweave.sdk.search.SearchProgress
import pathweave.sdk.search.digits
import pathweave.sdk.search.expectedCandidates
import pathweave.sdk.search.findSubnets
import pathweave.sdk.search.latencyRangeMs
import pathweave.sdk.search.makeStrategy
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.kCheapest
import pathweave.sdk.tasks.Targets

private const val LEAST_RUNG_S = 1.0
private val SILENT = SearchProgress { _, _, _ -> }

/**
 * Searches on the samples on which an adaptation with the same [settings] searches.
 *
 * [inputs] and [targets] are the device's own, [prior] is that of the adaptation. Latencies are those of [named],
 * and what is found names the home of each edge.
 */
internal class PoolSearch(
    private val workspace: Workspace,
    private val named: CostModel,
    private val inputs: Inputs,
    private val targets: Targets,
    private val settings: AdaptationSettings,
    private val prior: Prior? = null,
) {
    private val costs = atBestHomes(workspace, named)
    private val positions = searchPositions(targets, settings).first

    /**
     * Candidates all the way from the fastest subnet to the slowest, besides those near [budget] itself.
     *
     * Rungs are searched one by one and share what was evaluated; [timeLimitS] is for all of them together. The full
     * model and the fastest subnet always are among them.
     */
    fun fill(budget: Budget, timeLimitS: Double, progress: SearchProgress): List<Candidate> {
        val supernet = workspace.bundle.supernet
        val (fastestMs, slowestMs) = latencyRangeMs(supernet, costs)
        val rungs = rungsMs(fastestMs, slowestMs, checkNotNull(budget.latencyMs))
        val limitS = maxOf(LEAST_RUNG_S, timeLimitS / maxOf(1, rungs.size))
        val ends = listOf(supernet.original, kCheapest(supernet, costs::edgeLatencyMs, k = 1)[0].subnet)
        return evaluator().use { evaluator ->
            val found = evaluated(ends, evaluator).toMutableList()
            for ((number, rungMs) in rungs.withIndex()) {
                progress.report(number, rungs.size, "plan pool at ${digits(rungMs)} ms")
                try {
                    found += search(Budget(rungMs, budget.memoryMb), evaluator, limitS, settings.cancelled)
                } catch (_: BudgetError) {
                    progress.report(number, rungs.size, "the memory limit leaves nothing at ${digits(rungMs)} ms")
                }
            }
            atNamedHomes(withExpectations(found, evaluator), costs, named)
        }
    }

    /**
     * What a search finds at and around [budget].
     *
     * @throws InfeasibleBudgetError no subnet fits.
     */
    fun search(budget: Budget, timeLimitS: Double, cancelled: () -> Boolean): List<Candidate> =
        evaluator().use { atNamedHomes(search(budget, it, timeLimitS, cancelled), costs, named) }

    private fun search(
        budget: Budget,
        evaluator: Evaluator,
        timeLimitS: Double,
        cancelled: () -> Boolean,
    ): List<Candidate> {
        val problem = SearchProblem(
            workspace.bundle.supernet,
            costs,
            budget,
            evaluator,
            SplitMix64(settings.seed),
            progress = SILENT,
            timeLimitS = timeLimitS,
            cancelled = cancelled,
        )
        return withPrior(findSubnets(makeStrategy(settings.strategy), problem), prior).pool
    }

    /** All candidates of all rungs by one measure, so that the pool compares like with like. */
    private fun withExpectations(found: List<Candidate>, evaluator: Evaluator): List<Candidate> {
        val candidates = found.associateBy { it.subnet }.values.toList()
        return expectedCandidates(candidates, workspace.bundle.supernet, evaluator)
    }

    private fun evaluated(subnets: List<Subnet>, evaluator: Evaluator): List<Candidate> =
        subnets.zip(evaluator.accuracies(subnets)) { subnet, share ->
            Candidate(Plan(subnet).withPrior(prior), costs.cost(subnet), share)
        }

    private fun evaluator(): PrefixTreeEvaluator =
        makeEvaluator(workspace, costs, settings, inputs, targets, positions).also { it.usePrior(prior) }
}

private const val JOIN_MS = 10_000L
private const val NS_PER_S = 1e9

/** Looks for candidates at a budget of predicted latency, until the second argument returns true. */
internal typealias Search = (budget: Budget, cancelled: () -> Boolean) -> List<Candidate>

/** What a search at a drift ratio found; [failure] says why nothing. */
internal data class SearchOutcome(
    val budget: Budget,
    val ratio: Double,
    val candidates: List<Candidate>,
    val seconds: Double,
    val failure: String?,
)

/** At most one search at a time, in a thread of low priority; [ended] is called in there. */
internal class BackgroundSearch(private val search: Search, private val ended: (SearchOutcome) -> Unit) {
    private var thread: Thread? = null // guarded by this, as what follows
    private var begunS = Double.NEGATIVE_INFINITY

    @Volatile
    private var stopped = false

    @Volatile
    private var hopelessRatio = Double.POSITIVE_INFINITY

    /** Search at [budget] unless that is too soon or known to be in vain; whether a search is under way. */
    fun begin(budget: Budget, ratio: Double, nowS: Double, cooldownS: Double): Boolean = synchronized(this) {
        if (thread?.isAlive == true) return true
        val waitedS = nowS - begunS
        if (stopped || ratio >= hopelessRatio || waitedS >= 0 && waitedS < cooldownS) return false
        begunS = nowS
        thread = thread(isDaemon = true, name = "pathweave-search") { run(budget, ratio) }
        return true
    }

    /** End the search in progress, if there is one, and begin none any more. May be called twice. */
    fun stop() {
        stopped = true
        await(JOIN_MS)
    }

    /** Until the search in progress has ended, if there is one, but no longer than [timeoutMs]. */
    fun await(timeoutMs: Long) {
        val running = synchronized(this) { thread }
        if (running !== Thread.currentThread()) running?.join(timeoutMs)
    }

    private fun run(budget: Budget, ratio: Double) {
        giveWay()
        val startedNs = System.nanoTime()
        var found = emptyList<Candidate>()
        var failure: String? = null
        try {
            found = search(budget) { stopped }
        } catch (error: PathweaveError) {
            failure = error.message
            if (error is InfeasibleBudgetError) hopelessRatio = minOf(hopelessRatio, ratio)
        } catch (error: Throwable) { // uncaught, it would end an Android app
            LOG.log(Level.WARNING, "a search in the background met an error", error)
            return
        }
        val seconds = (System.nanoTime() - startedNs) / NS_PER_S
        if (!stopped) ended(SearchOutcome(budget, ratio, found, seconds, failure))
    }
}

private const val RUNG = 1.3 // latencies of neighbouring rungs differ by this factor
private const val MOST_RUNGS = 16 // in each direction
private const val ROUNDING = 1.001
private const val OUT_OF_BUDGET = 1.06 // what measured too slow counts as this much of the budget

/** Of stored pools. */
public const val POOL_FORMAT: Int = 2

/**
 * [plan, latency, accuracy] of the subnets worth running at some latency, and the budget that they are for.
 *
 * Latencies are estimates for the device as it was when [chosen] was measured: predictions times [correction].
 */
public data class PlanPool(
    val budget: Budget,
    val chosen: Subnet,
    val candidates: List<Candidate>,
    val correction: Double = 1.0,
) {
    /** The candidate of this subnet, if it is here. */
    public fun find(subnet: Subnet): Candidate? = candidates.find { it.subnet == subnet }

    /** The pool with others, their latencies as predicted, as far as they are worth it. */
    public fun withMore(predicted: List<Candidate>): PlanPool {
        val kept = front(candidates + predicted.map { it.at(it.cost.latencyMs * correction) })
        val chosen = find(chosen)?.takeIf { one -> kept.none { it.subnet == one.subnet } }
        return copy(candidates = (kept + listOfNotNull(chosen)).sortedBy { it.cost.latencyMs })
    }

    /** What of the pool is in [supernet] and makes sense; null if the chosen subnet or the budget is not. */
    public fun knownTo(supernet: Supernet): PlanPool? {
        val pool = copy(candidates = candidates.filter { it.isSound() && supernet.has(it) })
        return pool.takeIf { it.find(chosen) != null && budget.latencyMs != null && correction > 0 }
    }
}

/**
 * The pool that an adaptation leaves, with [more] as predicted; estimates agree with what the chosen measured.
 *
 * A candidate that was expected to fit, is more accurate and was not chosen measured too slow: it counts as a little
 * over the budget, for better times. The pool counts in medians: a budget at another percentile is converted.
 *
 * Null without a latency to keep, or where nothing of a search was measured. Of a plan with exits, the subnet alone counts.
 */
public fun poolOf(adaptation: Found, more: List<Candidate> = emptyList()): PlanPool? {
    val (wantedMs, measured) = (adaptation.goal.latencyMs ?: return null) to (adaptation.measured ?: return null)
    val found = adaptation.pool.find { it.subnet == adaptation.plan.subnet } ?: return null
    val medianMs = measured.withoutExitsMs ?: measured.medianMs
    val limitMs = wantedMs * medianMs / measured.latencyMs
    val budget = adaptation.goal.budget.copy(latencyMs = limitMs, percentile = Budget.MEDIAN)
    val correction = medianMs / found.cost.latencyMs
    val overMs = OUT_OF_BUDGET * limitMs / correction
    val others = (adaptation.pool + more).filter { it.subnet != found.subnet }.map { one ->
        val better = BY_EXPECTED_ACCURACY.compare(one, found) < 0 && budget.fitsMemory(one.cost.peakBytes)
        if (better && one.cost.latencyMs < overMs) one.at(overMs) else one
    }
    return PlanPool(budget, found.subnet, listOf(found.at(medianMs)), correction).withMore(others)
}

/** Those than which none is as quick, as small and as accurate, by latency (AdaptiveNet §5.3). */
internal fun front(candidates: List<Candidate>): List<Candidate> {
    val ordered = candidates.sortedWith(
        compareBy<Candidate>({ it.cost.latencyMs }, { -it.expectedAccuracy }, { it.cost.peakBytes })
            .thenBy(BY_EDGES) { it.subnet.edges },
    )
    return ordered.fold(mutableListOf()) { kept, one ->
        val beaten = kept.any {
            it.expectedAccuracy >= one.expectedAccuracy && it.cost.peakBytes <= one.cost.peakBytes
        }
        kept.apply { if (!beaten) add(one) }
    }
}

/**
 * Latencies at which the pool needs subnets besides the budget: those below it first, the nearest first.
 *
 * They reach from the fastest subnet to the slowest, in steps of [RUNG]; both ends are met with a thousandth to spare,
 * so that rounding does not rule them out.
 */
internal fun rungsMs(fastestMs: Double, slowestMs: Double, budgetMs: Double): List<Double> {
    val steps = (1 until MOST_RUNGS).map(RUNG::pow)
    val down = steps.map { budgetMs / it }.filter { it > fastestMs * RUNG.pow(0.25) }
    val up = steps.map { budgetMs * it }.filter { it < slowestMs / RUNG.pow(0.25) }
    val fastest = listOf(fastestMs * ROUNDING).filter { fastestMs < budgetMs }
    val slowest = listOf(slowestMs * ROUNDING).filter { slowestMs > budgetMs }
    return down + fastest + up + slowest
}

private fun Candidate.at(latencyMs: Double) = copy(cost = cost.copy(latencyMs = latencyMs))

private fun Candidate.isSound() = cost.latencyMs.isFinite() && cost.latencyMs > 0 && accuracy in 0.0..1.0

private fun Supernet.has(candidate: Candidate): Boolean = try {
    checkPlan(candidate.plan)
    true
} catch (_: UsageError) {
    false
}
