/** What a device remembers of a bundle between runs. Mirrors device_sdk/session/device_state.py: the same files. */
package pathweave.sdk.session

import java.io.File
import java.io.IOException
import java.security.SecureRandom
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.StorageError
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.IDENTIFIER
import pathweave.sdk.delivery.readSmall
import pathweave.sdk.execution.rememberTested
import pathweave.sdk.execution.untestedExits
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.hex
import pathweave.sdk.files.removeTemporaries
import pathweave.sdk.files.sha256
import pathweave.sdk.files.writeAtomically
import pathweave.sdk.live.POOL_FORMAT
import pathweave.sdk.live.PlanPool
import pathweave.sdk.live.poolOf
import pathweave.sdk.logs.AdaptationLog
import pathweave.sdk.logs.adapted
import pathweave.sdk.logs.opened
import pathweave.sdk.logs.planChosen
import pathweave.sdk.logs.profiled
import pathweave.sdk.policies.Found
import pathweave.sdk.policies.planning.FRONT_FORMAT
import pathweave.sdk.policies.planning.PlanFront
import pathweave.sdk.policies.planning.decodeFront
import pathweave.sdk.policies.planning.encodeFront
import pathweave.sdk.profiling.Conditions
import pathweave.sdk.profiling.PROFILE_FORMAT
import pathweave.sdk.profiling.Profile
import pathweave.sdk.profiling.currentConditions
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.supernet.PLAN_FORMAT
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.decodePlan
import pathweave.sdk.supernet.encodePlan

private const val KEY_DIGITS = 16
private const val EXITS = "exits.json"
private const val DEVICE_BYTES = 8
private const val LOG_FILE = "adaptation.jsonl"
private const val FRONT = "front-$PLAN_FORMAT-$FRONT_FORMAT"

/** The exits of a bundle that this device keeps, if that was ever decided; otherwise null. */
internal fun loadExits(stateFolder: File, name: String, digest: String): List<String>? = try {
    val data = File(bundleFolder(stateFolder, name, digest), EXITS).readBytes()
    decodeJson(data)["exits"].items().map { it.text() }
} catch (_: IOException) {
    null
} catch (_: JsonError) {
    null
}

/** Where what a device knows of the bundle with this [name] and [digest] lies. */
private fun bundleFolder(stateFolder: File, name: String, digest: String) =
    File(stateFolder, "$name-${digest.take(KEY_DIGITS)}")

/** Where the adaptation events of [bundle] go, whatever it runs on. */
public fun logPath(stateFolder: File, bundle: Bundle): File =
    File(bundleFolder(stateFolder, bundle.manifest.name, bundle.digest), LOG_FILE)

/** The adaptation logs of all versions of the bundle with this [name] that ran on this device. */
internal fun logsOf(stateFolder: File, name: String): List<File> {
    val ofName = Regex("${Regex.escape(name)}-[0-9a-f]{$KEY_DIGITS}")
    val folders = stateFolder.listFiles().orEmpty().filter { ofName.matches(it.name) }.sorted()
    return folders.map { File(it, LOG_FILE) }.filter(File::isFile)
}

/**
 * A random name, made once per state folder: an identifier without information about the device.
 *
 * @throws StorageError the folder cannot be written.
 */
public fun deviceId(stateFolder: File): String {
    val file = File(stateFolder, "device")
    fun known() = readSmall(file)?.let { String(it).trim() }?.takeIf(IDENTIFIER::matches)
    known()?.let { return it }
    val made = hex(ByteArray(DEVICE_BYTES).also(SecureRandom()::nextBytes))
    writeAtomically(file, "$made\n".toByteArray())
    return known() ?: throw StorageError("cannot read $file")
}

/**
 * One folder per bundle, named by its digest; each thing in it is one atomic file.
 *
 * What cannot be read counts as not there: everything here can be measured or found again.
 */
internal class DeviceState(folder: File, private var bundle: Bundle, private val runtime: Runtime) {
    val folder = bundleFolder(folder, bundle.manifest.name, bundle.digest)

    /** Every decision about the plan, whatever the bundle runs on. */
    val log = AdaptationLog(logPath(folder, bundle), bundle.digest, runtime.identity) { deviceId(folder) }

    private val key =
        sha256("${currentConditions().device}|${runtime.identity}".toByteArray()).take(KEY_DIGITS)

    /** Delete what killed writers left. */
    fun removeTemporaries(): Unit = removeTemporaries(this.folder)

    /** Whether all that the bundle holds passed its self-test with this runtime on this device. */
    val selfTestPassed: Boolean get() = path("self-test").exists() && untestedExits(bundle).isEmpty()

    /** The exits that [bundle] holds and that were not tested with this runtime on this device. */
    fun untestedExits(bundle: Bundle): List<String> = untestedExits(path("self-test"), bundle)

    /** All that the bundle holds now passed its self-test, now or before. */
    fun rememberSelfTest() {
        folder.mkdirs()
        rememberTested(path("self-test"), bundle)
    }

    /** Keep which exits [bundle] holds, all of them tested; plans are those of this bundle from now on. */
    fun holdExits(bundle: Bundle) {
        folder.mkdirs()
        writeAtomically(File(folder, EXITS), """{"exits":${JsonArray(bundle.exits.map(::JsonPrimitive))}}
""".toByteArray())
        this.bundle = bundle
        rememberSelfTest()
    }

    /** The profile for this bundle and runtime under [conditions] and this memory cap, if any. */
    fun loadProfile(conditions: Conditions, memoryCapBytes: Long? = null): Profile? =
        load(profileName(conditions, memoryCapBytes), ::decodeProfile)
            ?.takeIf { it.validFor(bundle, runtime, conditions, memoryCapBytes) }

    /** Keep a profile, beside those for other conditions and caps. */
    fun saveProfile(profile: Profile) {
        save(profileName(profile.conditions, profile.memoryCapBytes), encodeProfile(profile))
        log.write(profiled(profile))
    }

    /** The plan that was in use last, if there is one and it fits this bundle's graph. */
    fun loadPlan(): Plan? = load("plan-$PLAN_FORMAT") { data ->
        val stored = try {
            decodeJson(data)["plan"].toString()
        } catch (error: JsonError) {
            throw UsageError("this is no plan: ${error.message}")
        }
        decodePlan(stored.toByteArray()).also(bundle.supernet::checkPlan)
    }

    /** Keep the plan in use. */
    fun savePlan(plan: Plan) {
        val runtime = JsonPrimitive(runtime.identity)
        save("plan-$PLAN_FORMAT", """{"plan":${String(encodePlan(plan))},"runtime":$runtime}""".toByteArray())
    }

    /** The plan pool that the last adaptation left, if there is one; without what this bundle does not have. */
    fun loadPool(): PlanPool? = load("pool-$POOL_FORMAT", ::decodePool)?.knownTo(bundle.supernet)

    /** Keep a plan pool. */
    fun savePool(pool: PlanPool): Unit = save("pool-$POOL_FORMAT", encodePool(pool))

    /** Keep the pool of an adaptation to a latency, and log it; [searched]: among subnets. */
    fun remember(found: Found, searched: Boolean) {
        poolOf(found)?.let(::savePool)
        log.write(if (searched && found.measured != null) adapted(found) else planChosen(found))
    }

    /** The plans for other networks that the last planning left, without those that this bundle does not have. */
    fun loadFront(): PlanFront? = load(FRONT, ::decodeFront)?.knownTo(bundle.supernet)

    /** Keep the plans for other networks. */
    fun saveFront(front: PlanFront): Unit = save(FRONT, encodeFront(front))

    fun logOpened(plan: Plan): Unit = log.write(opened(plan.subnet, restored = loadPlan() != null))

    private fun profileName(conditions: Conditions, capBytes: Long?): String {
        val cap = capBytes?.let { "|$it" }.orEmpty()
        val key = "$PROFILE_FORMAT|1|${conditions.powerMode}|${conditions.driver}$cap"
        return "profile-${sha256(key.toByteArray()).take(8)}"
    }

    private fun path(what: String) = File(folder, "$what-$key.json")

    private fun save(what: String, data: ByteArray) {
        folder.mkdirs()
        writeAtomically(path(what), data + '\n'.code.toByte())
    }

    private fun <T> load(what: String, decode: (ByteArray) -> T): T? = try {
        decode(path(what).readBytes())
    } catch (_: IOException) {
        null
    } catch (_: UsageError) {
        null
    }
}
