/** From what live update did to what the adaptation log says of it. Mirrors device_sdk/live/live_update.py. */
package pathweave.sdk.live

import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.PathweaveError
import pathweave.sdk.logs.event
import pathweave.sdk.search.Candidate
import pathweave.sdk.supernet.Subnet

/** Live update began with [subnet] in use. */
internal fun watching(pool: PlanPool, subnet: Subnet): JsonObject {
    val latenciesMs = pool.candidates.map { it.cost.latencyMs }
    return event(
        "watching",
        "budget_latency_ms" to JsonPrimitive(pool.budget.latencyMs),
        "budget_memory_mb" to JsonPrimitive(pool.budget.memoryMb),
        "subnet" to JsonPrimitive(subnet.toString()),
        "candidates" to JsonPrimitive(pool.candidates.size),
        "fastest_ms" to JsonPrimitive(latenciesMs.min()),
        "slowest_ms" to JsonPrimitive(latenciesMs.max()),
    )
}

/** The subnet [old] was exchanged for [target]. */
internal fun switched(
    decision: Decision,
    old: Subnet,
    target: Candidate,
    prepareMs: Double,
    ahead: Boolean,
    exchangeMs: Double,
): JsonObject = event(
    "switched",
    "why" to JsonPrimitive(decision.why.text),
    "old_subnet" to JsonPrimitive(old.toString()),
    "subnet" to JsonPrimitive(target.subnet.toString()),
    "drift_ratio" to JsonPrimitive(decision.ratio),
    "service_ms" to JsonPrimitive(decision.serviceMs),
    "expected_ms" to JsonPrimitive(decision.ratio * target.cost.latencyMs),
    "prepare_ms" to JsonPrimitive(prepareMs),
    "ahead" to JsonPrimitive(ahead),
    "exchange_ms" to JsonPrimitive(exchangeMs),
)

/** [subnet] could not be made ready. */
internal fun switchFailed(subnet: Subnet, error: PathweaveError): JsonObject = event(
    "switch_failed",
    "subnet" to JsonPrimitive(subnet.toString()),
    "failure" to JsonPrimitive(error.message),
)

/** Nothing keeps the budget of [pool] at this drift ratio. */
internal fun outOfReach(pool: PlanPool, ratio: Double, searching: Boolean): JsonObject = event(
    "out_of_reach",
    "budget_latency_ms" to JsonPrimitive(pool.budget.latencyMs),
    "drift_ratio" to JsonPrimitive(ratio),
    "fastest_ms" to JsonPrimitive(ratio * pool.candidates.minOf { it.cost.latencyMs }),
    "searching" to JsonPrimitive(searching),
)

/** A search in the background, at a budget of predicted latency, ended. */
internal fun searched(outcome: SearchOutcome): JsonObject = event(
    "searched",
    "budget_latency_ms" to JsonPrimitive(outcome.budget.latencyMs),
    "drift_ratio" to JsonPrimitive(outcome.ratio),
    "candidates" to JsonPrimitive(outcome.candidates.size),
    "seconds" to JsonPrimitive(outcome.seconds),
    "failure" to JsonPrimitive(outcome.failure),
)
