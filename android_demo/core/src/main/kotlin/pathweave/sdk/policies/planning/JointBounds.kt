/**
 * Lower bounds of what limits of exits and of a decision can reach, by Lagrange multipliers of what a requirement limits.
 *
 * Pure. Mirrors policies/joint_thresholds/bounds.py. Quantities, per sample: whether the answer is wrong, milliseconds,
 * millijoules, bytes. Every sample that is still open chooses its own way, priced; limits can only do worse. A bound does
 * not depend on what decides at the end.
 */
package pathweave.sdk.policies.planning

import kotlin.math.log10
import kotlin.math.pow
import pathweave.sdk.numerics.dot
import pathweave.sdk.policies.costs.ExitSamples
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.Requirement

private const val QUANTITIES = 4
private const val ROUNDS = 2 // of improving one price after the other
private const val KEPT_PRICES = 4
private const val SLACK = 1e-12 // of the share of wrong answers
private val PRICES = geometric(1e-3, 1e3, 13) // of a limit, in units of what is optimised per unit of what is limited
private val FINER = geometric(0.4, 2.5, 9) // around the best of these

/** Of the four quantities: what is optimised (0 or 1), their limits, and what a millisecond here and a call add. */
internal class Rates(
    val objective: DoubleArray,
    val limits: DoubleArray,
    val perMs: DoubleArray,
    val perCall: DoubleArray,
) {
    /** The number of what is optimised. */
    val optimised: Int = objective.indexOfFirst { it > 0.0 }

    /** The numbers of the quantities that have a limit, beside what is optimised. */
    val limited: List<Int> = (0 until QUANTITIES).filter { limits[it].isFinite() && it != optimised }

    companion object {
        /** [power]: null where no requirement is on energy. */
        fun of(requirement: Requirement, call: RemoteCall, power: Power?): Rates {
            val callMj = power?.let { it.radioW * call.transferMs + it.waitingW * call.serverMs } ?: 0.0
            return Rates(
                objective = DoubleArray(QUANTITIES) { if (it == requirement.optimise.ordinal) 1.0 else 0.0 },
                limits = doubleArrayOf(
                    requirement.accuracy?.let { 1.0 - it + SLACK } ?: Double.POSITIVE_INFINITY,
                    requirement.latencyMs ?: Double.POSITIVE_INFINITY,
                    requirement.energyMj ?: Double.POSITIVE_INFINITY,
                    minOf(
                        requirement.bytesSent ?: Double.POSITIVE_INFINITY,
                        requirement.shareAsked?.let { it * call.sizeBytes } ?: Double.POSITIVE_INFINITY,
                    ),
                ),
                perMs = doubleArrayOf(0.0, 1.0, power?.activeW ?: 0.0, 0.0),
                perCall = doubleArrayOf(0.0, call.totalMs, callMj, call.sizeBytes.toDouble()),
            )
        }
    }
}

/** The ways of an exit that are compared: each answers the first so many open samples, and asks about the last so many. */
internal class LeavingWays(
    val answered: IntArray,
    val asked: IntArray,
    val spent: List<DoubleArray>,
    val triedMs: DoubleArray,
)

/**
 * Bounds for the samples that are still open before an exit, at several prices of the limits.
 *
 * [asksEarly]: exits may ask too; [like]: others for the same exits and rates, whose prices are taken.
 */
internal class JointBounds(
    exits: List<ExitSamples>,
    end: AskingEnd,
    private val rates: Rates,
    asksEarly: Boolean,
    like: JointBounds? = null,
) {
    private val count = end.right.size
    private val right = mutableListOf(end.right, end.serverRight) // by way, those of the exits from the last to the first
    private val fixed = mutableListOf(atMs(end.fullMs), plusCall(atMs(end.fullMs)))
    private val waysOfLevel = IntArray(exits.size + 1) { 2 }

    init {
        for (level in exits.indices.reversed()) {
            val here = atMs(exits[level].reachMs + exits[level].branchMs)
            fixed += if (asksEarly) listOf(here, plusCall(here)) else listOf(here)
            right += if (asksEarly) listOf(exits[level].right, end.serverRight) else listOf(exits[level].right)
            waysOfLevel[level] = right.size
        }
    }

    private val prices: List<DoubleArray> = like?.prices ?: chosenPrices()
    private val constants = prices.map(::constant)
    private val leastCosts = List(exits.size + 1) { level -> prices.map { leastCosts(it, level) } }

    /** No combination at all has a smaller objective. */
    val least: Double = prices.indices.maxOf { leastCosts[0][it].average() - constants[it] }

    private fun atMs(ms: Double) = DoubleArray(QUANTITIES) { ms * rates.perMs[it] }

    private fun plusCall(way: DoubleArray) = DoubleArray(QUANTITIES) { way[it] + rates.perCall[it] }

    /**
     * For each of the [ways] of the exit before [level]: no combination of what follows has a smaller objective.
     *
     * [order]: the open samples, the surest first.
     */
    fun of(level: Int, order: IntArray, ways: LeavingWays): DoubleArray {
        val found = DoubleArray(ways.answered.size) { Double.NEGATIVE_INFINITY }
        for ((number, price) in prices.withIndex()) {
            val costs = leastCosts[level][number]
            val sums = DoubleArray(order.size + 1)
            for (at in order.indices) sums[at + 1] = sums[at] + costs[order[at]]
            val perMs = dot(price, rates.perMs)
            for (way in found.indices) {
                val stop = order.size - ways.asked[way]
                val rest = sums[stop] - sums[ways.answered[way]]
                val leftMs = (stop - ways.answered[way]) * ways.triedMs[way]
                val total = dot(price, ways.spent[way]) + rest + perMs * leftMs
                found[way] = maxOf(found[way], total / count - constants[number])
            }
        }
        return found
    }

    /** The least priced cost of each sample from [level] on, without branches before. */
    private fun leastCosts(price: DoubleArray, level: Int): DoubleArray {
        val ways = waysOfLevel[level]
        val priced = DoubleArray(ways) { dot(price, fixed[it]) }
        val wrong = priced.min() + price[0]
        return DoubleArray(count) { sample ->
            var least = wrong
            for (way in 0 until ways) if (right[way][sample] && priced[way] < least) least = priced[way]
            least
        }
    }

    /** The bound of the whole problem at these prices. */
    private fun value(price: DoubleArray) = leastCosts(price, 0).average() - constant(price)

    private fun constant(price: DoubleArray) = (0 until QUANTITIES).sumOf {
        if (rates.limits[it].isFinite()) (price[it] - rates.objective[it]) * rates.limits[it] else 0.0
    }

    /** No price on any limit, for each limit alone the prices with the best bounds, and the best of all together. */
    private fun chosenPrices(): List<DoubleArray> {
        val chosen = mutableListOf(rates.objective)
        val most = DoubleArray(QUANTITIES) { at -> if (at == 0) 1.0 else maxOf(fixed.maxOf { it[at] }, SLACK) }
        val scale = dot(rates.objective, most)
        var (best, highest) = rates.objective to Double.NEGATIVE_INFINITY
        for (number in rates.limited) {
            val tried = priced(rates.objective, number, PRICES.map { it * scale / most[number] })
            val ranked = tried.map { it to value(it) }.sortedByDescending { it.second }
            chosen += ranked.take(KEPT_PRICES).map { it.first }
            if (ranked[0].second > highest) {
                best = ranked[0].first
                highest = ranked[0].second
            }
        }
        for (number in List(ROUNDS) { rates.limited }.flatten()) {
            val known = best[number] - rates.objective[number]
            val around = if (known != 0.0) FINER.map { known * it } else PRICES.map { it * scale / most[number] }
            best = priced(best, number, listOf(0.0) + around).maxBy(::value)
        }
        return chosen + listOf(best)
    }

    private fun priced(price: DoubleArray, number: Int, added: List<Double>) = added.map { more ->
        price.copyOf().also { it[number] = rates.objective[number] + more }
    }
}

/** So many numbers from [low] to [high], each larger than the one before by the same factor. */
private fun geometric(low: Double, high: Double, count: Int): List<Double> {
    val step = (log10(high) - log10(low)) / (count - 1)
    return List(count) { if (it == 0) low else if (it == count - 1) high else 10.0.pow(log10(low) + it * step) }
}
