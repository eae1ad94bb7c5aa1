/** Counts who uses something, to free it once the last of them is gone: device_sdk/execution/plan_in_use.py. */
package pathweave.sdk.execution

/** Counts users, of which the maker is the first; [last] is called when the last has left. Thread-safe. */
internal class RunningCalls(private val last: () -> Unit) {
    private var users = 1 // guarded by this

    /** One user more; false if it was freed already. */
    fun enter(): Boolean = synchronized(this) {
        if (users == 0) return false
        users++
        true
    }

    /** One user less. */
    fun leave() {
        if (synchronized(this) { --users } == 0) last()
    }
}
