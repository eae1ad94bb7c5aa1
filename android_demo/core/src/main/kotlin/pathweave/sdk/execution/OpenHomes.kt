/** The homes that are open here, and which renditions run at each of them: device_sdk/execution/open_homes.py. */
package pathweave.sdk.execution

import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Home
import pathweave.sdk.supernet.PROVIDERS
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet

/**
 * [homes]: the first is that of edges that name none; none at all where there is one alone.
 *
 * [refused]: by the name of a home, the blocks in a rendition that do not run there, as an edge writes them.
 * [mostThreads]: homes with more are left out; null for no limit.
 */
internal data class OpenHomes(
    val homes: List<Home> = emptyList(),
    val refused: Map<String, Set<String>> = emptyMap(),
    val mostThreads: Int? = null,
) {
    /** True if there is a choice. */
    val several: Boolean get() = homes.size > 1

    /** [edge], which names no home, at each of its homes; the first has no name. It alone for one home. */
    fun of(supernet: Supernet, edge: Edge): List<Edge> {
        if (!several) return listOf(edge)
        val (providers, name) = supernet.rendition(edge).providers to "${edge.at(null)}"
        val able = homes.withIndex().filter { (_, home) ->
            (mostThreads == null || home.threads <= mostThreads) &&
                (providers.isEmpty() || PROVIDERS.getValue(home.provider) in providers) &&
                name !in refused["$home"].orEmpty()
        }
        return able.map { (number, home) -> edge.on(if (number == 0) "" else "$home") }
    }

    /** The homes of each of [edges], for [pathweave.sdk.supernet.CostModel.atBestHomes]; none where there is no choice. */
    fun ofEach(supernet: Supernet, edges: List<Edge>): Map<Edge, List<Edge>> =
        if (several) edges.associateWith { of(supernet, it) } else emptyMap()

    /** [subnet], which names no homes, with each edge at the first home that it has. */
    fun first(supernet: Supernet, subnet: Subnet): Subnet =
        if (several) Subnet(subnet.edges.map { of(supernet, it).firstOrNull() ?: it }) else subnet

    /** The same with a limit on threads. */
    fun within(threads: Int?): OpenHomes = copy(mostThreads = threads)
}

/** No choice of homes. */
internal val ONE_HOME: OpenHomes = OpenHomes()
