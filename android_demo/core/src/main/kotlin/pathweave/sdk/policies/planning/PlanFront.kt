/**
 * The plans of which each is the best on some network, for one requirement: what is kept of planning. Pure.
 *
 * Each plan is kept with what its samples take apart from the way to the server. What it costs on another network follows
 * from that, without the logits that it was judged by.
 */
package pathweave.sdk.policies.planning

import kotlin.math.ceil
import kotlin.math.floor
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
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.PlanCost
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.supernet.decodePlan
import pathweave.sdk.supernet.encodePlan

private const val MOST_OFFERS = 256
private const val MOST_SAMPLES = 1_000_000

/**
 * How [samples] are answered: the time here, the bytes that are sent, if any, and the time at the server.
 *
 * [besideMs]: of the transfer, beside that of the bytes on the uplink.
 */
public data class Way(
    val samples: Int,
    val deviceMs: Double,
    val sentBytes: Long = 0,
    val besideMs: Double = 0.0,
    val serverMs: Double = 0.0,
) {
    /** Over [uplink]; null: no server is in reach. */
    internal fun transferMs(uplink: Uplink?): Double = when {
        sentBytes == 0L -> 0.0
        uplink == null -> Double.POSITIVE_INFINITY
        else -> maxOf(uplink.transferMs(sentBytes) + besideMs, uplink.roundTripMs)
    }
}

/** A plan, what of its cost no network changes, and the ways of the samples through it. */
public data class Offer(
    val plan: Plan,
    val accuracy: Double?,
    val peakBytes: Long,
    val shareEarly: Double,
    val shareAsked: Double,
    val shareAbstained: Double,
    val ways: List<Way>,
    val shareAskedEarly: Double = 0.0,
) {
    /** The cost of the plan over [uplink]; null: no server is in reach, so that what needs one is unknown. */
    public fun cost(uplink: Uplink?, power: Power?): PlanCost {
        val count = ways.sumOf { it.samples }
        fun mean(each: (Way) -> Double) = ways.sumOf { it.samples * each(it) } / count
        fun totalMs(way: Way) = way.deviceMs + way.transferMs(uplink) + way.serverMs
        val isKnown = ways.all { totalMs(it).isFinite() }
        return PlanCost(
            accuracy = accuracy,
            latencyMs = if (isKnown) mean(::totalMs) else null,
            p95LatencyMs = if (isKnown) quantile(ways.map { totalMs(it) to it.samples }, P95) else null,
            bytesSent = mean { it.sentBytes.toDouble() },
            peakBytes = peakBytes,
            energyMj = power?.takeIf { isKnown }?.let {
                mean { way ->
                    it.activeW * way.deviceMs + it.radioW * way.transferMs(uplink) + it.waitingW * way.serverMs
                }
            },
            shareEarly = shareEarly,
            shareAsked = shareAsked,
            shareAbstained = shareAbstained,
            shareAskedEarly = shareAskedEarly,
        )
    }

    internal val isSound: Boolean
        get() = ways.isNotEmpty() && ways.all { it.samples in 1 until MOST_SAMPLES } &&
            ways.sumOf { it.samples.toLong() } < MOST_SAMPLES &&
            ways.all { it.deviceMs.isFinite() && it.besideMs.isFinite() && it.serverMs.isFinite() }
}

/**
 * The plan that a requirement puts first; [misses]: the limits that it breaks all the same, with what it has.
 *
 * [considered]: how many plans were judged. [late]: where the plan asks from exits, what the best one that does not is
 * expected to cost.
 */
public data class Choice(
    val plan: Plan,
    val cost: PlanCost,
    val considered: Int,
    val misses: Map<String, Double> = emptyMap(),
    val late: PlanCost? = null,
) {
    /** What asking from exits spares per sample, against the best plan that asks at its end alone, by name. */
    public val savedByAskingEarly: Map<String, Double>
        get() {
            fun spared(of: (PlanCost) -> Double?): Double? = late?.let(of)?.let { before -> of(cost)?.let { before - it } }
            return listOf(
                "latency_ms" to spared { it.latencyMs },
                "energy_mj" to spared { it.energyMj },
                "bytes_sent" to spared { it.bytesSent },
            ).mapNotNull { (name, value) -> value?.let { name to it } }.toMap()
        }
}

/**
 * The offers for a requirement, and what is known of the network and the server that they were made with.
 *
 * [inputBytes]: of a request with one input; [answerMs]: what the server works on one; [samples]: that judged.
 */
public data class PlanFront(
    val requirement: Requirement,
    val power: Power?,
    val uplink: Uplink,
    val inputBytes: Long,
    val answerMs: Double,
    val samples: Int,
    val offers: List<Offer>,
) {
    /** The offer that the requirement puts first over [uplink], or the one that comes nearest to it. */
    public fun best(uplink: Uplink?): Choice {
        val judged = offers.map { it.plan to it.cost(uplink, power) }
        val order = compareBy<Pair<Plan, PlanCost>>(
            { requirement.excess(it.second) },
            { -requirement.value(it.second) },
            { it.second.latencyMs ?: Double.POSITIVE_INFINITY },
        )
        val (plan, cost) = judged.minWith(order)
        return Choice(plan, cost, judged.size, requirement.misses(cost))
    }

    /** The same with the plans that [fits] takes; null if there is none. */
    public fun withOffers(fits: (Plan) -> Boolean): PlanFront? =
        copy(offers = offers.filter { fits(it.plan) }).takeIf { it.offers.isNotEmpty() }

    /** What of it is in [supernet] and makes sense; null if nothing is. */
    internal fun knownTo(supernet: Supernet): PlanFront? =
        copy(offers = offers.take(MOST_OFFERS).filter { it.isSound }).withOffers { plan ->
            try {
                supernet.checkPlan(plan)
                true
            } catch (_: UsageError) {
                false
            }
        }
}

/** The value below which a [share] of what is counted lies, between neighbours in proportion. */
private fun quantile(counted: List<Pair<Double, Int>>, share: Double): Double {
    val ordered = counted.sortedBy { it.first }
    val at = share * (ordered.sumOf { it.second } - 1)

    fun value(position: Double): Double {
        var before = 0
        for ((found, count) in ordered) {
            before += count
            if (position < before) return found
        }
        return ordered.last().first
    }
    val (low, high) = value(floor(at)) to value(ceil(at))
    return low + (high - low) * (at - floor(at))
}

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
