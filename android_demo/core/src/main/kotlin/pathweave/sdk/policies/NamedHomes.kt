/** Searches see edges without homes; what they found names the home of each edge: device_sdk/policies/subnet_search.py. */
package pathweave.sdk.policies

import pathweave.sdk.execution.Workspace
import pathweave.sdk.search.Candidate
import pathweave.sdk.search.SearchResult
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Subnet

/** [costs] for a search: edges name no home, and run at the best of theirs, of at most so many [threads]. */
internal fun atBestHomes(workspace: Workspace, costs: CostModel, threads: Int? = null): CostModel {
    val supernet = workspace.bundle.supernet
    return costs.atBestHomes(workspace.homes.within(threads).ofEach(supernet, supernet.edges))
}

/**
 * Candidates of a search by [costs] ([atBestHomes]), with every edge's home named.
 *
 * The full model, which other plans are compared with, is among them at the first home too.
 */
internal fun atNamedHomes(pool: List<Candidate>, costs: CostModel, named: CostModel): List<Candidate> {
    if (costs.homes.isEmpty()) return pool
    fun at(one: Candidate, subnet: Subnet) = one.copy(plan = one.plan.copy(subnet = subnet), cost = named.cost(subnet))
    val housed = pool.map { at(it, costs.housed(it.subnet)) }
    val known = housed.map { it.subnet }.toSet()
    return housed + pool.filter { it.subnet !in known && named.knows(it.subnet) }.map { at(it, it.subnet) }
}

/** The result of a search by [costs], with every edge's home named. */
internal fun atNamedHomes(found: SearchResult, costs: CostModel, named: CostModel): SearchResult = found.copy(
    best = found.best?.let { atNamedHomes(listOf(it), costs, named).first() },
    pool = atNamedHomes(found.pool, costs, named),
)

/** [candidate] with all blocks at one home, for each that has them all within [threads]; not [candidate] itself. */
internal fun atEachHome(workspace: Workspace, named: CostModel, candidate: Candidate, threads: Int?): List<Candidate> {
    val (homes, supernet) = workspace.homes.within(threads) to workspace.bundle.supernet
    if (!homes.several) return emptyList()
    val having = candidate.subnet.edges.map { edge -> homes.of(supernet, edge.on("")).map { it.home }.toSet() }
    val paths = having.reduce { all, those -> all intersect those }.sorted()
        .map { home -> Subnet(candidate.subnet.edges.map { it.on(home) }) }
    return (paths - candidate.subnet).map { path ->
        candidate.copy(plan = candidate.plan.copy(subnet = path), cost = named.cost(path))
    }
}
