package pathweave.sdk.policies

import java.io.File
import java.nio.file.Path
import kotlin.math.abs
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.data.SomeInputs
import pathweave.sdk.double
import pathweave.sdk.execution.LoadedPlan
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.corrected
import pathweave.sdk.execution.leastMemoryCapBytes
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.argmax
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Kind
import pathweave.sdk.supernet.Optimised
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.Split
import pathweave.sdk.supernet.confidence
import pathweave.sdk.supernet.decodePlan
import pathweave.sdk.supernet.encodePlan
import pathweave.sdk.tasks.ClassTargets
import pathweave.sdk.text

private const val RELATIVE = 1e-9
private const val FITTED = 1e-6 // the likelihood is flat at its maximum

/** tests/contract/priors.json: priors over classes, found, applied and stored as in Python. */
class PriorContractTest {
    @TempDir
    lateinit var folder: Path

    private val vectors = Json.parseToJsonElement(File(Contract.repository, "tests/contract/priors.json").readText())
    private val supernet = Contract.reference().supernet
    private val strong = Prior(listOf(-6.0, 6.0, 0.0), 1.5)

    private fun rows(logits: JsonElement) =
        logits.items.map { row -> row.items.map { it.double.toFloat() }.toFloatArray() }

    private fun prior(value: JsonElement): Prior =
        Prior(value["log_ratios"].items.map { it.double }, value["temperature"].double)

    private fun assertClose(expected: Double, found: Double, relative: Double = RELATIVE) =
        assertTrue(abs(expected - found) <= relative * maxOf(abs(expected), 1e-3), "$found is not $expected")

    private fun assertClose(expected: Tensor, found: Tensor) {
        assertEquals(expected.shape, found.shape)
        for (at in 0 until expected.size) assertEquals(expected[at], found[at], 1e-5)
    }

    @TestFactory
    fun `the same priors are found as in Python`() = vectors["found"].items.mapIndexed { number, case ->
        DynamicTest.dynamicTest("$number") {
            val (logits, temperature) = rows(case["logits"]) to case["temperature"].takeIf { it !is JsonNull }?.double
            val labels = case["labels"].takeIf { it !is JsonNull }?.items?.map { it.int }?.toIntArray()
            labels?.let { assertClose(case["fitted"].double, fitTemperature(logits, it), FITTED) }
            val found = findPrior(logits, labels, temperature)
            if (case["prior"] is JsonNull) {
                assertNull(found)
            } else {
                val expected = prior(case["prior"])
                expected.logRatios.zip(found!!.logRatios) { one, other -> assertClose(one, other) }
                assertEquals(expected.logRatios.size, found.logRatios.size)
                assertClose(expected.temperature, found.temperature, if (labels == null) RELATIVE else FITTED)
            }
        }
    }

    @Test
    fun `logits are corrected as in Python in tensors and by sample`() {
        for (case in vectors["corrected"].items) {
            val (logits, prior) = rows(case["logits"]) to prior(case["prior"])
            val expected = rows(case["corrected"]).map { it.toList() }
            assertEquals(expected, corrected(logits, prior).map { it.toList() })
            val classes = logits[0].size
            val tensor = Tensor.of(logits.flatMap { it.toList() }.toFloatArray(), listOf(logits.size, classes))
            assertEquals(expected.flatten(), corrected(tensor, prior).floats().toList())
            assertTrue(corrected(tensor, null) === tensor)
        }
    }

    @Test
    fun `plans with a prior are read and written as in Python`() {
        for (case in vectors["plans"].items) {
            val plan = decodePlan(case.text.toByteArray())
            supernet.checkPlan(plan)
            assertNotNull(plan.prior)
            assertEquals(case.text, encodePlan(plan).decodeToString())
            val without = encodePlan(plan.withPrior(null)).decodeToString()
            assertTrue("prior" !in without)
            assertEquals(plan, decodePlan(without.toByteArray()).withPrior(plan.prior))
        }
    }

    @TestFactory
    fun `what is no prior of the bundle is refused`() =
        (vectors["refused"].items.map { it.toString() } + "null" + """{"log_ratios":[0.0,0.0]}""").map { value ->
            DynamicTest.dynamicTest(value) {
                val data = encodePlan(Plan(supernet.original)).decodeToString().dropLast(1) + ""","prior":$value}"""
                assertRefused<UsageError> { supernet.checkPlan(decodePlan(data.toByteArray())) }
            }
        }

    private val input = Adaptations.inputs().take((0 until 40).toList(), null)

    private fun run(plan: Plan, cap: Long? = null) =
        LoadedPlan(Contract.reference(), OnnxRuntime(), plan, cap).use { it.run(input) }

    @Test
    fun `the output is corrected in pages too and activations are not`() {
        val plan = Plan(supernet.original)
        val expected = corrected(run(plan).output, strong)
        val leastBytes = leastMemoryCapBytes(Contract.reference(), plan)
        for (cap in listOf(null, leastBytes)) assertClose(expected, run(plan.withPrior(strong), cap).output)
        val split = Split(2, List(supernet.cutPoints[2].tensors.size) { 8 }, supernet.original.edges.drop(2), RemoteRef())
        assertClose(expected, run(Plan(supernet.original, split = split, prior = strong)).output)
    }

    @Test
    fun `exits decide by corrected logits`() {
        fun plan(threshold: Double) = Plan(supernet.original, listOf(ExitChoice("x1-pooled", threshold)))
        val plain = run(plan(0.0))
        val sure = confidence(corrected(plain.output, strong))
        val threshold = sure.sorted()[20]
        val answered = run(plan(threshold).withPrior(strong)).answeredBy.map { it == 0 }
        assertEquals(sure.map { it >= threshold }, answered)
        assertTrue(confidence(plain.output).map { it >= threshold } != answered)
    }

    private fun evaluator() = makeEvaluator(
        Workspace(Adaptations.bundle, OnnxRuntime()),
        Adaptations.profile.costModel(),
        AdaptationSettings(),
        Adaptations.inputs(),
        ClassTargets(Adaptations.labels),
        (0 until 40).toList(),
    )

    @Test
    fun `subnets are judged under a prior that is set first`() {
        val expected = corrected(run(Plan(supernet.original)).output, strong)
        val right = argmax(expected).mapIndexed { at, answer -> answer == Adaptations.labels[at] }
        evaluator().use { evaluator ->
            assertEquals(Adaptations.labels.take(40), evaluator.fullModelLogits().second.toList())
            evaluator.usePrior(strong)
            assertEquals(right, evaluator.scores(listOf(supernet.original), 0 until 40) { false }[0].map { it == 1f })
            assertEquals(right, evaluator.fullModelMargins().map { it > 0 })
            assertRefused<UsageError> { evaluator.usePrior(null) }
        }
    }

    @Test
    fun `a plan with exits keeps the prior and is judged by it`() {
        fun found(prior: Prior?): Found {
            val inUse = Plan(supernet.original, prior = prior)
            val goal = Goal(Optimised.LATENCY_MS, maxDrop = 0.005)
            val wish = Wish(goal, setOf(Kind.EXITS), inUse, Adaptations.inputs(), ClassTargets(Adaptations.labels))
            return choose(wish, Workspace(Adaptations.bundle, OnnxRuntime()), Adaptations.profile, AdaptationSettings())
        }
        val (corrected, plain) = found(strong) to found(null)
        assertEquals(strong to null, corrected.plan.prior to plain.plan.prior)
        fun alone(found: Found) = found.byKind.getValue("subnet").cost.accuracy!!
        assertTrue(alone(corrected) < alone(plain))
    }

    @Test
    fun `adapting finds the mix and its plans keep it and a model that opens again applies it`() {
        val some = Adaptations.labels.indices.filter { Adaptations.labels[it] == 0 }
        val samples = SomeInputs(Adaptations.inputs(), some)
        val state = File(folder.toFile(), "state")
        val labels = IntArray(some.size)
        fun open() = AdaptiveModel.open(Contract.referenceFolder, Contract.key, stateFolder = state)
        val (plan, before) = open().use { model ->
            val goal = Goal(latencyMs = 1000.0)
            assertNull(model.adaptBlocking(samples, goal, labels = labels, settings = AdaptationSettings(usePrior = false)).plan.prior)
            for (known in listOf(null, labels)) {
                val found = model.adaptBlocking(samples, goal, labels = known)
                assertNotNull(found.plan.prior)
                assertTrue(found.pool.all { it.plan.prior == found.plan.prior })
                assertEquals(0, found.plan.prior!!.logRatios.indices.maxBy { found.plan.prior!!.logRatios[it] })
            }
            val prior = model.plan.prior
            val own = samples.take((0 until 20).toList(), model.plan.inputSize)
            val answer = model.infer(own).output
            val plain = LoadedPlan(Contract.reference(), OnnxRuntime(), model.plan.withPrior(null)).use { it.run(own) }
            assertClose(corrected(plain.output, prior), answer)
            val drop = Goal(Optimised.LATENCY_MS, maxDrop = 0.005)
            assertEquals(prior, model.adaptBlocking(samples, drop, setOf(Kind.EXITS), labels).plan.prior)
            model.plan to model.infer(own).output
        }
        open().use { again ->
            assertEquals(plan, again.plan)
            assertClose(before, again.infer(samples.take((0 until 20).toList(), plan.inputSize)).output)
        }
    }
}
