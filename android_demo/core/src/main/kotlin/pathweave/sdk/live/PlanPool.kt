/** The plan pool: the plans that a device exchanges as it becomes slower and faster (AdaptiveNet §5.1, §5.3). */
package pathweave.sdk.live

import kotlin.math.pow
import pathweave.sdk.UsageError
import pathweave.sdk.policies.Found
import pathweave.sdk.search.BY_EDGES
import pathweave.sdk.search.BY_EXPECTED_ACCURACY
import pathweave.sdk.search.Candidate
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet

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
