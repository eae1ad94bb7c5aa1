/**
 * Limits of exits and of asking a server, chosen together over private samples (EE-HI, HI paper §5.2). Pure.
 *
 * Every exit has two limits, from which on it answers and below which it asks. The last exit and the decision are one
 * table of cumulative counts, which holds every combination of theirs; the exits before them are searched by branch
 * and bound. No combination that a bound cuts off is better than the best one found.
 */
package pathweave.sdk.policies.planning

import pathweave.sdk.policies.costs.ExitSamples
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Optimised
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE

private val LEFT_OUT = ExitLimits(UNREACHABLE_CONFIDENCE, 0.0)

/** How many steps searches may still take: exits that are divided, and tables that are read. */
internal class Effort(var left: Int)

/**
 * The best combination: exits that pay, with their limits, and the decision at the end.
 *
 * [decider]: the number of the one that decides; [hardEases]: how many of its distinct eases are hard; [value]: as
 * `Requirement.value`.
 */
internal class JointLimits(val exits: List<ExitChoice>, val decider: Int, val hardEases: Int, val value: Double)

/** From which confidence on an exit answers, and below which it asks. */
internal data class ExitLimits(val threshold: Double, val askBelow: Double)

/** Bytes of the subnet, [own], and what each exit adds. */
internal class JointMemory(private val own: Long, private val exits: List<Long>, private val limit: Long?) {
    /** Whether the exits [taken], and the last one where it [isUsed], fit. */
    fun fits(taken: List<ExitLimits>, isUsed: Boolean): Boolean {
        if (limit == null) return true
        val before = own + taken.indices.sumOf { if (taken[it] != LEFT_OUT) exits[it] else 0L }
        return before + (if (isUsed) exits.last() else 0L) <= limit
    }
}

internal fun objectiveOf(requirement: Requirement, value: Double): Double = when {
    !value.isFinite() -> Double.POSITIVE_INFINITY
    requirement.optimise == Optimised.ACCURACY -> 1.0 - value
    else -> -value
}

/** What a search has before an exit: the [open] samples, what the others took, and the branches tried so far. */
private class State(
    val open: IntArray,
    val spent: DoubleArray,
    val triedMs: Double = 0.0,
    val taken: List<ExitLimits> = emptyList(),
    val left: List<Pair<Double, Int>> = emptyList(), // milliseconds and samples of each way out so far
)

/** One branch and bound over [exits] that follow each other. */
internal class JointSearch(
    private val exits: List<ExitSamples>,
    private val end: AskingEnd,
    private val requirement: Requirement,
    private val rates: Rates,
    private val bounds: JointBounds,
    private val table: JointTable,
    private val memory: JointMemory,
    private val grid: JointGrid,
    private val effort: Effort,
) {
    private val count = end.right.size
    private val callMs = end.call.totalMs
    private val limited = (0..rates.limits.lastIndex).filter { rates.limits[it].isFinite() }
    private val surest = exits.map { one ->
        val known = one.confidence.map { if (it.isNaN()) Double.NEGATIVE_INFINITY else it }
        (0 until count).sortedByDescending(known::get)
    }
    private var worst = Double.POSITIVE_INFINITY
    private var isCutShort = false
    private var best: JointLimits? = null

    /** The limits that the requirement puts first; null if none keeps it and is better than [betterThan]. */
    fun run(betterThan: Double): JointLimits? {
        worst = objectiveOf(requirement, betterThan)
        if (bounds.least < worst) visit(0, State(IntArray(count) { it }, DoubleArray(rates.limits.size)))
        return best
    }

    /** All limits of the exits from [level] on, for the samples that are still open. */
    private fun visit(level: Int, state: State) {
        if (effort.left <= 0) {
            isCutShort = true
            return
        }
        effort.left--
        if (level == exits.lastIndex) return readTable(state)
        val exit = exits[level]
        val isOpen = BooleanArray(count).also { flags -> state.open.forEach { flags[it] = true } }
        val order = surest[level].filter { isOpen[it] }.toIntArray()
        val ways = ways(level, DoubleArray(order.size) { exit.confidence[order[it]] })
        val wrongHere = sums(order) { !exit.right[it] }
        val wrongThere = sums(order) { !end.serverRight[it] }
        val tried = DoubleArray(ways.size) { state.triedMs + if (ways[it].answered + ways[it].asked > 0) exit.branchMs else 0.0 }
        val spent = ways.indices.map { at ->
            val (answered, asked) = ways[at].answered to ways[at].asked
            val leavingMs = (answered + asked) * (exit.reachMs + tried[at])
            val wrong = wrongHere[answered] + wrongThere[order.size] - wrongThere[order.size - asked]
            DoubleArray(rates.limits.size) { row ->
                val before = state.spent[row] + if (row == 0) wrong.toDouble() else 0.0
                before + leavingMs * rates.perMs[row] + asked * rates.perCall[row]
            }
        }
        val compared = LeavingWays(ways.map { it.answered }.toIntArray(), ways.map { it.asked }.toIntArray(), spent, tried)
        val least = bounds.of(level + 1, order, compared)
        for (at in ways.indices.sortedBy { least[it] }) {
            if (least[at] >= worst || isCutShort) break
            val way = ways[at]
            val hereMs = exit.reachMs + tried[at]
            val rest = order.copyOfRange(way.answered, order.size - way.asked)
            val left = state.left + listOf(hereMs to way.answered, hereMs + callMs to way.asked)
            visit(level + 1, State(rest, spent[at], tried[at], state.taken + way.limits, left))
        }
    }

    private class WayOut(val limits: ExitLimits, val answered: Int, val asked: Int)

    /**
     * The pairs of limits of an exit that differ in what they do: how many samples each answers and asks about.
     *
     * [confidence]: of the open samples, the surest first.
     */
    private fun ways(level: Int, confidence: DoubleArray): List<WayOut> {
        fun reaching(limit: Double) = confidence.count { it >= limit }
        val answering = listOf(UNREACHABLE_CONFIDENCE to 0) + grid.thresholds[level].reversed().map { it to reaching(it) }
        val asking = listOf(0.0 to 0) + grid.asks[level].map { it to confidence.size - reaching(it) }
        return answering.distinctBy { it.second }.flatMap { (threshold, answered) ->
            asking.distinctBy { it.second }.filter { it.first <= threshold }
                .map { (askBelow, asked) -> WayOut(ExitLimits(threshold, askBelow), answered, asked) }
        }
    }

    private inline fun sums(order: IntArray, counts: (Int) -> Boolean): IntArray {
        val found = IntArray(order.size + 1)
        for (at in order.indices) found[at + 1] = found[at] + if (counts(order[at])) 1 else 0
        return found
    }

    /** Every combination of the last exit's limits and the decision's, for the samples that are still open. */
    private fun readTable(state: State) {
        val cells = table.cells(state.open, state.triedMs)
        val asksBefore = state.taken.any { it.askBelow > 0.0 }
        for (threshold in 0..table.thresholds.size) for (ask in 0..table.asks.size) {
            if (!table.isPossible(threshold, ask)) continue
            val pair = cells.pair(threshold, ask)
            if (!memory.fits(state.taken, pair.isUsed)) continue
            for (number in 0 until table.width) {
                val atEnd = cells.askedAtEnd(threshold, ask, number)
                val wrong = cells.wrong(pair, threshold, ask, number)
                val asked = atEnd + pair.askedEarly
                val decidingMs = table.decidingMs(number, asksBefore || ask > 0)
                val deviceMs = pair.deviceMs(decidingMs)
                fun mean(row: Int): Double {
                    val own = if (row == 0) wrong.toDouble() else deviceMs * rates.perMs[row]
                    return (state.spent[row] + own + asked * rates.perCall[row]) / count
                }
                val objective = mean(rates.optimised)
                if (!(objective < worst) || limited.any { mean(it) > rates.limits[it] }) continue
                if (isLate(state, pair, pair.endMs(decidingMs), atEnd)) continue
                worst = objective
                take(state, threshold, ask, number)
            }
        }
    }

    /** Whether the 95th percentile of the latency lies above its limit. */
    private fun isLate(state: State, pair: PairOfLimits, endMs: Double, atEnd: Int): Boolean {
        val limitMs = requirement.p95LatencyMs ?: return false
        val own = listOf(
            pair.exitMs to pair.answered,
            pair.exitMs + callMs to pair.askedEarly,
            endMs to pair.between - atEnd,
            endMs + callMs to atEnd,
        )
        return percentileOf(state.left + own) > limitMs
    }

    private fun take(state: State, threshold: Int, ask: Int, number: Int) {
        val last = ExitLimits(
            table.thresholds.getOrElse(threshold) { UNREACHABLE_CONFIDENCE },
            if (ask == 0) 0.0 else table.asks[ask - 1],
        )
        val chosen = exits.zip(state.taken + last).filter { (_, limits) -> limits != LEFT_OUT }.map { (exit, limits) ->
            exit.choice.copy(threshold = limits.threshold, askBelow = limits.askBelow)
        }
        var (decider, own) = 0 to number
        while (own >= grid.hardEases[decider].size) own -= grid.hardEases[decider++].size
        val value = if (requirement.optimise == Optimised.ACCURACY) 1.0 - worst else -worst
        best = JointLimits(chosen, decider, grid.hardEases[decider][own], value)
    }
}

/**
 * What is tried, all ascending.
 *
 * [thresholds] of each exit, beside leaving it out; [hardEases]: for each decider how many of the distinct eases are
 * hard; [asks]: confidences below which each exit asks, beside asking about none.
 */
internal class JointGrid(val thresholds: List<DoubleArray>, val hardEases: List<IntArray>, val asks: List<DoubleArray>) {
    /**
     * What lies between the neighbours of what was chosen from this grid, in at most [most] steps.
     *
     * [decider]: the chosen one, the only one that remains, with its [ease].
     */
    fun around(
        chosen: List<ExitChoice>,
        decider: Int,
        chosenHard: Int,
        exits: List<ExitSamples>,
        ease: DoubleArray,
        most: Int,
    ): JointGrid {
        val byId = chosen.associateBy { it.exit }
        val values = exits.map { distinct(it.confidence) }
        val choices = exits.map { byId[it.choice.exit] }
        val counts = List(distinct(ease).size + 1) { it.toDouble() }
        val hard = between(counts, hardEases[decider].map { it.toDouble() }, chosenHard.toDouble(), most)
        return JointGrid(
            exits.indices.map { between(values[it], thresholds[it].asList(), choices[it]?.threshold, most).toDoubleArray() },
            listOf(hard.map { it.toInt() }.toIntArray()),
            exits.indices.map { at ->
                betweenAsks(values[at], asks[at].asList(), choices[at]?.askBelow ?: 0.0, most).toDoubleArray()
            },
        )
    }

    companion object {
        /** At most [most] confidences of each exit and numbers of hard eases of each decider, evenly spaced by rank. */
        fun of(exits: List<ExitSamples>, eases: List<DoubleArray>, most: Int, asksEarly: Boolean): JointGrid {
            val values = exits.map { one -> distinct(one.confidence).filter { it.isFinite() } }
            return JointGrid(
                values.map { spread(it, most).toDoubleArray() },
                eases.map { one -> spread(List(distinct(one).size + 1) { it }, most).toIntArray() },
                // the least confidence asks about none
                values.map { if (asksEarly) spread(it.drop(1), most).toDoubleArray() else DoubleArray(0) },
            )
        }
    }
}

/** The different values, ascending. */
internal fun distinct(values: DoubleArray): List<Double> = values.map { it + 0.0 }.distinct().sorted() // −0 equals 0

/** At most [most] of the values, evenly spaced, the first and the last among them. */
private fun <T> spread(values: List<T>, most: Int): List<T> {
    if (values.size <= most) return values
    val step = (values.size - 1).toDouble() / (most - 1)
    return List(most) { if (it == most - 1) values.lastIndex else Math.rint(it * step).toInt() }.distinct().map(values::get)
}

/** Where [value] would stand in the ascending [sorted], before its equals. */
private fun placeOf(value: Double, sorted: List<Double>): Int = sorted.count { it < value }

/** Values from the neighbour below [chosen] in the grid to the one above; null for a choice above all. */
private fun between(values: List<Double>, grid: List<Double>, chosen: Double?, most: Int): List<Double> {
    val place = if (chosen == null) grid.size else placeOf(chosen, grid)
    val low = grid[maxOf(place - 1, 0)]
    val high = grid.getOrElse(place + 1) { values.last() }
    return spread(values.filter { it in low..high }, most)
}

/** The same of confidences below which an exit asks: 0 is the neighbour below the first of the grid. */
private fun betweenAsks(values: List<Double>, grid: List<Double>, chosen: Double, most: Int): List<Double> {
    if (grid.isEmpty()) return grid
    val place = if (chosen > 0.0) placeOf(chosen, grid) else -1
    val low = if (place > 0) grid[place - 1] else values[1] // the least confidence asks about none
    return spread(values.drop(1).filter { it in low..grid[minOf(place + 1, grid.lastIndex)] }, most)
}
