/** Plan fronts as JSON, as device_sdk's state files have them. */
package pathweave.sdk.policies.planning

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.BudgetError
import pathweave.sdk.UsageError
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.json
import pathweave.sdk.files.jsonOf
import pathweave.sdk.files.parsed
import pathweave.sdk.supernet.Optimised
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.supernet.decodePlan
import pathweave.sdk.supernet.encodePlan

/** Of what is stored. */
public const val FRONT_FORMAT: Int = 1

/** [front] as JSON in UTF-8. */
public fun encodeFront(front: PlanFront): ByteArray = jsonOf(
    "requirement" to json(front.requirement),
    "power" to (front.power?.let(::json) ?: JsonNull),
    "uplink" to jsonOf("mbps" to json(front.uplink.mbps), "round_trip_ms" to json(front.uplink.roundTripMs)),
    "input_bytes" to JsonPrimitive(front.inputBytes),
    "answer_ms" to json(front.answerMs),
    "samples" to JsonPrimitive(front.samples),
    "offers" to JsonArray(front.offers.map(::json)),
).toString().toByteArray()

/**
 * The front that [data] holds. What of it a bundle has, [PlanFront.knownTo] says.
 *
 * @throws UsageError not JSON, not a front, or with a requirement, an uplink or a power that makes no sense.
 */
public fun decodeFront(data: ByteArray): PlanFront = try {
    val root = decodeJson(data)
    PlanFront(
        requirement(root["requirement"]),
        root.nullable("power")?.let(::power),
        Uplink(root["uplink"]["mbps"].number(), root["uplink"].optional("round_trip_ms")?.number() ?: 0.0),
        root["input_bytes"].whole(),
        root["answer_ms"].number(),
        root["samples"].whole(least = 0, most = Int.MAX_VALUE.toLong()).toInt(),
        root["offers"].items().map(::offer),
    )
} catch (error: JsonError) {
    throw UsageError("this is no plan front: ${error.message}")
} catch (error: BudgetError) {
    throw UsageError("this is no plan front: ${error.message}")
}

private fun json(requirement: Requirement) = jsonOf(
    "optimise" to JsonPrimitive(requirement.optimise.toString()),
    "accuracy" to json(requirement.accuracy),
    "certainty" to json(requirement.certainty),
    "coverage" to json(requirement.coverage),
    "latency_ms" to json(requirement.latencyMs),
    "p95_latency_ms" to json(requirement.p95LatencyMs),
    "energy_mj" to json(requirement.energyMj),
    "bytes_sent" to json(requirement.bytesSent),
    "peak_bytes" to JsonPrimitive(requirement.peakBytes),
    "share_asked" to json(requirement.shareAsked),
)

private fun json(power: Power) = jsonOf(
    "active_w" to json(power.activeW),
    "radio_w" to json(power.radioW),
    "waiting_w" to json(power.waitingW),
)

private fun json(offer: Offer): JsonElement = jsonOf(
    "plan" to parsed(encodePlan(offer.plan)),
    "accuracy" to json(offer.accuracy),
    "peak_bytes" to JsonPrimitive(offer.peakBytes),
    "share_early" to json(offer.shareEarly),
    "share_asked" to json(offer.shareAsked),
    "share_abstained" to json(offer.shareAbstained),
    "ways" to JsonArray(
        offer.ways.map {
            jsonOf(
                "samples" to JsonPrimitive(it.samples),
                "device_ms" to json(it.deviceMs),
                "sent_bytes" to JsonPrimitive(it.sentBytes),
                "beside_ms" to json(it.besideMs),
                "server_ms" to json(it.serverMs),
            )
        },
    ),
    "share_asked_early" to json(offer.shareAskedEarly),
)

private fun requirement(place: JsonPlace) = Requirement(
    optimise = place.optional("optimise")?.oneOf { text -> Optimised.entries.find { it.toString() == text } }
        ?: Optimised.ACCURACY,
    accuracy = place.nullable("accuracy")?.number(),
    certainty = place.nullable("certainty")?.number(),
    coverage = place.nullable("coverage")?.number(),
    latencyMs = place.nullable("latency_ms")?.number(),
    p95LatencyMs = place.nullable("p95_latency_ms")?.number(),
    energyMj = place.nullable("energy_mj")?.number(),
    bytesSent = place.nullable("bytes_sent")?.number(),
    peakBytes = place.nullable("peak_bytes")?.whole(),
    shareAsked = place.nullable("share_asked")?.number(),
)

private fun power(place: JsonPlace) = Power(
    place["active_w"].number(),
    place.optional("radio_w")?.number() ?: 0.0,
    place.optional("waiting_w")?.number() ?: 0.0,
)

private fun offer(place: JsonPlace) = Offer(
    decodePlan(place["plan"].toString().toByteArray()),
    place.nullable("accuracy")?.number(),
    place["peak_bytes"].whole(),
    place["share_early"].number(),
    place["share_asked"].number(),
    place["share_abstained"].number(),
    place["ways"].items().map(::way),
    place.optional("share_asked_early")?.number() ?: 0.0,
)

private fun way(place: JsonPlace) = Way(
    place["samples"].whole(least = Int.MIN_VALUE.toLong(), most = Int.MAX_VALUE.toLong()).toInt(),
    place["device_ms"].number(),
    place.optional("sent_bytes")?.whole() ?: 0L,
    place.optional("beside_ms")?.number() ?: 0.0,
    place.optional("server_ms")?.number() ?: 0.0,
)
