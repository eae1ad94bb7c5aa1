package pathweave.sdk.live

import java.io.File
import java.nio.file.Path
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

private const val CPU = "sys/devices/system/cpu"
private const val STAT = "cpu  100 10 40 800 50 5 5 20 7 0\ncpu0 50 5 20 400 25 3 2 10 3 0\ncpu1 50 5 20 400 25 2 3 10 4 0\n"

class SpeedReadingTest {
    @TempDir
    lateinit var folder: Path

    private fun read(vararg files: Pair<String, String>): SpeedReading {
        for ((path, text) in files) {
            File(folder.toFile(), path).apply { parentFile.mkdirs() }.writeText("$text\n")
        }
        return SystemSpeed(folder.toFile()).read()
    }

    @Test
    fun `a system that tells nothing gives an empty reading`() {
        assertEquals(SpeedReading(), read())
    }

    @Test
    fun `the fastest core counts, and the core whose limit was lowered most`() {
        val found = read(
            "$CPU/cpu0/cpufreq/scaling_cur_freq" to "800000",
            "$CPU/cpu1/cpufreq/scaling_cur_freq" to "1500000",
            "$CPU/cpu1/cpufreq/scaling_max_freq" to "1500000",
            "$CPU/cpu1/cpufreq/cpuinfo_max_freq" to "3000000",
            "$CPU/cpu0/cpufreq/scaling_governor" to "schedutil",
            "$CPU/cpu0/thermal_throttle/core_throttle_count" to "3",
            "$CPU/cpu1/thermal_throttle/package_throttle_count" to "4",
        )
        assertEquals(SpeedReading(1500.0, 0.5, throttles = 7, powerMode = "governor schedutil"), found)
    }

    @Test
    fun `heat, ticks and waits are read as Python reads them`() {
        val found = read(
            "sys/class/thermal/thermal_zone0/temp" to "71500",
            "sys/class/thermal/cooling_device0/type" to "cpufreq-cpu0",
            "sys/class/thermal/cooling_device0/cur_state" to "3",
            "sys/class/thermal/cooling_device1/type" to "pwm-fan",
            "sys/class/thermal/cooling_device1/cur_state" to "2",
            "proc/stat" to STAT,
            "proc/self/stat" to "7 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0",
            "proc/self/task/1/schedstat" to "1000 200 5",
            "proc/self/task/2/schedstat" to "500 50 1",
        )
        val ticks = SpeedReading(busyTicks = 180, totalTicks = 1030, ownTicks = 42, cores = 2, runNs = 1500, waitedNs = 250)
        assertEquals(ticks.copy(hottestC = 71.5, heldBack = setOf("cpufreq-cpu0")), found)
    }

    @Test
    fun `nonsense counts as unknown`() {
        for (odd in listOf("", "cpu", "cpu a b", "cpu 1 2", "9".repeat(40))) {
            val paths = listOf("proc/stat", "proc/self/stat", "proc/self/task/1/schedstat", "$CPU/cpu0/cpufreq/scaling_cur_freq")
            assertEquals(SpeedReading(), read(*paths.map { it to odd }.toTypedArray()), odd)
        }
    }

    @Test
    fun `what an app knows of the phone is part of a reading`() {
        val found = SystemSpeed(folder.toFile(), thermalStatus = { 3 }, saving = { true }).read()
        assertEquals(SpeedReading(saving = true, thermalStatus = 3), found)
    }

    @Test
    fun `load is counted over a moment, and a statement read again after a while`() {
        var nowS = 0.0
        val waited = ArrayList<Double>()
        val calm = SpeedReading(runNs = 100, waitedNs = 0)
        val told = ArrayDeque(listOf(calm, calm, calm.copy(runNs = 200, waitedNs = 100), calm.copy(saving = true), calm))
        val watch = SpeedWatch({ told.removeFirst() }, { nowS }, waited::add)
        watch.begin()
        assertEquals(Cause.LOAD, watch.explained())
        assertEquals(listOf(0.05), waited)
        assertEquals(List(2) { Cause.POWER_MODE }, List(2) { watch.stated() })
        nowS = 0.25
        assertEquals(Cause.UNKNOWN, watch.stated())
        assertTrue(told.isEmpty())
    }
}
