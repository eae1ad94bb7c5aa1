/**
 * What this implementation takes for opening, adapting and calls, as JSON, to be compared with Python's.
 *
 * ```
 * java -cp … pathweave.sdk.commands.BenchCliKt BUNDLE IMAGES LABELS PROFILE LATENCY_MS ROUNDS
 * ```
 *
 * IMAGES: 8-bit pixels of the model's own size, [count, h, w, c]; LABELS: a byte each; PROFILE: the profile that Python
 * measured here, whose predictions both languages search with and whose blocks Kotlin's are compared with.
 */
package pathweave.sdk.commands

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import java.io.File
import kotlin.system.exitProcess
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.PathweaveError
import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.compose
import pathweave.sdk.data.RawInputs
import pathweave.sdk.execution.Workspace
import pathweave.sdk.files.json
import pathweave.sdk.files.jsonOf
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.median
import pathweave.sdk.numerics.percentile
import pathweave.sdk.policies.AdaptationSettings
import pathweave.sdk.policies.Wish
import pathweave.sdk.policies.choose
import pathweave.sdk.policies.makeEvaluator
import pathweave.sdk.profiling.Profile
import pathweave.sdk.profiling.Timing
import pathweave.sdk.profiling.measureInterleaved
import pathweave.sdk.profiling.profile
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.search.Candidate
import pathweave.sdk.search.SearchProblem
import pathweave.sdk.search.bestWithin
import pathweave.sdk.search.findSubnets
import pathweave.sdk.search.makeStrategy
import pathweave.sdk.session.decodeProfile
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Kind
import pathweave.sdk.supernet.Plan
import pathweave.sdk.tasks.ClassTargets
import pathweave.sdk.tasks.Targets

private const val OPENINGS = 7
private const val SEARCHED = 200 // images, as the benchmark of Python does
private const val CALL_WARMUP = 200 // rounds, for the compiler

/** Prints one JSON object; exits 1 (failed, one line why). */
public fun main(arguments: Array<String>) {
    try {
        if (arguments.size != 6) throw UsageError("needs BUNDLE IMAGES LABELS PROFILE LATENCY_MS ROUNDS")
        val (bundle, images, labels, profile, latencyMs) = arguments
        val limits = latencyMs.toDouble() to arguments[5].toInt()
        println(bench(File(bundle), File(images), File(labels), decodeProfile(File(profile).readBytes()), limits))
    } catch (error: PathweaveError) {
        System.err.println(error.message)
        exitProcess(1)
    }
}

private fun bench(folder: File, images: File, labels: File, profile: Profile, limits: Pair<Double, Int>): JsonObject {
    val openings = List(OPENINGS) {
        val startedNs = System.nanoTime()
        AdaptiveModel.open(folder, selfTested = { true }).close()
        (System.nanoTime() - startedNs) / 1e6
    }
    val (runtime, bundle) = OnnxRuntime() to Bundle.open(folder)
    val shape = bundle.supernet.cutPoints[0].tensors[0].shape
    val samples = imagesOf(images.readBytes(), shape)
    val inputs = RawInputs(samples, bundle.manifest.preprocessing.ofImages(), shape)
    val targets = ClassTargets(labelsOf(labels.readBytes()))
    val wish = Wish(Goal(latencyMs = limits.first), setOf(Kind.SUBNETS), Plan(bundle.supernet.original), inputs, targets)
    val searched = searched(Workspace(bundle, runtime), profile, inputs, targets, Budget(latencyMs = limits.first))
    val found = choose(wish, Workspace(bundle, runtime), profile, AdaptationSettings(timeLimitS = null))
    val (callMs, rawMs) = AdaptiveModel.open(folder, selfTested = { true }).use { model ->
        calls(model, inputs.take(listOf(0), null), limits.second)
    }
    val alone = profile(bundle, runtime).edges
    val ratios = profile.edges.map { (edge, cost) -> alone.getValue(edge).latencyMs / cost.latencyMs }
    return jsonOf(
        "block_ms_over_python" to json(median(ratios)),
        "first_open_ms" to json(openings[0]),
        "open_ms" to json(percentile(openings.drop(1).sorted(), 0.5)),
        "adapt_seconds" to json(found.seconds),
        "subnet" to JsonPrimitive(found.plan.subnet.toString()),
        "best" to JsonPrimitive(bestWithin(searched, Budget(latencyMs = limits.first))?.subnet.toString()),
        "pool" to JsonPrimitive(searched.size),
        "subnets_evaluated" to JsonPrimitive(found.considered),
        "accuracy_search" to json(found.expected.accuracy),
        "accuracy_holdout" to json(found.heldOut?.accuracy),
        "call_ms" to json(callMs),
        "raw_ms" to json(rawMs),
    )
}

/** The search alone, on the first [SEARCHED] samples: nothing in it is measured, so that both languages find the same. */
private fun searched(
    workspace: Workspace,
    profile: Profile,
    inputs: RawInputs,
    targets: Targets,
    budget: Budget,
): List<Candidate> {
    val (costs, some) = profile.costModel() to (0 until minOf(SEARCHED, inputs.count)).toList()
    val settings = AdaptationSettings(timeLimitS = null)
    return makeEvaluator(workspace, costs, settings, inputs, targets, some).use { evaluator ->
        val supernet = workspace.bundle.supernet
        findSubnets(makeStrategy(settings.strategy), SearchProblem(supernet, costs, budget, evaluator, SplitMix64(0))).pool
    }
}

/** `model.infer` of the plan in use and ONNX Runtime alone on the same composed model, in turns: medians. */
private fun calls(model: AdaptiveModel, sample: Tensor, rounds: Int): Pair<Double, Double> {
    val environment = OrtEnvironment.getEnvironment()
    val composed = compose(model.bundle.stretch(model.plan.subnet.edges))
    val options = OrtSession.SessionOptions().apply {
        setIntraOpNumThreads(1)
        setInterOpNumThreads(1)
    }
    environment.createSession(composed, options).use { session ->
        val shape = LongArray(sample.shape.size) { sample.shape[it].toLong() }
        val name = session.inputNames.first()
        val raw: () -> Unit = {
            OnnxTensor.createTensor(environment, sample.view().asFloatBuffer(), shape).use { input ->
                session.run(mapOf(name to input)).use { (it[0] as OnnxTensor).floatBuffer.get(0) }
            }
        }
        val call: () -> Unit = { model.infer(sample) }
        val timed = measureInterleaved(listOf(call, raw), Timing(rounds), CALL_WARMUP)
        return timed[0].medianMs to timed[1].medianMs
    }
}
