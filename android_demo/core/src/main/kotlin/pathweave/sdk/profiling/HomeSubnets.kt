/** The whole subnets that show what other homes than the first cost, and crossing between homes. */
package pathweave.sdk.profiling

import pathweave.sdk.execution.OpenHomes
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Subnet

private const val AT_EACH = 20 // subnets at each further home alone
private const val CROSSING = 6 // subnets that cross, for each pair of homes and direction
private val SHARES = listOf(0.5, 0.25, 0.75) // of the blocks, behind which a subnet crosses

/**
 * Some of [atFirst] at every further home, and some that cross once, in every direction; none for one home.
 *
 * [costs]: of each edge alone at all its homes, so that blocks that a home refuses are left where they run.
 */
internal fun subnetsAtHomes(homes: OpenHomes, atFirst: List<Subnet>, costs: CostModel): List<Subnet> {
    if (!homes.several) return emptyList()
    val names = listOf("") + homes.homes.drop(1).map { "$it" }
    val alone = names.drop(1).flatMap { name -> spread(moved(atFirst, costs) { _, edge -> edge.on(name) }, AT_EACH) }
    val pairs = names.flatMap { before -> (names - before).map { before to it } }
    val crossing = pairs.flatMap { (before, after) -> spread(crossed(atFirst, before, after, costs), CROSSING) }
    return (alone + crossing).distinct()
}

private fun moved(subnets: List<Subnet>, costs: CostModel, move: (at: Int, Edge) -> Edge): List<Subnet> =
    subnets.map { subnet -> Subnet(subnet.edges.mapIndexed(move)) }.filter(costs::knows)

/** Each subnet once, at [before] up to a share of its blocks, then at [after]. */
private fun crossed(subnets: List<Subnet>, before: String, after: String, costs: CostModel): List<Subnet> =
    subnets.withIndex().filter { (_, subnet) -> subnet.edges.size > 1 }.flatMap { (number, subnet) ->
        val count = subnet.edges.size
        val place = Math.rint(count * SHARES[number % SHARES.size]).toInt().coerceAtMost(count - 1).coerceAtLeast(1)
        moved(listOf(subnet), costs) { at, edge -> edge.on(if (at < place) before else after) }
    }

/** At most [count] of [subnets]: the first two, the original and the cheapest, and others, evenly spread. */
private fun spread(subnets: List<Subnet>, count: Int): List<Subnet> {
    val rest = subnets.drop(2)
    val step = maxOf(1.0, rest.size.toDouble() / (count - 2))
    return subnets.take(2) + (0 until minOf(count - 2, rest.size)).map { rest[(it * step).toInt()] }
}
