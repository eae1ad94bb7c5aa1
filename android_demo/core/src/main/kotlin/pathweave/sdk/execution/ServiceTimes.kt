/** How long the last calls of the plan in use took. Mirrors device_sdk/execution/plan_in_use.py. */
package pathweave.sdk.execution

private const val KEPT = 256 // calls

/**
 * Takes note of calls, from any thread, and calls [wake] when one is out of bounds.
 *
 * This runs in every call: it compares and appends, nothing else.
 */
internal class ServiceTimes(private val lowMs: Double, private val highMs: Double, private val wake: () -> Unit) {
    private val callsMs = ArrayDeque<Double>() // guarded by this

    /** A call of one sample that the subnet answered took so long. */
    fun record(serviceMs: Double) {
        synchronized(this) {
            if (callsMs.size == KEPT) callsMs.removeFirst()
            callsMs.addLast(serviceMs)
        }
        if (serviceMs !in lowMs..highMs) wake()
    }

    /** The last calls, the oldest first, milliseconds. */
    fun last(): List<Double> = synchronized(this) { callsMs.toList() }
}
