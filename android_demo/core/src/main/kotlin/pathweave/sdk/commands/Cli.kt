/**
 * What this implementation makes of a bundle, as JSON: so that it can be compared with Python's on any bundle.
 *
 * ```
 * java -cp … pathweave.sdk.commands.CliKt BUNDLE [--trust KEY] [--seed N] [--count N]
 * ```
 */
package pathweave.sdk.commands

import java.io.File
import kotlin.system.exitProcess
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.put
import kotlinx.serialization.json.putJsonObject
import pathweave.sdk.PathweaveError
import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.Trust
import pathweave.sdk.bundles.loadTrust
import pathweave.sdk.execution.LoadedPlan
import pathweave.sdk.execution.goldenCases
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.execution.matches
import pathweave.sdk.execution.runGolden
import pathweave.sdk.numerics.argmax
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.architectureCount
import pathweave.sdk.supernet.kCheapest
import pathweave.sdk.supernet.sampleUniformly
import pathweave.sdk.supernet.subnetCount

private const val FAILED = 1
private const val USAGE = 2

/** Prints one JSON object; exits 0, 1 (failed, one line why) or 2 (usage). */
public fun main(arguments: Array<String>) {
    try {
        val options = Options(arguments.toList())
        println(Json.encodeToString(JsonObject.serializer(), describe(options)))
    } catch (error: UsageError) {
        fail(error, USAGE)
    } catch (error: PathweaveError) {
        fail(error, FAILED)
    }
}

private fun fail(error: PathweaveError, status: Int): Nothing {
    System.err.println(listOfNotNull(error.message, error.hint).joinToString("\n"))
    exitProcess(status)
}

private const val USAGE_TEXT = "usage: BUNDLE [--trust KEY] [--seed N] [--count N]"

private class Options(arguments: List<String>) {
    val folder = File(arguments.firstOrNull() ?: throw UsageError("one bundle is needed", USAGE_TEXT))
    private val named = arguments.drop(1).chunked(2).associate { it[0] to it.getOrNull(1) }
    val trust: Trust? = named["--trust"]?.let { loadTrust(File(it)) }
    val seed: Long = whole("--seed", "0").toLong() // 2⁶⁴ − 1 is −1: the same 64 bits
    val count: Int = whole("--count", "5").toInt()

    init {
        val unknown = named.entries.find { (name, value) -> value == null || name !in setOf("--trust", "--seed", "--count") }
        if (unknown != null) throw UsageError("what is ${unknown.key}?", USAGE_TEXT)
    }

    private fun whole(name: String, default: String) = (named[name] ?: default).let {
        it.toBigIntegerOrNull() ?: throw UsageError("$it is not a whole number", USAGE_TEXT)
    }
}

private fun describe(options: Options): JsonObject {
    val bundle = Bundle.open(options.folder, options.trust)
    val runtime = OnnxRuntime()
    val supernet = bundle.supernet
    val macs = supernet.edges.associateWith { supernet.block(it.block).macs.toDouble() }
    val sampled = sampleUniformly(supernet, options.count, SplitMix64(options.seed))
    val cheapest = kCheapest(supernet, macs::getValue, options.count).map { it.subnet }
    var passed = true
    val answers = buildJsonObject {
        for (case in goldenCases(bundle)) {
            val outputs = runGolden(bundle, runtime, case)
            passed = passed && matches(case.golden, outputs)
            put(case.name, JsonArray(argmax(outputs.last()).map(::JsonPrimitive)))
        }
    }
    return buildJsonObject {
        put("name", bundle.manifest.name)
        put("version", bundle.manifest.version)
        put("bundle", bundle.digest)
        put("signed", bundle.signed)
        put("runtime", runtime.identity)
        put("architecture_count", architectureCount(supernet).toString()) // as text: JSON numbers may be rounded
        put("subnet_count", subnetCount(supernet).toString())
        put("samples", texts(sampled))
        put("cheapest_by_macs", texts(cheapest))
        put("self_test_passed", passed)
        put("argmax", answers)
        putJsonObject("exits") { allExits(bundle, runtime) { name, value -> put(name, value) } }
    }
}

/** Who answers the golden input along the original path when every exit needs a confidence of a half, and what. */
private fun allExits(bundle: Bundle, runtime: OnnxRuntime, put: (String, JsonArray) -> Unit) {
    val supernet = bundle.supernet
    val exits = supernet.exitsAlong(supernet.original).distinctBy { it.position }
        .map { ExitChoice(it.id, threshold = 0.5, rendition = it.renditions.first().name) }
    val selfTest = bundle.manifest.selfTest
    val input = goldenInputs(supernet.cutPoints[0], selfTest.seed, selfTest.batch).first()
    val outcome = LoadedPlan(bundle, runtime, Plan(supernet.original, exits)).use { it.run(input) }
    put("choices", texts(exits.map { it.exit }))
    put("answered_by", JsonArray(outcome.answeredBy.map(::JsonPrimitive)))
    put("argmax", JsonArray(argmax(outcome.output).map(::JsonPrimitive)))
}

private fun texts(items: List<Any>): JsonArray = JsonArray(items.map { JsonPrimitive(it.toString()) })
