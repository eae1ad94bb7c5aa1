/**
 * What every combination of a last exit's two limits and of a decision's takes, from cumulative counts. Pure.
 *
 * Mirrors policies/joint_thresholds/table.py. A combination is a cell: a threshold, a limit of asking, a number of hard
 * eases of a decider; out of reach, and none asked, are among them.
 */
package pathweave.sdk.policies.planning

import kotlin.math.floor
import pathweave.sdk.policies.costs.ExitSamples

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

        /** Samples that are asked about at the end. */
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
