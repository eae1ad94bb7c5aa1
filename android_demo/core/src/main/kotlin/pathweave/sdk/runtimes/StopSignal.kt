/** Ends running calls from another thread. Mirrors device_sdk/runtimes/port.py. */
package pathweave.sdk.runtimes

/** Once set, from any thread, calls that take it end soon. It stays set. */
public class StopSignal {
    private val enders = mutableListOf<() -> Unit>() // guarded by this

    /** Whether calls have to end. */
    @Volatile
    public var isSet: Boolean = false
        private set

    /** End the calls that run now, and those that begin later. Idempotent; waits for none of them. */
    public fun set(): Unit = synchronized(this) {
        isSet = true
        enders.forEach { it() }
    }

    /** While [work] runs, [set] calls [end], which has to be quick; at once if it is set already. */
    public fun <T> endingBy(end: () -> Unit, work: () -> T): T {
        synchronized(this) {
            enders += end
            if (isSet) end()
        }
        try {
            return work()
        } finally {
            synchronized(this) { enders -= end }
        }
    }
}
