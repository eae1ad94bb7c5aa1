/** The system's own words on the speed of its processor: frequencies, heat, throttling, load and power mode. */
package pathweave.sdk.live

import java.io.File
import java.io.IOException
import pathweave.sdk.profiling.currentConditions

private const val CPU = "sys/devices/system/cpu"
private const val THERMAL = "sys/class/thermal"
private const val KHZ_PER_MHZ = 1e3
private const val MILLIDEGREES = 1e3
private const val MOST_TASKS = 64
private const val MOST_CORES = 16 // some kernels take 10 ms to tell the frequency of an idle core
private const val MOST_CHARACTERS = 64 * 1024
private const val STAT_COLUMNS = 8
private val BUSY = listOf(0, 1, 2, 5, 6, 7) // columns of /proc/stat; 7: taken by other virtual machines
private val IDLE = listOf(3, 4)
private val OWN = listOf(11, 12) // columns of /proc/self/stat behind the name: in user mode, in the kernel
private val THROTTLES = listOf("core_throttle_count", "package_throttle_count") // under thermal_throttle, x86
private val FAN = Regex("fan", RegexOption.IGNORE_CASE)
private val CORE = Regex("cpu[0-9]+")
private val WHOLE = Regex("-?[0-9]{1,18}")

/**
 * One look at the system; null or nothing for what it does not tell.
 *
 * [frequencyMhz]: of the fastest core now; [limitShare]: the highest frequency that the system allows now, of the
 * hardware's, where it is lowest. [throttles]: how often the processor throttled itself so far. [heldBack]: cooling
 * devices that limit a processor. [busyTicks] of [totalTicks]: of all [cores], [ownTicks] of them by this process.
 * [runNs], [waitedNs]: this process's threads ran, or waited for a core. [saving]: a battery saver is on;
 * [thermalStatus]: Android's, 0 (none) to 6 (shutdown).
 */
public data class SpeedReading(
    val frequencyMhz: Double? = null,
    val limitShare: Double? = null,
    val throttles: Long? = null,
    val hottestC: Double? = null,
    val heldBack: Set<String> = emptySet(),
    val busyTicks: Long? = null,
    val totalTicks: Long? = null,
    val ownTicks: Long? = null,
    val cores: Int = 1,
    val runNs: Long? = null,
    val waitedNs: Long? = null,
    val powerMode: String = "unknown",
    val saving: Boolean = false,
    val thermalStatus: Int? = null,
)

/** Where readings come from. A reading takes about a millisecond, and never fails. */
public fun interface SpeedSignals {
    /** The reading now. */
    public fun read(): SpeedReading
}

/**
 * Linux's files below [root]; Android keeps most of them from apps, and tells the rest by [thermalStatus]
 * (`PowerManager.getCurrentThermalStatus`) and [saving] (`PowerManager.isPowerSaveMode`).
 */
public class SystemSpeed(
    private val root: File = File("/"),
    private val thermalStatus: () -> Int? = { null },
    private val saving: () -> Boolean = { false },
) : SpeedSignals {
    override fun read(): SpeedReading {
        val frequencies = ofCores("cpufreq/scaling_cur_freq")
        val throttles = THROTTLES.flatMap { ofCores("thermal_throttle/$it") }
        val stat = text("proc/stat").lines()
        val ticks = numbers(stat.first().split(' ').filter(String::isNotEmpty).drop(1).take(STAT_COLUMNS))
        val waits = waits()
        return SpeedReading(
            frequencyMhz = frequencies.maxOrNull()?.let { it / KHZ_PER_MHZ },
            limitShare = limits().minOrNull(),
            throttles = throttles.takeIf { it.isNotEmpty() }?.sum(),
            hottestC = hottestC(),
            heldBack = heldBack(),
            busyTicks = ticks?.sumOf(BUSY),
            totalTicks = ticks?.sumOf(BUSY + IDLE),
            ownTicks = numbers(text("proc/self/stat").substringAfterLast(") ", "").split(' ').take(OWN.last() + 1), from = 1)
                ?.sumOf(OWN.map { it - 1 }),
            cores = maxOf(1, stat.count { CORE.matches(it.substringBefore(' ')) }),
            runNs = waits?.first,
            waitedNs = waits?.second,
            powerMode = currentConditions(root).powerMode,
            saving = saving(),
            thermalStatus = thermalStatus(),
        )
    }

    private fun folders(path: String, prefix: String): List<File> =
        File(root, path).listFiles { file -> file.name.startsWith(prefix) }.orEmpty().sortedBy { it.name }

    private fun cores() = folders(CPU, "cpu").filter { CORE.matches(it.name) }.take(MOST_CORES)

    private fun ofCores(name: String): List<Long> = cores().mapNotNull { count("$CPU/${it.name}/$name") }

    private fun limits(): List<Double> = cores().mapNotNull { core ->
        val allowed = count("$CPU/${core.name}/cpufreq/scaling_max_freq")
        val most = count("$CPU/${core.name}/cpufreq/cpuinfo_max_freq")
        if (allowed == null || most == null || allowed == 0L || most == 0L) null else allowed.toDouble() / most
    }

    private fun hottestC(): Double? = folders(THERMAL, "thermal_zone")
        .mapNotNull { whole(text("$THERMAL/${it.name}/temp"))?.div(MILLIDEGREES) }
        .filter { it > LEAST_C && it < MOST_C }.maxOrNull()

    private fun heldBack(): Set<String> = folders(THERMAL, "cooling_device").mapNotNull { device ->
        val state = whole(text("$THERMAL/${device.name}/cur_state"))
        val kind = text("$THERMAL/${device.name}/type").trim()
        kind.ifEmpty { device.name }.takeIf { state != null && state != 0L && !FAN.containsMatchIn(kind) }
    }.toSet()

    /** Nanoseconds that the threads of this process have run, and that they have waited for a core. */
    private fun waits(): Pair<Long, Long>? {
        val threads = folders("proc/self/task", "").take(MOST_TASKS)
            .mapNotNull { numbers(text("proc/self/task/${it.name}/schedstat").trim().split(' ').take(2)) }
            .filter { it.size == 2 }
        return if (threads.isEmpty()) null else threads.sumOf { it[0] } to threads.sumOf { it[1] }
    }

    private fun count(path: String): Long? = whole(text(path))?.takeIf { it >= 0 }

    private fun text(path: String): String = try {
        File(root, path).bufferedReader().use { reader ->
            val read = CharArray(MOST_CHARACTERS)
            String(read, 0, maxOf(0, reader.read(read)))
        }
    } catch (_: IOException) {
        ""
    } catch (_: SecurityException) {
        ""
    }
}

private const val LEAST_C = -40.0 // sensors of switched-off parts state values far outside
private const val MOST_C = 150.0

private fun whole(text: String): Long? = text.trim().takeIf(WHOLE::matches)?.toLong()

/** The numbers in [texts] from position [from] on; null if one is none. */
private fun numbers(texts: List<String>, from: Int = 0): List<Long>? {
    val found = texts.drop(from).map { whole(it) ?: return null }
    return found.takeIf { it.isNotEmpty() }
}

private fun List<Long>.sumOf(columns: List<Int>): Long? = if (size > columns.max()) columns.sumOf { this[it] } else null
