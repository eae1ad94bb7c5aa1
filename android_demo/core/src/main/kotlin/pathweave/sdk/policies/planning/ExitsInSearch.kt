/**
 * Exits as a part of the search: a slower subnet whose exits answer most samples may be better than any quick one.
 *
 * Mirrors device_sdk/policies/planning/exits_in_search.py. The budget limits the mean latency, and samples that take no exit may
 * take longer.
 */
package pathweave.sdk.policies.planning

import pathweave.sdk.data.Inputs
import pathweave.sdk.data.SomeInputs
import pathweave.sdk.execution.Workspace
import pathweave.sdk.policies.costs.Answering
import pathweave.sdk.policies.costs.AnswersEverywhere
import pathweave.sdk.policies.costs.Route
import pathweave.sdk.policies.exits.withFurtherExits
import pathweave.sdk.search.Candidate
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.ExitAtSize
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet

private const val SUBNETS = 12 // of the pool that are looked at
private const val SLOWEST = 3.0 // times the budget: exits rarely save more
private const val ENOUGH = 90 // samples held back from the search; with fewer, thresholds are chosen on all
private const val HELD_OUT = 3 // every third sample judges the choice
private const val FEW_SAMPLES = 30 // below, all of them choose

/**
 * A plan with exits that beats the plain subnet. [accuracy] and [predictedMs], a mean: on the samples that chose;
 * [accuracyHeldOut]: on [judged] others, null without any; [meanMs]: as measured.
 */
internal class ExitsFound(
    val plan: Plan,
    val accuracy: Double,
    val predictedMs: Double,
    val peakBytes: Long,
    val accuracyHeldOut: Double?,
    val judged: Int,
    val meanMs: Double,
)

/** The subnets that are looked at: the full model, and the most accurate of the pool that exits may make fit. */
public fun competing(original: Subnet, pool: List<Candidate>, budget: Budget): List<Subnet> {
    val limitMs = budget.latencyMs?.let { SLOWEST * it }
    val near = pool.filter { limitMs == null || it.cost.latencyMs <= limitMs }
    val best = near.sortedWith(compareBy({ -it.expectedAccuracy }, { it.cost.latencyMs })).take(SUBNETS)
    return (listOf(original) + best.map { it.subnet }).distinct()
}

/** What the exits of [plan] take while they are loaded. */
internal fun exitBytes(costs: CostModel, plan: Plan): Long = plan.exits.sumOf {
    costs.exitCosts.getValue(ExitAtSize(it.exit, it.rendition, plan.inputSize)).residentBytes
}

/** Has subnets compete with and without exits, blocking. */
internal class ExitsFinder(
    workspace: Workspace,
    private val costs: CostModel,
    private val batch: Int,
    private val onShare: (Double) -> Unit,
) {
    private val supernet = workspace.bundle.supernet
    private val answering = Answering(workspace, costs)

    /**
     * The best plan with exits; null where a plain subnet is better, or exits measure above [mostMs] on average.
     *
     * [held]: positions of the samples that the search did not see; they choose, unless they are too few.
     */
    fun find(
        pool: List<Candidate>,
        budget: Budget,
        inputs: Inputs,
        labels: IntArray,
        held: List<Int>,
        mostMs: Double,
    ): ExitsFound? {
        if (supernet.exits.isEmpty()) return null
        val positions = if (held.size >= ENOUGH) held else (0 until inputs.count).toList()
        val samples = SomeInputs(inputs, positions)
        val right = IntArray(positions.size) { labels[positions[it]] }
        val chosen = best(competing(supernet.original, pool, budget), budget, samples, right) ?: return null
        if (chosen.plan.exits.isEmpty()) return null
        val meanMs = answering.measured(chosen.plan, samples)[0]
        if (meanMs > mostMs) return null
        // under a memory limit, what is left of it is not known to suffice for more
        val plan = if (budget.memoryMb == null) withFurtherExits(supernet, chosen.plan) else chosen.plan
        val (choosing, judging) = chosen.choosing to chosen.judging
        return ExitsFound(
            plan, choosing.accuracy, choosing.meanMs, chosen.peakBytes, judging?.accuracy, chosen.judged, meanMs,
        )
    }

    /** What a plan does to some samples. */
    private class Judged(val accuracy: Double, val meanMs: Double)

    private class Option(
        val plan: Plan,
        val peakBytes: Long,
        val choosing: Judged,
        val judging: Judged?,
        val judged: Int,
    )

    /** The most accurate plan within the budget, of equals the quickest; null: none keeps it. */
    private fun best(subnets: List<Subnet>, budget: Budget, inputs: Inputs, labels: IntArray): Option? {
        val options = subnets.flatMapIndexed { number, subnet ->
            val answers = answering.answer(subnet, inputs, labels, useExits = true, batch)
            onShare((number + 1.0) / subnets.size)
            options(answers)
        }
        return options.filter { budget.fitsLatency(it.choosing.meanMs) && budget.fitsMemory(it.peakBytes) }
            .maxWithOrNull(compareBy({ it.choosing.accuracy }, { -it.choosing.meanMs }))
    }

    /** The subnet alone, and with a set of exits for each drop; two thirds of the samples choose, a third judges. */
    private fun options(answers: AnswersEverywhere): List<Option> {
        val all = 0 until answers.count
        val (judging, choosing) = all.partition { answers.count >= FEW_SAMPLES && it % HELD_OUT == 0 }
        val known = answers.part(choosing)
        val fullMs = costs.latencyMs(answers.subnet)
        return (listOf(emptyList<ExitChoice>()) + answering.exitSets(known)).map { choices ->
            val plan = Plan(answers.subnet, choices)
            Option(
                plan,
                costs.peakBytes(answers.subnet) + exitBytes(costs, plan),
                judge(known, plan, fullMs),
                if (judging.isEmpty()) null else judge(answers.part(judging), plan, fullMs),
                judging.size,
            )
        }
    }

    private fun judge(answers: AnswersEverywhere, plan: Plan, fullMs: Double): Judged {
        val exits = plan.exits.map { choice ->
            answers.atExit(answers.exits.indexOfFirst { it.id == choice.exit }, costs)
        }
        val route = Route(exits, plan.exits.map { it.threshold }, answers.rightAtEnd, costs.callOverheadMs)
        return Judged(route.right.count { it }.toDouble() / answers.count, route.meanMs(fullMs))
    }
}
