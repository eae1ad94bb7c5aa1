/** A new search while the old subnet serves. Mirrors device_sdk/live/pool_search.py. */
package pathweave.sdk.live

import java.util.logging.Level
import kotlin.concurrent.thread
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.LOG
import pathweave.sdk.PathweaveError
import pathweave.sdk.search.Candidate
import pathweave.sdk.supernet.Budget

private const val JOIN_MS = 10_000L
private const val NS_PER_S = 1e9

/** Looks for candidates at a budget of predicted latency, until the second argument returns true. */
internal typealias Search = (budget: Budget, cancelled: () -> Boolean) -> List<Candidate>

/** What a search at a drift ratio found; [failure] says why nothing. */
internal data class SearchOutcome(
    val budget: Budget,
    val ratio: Double,
    val candidates: List<Candidate>,
    val seconds: Double,
    val failure: String?,
)

/** At most one search at a time, in a thread of low priority; [ended] is called in there. */
internal class BackgroundSearch(private val search: Search, private val ended: (SearchOutcome) -> Unit) {
    private var thread: Thread? = null // guarded by this, as what follows
    private var begunS = Double.NEGATIVE_INFINITY

    @Volatile
    private var stopped = false

    @Volatile
    private var hopelessRatio = Double.POSITIVE_INFINITY

    /** Search at [budget] unless that is too soon or known to be in vain; whether a search is under way. */
    fun begin(budget: Budget, ratio: Double, nowS: Double, cooldownS: Double): Boolean = synchronized(this) {
        if (thread?.isAlive == true) return true
        val waitedS = nowS - begunS
        if (stopped || ratio >= hopelessRatio || waitedS >= 0 && waitedS < cooldownS) return false
        begunS = nowS
        thread = thread(isDaemon = true, name = "pathweave-search") { run(budget, ratio) }
        return true
    }

    /** End the search in progress, if there is one, and begin none any more. May be called twice. */
    fun stop() {
        stopped = true
        await(JOIN_MS)
    }

    /** Until the search in progress has ended, if there is one, but no longer than [timeoutMs]. */
    fun await(timeoutMs: Long) {
        val running = synchronized(this) { thread }
        if (running !== Thread.currentThread()) running?.join(timeoutMs)
    }

    private fun run(budget: Budget, ratio: Double) {
        giveWay()
        val startedNs = System.nanoTime()
        var found = emptyList<Candidate>()
        var failure: String? = null
        try {
            found = search(budget) { stopped }
        } catch (error: PathweaveError) {
            failure = error.message
            if (error is InfeasibleBudgetError) hopelessRatio = minOf(hopelessRatio, ratio)
        } catch (error: Throwable) { // uncaught, it would end an Android app
            LOG.log(Level.WARNING, "a search in the background met an error", error)
            return
        }
        val seconds = (System.nanoTime() - startedNs) / NS_PER_S
        if (!stopped) ended(SearchOutcome(budget, ratio, found, seconds, failure))
    }
}
