/** The adaptation log: every decision about the plan as one JSON line (docs/adaptation_log.schema.json). */
package pathweave.sdk.logs

import java.io.File
import java.io.IOException
import java.math.BigDecimal
import java.math.MathContext
import kotlin.math.abs
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.LOG
import pathweave.sdk.files.LOG_MAX_BYTES
import pathweave.sdk.files.appendLine
import pathweave.sdk.files.json
import pathweave.sdk.files.jsonOf
import pathweave.sdk.numerics.median
import pathweave.sdk.policies.Adaptation
import pathweave.sdk.policies.Calibration
import pathweave.sdk.policies.planning.Choice
import pathweave.sdk.policies.planning.PlanFront
import pathweave.sdk.profiling.Profile
import pathweave.sdk.profiling.now
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.PlanCost
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
internal class AdaptationLog(
    private val path: File,
    private val bundle: String,
    private val runtime: String,
    private val maxBytes: Long = LOG_MAX_BYTES,
) {
    private var warned = false // guarded by this

    /** Append one event. */
    fun write(event: JsonObject): Unit = synchronized(this) {
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
internal fun opened(subnet: Subnet, restored: Boolean): JsonObject = event(
    "opened",
    "subnet" to JsonPrimitive(subnet.toString()),
    "restored" to JsonPrimitive(restored),
    "plans_for" to JsonArray(emptyList()),
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

/** A search ended and its subnet is in use. */
internal fun adapted(adaptation: Adaptation): JsonObject = event(
    "adapted",
    "budget_latency_ms" to json(adaptation.budget.latencyMs),
    "budget_memory_mb" to json(adaptation.budget.memoryMb),
    "subnet" to JsonPrimitive(adaptation.subnet.toString()),
    "predicted_ms" to json(adaptation.predictedMs),
    "measured_ms" to json(adaptation.measuredMs),
    "predicted_peak_bytes" to JsonPrimitive(adaptation.predictedPeakBytes),
    "accuracy_search" to json(adaptation.accuracySearch),
    "accuracy_holdout" to json(adaptation.accuracyHoldout),
    "samples" to JsonPrimitive(adaptation.searchSamples),
    "subnets_evaluated" to JsonPrimitive(adaptation.subnetsEvaluated),
    "seconds" to json(adaptation.seconds),
    "stopped" to JsonPrimitive(adaptation.stopped.text),
    "within_budget_probability" to json(adaptation.withinBudgetProbability),
    "slowdown" to json(adaptation.slowdown),
)

/** No subnet fits the budget; the plan in use stays. */
internal fun infeasible(budget: Budget, error: InfeasibleBudgetError): JsonObject = event(
    "infeasible",
    "budget_latency_ms" to json(budget.latencyMs),
    "budget_memory_mb" to json(budget.memoryMb),
    "nearest" to JsonPrimitive(error.nearest.joinToString(" ")),
    "nearest_latency_ms" to json(error.nearestLatencyMs),
)

/** Exits and the escalation threshold were set. */
internal fun calibrated(calibration: Calibration): JsonObject {
    val plan = calibration.plan
    val threshold = when (val hard = plan.hard) {
        Hard.AnswerLocally -> null
        is Hard.Abstain -> hard.decider.threshold
        is Hard.Ask -> hard.decider.threshold
    }
    return event(
        "calibrated",
        "subnet" to JsonPrimitive(plan.subnet.toString()),
        "exits" to JsonArray(plan.exits.map { JsonPrimitive(it.exit) }),
        "thresholds" to JsonArray(plan.exits.map { json(it.threshold) }),
        "escalation_threshold" to json(threshold),
        "samples" to JsonPrimitive(calibration.samples),
        "accuracy" to json(calibration.accuracy),
        "accuracy_without_exits" to json(calibration.accuracyWithoutExits),
        "share_early" to json(calibration.shareEarly),
        "share_escalated" to json(calibration.shareEscalated),
        "mean_ms" to json(calibration.meanMs),
        "without_exits_ms" to json(calibration.withoutExitsMs),
    )
}

/** [choice] is in use since the network has changed to [uplink], null for a server out of reach. */
internal fun followed(choice: Choice, front: PlanFront, uplink: Uplink?): JsonObject {
    val where = uplink?.let { "${rounded(it.mbps)} Mbit/s, ${rounded(it.roundTripMs)} ms round trip" } ?: "out of reach"
    return planChosen(choice, choice.cost, front.requirement, front.samples, listOf("the network changed: $where"))
}

/** A plan was chosen for [requirement]; [cost]: what is expected of it on so many [samples]. */
internal fun planChosen(
    choice: Choice,
    cost: PlanCost,
    requirement: Requirement,
    samples: Int,
    notes: List<String>,
): JsonObject = event(
    "plan_chosen",
    "plan_kind" to JsonPrimitive(choice.plan.kind),
    "subnet" to JsonPrimitive(choice.plan.subnet.toString()),
    "optimise" to JsonPrimitive(requirement.optimise.toString()),
    "limits" to JsonObject(requirement.limits.associate { it.name to json(it.limit) }),
    "considered" to JsonPrimitive(choice.considered),
    "samples" to JsonPrimitive(samples),
    "accuracy" to json(cost.accuracy),
    "latency_ms" to json(cost.latencyMs),
    "energy_mj" to json(cost.energyMj),
    "bytes_sent" to json(cost.bytesSent),
    "share_early" to json(cost.shareEarly),
    "share_asked" to json(cost.shareAsked),
    "share_abstained" to json(cost.shareAbstained),
    "notes" to JsonArray(notes.map(::JsonPrimitive)),
    "share_asked_early" to json(cost.shareAskedEarly),
    "saved" to JsonObject(choice.savedByAskingEarly.mapValues { json(it.value) }),
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
