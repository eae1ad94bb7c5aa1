/** The adaptation log: every decision about the plan as one JSON line (docs/adaptation_log.schema.json). */
package pathweave.sdk.logs

import java.io.File
import java.io.IOException
import java.math.BigDecimal
import java.math.MathContext
import java.util.Locale
import kotlin.math.abs
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.LOG
import pathweave.sdk.UsageError
import pathweave.sdk.delivery.Delivered
import pathweave.sdk.delivery.Refusal
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.LOG_MAX_BYTES
import pathweave.sdk.files.appendLine
import pathweave.sdk.files.completeLines
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.json
import pathweave.sdk.files.jsonOf
import pathweave.sdk.files.openedFiles
import pathweave.sdk.files.reason
import pathweave.sdk.numerics.median
import pathweave.sdk.policies.Found
import pathweave.sdk.policies.planning.Choice
import pathweave.sdk.policies.planning.PlanFront
import pathweave.sdk.profiling.Profile
import pathweave.sdk.profiling.now
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Uplink

private const val SCHEMA_VERSION = 1

/**
 * A log of one bundle on one runtime, rotated by size: [path] is the newest file, `NAME.1` the one before it, and so
 * on.
 *
 * Not for several processes at a time. What cannot be written is left out: the work goes on.
 */
public class AdaptationLog internal constructor(
    public val path: File,
    private val bundle: String,
    private val runtime: String,
    private val maxBytes: Long = LOG_MAX_BYTES,
    device: () -> String = { "" },
) {
    /** A random name of this device, made once per state folder. */
    public val deviceId: String by lazy(device)

    private var warned = false // guarded by this

    internal fun write(event: JsonObject): Unit = synchronized(this) {
        val line = jsonOf(
            "schema" to JsonPrimitive(SCHEMA_VERSION),
            "time" to JsonPrimitive(now("yyyy-MM-dd'T'HH:mm:ss.SSS")),
            "bundle" to JsonPrimitive(bundle),
            "runtime" to JsonPrimitive(runtime),
            "event" to event,
        )
        try {
            appendLine(path, "$line\n".toByteArray(), maxBytes)
        } catch (error: IOException) {
            if (!warned) LOG.warning("the adaptation log $path cannot be written: ${error.message}")
            warned = true
        }
    }
}

internal fun event(name: String, vararg fields: Pair<String, JsonElement>) =
    jsonOf("event" to JsonPrimitive(name), *fields)

/** A bundle was opened; [subnet] is its initial subnet. */
internal fun opened(
    subnet: Subnet,
    restored: Boolean,
    homes: List<String> = emptyList(),
    leftOut: Map<String, String> = emptyMap(),
): JsonObject = event(
    "opened",
    "subnet" to JsonPrimitive(subnet.toString()),
    "restored" to JsonPrimitive(restored),
    "plans_for" to JsonArray(emptyList()),
    "homes" to JsonArray(homes.map(::JsonPrimitive)),
    "homes_left_out" to JsonObject(leftOut.mapValues { JsonPrimitive(it.value) }),
)

/** A bundle came from a server, or is the last good one, with the reason. */
internal fun delivered(delivery: Delivered): JsonObject = event(
    "delivered",
    "how" to JsonPrimitive(delivery.source.name.lowercase(Locale.ROOT)),
    "version" to JsonPrimitive(delivery.version),
    "blobs_fetched" to JsonPrimitive(delivery.blobsFetched),
    "bytes_fetched" to JsonPrimitive(delivery.bytesFetched),
    "resumed" to JsonPrimitive(delivery.resumed),
    "failure" to JsonPrimitive(delivery.failure),
)

/** A version that was offered is not used; the line's bundle is the one that is. */
internal fun refused(refusal: Refusal, failure: String?): JsonObject = event(
    "refused",
    "version" to JsonPrimitive(refusal.version),
    "digest" to JsonPrimitive(refusal.digest),
    "reason" to JsonPrimitive(refusal.reason.text),
    "failure" to JsonPrimitive(failure.orEmpty()),
)

/** All blocks were measured. */
internal fun profiled(profile: Profile): JsonObject {
    val model = profile.costModel()
    return event(
        "profiled",
        "original_ms" to json(profile.originalMs),
        "scale" to json(profile.scale),
        "offset_ms" to json(profile.offsetMs),
        "median_error" to json(median(profile.fitted.map { abs(model.latencyMs(it.subnet) / it.measuredMs - 1) })),
        "nodes_by_provider" to JsonObject(emptyMap()),
    )
}

internal fun adapted(found: Found): JsonObject = event(
    "adapted",
    "budget_latency_ms" to json(found.goal.latencyMs),
    "budget_memory_mb" to json(found.goal.memoryMb),
    "subnet" to JsonPrimitive(found.plan.subnet.toString()),
    "predicted_ms" to json(found.expected.latencyMs),
    "measured_ms" to json(found.measured?.latencyMs),
    "predicted_peak_bytes" to JsonPrimitive(found.expected.peakBytes),
    "accuracy_search" to json(found.expected.accuracy),
    "accuracy_holdout" to json(found.heldOut?.accuracy),
    "samples" to JsonPrimitive(found.samples - found.judged),
    "subnets_evaluated" to JsonPrimitive(found.considered),
    "seconds" to json(found.seconds),
    "stopped" to JsonPrimitive(found.stopped.text),
    "within_budget_probability" to json(found.measured?.withinBudgetProbability),
    "slowdown" to json(found.measured?.slowdown),
)

/** No plan keeps the goal; the plan in use stays. */
internal fun infeasible(goal: Goal, error: InfeasibleBudgetError): JsonObject = event(
    "infeasible",
    "budget_latency_ms" to json(goal.latencyMs),
    "budget_memory_mb" to json(goal.memoryMb),
    "nearest" to JsonPrimitive(error.nearest.joinToString(" ")),
    "nearest_latency_ms" to json(error.nearestLatencyMs),
)

internal fun planChosen(found: Found): JsonObject = planChosen(
    Choice(found.plan, found.heldOut ?: found.expected, found.considered),
    found.goal.requirement(),
    found.samples,
    found.notes,
    found.saved,
)

/** [choice] is in use since the network has changed to [uplink], null for a server out of reach. */
internal fun followed(choice: Choice, front: PlanFront, uplink: Uplink?): JsonObject {
    val where = uplink?.let { "${rounded(it.mbps)} Mbit/s, ${rounded(it.roundTripMs)} ms round trip" } ?: "out of reach"
    val notes = listOf("the network changed: $where")
    return planChosen(choice, front.requirement, front.samples, notes, choice.savedByAskingEarly)
}

private fun planChosen(
    choice: Choice,
    requirement: Requirement,
    samples: Int,
    notes: List<String>,
    saved: Map<String, Double>,
): JsonObject = event(
    "plan_chosen",
    "plan_kind" to JsonPrimitive(choice.plan.kind),
    "subnet" to JsonPrimitive(choice.plan.subnet.toString()),
    "optimise" to JsonPrimitive(requirement.optimise.toString()),
    "limits" to JsonObject(requirement.limits.associate { it.name to json(it.limit) }),
    "considered" to JsonPrimitive(choice.considered),
    "samples" to JsonPrimitive(samples),
    "accuracy" to json(choice.cost.accuracy),
    "latency_ms" to json(choice.cost.latencyMs),
    "energy_mj" to json(choice.cost.energyMj),
    "bytes_sent" to json(choice.cost.bytesSent),
    "share_early" to json(choice.cost.shareEarly),
    "share_asked" to json(choice.cost.shareAsked),
    "share_abstained" to json(choice.cost.shareAbstained),
    "notes" to JsonArray(notes.map(::JsonPrimitive)),
    "share_asked_early" to json(choice.cost.shareAskedEarly),
    "saved" to JsonObject(saved.mapValues { json(it.value) }),
)

private fun rounded(value: Double): String = BigDecimal(value).round(MathContext(3)).stripTrailingZeros().toPlainString()

/** The memory cap changed, null for none; [why] is `asked`, `pressure` or `room`; [plan] runs from now on. */
internal fun resized(why: String, oldCapBytes: Long?, capBytes: Long?, availableBytes: Long?, plan: Plan): JsonObject {
    val last = plan.exits.lastOrNull()
    return event(
        "resized",
        "why" to JsonPrimitive(why),
        "old_cap_bytes" to JsonPrimitive(oldCapBytes),
        "cap_bytes" to JsonPrimitive(capBytes),
        "available_bytes" to JsonPrimitive(availableBytes),
        "exits" to JsonArray(plan.exits.map { JsonPrimitive(it.exit) }),
        "ends_at" to JsonPrimitive(last?.takeIf { it.threshold <= 0 }?.exit),
        "failure" to JsonPrimitive(null as String?),
    )
}

/**
 * One line of the adaptation log.
 *
 * [time]: ISO 8601, UTC; [bundle]: sha256 of its manifest; [event]: its name, as docs/adaptation_log.md lists them;
 * [fields]: what else it says, by name: texts as they are, everything else as JSON.
 */
public data class LogLine(
    val time: String,
    val bundle: String,
    val runtime: String,
    val event: String,
    val fields: Map<String, String>,
)

/**
 * The lines of the log at [path] ([logPath]), oldest file first; an incomplete last line is left out.
 *
 * @throws UsageError there is no such log, or a line breaks the schema; says which.
 */
public fun readLog(path: File): List<LogLine> = try {
    openedFiles(path) { opened ->
        opened.flatMap { (file, input) ->
            completeLines(file, input.buffered()).mapIndexed { index, line -> logLine(file, index + 1, line) }.toList()
        }
    }
} catch (error: IOException) {
    throw UsageError("cannot read the log $path: ${reason(error)}")
}

private fun logLine(file: File, number: Int, data: ByteArray): LogLine = try {
    val line = decodeJson(data)
    line["schema"].whole(least = 1)
    val event = line["event"]
    LogLine(
        line["time"].text(),
        line["bundle"].text(),
        line["runtime"].text(),
        event["event"].text(),
        event.entries().minus("event").mapValues { (_, value) -> value.shown() },
    )
} catch (error: JsonError) {
    throw UsageError("line $number of ${file.name} breaks the schema: ${error.message}")
}

private fun JsonPlace.shown(): String = toString().let { json -> if (json.startsWith('"')) text() else json }
