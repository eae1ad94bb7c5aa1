/**
 * The exact placement: dynamic programming over cut points with Pareto fronts of labels, and bounds from a Lagrangian
 * relaxation of the memory limit, as `exact.py` and `bounds.py` in device_sdk/policies/placement.
 */
package pathweave.sdk.policies.placement

import kotlin.math.max

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
