package pathweave.sdk.policies

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.double
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.Contract
import pathweave.sdk.SplitMix64
import pathweave.sdk.data.Image
import pathweave.sdk.data.Interpolation
import pathweave.sdk.data.PreparedInputs
import pathweave.sdk.data.Preprocessing
import pathweave.sdk.data.SomeInputs
import pathweave.sdk.data.fitted
import pathweave.sdk.data.prepare
import pathweave.sdk.data.searchPositions
import pathweave.sdk.double
import pathweave.sdk.execution.LoadedPlan
import pathweave.sdk.execution.Workspace
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.numerics.argmax
import pathweave.sdk.policies.costs.Answering
import pathweave.sdk.policies.exits.withFurtherExits
import pathweave.sdk.profiling.fitLatency
import pathweave.sdk.profiling.fitMemory
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.search.PrefixTreeEvaluator
import pathweave.sdk.search.SearchProblem
import pathweave.sdk.search.findSubnets
import pathweave.sdk.search.makeStrategy
import pathweave.sdk.seed
import pathweave.sdk.session.decodeProfile
import pathweave.sdk.session.encodeProfile
import pathweave.sdk.size
import pathweave.sdk.subnetOf
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.enumerateSubnets
import pathweave.sdk.tasks.ClassTargets
import pathweave.sdk.text
import pathweave.sdk.texts

private const val EXPECTED_TOLERANCE = 1e-6 // of accuracies, which hang on logits
private const val FIT_TOLERANCE = 1e-9 // relative, of what is fitted in double

/** tests/contract/adaptations.json, and what it describes in words. */
internal object Adaptations {
    val vectors: JsonElement =
        Json.parseToJsonElement(File(Contract.repository, "tests/contract/adaptations.json").readText())
    val bundle = Contract.reference()
    val profile = decodeProfile(vectors["profile"].toString().toByteArray())
    val labels = vectors["labels"].items.map { it.int }.toIntArray()

    /** The drawn images without those that are skipped, prepared. */
    fun inputs(): PreparedInputs {
        val random = SplitMix64(vectors["images"]["seed"].seed)
        val skipped = vectors["images"]["skipped"].items.map { it.int }.toSet()
        val count = vectors["images"]["count"].int
        val images = List(count + skipped.size) { Image(pixels(random, 12), SampleSize(2, 2), 3) }
        val kept = images.filterIndexed { number, _ -> number !in skipped }
        return PreparedInputs(prepare(kept, bundle.manifest.preprocessing.ofImages(), listOf(3, 2, 2)))
    }
}

private fun pixels(random: SplitMix64, count: Int) = ByteArray(count) { random.next().toByte() }

class AdaptationContractTest {
    private val vectors = Adaptations.vectors
    private val profile = Adaptations.profile

    @TestFactory
    fun `on 500 images Kotlin predicts and chooses what Python does`(): List<DynamicTest> =
        vectors["cases"].items.filter { it["strategy"].text == "pathweave" }.map { case ->
            DynamicTest.dynamicTest("${case["strategy"].text} within ${case["budget"]}") { check(case) }
        }

    private fun check(case: JsonElement) {
        val (labels, seed) = Adaptations.labels to case["seed"].seed
        val (kept, held) = searchPositions(labels, 0.3, seed)
        assertEquals(case["kept"].items.map { it.int }, kept.take(20))
        assertEquals(case["held"].items.map { it.int }, held.take(20))
        val limits = listOf("latency_ms", "memory_mb").map { name ->
            case["budget"][name].takeIf { it !is JsonNull }?.double
        }
        val found = evaluator(kept).use { evaluator ->
            val problem = SearchProblem(
                Adaptations.bundle.supernet,
                profile.costModel(),
                Budget(limits[0], limits[1]),
                evaluator,
                SplitMix64(seed),
                clock = { 0.0 },
            )
            findSubnets(makeStrategy(case["strategy"].text), problem).also {
                assertTrue(evaluator.edgeRuns < evaluator.edgeRunsWithoutReuse)
                assertTrue(evaluator.peakCachedBytes in 1..vectors["cache_bytes"].int)
            }
        }
        assertEquals(case["chosen"].text, found.best?.subnet.toString())
        assertEquals(case["subnets_evaluated"].int, found.subnetsEvaluated)
        val pool = case["pool"].jsonObject
        assertEquals(pool.keys.toList(), found.pool.map { it.subnet.toString() })
        for (one in found.pool) {
            val (accuracy, expected) = pool.getValue(one.subnet.toString()).items.map { it.double }
            assertEquals(accuracy, one.accuracy)
            assertEquals(expected, one.expected ?: 0.0, EXPECTED_TOLERANCE)
        }
        val original = Adaptations.bundle.supernet.original
        val judged = evaluator(held).use { it.accuracies(listOf(found.best!!.subnet, original)) }
        assertEquals(listOf(case["accuracy_holdout"].double, case["full_accuracy_holdout"].double), judged)
    }

    @TestFactory
    fun `on 500 images exits and thresholds are those of Python`(): List<DynamicTest> =
        vectors["exit_sets"].items.map { case ->
            DynamicTest.dynamicTest("${case["subnet"].text}, a drop of ${case["accuracy_drop"]}") { checkExits(case) }
        }

    private fun checkExits(case: JsonElement) {
        val labels = Adaptations.labels.takeIf { case["labelled"].text == "true" }
        val (costs, subnet) = profile.costModel() to subnetOf(case["subnet"].text)
        val answering = Answering(Workspace(Adaptations.bundle, OnnxRuntime()), costs)
        val answers = answering.answer(subnet, Adaptations.inputs(), labels, useExits = true, batch = 64)
        val placed = answering.placed(answers)
        val choices = answering.exitSets(answers, placed, listOf(case["accuracy_drop"].double)).firstOrNull().orEmpty()
        assertEquals(case["exits"].jsonObject.keys.toList(), choices.map { it.exit })
        for (one in choices) assertEquals(case["exits"][one.exit].double, one.threshold, EXPECTED_TOLERANCE)
        val further = withFurtherExits(Adaptations.bundle.supernet, Plan(subnet, choices)).exits
        assertEquals(case["further"].texts, further.map { it.exit })
        val taken = placed.map { answers.atExit(it, costs) }.filter { one -> choices.any { it.exit == one.choice.exit } }
        val limits = choices.associate { it.exit to it.threshold }
        val leftBy = List(answers.count) { at ->
            taken.firstOrNull { it.confidence[at] >= limits.getValue(it.choice.exit) }
        }
        val right = leftBy.withIndex().count { (at, exit) -> exit?.right?.get(at) ?: answers.rightAtEnd[at] }
        val names = listOf("accuracy", "accuracy_without_exits", "share_early")
        val shares = listOf(right, answers.rightAtEnd.count { it }, leftBy.count { it != null })
        assertEquals(names.map { case[it].double }, shares.map { it.toDouble() / answers.count })
    }

    @Test
    fun `every subnet answers each of 500 images as in Python`() {
        val (answers, inputs) = vectors["answers"].jsonObject to Adaptations.inputs()
        assertEquals(enumerateSubnets(Adaptations.bundle.supernet, 1000).map { it.toString() }.toSet(), answers.keys)
        for ((text, expected) in answers) {
            val plan = Plan(subnetOf(text))
            val found = LoadedPlan(Adaptations.bundle, OnnxRuntime(), plan).use { loaded ->
                argmax(loaded.run(inputs.take((0 until inputs.count).toList(), plan.inputSize)).output)
            }
            assertEquals(expected.text, found.joinToString(""), text)
        }
    }

    private fun evaluator(positions: List<Int>): PrefixTreeEvaluator {
        val (bundle, runtime) = Adaptations.bundle to OnnxRuntime()
        return PrefixTreeEvaluator(
            bundle.supernet,
            load = { runtime.load(bundle.stretch(listOf(it), anySize = true)) },
            SomeInputs(Adaptations.inputs(), positions),
            ClassTargets(Adaptations.labels).at(positions),
            profile.costModel(),
            cacheBytes = vectors["cache_bytes"].int.toLong(),
        )
    }

    @Test
    fun `a profile that Python wrote predicts the same here and is written the same`() {
        val model = profile.costModel()
        for ((subnet, latencyMs) in vectors["predicted_ms"].jsonObject) {
            assertEquals(latencyMs.jsonPrimitive.double, model.latencyMs(subnetOf(subnet)), 1e-12)
        }
        assertEquals(vectors["profile"], Json.parseToJsonElement(String(encodeProfile(profile))))
    }

    @Test
    fun `the fits of latency and memory are those of Python`() {
        val (subnets, measured) = profile.fitted.map { it.subnet } to profile.fitted.map { it.measuredMs }
        val blocksMs = profile.edges.mapValues { it.value.latencyMs }
        val latency = fitLatency(Adaptations.bundle.supernet, blocksMs, subnets, measured)
        assertEquals(1.0, latency.scale / profile.scale, FIT_TOLERANCE)
        assertEquals(1.0, latency.offsetMs / profile.offsetMs, FIT_TOLERANCE)
        for ((edge, factor) in profile.factors) {
            assertEquals(1.0, latency.factors.getValue(edge) / factor, FIT_TOLERANCE)
        }
        assertEquals(profile.changesMs.keys, latency.changesMs.keys)
        for ((edge, ms) in profile.changesMs) assertEquals(1.0, latency.changesMs.getValue(edge) / ms, FIT_TOLERANCE)
        val memory = fitMemory(profile.edges, subnets, profile.fitted.map { it.peakBytes })
        assertEquals(1.0, memory.scale / profile.memoryScale, FIT_TOLERANCE)
        assertEquals(profile.memoryOffsetBytes, memory.offsetBytes)
    }

    @Test
    fun `images are cropped and resized to the bits that Python has`() {
        for (case in vectors["resizing"].items) {
            val preprocessing = Preprocessing(
                1.0, List(3) { 0.0 }, List(3) { 1.0 }, case["resize"].size,
                interpolation = Interpolation.entries.single { it.toString() == case["interpolation"].text },
                crop = case["crop"].takeUnless { it is JsonNull }?.double,
            )
            val pixels = case["pixels"].items.map { it.int.toByte() }.toByteArray()
            val found = fitted(Image(pixels, case["size"].size, 3), preprocessing, case["to"].size)
            assertEquals(case["to"].size, found.size)
            assertEquals(case["resized"].items.map { it.int }, found.pixels.map { it.toInt() and 0xff }, "$case")
        }
    }
}
