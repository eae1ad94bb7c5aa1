/** How much memory a piece of work takes, read from the operating system. */
package pathweave.sdk.profiling

import java.io.File
import java.io.IOException

private val STATUS = File("/proc/self/status")
private val CLEAR = File("/proc/self/clear_refs")
private const val RESET_PEAK = "5"

/** Runs [work] and tells by how many bytes the process grew at its highest; null where the system does not tell. */
internal fun <T> peakDuring(work: () -> T): Pair<T, Long?> {
    try {
        CLEAR.writeText(RESET_PEAK)
    } catch (_: IOException) {
        // not Linux, or not allowed: then the peak is that since the process started
    }
    val before = status("VmRSS")
    val result = work()
    val peak = status("VmHWM")
    return result to if (before == null || peak == null) null else maxOf(0L, peak - before)
}

private fun status(field: String): Long? = try {
    STATUS.useLines { lines -> lines.find { it.startsWith("$field:") } }
        ?.filter(Char::isDigit)?.toLongOrNull()?.times(1024)
} catch (_: IOException) {
    null
}
