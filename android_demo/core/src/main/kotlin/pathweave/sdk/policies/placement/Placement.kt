/**
 * Which exits to keep in a memory budget, as device_sdk/policies/placement: the exact search and the greedy choice.
 *
 * Source: MEEdge §3.3; the exact search is that of docs/adr/0037, where Python's `exact.py` has the proof of dominance.
 */
package pathweave.sdk.policies.placement

import kotlin.math.max
import pathweave.sdk.UsageError
import pathweave.sdk.supernet.Supernet

private const val PARAMETER_BYTES = 4L

/** An exit that could be kept; both times in the unit of the full model's time. */
public data class ExitCandidate(
    val exit: String,
    val position: Int,
    val accuracy: Double,
    val reachTime: Double,
    val branchTime: Double,
    val memoryBytes: Long,
) {
    internal val answerTime: Double get() = reachTime + branchTime
}

/** The exits to keep, by position; [optimal]: no better choice exists. */
public data class Placement(
    val exits: List<String>,
    val expectation: Double,
    val memoryBytes: Long,
    val optimal: Boolean,
)

/**
 * When inference is interrupted: a piecewise-constant density over shares of the full model's time.
 *
 * @throws UsageError the pieces do not ascend to 1, or the weights are negative, all zero or of another number.
 */
public data class StopTimes(val until: List<Double> = listOf(1.0), val weight: List<Double> = listOf(1.0)) {
    init {
        val ascending = (listOf(0.0) + until).zipWithNext().all { (low, high) -> low < high }
        if (until.lastOrNull() != 1.0 || !ascending) throw UsageError("stop times end at $until")
        val sum = weight.sum()
        if (weight.size != until.size || weight.any { !(it >= 0.0) } || !(sum > 0.0 && sum.isFinite())) {
            throw UsageError("stop times have the weights $weight")
        }
    }
}

/** The probability that inference still runs, by the time since its start: piecewise linear, 0 from [fullTime] on. */
internal class Survival(stopTimes: StopTimes, val fullTime: Double) {
    private val times = listOf(0.0) + stopTimes.until.map { it * fullTime }
    private val chances = buildList {
        val total = stopTimes.weight.sum()
        add(1.0)
        var past = 0.0
        for (weight in stopTimes.weight.dropLast(1)) {
            past += weight
            add((total - past) / total)
        }
        add(0.0)
    }

    operator fun invoke(time: Double): Double {
        if (time >= fullTime) return 0.0
        val piece = times.indexOfLast { it <= time }
        val slope = (chances[piece + 1] - chances[piece]) / (times[piece + 1] - times[piece])
        return slope * (time - times[piece]) + chances[piece]
    }
}

/**
 * The exits of [supernet] whose accuracy is known, and the full model's time, both timed in MACs along the original
 * paths: for devices without measurements. Memory is that of float32 parameters.
 */
internal fun candidatesByMacs(supernet: Supernet): Pair<List<ExitCandidate>, Double> {
    val reached = HashMap<Int, Long>()
    for (original in supernet.originals.asReversed()) { // the last is the largest, whose end counts
        var macs = 0L
        for ((_, block) in supernet.walk(original)) {
            macs += block.macs
            reached[block.end] = macs
        }
    }
    val known = supernet.exits.mapNotNull { exit ->
        val accuracy = exit.accuracy ?: return@mapNotNull null
        val reach = reached.getValue(exit.position).toDouble()
        ExitCandidate(exit.id, exit.position, accuracy, reach, exit.macs.toDouble(), PARAMETER_BYTES * exit.parameters)
    }
    return known to reached.getValue(supernet.outputIndex).toDouble()
}

/**
 * The exits with the highest expectation within [memoryBytes] (null: no limit), at most one at a cut point.
 *
 * [late] is asked during the search; once it is true, the better of the best choice so far and the greedy one is
 * returned, not called optimal.
 *
 * @throws UsageError [memoryBytes] is negative, or [fullTime] not above zero.
 */
public fun placeExactly(
    candidates: List<ExitCandidate>,
    fullTime: Double,
    memoryBytes: Long?,
    stopTimes: StopTimes = StopTimes(),
    late: () -> Boolean = { false },
): Placement {
    val problem = PlacementProblem.of(candidates, fullTime, memoryBytes, stopTimes)
    if (problem.candidates.isEmpty()) return problem.placement(emptyList(), optimal = true)
    if (late()) return problem.placement(problem.greedy(), optimal = false)
    val search = PlacementSearch(problem, late)
    val finished = search.run()
    val found = search.best()
    if (finished) return problem.placement(found, optimal = true)
    val greedy = problem.greedy()
    return problem.placement(if (problem.value(greedy) > problem.value(found)) greedy else found, optimal = false)
}

/** Worthwhile candidates by position and name, and what may be kept of them. */
internal class PlacementProblem private constructor(
    val candidates: List<ExitCandidate>,
    val survival: Survival,
    val memoryBytes: Long,
    private val perByte: Boolean,
) {
    fun value(exits: List<ExitCandidate>): Double {
        var total = 0.0
        var accuracy = 0.0
        var tried = 0.0
        var answered = 0.0
        for (exit in exits.sortedBy { it.position }) {
            tried += exit.branchTime
            answered = max(answered, exit.reachTime + tried)
            if (exit.accuracy > accuracy) {
                total += (exit.accuracy - accuracy) * survival(answered)
                accuracy = exit.accuracy
            }
        }
        return total
    }

    fun placement(exits: List<ExitCandidate>, optimal: Boolean): Placement {
        val kept = exits.sortedBy { it.position }
        return Placement(kept.map { it.exit }, value(kept), kept.sumOf { it.memoryBytes }, optimal)
    }

    /** Always the exit that adds most expectation per byte, while it fits and adds anything; without a limit bytes do not count. */
    fun greedy(): List<ExitCandidate> {
        val kept = mutableListOf<ExitCandidate>()
        var room = memoryBytes
        var best = 0.0
        while (true) {
            val fitting = candidates.filter { one ->
                one.memoryBytes <= room && kept.none { it.position == one.position }
            }
            val gains = fitting.map { one ->
                val gain = value(kept + one) - best
                if (perByte) gain / max(one.memoryBytes, 1L) else gain
            }
            val highest = gains.maxOrNull() ?: return kept
            if (highest <= 0.0) return kept
            val chosen = fitting[gains.indexOf(highest)]
            kept += chosen
            room -= chosen.memoryBytes
            best = value(kept)
        }
    }

    companion object {
        fun of(
            given: List<ExitCandidate>,
            fullTime: Double,
            memoryBytes: Long?,
            stopTimes: StopTimes,
        ): PlacementProblem {
            if (memoryBytes != null && memoryBytes < 0) {
                throw UsageError("the memory for exits is $memoryBytes bytes; it cannot be negative")
            }
            if (!(fullTime > 0)) throw UsageError("the full model's time is $fullTime; it must be above zero")
            val useful = given.sortedWith(compareBy({ it.position }, { it.exit }))
                .filter { it.memoryBytes <= (memoryBytes ?: Long.MAX_VALUE) }
                .filter { it.answerTime < fullTime && it.accuracy > 0 }
                .groupBy { it.position }.values.flatMap(::undominated)
            val limit = memoryBytes ?: useful.sumOf { it.memoryBytes }
            return PlacementProblem(useful, Survival(stopTimes, fullTime), limit, perByte = memoryBytes != null)
        }

        /** The Pareto front at one cut point, in the order given; of equal ones the first. */
        private fun undominated(several: List<ExitCandidate>): List<ExitCandidate> {
            val front = mutableListOf<ExitCandidate>()
            val cheapestFirst = compareBy<ExitCandidate>(
                { it.memoryBytes },
                { it.answerTime },
                { it.branchTime },
                { -it.accuracy },
            )
            for (one in several.sortedWith(cheapestFirst)) {
                val beaten = front.any {
                    it.answerTime <= one.answerTime && it.branchTime <= one.branchTime && it.accuracy >= one.accuracy
                }
                if (!beaten) front += one
            }
            return several.filter { one -> front.any { it === one } }
        }
    }
}

/** The labels of one exact search. */
internal class PlacementSearch(private val problem: PlacementProblem, private val late: () -> Boolean) {
    private class Label(
        val size: Long,
        val tried: Double,
        val answered: Double,
        val accuracy: Double,
        val value: Double,
        val bound: Double,
        val exit: Int,
        val parent: Label?,
    )

    private val candidates = problem.candidates
    private val survival = problem.survival
    private val chances = candidates.map { survival(it.answerTime) }
    private var price = 0.0
    private var behind = DoubleArray(candidates.size)
    private var relaxed = emptyList<ExitCandidate>()
    private var floor = 0.0
    private val kept = mutableListOf(Label(0, 0.0, 0.0, 0.0, 0.0, 0.0, -1, null))
    private val waiting = candidates.map { it.position }.distinct().associateWith { mutableListOf<Label>() }

    init {
        relax()
    }

    /** Extend labels cut point by cut point. False if it got late first. */
    fun run(): Boolean {
        if (!extend(kept.toList(), 0)) return false
        for ((position, labels) in waiting) {
            val end = candidates.indexOfFirst { it.position > position }.let { if (it < 0) candidates.size else it }
            val soonest = (end until candidates.size).minOfOrNull { candidates[it].answerTime } ?: survival.fullTime
            val cheapestFirst = compareBy<Label>({ it.size }, { it.tried }, { -it.value }, { it.accuracy })
            val first = kept.size
            for (label in labels.filter { it.bound >= floor - SLACK }.sortedWith(cheapestFirst)) {
                if (late()) return false
                if (kept.none { dominates(it, label, soonest) }) kept += label
            }
            labels.clear()
            if (!extend(kept.subList(first, kept.size).toList(), end)) return false
        }
        return true
    }

    fun best(): List<ExitCandidate> {
        val label = kept.minWith(compareBy({ -it.value }, { it.size }))
        if (label.value < floor - SLACK) return relaxed
        val labels = generateSequence(label) { it.parent }.filter { it.exit >= 0 }
        return labels.map { candidates[it.exit] }.toList().reversed()
    }

    private fun extend(labels: List<Label>, end: Int): Boolean {
        for (label in labels) {
            if (late()) return false
            for (number in end until candidates.size) append(label, number)
        }
        return true
    }

    private fun append(label: Label, number: Int) {
        val exit = candidates[number]
        val size = label.size + exit.memoryBytes
        if (exit.accuracy <= label.accuracy || size > problem.memoryBytes) return
        val tried = label.tried + exit.branchTime
        val answered = max(label.answered, exit.reachTime + tried)
        val value = label.value + (exit.accuracy - label.accuracy) * survival(answered)
        val bound = value + price * (problem.memoryBytes - size) + behind[number]
        floor = max(floor, value)
        if (bound < floor - SLACK) return
        waiting.getValue(exit.position) += Label(size, tried, answered, exit.accuracy, value, bound, number, label)
    }

    private fun dominates(one: Label, other: Label, soonest: Double): Boolean {
        val later = max(other.answered, soonest + other.tried)
        if (one.size > other.size || one.tried > other.tried || one.answered > later) return false
        return one.value - max(one.accuracy - other.accuracy, 0.0) * survival(later) >= other.value
    }

    /** Set the price per byte with the tightest bound, the bounds behind each candidate, and a first placement. */
    private fun relax() {
        var above = relaxedAt(0.0)
        var tightest = above
        var (lowValue, lowSpare) = 0.0 to problem.memoryBytes.toDouble()
        for (step in 1 until PRICES) {
            if (above.spare >= 0) break
            val at = (above.worth - lowValue) / (lowSpare - above.spare)
            val found = relaxedAt(at)
            if (found.bound < tightest.bound) tightest = found
            if (found.bound <= (lowValue + lowSpare * at) * (1 + SLACK)) break
            if (found.spare < 0) {
                above = found
            } else {
                lowValue = found.worth
                lowSpare = found.spare
            }
        }
        price = tightest.price
        behind = tightest.behind
    }

    private class Relaxed(val price: Double, val bound: Double, val spare: Double, val behind: DoubleArray) {
        val worth: Double get() = bound - price * spare
    }

    /** The longest path if every byte costs [at] and branches delay only their own answers. */
    private fun relaxedAt(at: Double): Relaxed {
        val after = DoubleArray(candidates.size)
        val following = IntArray(candidates.size) { -1 }
        var end = candidates.size
        for (number in candidates.indices.reversed()) {
            val next = candidates.getOrNull(number + 1)
            if (next != null && next.position > candidates[number].position) end = number + 1
            for (later in end until candidates.size) {
                val higher = candidates[later].accuracy - candidates[number].accuracy
                val gain = higher * chances[later] + after[later] - at * candidates[later].memoryBytes
                if (higher > 0 && gain > after[number]) {
                    after[number] = gain
                    following[number] = later
                }
            }
        }
        fun total(number: Int) =
            candidates[number].accuracy * chances[number] + after[number] - at * candidates[number].memoryBytes
        val first = candidates.indices.maxBy { total(it) }
        val start = first.takeIf { total(it) > 0 }
        val numbers = generateSequence(start) { last -> following[last].takeIf { it >= 0 } }
        val path = numbers.map { candidates[it] }.toList()
        val spare = (problem.memoryBytes - path.sumOf { it.memoryBytes }).toDouble()
        val value = problem.value(path)
        if (spare >= 0 && value > floor) {
            floor = value
            relaxed = path
        }
        return Relaxed(at, max(total(first), 0.0) + at * problem.memoryBytes, spare, after)
    }

    private companion object {
        const val SLACK = 1e-12 // sums in another order may differ by this
        const val PRICES = 14
    }
}
