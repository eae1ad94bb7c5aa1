/** The conditions of a measurement: device, power mode, driver. Mirrors device_sdk/profiling/timing.py. */
package pathweave.sdk.profiling

import java.io.File
import java.io.IOException

private const val UNKNOWN = "unknown"
private val MODEL_NAME = Regex("model name\\s*:\\s*(.+)")
private val POWER_MODE = Regex("pmode:0*(\\d+)")

// JetPack stores the current mode in one of these, as `pmode:0002 fmode:quiet`
private val NVPMODEL_STATUS = listOf("var/lib/nvpmodel/status", "etc/nvpmodel/nvpmodel.status")
private const val NVPMODEL_NAMES = "etc/nvpmodel.conf"
private const val CPUS = "sys/devices/system/cpu"
private val PROCESSOR = Regex("cpu\\d+")

/** What latencies depend on besides bundle, runtime and batch. A profile is valid for one set of conditions. */
public data class Conditions(val device: String, val powerMode: String, val driver: String)

/** The conditions now, read below [root]. */
public fun currentConditions(root: File = File("/")): Conditions =
    Conditions(deviceIdentity(root), powerMode(root), driver(root))

/** Processor or board, number of cores and system. Contains no host or user name. */
private fun deviceIdentity(root: File): String {
    val board = text(File(root, "proc/device-tree/model")).trim { it == '\u0000' || it.isWhitespace() }
    val model = MODEL_NAME.find(text(File(root, "proc/cpuinfo")))?.groupValues?.get(1)?.trim()
        ?: board.ifEmpty { "unknown processor" }
    val machine = System.getProperty("os.arch").let { if (it == "amd64") "x86_64" else it } // as uname has it
    return "$model, ${Runtime.getRuntime().availableProcessors()} cores, ${System.getProperty("os.name")} $machine"
}

/** A Jetson's nvpmodel and the governors of the processors, such as `nvpmodel 15W, governor schedutil`. */
private fun powerMode(root: File): String =
    listOf(nvpmodel(root), governors(root)).filter { it.isNotEmpty() }.joinToString(", ").ifEmpty { UNKNOWN }

/** The version of the graphics driver, for example `nvidia 550.54.14`, or `none`. */
private fun driver(root: File): String {
    val version = text(File(root, "sys/module/nvidia/version")).trim()
    return if (version.isEmpty()) "none" else "nvidia $version"
}

private fun nvpmodel(root: File): String {
    val status = NVPMODEL_STATUS.map { text(File(root, it)) }.firstOrNull { it.isNotEmpty() }.orEmpty()
    val mode = POWER_MODE.find(status)?.groupValues?.get(1) ?: return ""
    val named = Regex("POWER_MODEL\\s+ID=$mode\\s+NAME=(\\S+)").find(text(File(root, NVPMODEL_NAMES)))
    return "nvpmodel ${named?.groupValues?.get(1) ?: mode}"
}

private fun governors(root: File): String {
    val processors = File(root, CPUS).listFiles { file -> PROCESSOR.matches(file.name) }.orEmpty()
    val found = processors.map { text(File(it, "cpufreq/scaling_governor")).trim() }.filter { it.isNotEmpty() }
    return if (found.isEmpty()) "" else "governor " + found.distinct().sorted().joinToString("+")
}

private fun text(file: File): String = try {
    file.readText()
} catch (_: IOException) {
    ""
}
