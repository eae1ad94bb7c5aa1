/** How long the steps of a plan took, from the last runs. Mirrors device_sdk/execution/stepped_plan.py. */
package pathweave.sdk.execution

import pathweave.sdk.Clock

private const val KEPT_RUNS = 128 // at most
private const val KEPT_NS = 2_000_000_000L // older ones go, but for the last RECENT_RUNS

/**
 * The times of the last runs of one batch size. [typicalMs]: of each step, when it was measured. Thread-safe.
 *
 * Old runs are forgotten, so that a device that was busy for a while is not taken to be so for ever.
 */
internal class StepTimes(val typicalMs: List<Double>, private val clock: Clock = System::nanoTime) {
    private val runs = ArrayDeque<Pair<Long, List<Double>>>() // guarded by this

    /** A run took so long for its first steps; one that ended before its first answer says nothing. */
    fun record(runMs: List<Double>) {
        if (runMs.isEmpty()) return
        synchronized(this) {
            if (runs.size == KEPT_RUNS) runs.removeFirst()
            runs.addLast(clock() to runMs)
        }
    }

    /** See [answerTimesMs]. */
    fun answerTimesMs(presentSlowness: Double? = null): List<Double> =
        answerTimesMs(last(), typicalMs, presentSlowness)

    private fun last(): List<List<Double>> = synchronized(this) {
        val oldestNs = clock() - KEPT_NS
        while (runs.size > RECENT_RUNS && runs.first().first < oldestNs) runs.removeFirst()
        runs.map { it.second }
    }
}
