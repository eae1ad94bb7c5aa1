/** What memory the system has left for this process. */
package pathweave.sdk.memory_pressure

import java.io.File
import java.io.IOException
import pathweave.sdk.MeasurementError

private const val BYTES_PER_KB = 1024L
private const val PERCENT = 100.0

/** [availableBytes]: what this process may take in addition; [stalledShare]: of ten seconds, waiting for memory. */
public data class MemoryReading(val availableBytes: Long, val stalledShare: Double? = null)

/** Where readings come from. */
public interface MemoryPressure {
    /** For logs. */
    public val name: String

    /** What there is now; quick, for it is asked for again and again. @throws MeasurementError there is no reading. */
    public fun read(): MemoryReading
}

/** /proc/meminfo and, where an app may read it, /proc/pressure/memory, below [root]. */
public class SystemMemory(private val root: File = File("/")) : MemoryPressure {
    override val name: String get() = "/proc/meminfo"

    override fun read(): MemoryReading {
        val available = lines("proc/meminfo").find { it.startsWith("MemAvailable:") }
            ?.filter(Char::isDigit)?.toLongOrNull()?.takeIf { it <= Long.MAX_VALUE / BYTES_PER_KB }
            ?: throw MeasurementError("/proc/meminfo does not say what memory is available")
        return MemoryReading(available * BYTES_PER_KB, stalledShare())
    }

    private fun stalledShare(): Double? = try {
        lines("proc/pressure/memory").find { it.startsWith("some ") }?.substringAfter("avg10=", "")
            ?.substringBefore(' ')?.toDoubleOrNull()?.takeIf { it in 0.0..PERCENT }?.div(PERCENT)
    } catch (_: MeasurementError) {
        null // the system does not count stalls, or does not let this process know
    }

    private fun lines(path: String): List<String> = try {
        File(root, path).readLines()
    } catch (error: IOException) {
        throw MeasurementError("/$path cannot be read: ${error.message}")
    }
}

/** How strongly Android asks for memory, as `ComponentCallbacks2` numbers it. */
private enum class TrimLevel(val from: Int, val readings: Int) {
    RUNNING_MODERATE(5, 0), // the app runs and is not in danger; others are
    RUNNING_LOW(10, 1),
    RUNNING_CRITICAL(15, 3), // processes in the background are being ended
    UI_HIDDEN(20, 0), // says that nothing is shown, not that memory is short
    BACKGROUND(40, 1),
    MODERATE(60, 3),
    COMPLETE(80, 8), // this process is one of the next to be ended
}

/**
 * Android's `onTrimMemory` as a source of readings: pass its levels on to [onTrimMemory].
 *
 * A level from `TRIM_MEMORY_RUNNING_LOW` on counts as a stall in the next readings, 1 to 8 of them by how urgent it is:
 * with each the memory cap sinks to `ElasticSettings.stalledFactor` of what is taken. [available]: what there is, by
 * default as /proc/meminfo says; an app passes `ActivityManager.MemoryInfo`'s `availMem - threshold`.
 */
public class TrimMemory(private val available: () -> Long = { SystemMemory().read().availableBytes }) : MemoryPressure {
    private var stalled = 0 // readings to come; guarded by this

    override val name: String get() = "onTrimMemory"

    /** [level] as Android passed it on. */
    public fun onTrimMemory(level: Int) {
        val readings = TrimLevel.entries.lastOrNull { level >= it.from }?.readings ?: 0
        synchronized(this) { stalled = maxOf(stalled, readings) }
    }

    override fun read(): MemoryReading {
        val availableBytes = available()
        val isStalled = synchronized(this) { (stalled > 0).also { if (it) stalled-- } }
        return MemoryReading(maxOf(0L, availableBytes), if (isStalled) 1.0 else 0.0)
    }
}
