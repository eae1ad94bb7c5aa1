package pathweave.sdk.policies.planning

import java.io.File
import kotlin.math.abs
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.doubleOrNull
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.fail
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.Contract
import pathweave.sdk.SplitMix64
import pathweave.sdk.double
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.offload.LogarithmicPool
import pathweave.sdk.policies.costs.AnswersEverywhere
import pathweave.sdk.seed
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.EdgeCost
import pathweave.sdk.supernet.Exit
import pathweave.sdk.supernet.ExitAtSize
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.FP32
import pathweave.sdk.supernet.Golden
import pathweave.sdk.supernet.Optimised
import pathweave.sdk.supernet.PlanCost
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.Rendition
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.supernet.encodePlan
import pathweave.sdk.text
import pathweave.sdk.uniformFloats

private const val EXACT = 1e-9
private const val FITTED = 1e-7 // of weights, and of thresholds on their scale

/** Which plans both languages choose from equal answers, and what they cost: tests/contract/plans.json. */
class PlanContractTest {
    private val vectors = Json.parseToJsonElement(File(Contract.repository, "tests/contract/plans.json").readText())

    @TestFactory
    fun `the same evidence leads to the same plans and the same costs as in Python`(): List<DynamicTest> =
        vectors["cases"].items.flatMapIndexed { number, case ->
            val power = case["power"].let { Power(it["active_w"].double, it["radio_w"].double, it["waiting_w"].double) }
            val planner by lazy { PlanWorld(case).planner() }
            case["requirements"].items.map { wanted ->
                DynamicTest.dynamicTest("world $number: ${wanted["requirement"]}") { check(planner, wanted, power) }
            }
        }

    private fun check(planner: Planner, wanted: JsonElement, power: Power) {
        val requirement = requirementOf(wanted["requirement"])
        for (one in wanted["best"].items) {
            val uplink = one["uplink"].takeIf { it !is JsonNull }?.items?.let { (mbps, trip) -> Uplink(mbps.double, trip.double) }
            val found = planner.nearest(requirement, uplink, power).choice
            assertSame(one["plan"], Json.parseToJsonElement(String(encodePlan(found.plan))), "over $uplink", FITTED)
            assertSame(one["cost"], costOf(found.cost), "over $uplink", EXACT)
            assertEquals(one["considered"].int, found.considered)
            val saved = JsonObject(found.savedByAskingEarly.mapValues { JsonPrimitive(it.value) })
            assertSame(one["saved"], saved, "over $uplink", EXACT)
            val misses = JsonObject(found.misses.mapValues { if (it.value.isFinite()) JsonPrimitive(it.value) else JsonNull })
            assertSame(one["misses"], misses, "over $uplink", EXACT)
        }
        if (wanted["front"] is JsonNull) return
        val front = encodeFront(planner.front(requirement, power))
        assertSame(wanted["front"], Json.parseToJsonElement(String(front)), "front", FITTED)
    }
}

private fun costOf(cost: PlanCost) = JsonObject(
    mapOf(
        "accuracy" to cost.accuracy,
        "latency_ms" to cost.latencyMs,
        "p95_latency_ms" to cost.p95LatencyMs,
        "bytes_sent" to cost.bytesSent,
        "peak_bytes" to cost.peakBytes,
        "energy_mj" to cost.energyMj,
        "share_early" to cost.shareEarly,
        "share_asked" to cost.shareAsked,
        "share_asked_early" to cost.shareAskedEarly,
        "share_abstained" to cost.shareAbstained,
        "share_second" to cost.shareSecond,
    ).mapValues { JsonPrimitive(it.value) },
)

private fun requirementOf(json: JsonElement): Requirement {
    fun limit(name: String) = json[name].jsonPrimitive.doubleOrNull
    return Requirement(
        Optimised.entries.first { it.toString() == json["optimise"].text },
        limit("accuracy"),
        limit("certainty"),
        limit("coverage"),
        limit("latency_ms"),
        limit("p95_latency_ms"),
        limit("energy_mj"),
        limit("bytes_sent"),
        limit("peak_bytes")?.toLong(),
        limit("share_asked"),
    )
}

/** The same tree, with numbers that differ by no more than [tolerance], of them or of 1. */
private fun assertSame(wanted: JsonElement, found: JsonElement, at: String, tolerance: Double) {
    when {
        wanted is JsonObject && found is JsonObject -> {
            assertEquals(wanted.keys, found.keys, at)
            for ((name, value) in wanted) assertSame(value, found.getValue(name), "$at.$name", tolerance)
        }
        wanted is JsonArray && found is JsonArray -> {
            assertEquals(wanted.size, found.size, "$at: $wanted and $found")
            for ((number, value) in wanted.withIndex()) assertSame(value, found[number], "$at[$number]", tolerance)
        }
        wanted is JsonPrimitive && found is JsonPrimitive -> {
            val (want, has) = wanted.doubleOrNull to found.doubleOrNull
            val isSame = if (want == null || has == null) wanted == found else abs(want - has) <= tolerance * maxOf(1.0, abs(want))
            if (!isSame) fail<Unit>("$at: $wanted in Python, $found here")
        }
        else -> fail("$at: $wanted in Python, $found here")
    }
}

/** As `World` in write_plans.py makes it. */
private class PlanWorld(private val spec: JsonElement) {
    private val random = SplitMix64(spec["seed"].seed)
    private val count = spec["count"].int
    private val classes = spec["classes"].int
    private val labels = IntArray(count) { random.below(classes) }
    private val ease = uniformFloats(random.next(), count)
    private val rendition = Rendition(FP32, "none", "0".repeat(64), 1, Golden(emptyList(), 0.0))
    private val branches = spec["exits"].items.associate { one ->
        one["id"].text to Exit(one["id"].text, one["position"].int, "pooled", 0, 0, listOf(rendition))
    }
    private val costs = CostModel(
        spec["subnets"].items.flatMap { it["edges"].items }.associate {
            val latencyMs = it["latency_ms"].double
            val (resident, working) = it["resident_bytes"].int.toLong() to it["working_bytes"].int.toLong()
            Edge(it["block"].text) to EdgeCost(latencyMs, latencyMs, resident, working)
        },
        offsetMs = 0.25,
        exitCosts = spec["exits"].items.associate {
            val latencyMs = it["latency_ms"].double
            ExitAtSize(it["id"].text) to EdgeCost(latencyMs, latencyMs, it["bytes"].int.toLong(), 1)
        },
        exitOverheadMs = 0.125,
        callOverheadMs = 0.0625,
        decisionMs = mapOf("max_confidence" to 0.015625, "entropy" to 0.03125, "margin" to 0.015625, "logistic" to 0.0625),
    )

    private fun logits(one: JsonElement, skill: Double, knowsAll: Boolean = false): List<FloatArray> {
        val noise = uniformFloats(one.seed, count * classes)
        return List(count) { sample ->
            FloatArray(classes) { number ->
                val own = noise[sample * classes + number] * 4f
                if (number == labels[sample]) own + skill.toFloat() * (if (knowsAll) 1f else ease[sample]) else own
            }
        }
    }

    private fun path(one: JsonElement, sets: JsonElement): PathEvidence {
        val exits = one["exits"].items.map { branches.getValue(it.items[0].text) }
        val subnet = Subnet(one["edges"].items.map { Edge(it["block"].text) })
        val answers = one["exits"].items.map { it.items.let { (_, skill, seed) -> logits(seed, skill.double) } } +
            listOf(logits(one["seed"], one["skill"].double))
        val chosen = sets.items.map { set ->
            set.items.map { it.items.let { (exit, threshold) -> ExitChoice(exit.text, threshold.double) } }
        }
        return PathEvidence(
            AnswersEverywhere(subnet, exits, exits.map { it.position }, answers, labels), chosen, exits.map { it.id },
        )
    }

    private fun tensor(rows: List<FloatArray>) =
        Tensor.of(FloatArray(count * classes) { rows[it / classes][it % classes] }, listOf(count, classes))

    fun planner(): Planner {
        val server = spec["server"].takeIf { it !is JsonNull }?.let {
            RemoteEvidence(
                RemoteRef("big:images", "ab".repeat(32)),
                tensor(logits(it["seed"], it["skill"].double, knowsAll = true)),
                Uplink(16.0, 4.0),
                it["input_bytes"].int.toLong(),
                it["answer_ms"].double,
                spec["pool"].takeIf { pool -> pool !is JsonNull }?.items?.let { (own, other) ->
                    LogarithmicPool(own.double, other.double)
                },
            )
        }
        val paths = spec["subnets"].items.zip(spec["exit_sets"].items, ::path)
        return Planner(PlanEvidence(labels, paths, server), costs)
    }
}
