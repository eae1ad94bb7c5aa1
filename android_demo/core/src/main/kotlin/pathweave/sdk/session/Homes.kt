/** Which of the homes that an application wants work here, and the runtime of those that do. */
package pathweave.sdk.session

import java.io.Closeable
import java.io.File
import java.io.IOException
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.LOG
import pathweave.sdk.StorageError
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.execution.BlockAtHome
import pathweave.sdk.execution.HomeReport
import pathweave.sdk.execution.ONE_HOME
import pathweave.sdk.execution.OpenHomes
import pathweave.sdk.execution.SelfTestLimits
import pathweave.sdk.execution.checkHome
import pathweave.sdk.execution.deviceIdentity
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.exclusive
import pathweave.sdk.files.ifPossible
import pathweave.sdk.files.jsonOf
import pathweave.sdk.files.sha256
import pathweave.sdk.files.writeAtomically
import pathweave.sdk.runtimes.HomesRuntime
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.runtimes.availableProviders
import pathweave.sdk.runtimes.engineIdentity
import pathweave.sdk.supernet.CPU
import pathweave.sdk.supernet.Home

private const val MOST_BEGUN = 2 // checks that the process did not survive, or was killed in
private const val ENDED = "the process ended during its check"
private const val KEY_DIGITS = 16
private val THREADED = setOf("xnnpack") // on the processor too, with threads of its own

/**
 * One thread of the processor, 2, 4 … and all cores, and one home of each other provider that is here.
 *
 * [cores], [providers]: of this device.
 */
public fun allHomes(
    cores: Int = java.lang.Runtime.getRuntime().availableProcessors(),
    providers: List<String> = availableProviders(),
): List<Home> {
    val threads = generateSequence(1) { it * 2 }.takeWhile { it <= cores }.toList() + cores
    val others = (providers - CPU).map { Home(it, if (it in THREADED) cores else 1) }
    return threads.distinct().map { Home(threads = it) } + others
}

/** [runtime] of the homes that work; [open]: what runs at each; [leftOut] with reasons. */
internal class CheckedHomes(
    val runtime: Runtime,
    val open: OpenHomes = ONE_HOME,
    val leftOut: Map<String, String> = emptyMap(),
    val reports: List<HomeReport> = emptyList(),
)

/**
 * Check those of [homes] that are not threads of the processor, each once per bundle and version. The first is not
 * checked: the bundle's self-test runs there.
 *
 * A home that fails is left out, with a warning and the reason in the log: it is not tried again until the version of the
 * runtime or the system changes. A check that took the process with it, by a crash of native code, is begun once more;
 * then the home is left out. [stateFolder]: where this is remembered, if anywhere. [make]: the runtime at one home alone.
 *
 * @throws pathweave.sdk.RuntimeFailedError a provider is not here.
 * @throws UsageError there is no home, or one is named twice.
 */
internal fun checkHomes(
    bundle: Bundle,
    homes: List<Home>,
    stateFolder: File?,
    make: (Home) -> Runtime = { OnnxRuntime(it) },
    check: (Bundle, Home, Runtime) -> HomeReport = ::checkHome,
): CheckedHomes {
    if (homes.isEmpty()) throw UsageError("homes names none", "name some, such as Home(threads = 2), or give allHomes()")
    if (homes.distinct().size < homes.size) throw UsageError("homes names one twice: ${homes.joinToString(", ")}")
    val runtimes = homes.associateWith(make)
    val reports = homes.drop(1).filter { !it.onProcessor }.map { home ->
        val runtime = runtimes.getValue(home)
        val record = stateFolder?.let { HomeRecord(it, bundle, home, runtime) }
        if (record == null) check(bundle, home, runtime) else remembered(record) { check(bundle, home, runtime) }
    }
    val leftOut = reports.filter { !it.works }.associate { it.home to it.whyNot() }
    for ((home, reason) in leftOut) LOG.warning("$home is left out: $reason")
    val working = homes.filter { "$it" !in leftOut }
    if (working.size < 2) return CheckedHomes(runtimes.getValue(working[0]), leftOut = leftOut, reports = reports)
    val refused = reports.filter { it.works }.associate { it.home to it.refusedBlocks }
    val runtime = HomesRuntime(runtimes.filterKeys { it in working }, engineIdentity())
    return CheckedHomes(runtime, OpenHomes(working, refused), leftOut, reports)
}

private fun remembered(record: HomeRecord, check: () -> HomeReport): HomeReport =
    record.load() ?: ifPossible(record::checking).use { record.load() ?: begun(record, check) }

private fun begun(record: HomeRecord, check: () -> HomeReport): HomeReport {
    val begun = record.begun() + 1
    if (begun > MOST_BEGUN) return record.failed(ENDED).also(record::save)
    record.saveBegun(begun)
    return check().also(record::save)
}

/** What is kept below [stateFolder] of the check of [home], for this bundle, [runtime] and system; one atomic file. */
private class HomeRecord(stateFolder: File, bundle: Bundle, private val home: Home, private val runtime: Runtime) {
    private val folder = bundleFolder(stateFolder, bundle.manifest.name, bundle.digest)
    private val key = sha256("$home|${runtime.identity}|${deviceIdentity()}".toByteArray()).take(KEY_DIGITS)
    private val file = File(folder, "home-$key.json")

    fun checking(): Closeable = exclusive(File(folder, "home-$key.lock"), SelfTestLimits().totalS)

    fun failed(why: String) = HomeReport("$home", runtime.identity, failure = why)

    /** The report of a check that ended; what cannot be read counts as not there. */
    fun load(): HomeReport? = read { root ->
        root.optional("home")?.let { name ->
            HomeReport(name.text(), root["runtime"].text(), root["blocks"].items().map(::block), root["failure"].text())
        }
    }

    /** How many checks began and did not end. */
    fun begun(): Int = read { root -> root.optional("begun")?.let(::count) } ?: 0

    fun saveBegun(begun: Int): Unit = save(jsonOf("begun" to JsonPrimitive(begun)))

    fun save(report: HomeReport): Unit = save(
        jsonOf(
            "home" to JsonPrimitive(report.home),
            "runtime" to JsonPrimitive(report.runtime),
            "blocks" to JsonArray(report.blocks.map(::json)),
            "failure" to JsonPrimitive(report.failure),
        ),
    )

    private fun save(value: JsonObject) = try {
        folder.mkdirs()
        writeAtomically(file, "$value\n".toByteArray())
    } catch (error: StorageError) {
        LOG.warning("the check of $home cannot be kept: ${error.message}")
    }

    private fun <T> read(part: (JsonPlace) -> T?): T? = try {
        part(decodeJson(file.readBytes()))
    } catch (_: IOException) {
        null
    } catch (_: JsonError) {
        null
    }
}

private fun json(block: BlockAtHome) = jsonOf(
    "block" to JsonPrimitive(block.block),
    "nodes" to JsonPrimitive(block.nodes),
    "assigned" to JsonPrimitive(block.assigned),
    "refused" to JsonObject(block.refused.mapValues { JsonPrimitive(it.value) }),
    "failure" to JsonPrimitive(block.failure),
)

private fun block(place: JsonPlace) = BlockAtHome(
    place["block"].text(),
    count(place["nodes"]),
    count(place["assigned"]),
    place["refused"].entries().mapValues { count(it.value) },
    place["failure"].text(),
)

private fun count(place: JsonPlace): Int = place.whole(0, Int.MAX_VALUE.toLong()).toInt()
