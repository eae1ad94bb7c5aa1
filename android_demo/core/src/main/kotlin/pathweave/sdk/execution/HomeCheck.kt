/** Homes with a provider of their own are checked before they run a plan, and what fails is left out and remembered. */
package pathweave.sdk.execution

import java.io.Closeable
import java.io.File
import java.io.IOException
import kotlin.math.abs
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.CompositionError
import pathweave.sdk.LOG
import pathweave.sdk.PathweaveError
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.StorageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.exclusive
import pathweave.sdk.files.ifPossible
import pathweave.sdk.files.jsonOf
import pathweave.sdk.files.sha256
import pathweave.sdk.files.writeAtomically
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.HomesRuntime
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.Placed
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.supernet.Golden
import pathweave.sdk.supernet.Home

private const val MOST_BEGUN = 2 // checks that the process did not survive, or was killed in
private const val ENDED = "the process ended during its check"
private const val KEY_DIGITS = 16
private const val DIGEST_DIGITS = 16
private const val HALF_PRECISION_TOLERANCE = 1e-2 // of the largest magnitude, as for renditions in half precision
private val IN_HALF_PRECISION = setOf("nnapi", "qnn") // providers that compute so

/**
 * What the check of a [home] found.
 *
 * [nodes]: kernels that ran when each block ran alone, a compiled part counting as one; 0 where the runtime does not
 * tell. [assigned]: those that the home's provider ran; [refused]: by operator, those that it left to the processor.
 * [failure]: why the home is left out; null for one that is used.
 */
public data class HomeReport(
    val home: Home,
    val nodes: Int = 0,
    val assigned: Int = 0,
    val refused: Map<String, Int> = emptyMap(),
    val failure: String? = null,
)

/** Homes that are open, the first of which is the usual one, and the reports of those that were checked. */
internal class OpenHomes(val runtime: HomesRuntime, val reports: List<HomeReport>)

/**
 * Open those of [homes] that work here. Homes of the processor are not checked; each other one runs every block alone,
 * once for a bundle, a version of the runtime and of the system, if there is a [stateFolder] to remember it.
 *
 * A home that fails is left out, and the log of the process says why. It is tried again with another version. A check
 * that took the process with it, by a crash of native code, is begun once more; then the home is left out.
 *
 * @throws RuntimeFailedError a provider is not here, or the usual home is left out.
 */
internal fun openHomes(
    bundle: Bundle,
    homes: List<Home>,
    stateFolder: File?,
    limits: SelfTestLimits = SelfTestLimits(),
    make: (Home) -> Runtime = { OnnxRuntime(it) },
): OpenHomes {
    val runtimes = homes.distinct().associateWith(make)
    val reports = runtimes.filterKeys { !it.onProcessor }.map { (home, runtime) ->
        val record = stateFolder?.let { HomeRecord(it, bundle, home, runtime) }
        reportOf(record) { checkHome(bundle, home, runtime, limits) }
    }
    val failed = reports.filter { it.failure != null }
    for (one in failed) LOG.warning("${one.home} is left out: ${one.failure}")
    failed.find { it.home == homes.first() }?.let {
        throw RuntimeFailedError("the usual home, ${it.home}, does not work here: ${it.failure}", hint = "name another one first")
    }
    return OpenHomes(HomesRuntime(runtimes - failed.map { it.home }.toSet()), reports)
}

private fun reportOf(record: HomeRecord?, check: () -> HomeReport): HomeReport {
    if (record == null) return check()
    return record.load() ?: ifPossible(record::checking).use { record.load() ?: checked(record, check) }
}

private fun checked(record: HomeRecord, check: () -> HomeReport): HomeReport {
    val begun = record.begun() + 1
    if (begun > MOST_BEGUN) return HomeReport(record.home, failure = ENDED).also(record::save)
    record.saveBegun(begun)
    return check().also(record::save)
}

/** What is kept below [stateFolder] of the check of [home], for this bundle, runtime and system; one atomic file. */
private class HomeRecord(stateFolder: File, bundle: Bundle, val home: Home, runtime: Runtime) {
    private val folder = File(stateFolder, "${bundle.manifest.name}-${bundle.digest.take(DIGEST_DIGITS)}")
    private val key = sha256("${deviceIdentity()}|${runtime.identity}".toByteArray()).take(KEY_DIGITS)
    private val file = File(folder, "home-$home-$key.json")

    fun checking(): Closeable = exclusive(File(folder, "home-$home-$key.lock"), SelfTestLimits().totalS)

    /** The report of a check that ended; what cannot be read counts as not there. */
    fun load(): HomeReport? = read { root ->
        root.optional("nodes")?.let { nodes ->
            HomeReport(
                home = home,
                nodes = nodes.whole(0, Int.MAX_VALUE.toLong()).toInt(),
                assigned = root["assigned"].whole(0, Int.MAX_VALUE.toLong()).toInt(),
                refused = root["refused"].entries().mapValues { it.value.whole(0, Int.MAX_VALUE.toLong()).toInt() },
                failure = root.nullable("failure")?.text(),
            )
        }
    }

    /** How many checks began and did not end. */
    fun begun(): Int = read { root -> root.optional("begun")?.whole(0, MOST_BEGUN.toLong())?.toInt() } ?: 0

    fun saveBegun(begun: Int): Unit = save(jsonOf("begun" to JsonPrimitive(begun)))

    fun save(report: HomeReport): Unit = save(
        jsonOf(
            "nodes" to JsonPrimitive(report.nodes),
            "assigned" to JsonPrimitive(report.assigned),
            "refused" to JsonObject(report.refused.mapValues { JsonPrimitive(it.value) }),
            "failure" to (report.failure?.let(::JsonPrimitive) ?: JsonNull),
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

/**
 * Run every block of [bundle] alone at [home], with deadlines ([guarded]).
 *
 * An error of this home, an answer beyond its tolerance, and a provider that runs no block are failures in the report.
 */
internal fun checkHome(bundle: Bundle, home: Home, runtime: Runtime, limits: SelfTestLimits): HomeReport = try {
    guarded("check of $home", limits) { step ->
        val kernels = blockCases(bundle).map { case -> checkBlock(bundle, home, runtime, case).also { step() } }
        val found = HomeReport(home, kernels.sumOf { it.nodes }, kernels.sumOf { it.assigned }, sums(kernels.map { it.refused }))
        val idle = found.nodes > 0 && found.assigned == 0
        if (idle) found.copy(failure = "its provider runs none of the ${found.nodes} kernels of the blocks") else found
    }
} catch (error: PathweaveError) {
    if (error !is RuntimeFailedError && error !is SelfTestAbortedError && error !is CompositionError) throw error
    HomeReport(home, failure = error.message)
}

private fun checkBlock(bundle: Bundle, home: Home, runtime: Runtime, case: GoldenCase): HomeReport =
    runtime.load(case.stretch()).use { loaded ->
        val outputs = try {
            loaded.run(inputsOf(bundle, case))
        } catch (error: RuntimeFailedError) {
            if (!leftAlone(loaded)) throw error // a block that the provider leaves to the processor is no failure of the home
            emptyList()
        }
        if (outputs.isNotEmpty()) checkAnswer(home, case, outputs)
        val kernels = (loaded as? Placed)?.kernels
        HomeReport(home, kernels?.count ?: 0, kernels?.assigned ?: 0, kernels?.refused.orEmpty())
    }

private fun leftAlone(loaded: LoadedStretch): Boolean =
    (loaded as? Placed)?.kernels?.let { it.count > 0 && it.assigned == 0 } ?: false

private fun checkAnswer(home: Home, case: GoldenCase, outputs: List<Tensor>) {
    val allowed = toleranceAt(home, case.golden)
    val samples = sampleOutputs(outputs).flatten().zip(case.golden.samples.flatten())
    val worst = samples.maxOf { (one, other) -> abs(one - other).let { if (it.isNaN()) Double.POSITIVE_INFINITY else it } }
    if (worst <= allowed) return
    throw RuntimeFailedError("${case.name} is off by %.3g, and %.3g is allowed".format(java.util.Locale.ROOT, worst, allowed))
}

/** How far an answer at [home] may be from [golden]. */
private fun toleranceAt(home: Home, golden: Golden): Double {
    if (home.provider !in IN_HALF_PRECISION) return golden.tolerance
    val largest = golden.samples.flatten().maxOfOrNull(::abs) ?: 0.0
    return maxOf(golden.tolerance, HALF_PRECISION_TOLERANCE * largest)
}

private fun sums(counts: List<Map<String, Int>>): Map<String, Int> =
    counts.flatMap { it.entries }.groupingBy { it.key }.fold(0) { sum, (_, number) -> sum + number }
