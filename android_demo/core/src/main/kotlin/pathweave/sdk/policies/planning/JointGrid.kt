/**
 * Which limits of exits and of a decision are tried together: some of those that samples have. Pure.
 *
 * Mirrors policies/joint_thresholds/grid.py.
 */
package pathweave.sdk.policies.planning

import pathweave.sdk.policies.costs.ExitSamples
import pathweave.sdk.supernet.ExitChoice

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
