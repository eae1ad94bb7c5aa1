/**
 * What every combination of a last exit's two limits and of a decision's takes, from cumulative counts. Pure.
 *
 * A combination is a cell: a threshold, a limit of asking, a number of hard eases of a decider; out of reach, and none
 * asked, are among them.
 */
package pathweave.sdk.policies.planning

import kotlin.math.floor
import kotlin.math.log10
import kotlin.math.pow
import pathweave.sdk.numerics.dot
import pathweave.sdk.policies.costs.ExitSamples
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.Requirement

/**
 * The end of a path with a decision: [right] here, [serverRight] by sample; [fullMs]: to the end.
 *
 * [eases]: of the samples, by each decider that may decide; [call]: what asking takes, its times known. [decidingMs]:
 * what each of them takes for a sample at the end; [nothingHardMs]: what a decision takes that calls no sample hard,
 * which plans need whose exits alone ask.
 */
internal class AskingEnd(
    val eases: List<DoubleArray>,
    val right: BooleanArray,
    val serverRight: BooleanArray,
    val fullMs: Double,
    val call: RemoteCall,
    val decidingMs: List<Double> = eases.map { 0.0 },
    val nothingHardMs: Double = 0.0,
) {
    fun calling(call: RemoteCall) = AskingEnd(eases, right, serverRight, fullMs, call, decidingMs, nothingHardMs)

    /** With the decider of this [number] alone. */
    fun decidedBy(number: Int) =
        AskingEnd(listOf(eases[number]), right, serverRight, fullMs, call, listOf(decidingMs[number]), nothingHardMs)
}

/** Sums over open samples for a pair of an exit's limits; [isUsed]: whether it decides anything, else its branch is left out. */
internal class PairOfLimits(
    val answered: Int,
    val askedEarly: Int,
    val between: Int,
    val right: Int,
    val isUsed: Boolean,
    val exitMs: Double,
    private val endMs: Double,
) {
    /** Until a sample at the end is decided about in [decidingMs]. */
    fun endMs(decidingMs: Double): Double = endMs + decidingMs

    /** Of all samples. */
    fun deviceMs(decidingMs: Double): Double = (answered + askedEarly) * exitMs + between * endMs(decidingMs)
}

/** The cells of a last exit and of all deciders behind it, for any of the samples. */
internal class JointTable(private val exit: ExitSamples, private val end: AskingEnd, grid: JointGrid) {
    val thresholds: DoubleArray = grid.thresholds.last()
    val asks: DoubleArray = grid.asks.last()

    /** Of all deciders, one after the other. */
    val width: Int = grid.hardEases.sumOf { it.size }
    private val columns = FIXED + 2 * width

    /** By sample: one, right at the exit, at the end, at the server; whether each number of eases asks, and gains. */
    private val values: Array<IntArray>

    /** By sample: the first limit that its confidence lies below, among [thresholds] or [asks]; behind all if none. */
    private val thresholdPlace = places(thresholds)
    private val askPlace = places(asks)

    init {
        val asking = end.eases.zip(grid.hardEases).map { (ease, hardEases) -> ranks(ease) to hardEases }
        values = Array(end.right.size) { sample ->
            val gain = (if (end.serverRight[sample]) 1 else 0) - if (end.right[sample]) 1 else 0
            val found = IntArray(columns)
            found[0] = 1
            if (exit.right[sample]) found[1] = 1
            if (end.right[sample]) found[2] = 1
            if (end.serverRight[sample]) found[3] = 1
            var at = FIXED
            for ((ranks, hardEases) in asking) for (hard in hardEases) {
                if (ranks[sample] < hard) {
                    found[at] = 1
                    found[at + width] = gain
                }
                at++
            }
            found
        }
    }

    private fun places(limits: DoubleArray) = IntArray(exit.confidence.size) { sample ->
        limits.indexOfFirst { exit.confidence[sample] < it }.let { if (it < 0) limits.size else it }
    }

    private val withHardMs = grid.hardEases.indices.flatMap { at -> grid.hardEases[at].map { end.decidingMs[at] to (it > 0) } }

    /** What deciding takes with this [number] of hard eases, counted over all deciders; [asks]: whether exits ask. */
    fun decidingMs(number: Int, asks: Boolean): Double {
        val (decidingMs, isHard) = withHardMs[number]
        return if (isHard) decidingMs else if (asks) end.nothingHardMs else 0.0
    }

    /** Whether no limit of asking lies above the threshold. */
    fun isPossible(threshold: Int, ask: Int): Boolean =
        ask == 0 || threshold == thresholds.size || thresholds[threshold] >= asks[ask - 1]

    /** The cells of the samples [open], which have tried branches of [triedMs] before. */
    fun cells(open: IntArray, triedMs: Double) = Cells(open, triedMs)

    /** Thresholds are counted from the least to out of reach, limits of asking from none to the highest. */
    inner class Cells(private val open: IntArray, private val triedMs: Double) {
        private val below = Array(thresholds.size + 1) { IntArray(columns) }
        private val early = Array(asks.size + 1) { IntArray(columns) }

        init {
            for (sample in open) {
                add(below[thresholdPlace[sample]], values[sample])
                if (askPlace[sample] < asks.size) add(early[askPlace[sample] + 1], values[sample])
            }
            for (row in 1 until below.size) add(below[row], below[row - 1])
            for (row in 1 until early.size) add(early[row], early[row - 1])
        }

        private fun add(into: IntArray, values: IntArray) {
            for (at in into.indices) into[at] += values[at]
        }

        fun pair(threshold: Int, ask: Int): PairOfLimits {
            val (stays, leaves) = below[threshold] to early[ask]
            val isUsed = threshold < thresholds.size || ask > 0
            val branchMs = if (isUsed) triedMs + exit.branchMs else triedMs
            return PairOfLimits(
                answered = open.size - stays[0],
                askedEarly = leaves[0],
                between = stays[0] - leaves[0],
                right = below.last()[1] - stays[1] + stays[2] - leaves[2] + leaves[3],
                isUsed = isUsed,
                exitMs = branchMs + exit.reachMs,
                endMs = branchMs + end.fullMs,
            )
        }

        fun askedAtEnd(threshold: Int, ask: Int, number: Int): Int = below[threshold][FIXED + number] - early[ask][FIXED + number]

        fun wrong(pair: PairOfLimits, threshold: Int, ask: Int, number: Int): Int {
            val at = FIXED + width + number
            return open.size - pair.right - (below[threshold][at] - early[ask][at])
        }
    }

    private companion object {
        const val FIXED = 4
    }
}

/** Which of the distinct eases each sample has, counted from the least. */
private fun ranks(ease: DoubleArray): IntArray {
    val places = distinct(ease).withIndex().associate { (at, value) -> value to at }
    return IntArray(ease.size) { places.getValue(ease[it] + 0.0) }
}

/** The 95th percentile of milliseconds, each of so many samples. */
internal fun percentileOf(ways: List<Pair<Double, Int>>): Double {
    val ordered = ways.sortedBy { it.first }
    val count = ordered.sumOf { it.second }
    val place = P95 * (count - 1)
    val low = floor(place).toInt()

    fun at(rank: Int): Double {
        var passed = 0
        return ordered.first { (_, samples) ->
            passed += samples
            passed > minOf(rank, count - 1)
        }.first
    }
    val (below, above) = at(low) to at(low + 1)
    return below + (above - below) * (place - low)
}

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
    val optimised: Int = objective.indexOfFirst { it > 0.0 }

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
