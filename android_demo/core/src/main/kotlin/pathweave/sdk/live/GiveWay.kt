/** The priority of work in the background: on Linux, and so on Android, a thread has one of its own. */
package pathweave.sdk.live

import java.io.File
import java.io.IOException
import java.util.concurrent.TimeUnit

private const val NICENESS = 10 // calls go first
private const val BACKGROUND = 4 // of a thread's ten priorities, that which Android runs at niceness 10
private const val NICE_AT = 16 // in /proc/thread-self/stat, counted from the thread's state
private const val RENICE_S = 1L
private val STAT = File("/proc/thread-self/stat")

/**
 * Have this thread give way to all others of the process, as far as the system lets it.
 *
 * Android takes the thread's priority for that; a JVM on other systems does not look at it, so there `renice` sets the
 * niceness of the one thread, as Python's `setpriority` does. Where there is neither, nothing changes.
 */
internal fun giveWay() {
    Thread.currentThread().priority = BACKGROUND
    val niceness = nicenessOfThisThread() ?: return
    if (niceness >= NICENESS) return
    try {
        val thread = STAT.readText().substringBefore(' ')
        val renice = ProcessBuilder("renice", "-n", "$NICENESS", "-p", thread).redirectErrorStream(true).start()
        if (!renice.waitFor(RENICE_S, TimeUnit.SECONDS)) renice.destroy()
    } catch (_: IOException) {
        return
    }
}

/** From -20, which goes first, to 19; null where the system does not report it. */
internal fun nicenessOfThisThread(): Int? = try {
    STAT.readText().substringAfterLast(") ").split(' ').getOrNull(NICE_AT)?.toIntOrNull()
} catch (_: IOException) {
    null
}
