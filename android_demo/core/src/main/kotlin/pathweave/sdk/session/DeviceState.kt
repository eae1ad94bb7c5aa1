/** What a device remembers of a bundle between runs. */
package pathweave.sdk.session

import java.io.File
import java.io.IOException
import java.security.SecureRandom
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.BudgetError
import pathweave.sdk.StorageError
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.IDENTIFIER
import pathweave.sdk.delivery.Delivered
import pathweave.sdk.delivery.readSmall
import pathweave.sdk.execution.rememberTested
import pathweave.sdk.execution.untestedExits
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.hex
import pathweave.sdk.files.json
import pathweave.sdk.files.jsonOf
import pathweave.sdk.files.parsed
import pathweave.sdk.files.removeTemporaries
import pathweave.sdk.files.sha256
import pathweave.sdk.files.writeAtomically
import pathweave.sdk.live.POOL_FORMAT
import pathweave.sdk.live.PlanPool
import pathweave.sdk.live.poolOf
import pathweave.sdk.logs.AdaptationLog
import pathweave.sdk.logs.adapted
import pathweave.sdk.logs.delivered
import pathweave.sdk.logs.opened
import pathweave.sdk.logs.planChosen
import pathweave.sdk.logs.profiled
import pathweave.sdk.logs.refused
import pathweave.sdk.policies.Found
import pathweave.sdk.policies.planning.FRONT_FORMAT
import pathweave.sdk.policies.planning.PlanFront
import pathweave.sdk.policies.planning.decodeFront
import pathweave.sdk.policies.planning.encodeFront
import pathweave.sdk.profiling.Conditions
import pathweave.sdk.profiling.Crossing
import pathweave.sdk.profiling.MeasuredSubnet
import pathweave.sdk.profiling.PROFILE_FORMAT
import pathweave.sdk.profiling.Profile
import pathweave.sdk.profiling.currentConditions
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.search.Candidate
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Cost
import pathweave.sdk.supernet.EdgeCost
import pathweave.sdk.supernet.ExitAtSize
import pathweave.sdk.supernet.PLAN_FORMAT
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.decodePlan
import pathweave.sdk.supernet.decodeSubnet
import pathweave.sdk.supernet.edge
import pathweave.sdk.supernet.encodePlan
import pathweave.sdk.supernet.encodeSubnet
import pathweave.sdk.supernet.json
import pathweave.sdk.supernet.sides

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
internal fun bundleFolder(stateFolder: File, name: String, digest: String) =
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

    fun logOpened(plan: Plan, checked: CheckedHomes) {
        val homes = checked.open.homes.map { "$it" }
        log.write(opened(plan.subnet, restored = loadPlan() != null, homes, checked.leftOut))
    }

    /** Log how the bundle came from a server, and what was refused for it. */
    fun logDelivered(delivery: Delivered) {
        log.write(delivered(delivery))
        delivery.refused?.let { log.write(refused(it, delivery.failure)) }
    }

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

/** [profile] as JSON in UTF-8. */
public fun encodeProfile(profile: Profile): ByteArray = jsonOf(
    "format" to JsonPrimitive(PROFILE_FORMAT),
    "bundle" to JsonPrimitive(profile.bundle),
    "device" to JsonPrimitive(profile.conditions.device),
    "runtime" to JsonPrimitive(profile.runtime),
    "batch" to JsonPrimitive(1),
    "created" to JsonPrimitive(profile.created),
    "edges" to JsonArray(
        profile.edges.map { (edge, cost) ->
            jsonOf(
                "edge" to json(edge),
                "cost" to json(cost),
                "factor" to json(profile.factors[edge] ?: 1.0),
                "change_ms" to json(profile.changesMs[edge] ?: 0.0),
                "entry_bytes" to JsonPrimitive(profile.entryBytes[edge] ?: 0),
            )
        },
    ),
    "scale" to json(profile.scale),
    "offset_ms" to json(profile.offsetMs),
    "fitted" to JsonArray(profile.fitted.map(::json)),
    "original_ms" to json(profile.originalMs),
    "exits" to JsonArray(
        profile.exits.map { (exit, cost) ->
            jsonOf(
                "exit" to JsonPrimitive(exit.exit),
                "rendition" to JsonPrimitive(exit.rendition),
                "cost" to json(cost),
                "input_size" to json(exit.inputSize),
            )
        },
    ),
    "power_mode" to JsonPrimitive(profile.conditions.powerMode),
    "driver" to JsonPrimitive(profile.conditions.driver),
    "memory_scale" to json(profile.memoryScale),
    "memory_offset_bytes" to JsonPrimitive(profile.memoryOffsetBytes),
    "memory_cap_bytes" to JsonPrimitive(profile.memoryCapBytes),
    "nodes_by_provider" to JsonObject(emptyMap()),
    "exit_overhead_ms" to json(profile.exitOverheadMs),
    "call_overhead_ms" to json(profile.callOverheadMs),
    "decision_ms" to JsonObject(profile.decisionMs.mapValues { json(it.value) }),
    "home_offset_ms" to JsonObject(profile.homeOffsetMs.mapValues { json(it.value) }),
    "crossings" to JsonArray(profile.crossings.map(::json)),
).toString().toByteArray()

/**
 * The profile that [data] holds.
 *
 * @throws UsageError not JSON, not a profile, or of another format or batch size; says what is wrong and where.
 */
public fun decodeProfile(data: ByteArray): Profile = decoded("profile", data) { root ->
    if (root["format"].whole() != PROFILE_FORMAT.toLong()) throw UsageError("this is a profile of another format")
    if (root.optional("batch")?.whole() != 1L) throw UsageError("this profile is of another batch size")
    val edges = root["edges"].items().map { edge(it["edge"]) to it }
    Profile(
        bundle = root["bundle"].text(),
        conditions = Conditions(
            root["device"].text(),
            root.optional("power_mode")?.text() ?: "unknown",
            root.optional("driver")?.text() ?: "none",
        ),
        runtime = root["runtime"].text(),
        created = root["created"].text(),
        edges = edges.associate { (edge, one) -> edge to edgeCost(one["cost"]) },
        factors = edges.associate { (edge, one) -> edge to (one.optional("factor")?.number() ?: 1.0) },
        changesMs = edges.associate { (edge, one) -> edge to (one.optional("change_ms")?.number() ?: 0.0) }
            .filterValues { it != 0.0 },
        exits = root.optional("exits")?.items().orEmpty().associate {
            ExitAtSize(it["exit"].text(), it["rendition"].text(), it.optional("input_size")?.size()) to
                edgeCost(it["cost"])
        },
        scale = root["scale"].number(),
        offsetMs = root["offset_ms"].number(),
        fitted = root["fitted"].items().map(::measuredSubnet),
        originalMs = root["original_ms"].number(),
        memoryScale = root.optional("memory_scale")?.number() ?: 1.0,
        memoryOffsetBytes = root.optional("memory_offset_bytes")?.whole() ?: 0,
        exitOverheadMs = root.optional("exit_overhead_ms")?.number() ?: 0.0,
        callOverheadMs = root.optional("call_overhead_ms")?.number() ?: 0.0,
        decisionMs = root.optional("decision_ms")?.entries().orEmpty().mapValues { it.value.number() },
        memoryCapBytes = root.nullable("memory_cap_bytes")?.whole(least = 1),
        entryBytes = edges.associate { (edge, one) -> edge to (one.optional("entry_bytes")?.whole() ?: 0) }
            .filterValues { it != 0L },
        homeOffsetMs = root.optional("home_offset_ms")?.entries().orEmpty().mapValues { it.value.number() },
        crossings = root.optional("crossings")?.items().orEmpty().map(::crossing),
    )
}

/** [pool] as JSON in UTF-8. */
public fun encodePool(pool: PlanPool): ByteArray = jsonOf(
    "format" to JsonPrimitive(POOL_FORMAT),
    "budget" to json(pool.budget),
    "chosen" to parsed(encodeSubnet(pool.chosen)),
    "candidates" to JsonArray(
        pool.candidates.map {
            val cost = "latency_ms" to json(it.cost.latencyMs)
            jsonOf(
                "plan" to parsed(encodePlan(it.plan)),
                "cost" to jsonOf(cost, "peak_bytes" to JsonPrimitive(it.cost.peakBytes)),
                "accuracy" to json(it.accuracy),
                "expected" to json(it.expected),
            )
        },
    ),
    "correction" to json(pool.correction),
).toString().toByteArray()

/**
 * The pool that [data] holds. What of it a bundle has, [PlanPool.knownTo] says.
 *
 * @throws UsageError not JSON, not a pool, or of another format; says what is wrong and where.
 */
public fun decodePool(data: ByteArray): PlanPool = decoded("plan pool", data) { root ->
    if (root["format"].whole() != POOL_FORMAT.toLong()) throw UsageError("this is a plan pool of another format")
    PlanPool(
        budget = budget(root["budget"]),
        chosen = subnet(root["chosen"]),
        candidates = root["candidates"].items().map {
            Candidate(
                decodePlan(it["plan"].toString().toByteArray()),
                Cost(it["cost"]["latency_ms"].number(), it["cost"]["peak_bytes"].whole()),
                it["accuracy"].number(),
                it.nullable("expected")?.number(),
            )
        },
        correction = root.optional("correction")?.number() ?: 1.0,
    )
}

private fun json(size: SampleSize?) = JsonArray(size?.extents.orEmpty().map(::JsonPrimitive))

private fun json(crossing: Crossing) = jsonOf(
    "before" to JsonPrimitive(crossing.before),
    "after" to JsonPrimitive(crossing.after),
    "fixed_ms" to json(crossing.fixedMs),
    "ms_per_mb" to json(crossing.msPerMb),
)

private fun crossing(place: JsonPlace) = Crossing(
    place["before"].text(),
    place["after"].text(),
    place["fixed_ms"].number(),
    place["ms_per_mb"].number(),
)

private fun json(cost: EdgeCost) = jsonOf(
    "latency_ms" to json(cost.latencyMs),
    "p95_latency_ms" to json(cost.p95LatencyMs),
    "resident_bytes" to JsonPrimitive(cost.residentBytes),
    "working_bytes" to JsonPrimitive(cost.workingBytes),
)

private fun json(measured: MeasuredSubnet) = jsonOf(
    "subnet" to parsed(encodeSubnet(measured.subnet)),
    "blocks_ms" to json(measured.blocksMs),
    "measured_ms" to json(measured.measuredMs),
    "peak_bytes" to (measured.peakBytes?.let(::JsonPrimitive) ?: JsonNull),
    "in_pages" to JsonPrimitive(measured.inPages),
    "nodes_by_provider" to JsonObject(emptyMap()),
)

private fun json(budget: Budget) = jsonOf(
    "latency_ms" to json(budget.latencyMs),
    "memory_mb" to json(budget.memoryMb),
    "latency_ratio" to json(budget.latencyRatio),
    "percentile" to json(budget.percentile),
    "calls_per_second" to json(budget.callsPerSecond),
    "threads" to JsonPrimitive(budget.threads),
)

private fun budget(place: JsonPlace) = Budget(
    latencyMs = place.nullable("latency_ms")?.number(),
    memoryMb = place.nullable("memory_mb")?.number(),
    latencyRatio = place.nullable("latency_ratio")?.number(),
    percentile = place.optional("percentile")?.number() ?: Budget.MEDIAN,
    callsPerSecond = place.nullable("calls_per_second")?.number(),
    threads = place.nullable("threads")?.whole(1, Int.MAX_VALUE.toLong())?.toInt(),
)

private fun <T> decoded(what: String, data: ByteArray, read: (JsonPlace) -> T): T = try {
    read(decodeJson(data))
} catch (error: JsonError) {
    throw UsageError("this is no $what: ${error.message}")
} catch (error: BudgetError) {
    throw UsageError("this is no $what: ${error.message}")
}

private fun subnet(place: JsonPlace) = decodeSubnet(place.toString().toByteArray())

private fun JsonPlace.size(): SampleSize? = takeIf { it.items().isNotEmpty() }?.sides()

private fun edgeCost(place: JsonPlace) = EdgeCost(
    latencyMs = place["latency_ms"].number(),
    p95LatencyMs = place["p95_latency_ms"].number(),
    residentBytes = place["resident_bytes"].whole(),
    workingBytes = place["working_bytes"].whole(),
)

private fun measuredSubnet(place: JsonPlace) = MeasuredSubnet(
    subnet = subnet(place["subnet"]),
    blocksMs = place["blocks_ms"].number(),
    measuredMs = place["measured_ms"].number(),
    peakBytes = place.nullable("peak_bytes")?.whole(),
    inPages = place.optional("in_pages")?.flag() ?: false,
)
