package pathweave.sdk

import java.util.concurrent.Callable
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Executors
import java.util.concurrent.TimeUnit
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.data.Image
import pathweave.sdk.data.prepare
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.execution.planOf
import pathweave.sdk.numerics.DType
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.session.ABSTAINED
import pathweave.sdk.session.Answer
import pathweave.sdk.session.FALLBACK
import pathweave.sdk.session.SUBNET
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Sends
import pathweave.sdk.supernet.Split
import pathweave.sdk.supernet.confidence
import pathweave.sdk.supernet.decodePlan
import pathweave.sdk.supernet.hardSamples

@Timeout(60)
class AdaptiveModelTest {
    private val plans = Contract.vectors["bundle"]["plans"]
    private val cases = plans["cases"].items
    private val atInput = Contract.reference().supernet.cutPoints[0]
    private val input = goldenInputs(atInput, plans["seed"].seed, plans["batch"].int)[0]

    private fun open(runtime: Runtime = OnnxRuntime()) =
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, runtime, selfTested = { true })

    @Test
    fun `it opens with the full model and answers`() {
        AdaptiveModel.open(Contract.referenceFolder, Contract.key).use { model ->
            assertEquals(model.bundle.supernet.original, model.plan.subnet)
            val answer = model.infer(input)
            assertEquals(cases[0]["labels"].texts, answer.labels)
            assertEquals(List(input.batch) { "subnet" }, answer.source)
            assertEquals(confidence(answer.output).toList(), answer.confidence)
        }
    }

    @Test
    fun `the source says which exit answered, the clock how long it took`() {
        val ticks = generateSequence(0L) { it + 2_500_000 }.iterator()
        val model = AdaptiveModel.open(
            Contract.referenceFolder,
            selfTested = { true },
            clock = ticks::next,
        )
        model.use {
            model.use(planOf(cases[4]))
            val answer = model.infer(input)
            assertEquals(cases[4]["source"].texts, answer.source)
            assertEquals(2.5, answer.latencyMs)
        }
    }

    @Test
    fun `images are prepared and classified`() {
        open().use { model ->
            val size = model.imageSize!!
            assertEquals(SampleSize(2, 2), size)
            val images = List(3) { number -> Image(ByteArray(12) { (it * 7 + number * 31).toByte() }, size, 3) }
            val prepared = prepare(images, model.bundle.manifest.preprocessing.ofImages(), listOf(3, 2, 2))
            assertEquals(model.infer(prepared).labels, model(*images.toTypedArray()).labels)
            assertRefused<InputError> { model(Image(ByteArray(27), SampleSize(3, 3), 3)) }
            assertRefused<InputError> { model() }
        }
    }

    @Test
    fun `images have to be of the size of the plan in use`() {
        open().use { model ->
            fun image(size: SampleSize) = Image(ByteArray(3 * size.height * size.width) { (it * 5).toByte() }, size, 3)
            for ((plan, side) in listOf(cases[10] to 1, cases[8] to 4, cases[0] to 2)) {
                model.use(planOf(plan))
                val size = SampleSize(side, side)
                assertEquals(size, model.imageSize)
                val prepared = prepare(listOf(image(size)), model.bundle.manifest.preprocessing.ofImages(), listOf(3, side, side))
                assertEquals(model.infer(prepared).labels, model(image(size)).labels)
                assertEquals(1, model.infer(Tensor.of(FloatArray(3 * side * side), listOf(3, side, side))).labels.size)
                for (other in listOf(1, 2, 4, 5) - side) {
                    val refused = assertRefused<InputError> { model(image(SampleSize(other, other))) }
                    assertEquals("expected images of ${side}x$side, got ${other}x$other", refused.message)
                    val tensor = Tensor.of(FloatArray(3 * other * other), listOf(1, 3, other, other))
                    val error = assertRefused<InputError> { model.infer(tensor) }
                    assertEquals(
                        "expected a tensor of shape [batch, 3, $side, $side], got [1, 3, $other, $other]",
                        error.message,
                    )
                    assertTrue("${side}x$side" in error.hint!!, error.hint)
                }
            }
        }
    }

    @Test
    fun `a plan at another size answers the same everywhere`() {
        open().use { model ->
            for (case in cases.drop(8)) {
                val plan = planOf(case)
                model.use(plan)
                val start = model.bundle.supernet.cutPointsAt(plan.subnet.inputSize)[0]
                val answer = model.infer(goldenInputs(start, plans["seed"].seed, plans["batch"].int)[0])
                assertEquals(case["labels"].texts to case["source"].texts, answer.labels to answer.source)
            }
        }
    }

    @Test
    fun `a plan that does not run at its size leaves the one in use`() {
        open().use { model ->
            for (case in plans["refused"].items) {
                val refused = Plan(subnetOf(case["subnet"].text), case["exits"].texts.map { ExitChoice(it, 0.5) })
                assertRefused<UsageError> { model.use(refused) }
            }
            assertEquals(model.bundle.supernet.original to SampleSize(2, 2), model.plan.subnet to model.imageSize)
        }
    }

    /** Answers of the plan of [case] with [split] and [hard], next to those of the plan without them. */
    private fun answers(case: Int, split: Split? = null, hard: Hard = Hard.AnswerLocally): Pair<Answer, Answer> =
        open().use { model ->
            val plain = planOf(cases[case])
            model.use(plain)
            val before = model.infer(input)
            val plan = plain.copy(split = split, hard = hard)
            model.use(plan)
            assertEquals(plan, model.plan)
            before to model.infer(input)
        }

    /** Only samples that reach the end of the subnet are [hard]; every other answer stays as it was. */
    private fun assertMarked(mark: String, hard: List<Boolean>, answers: Pair<Answer, Answer>) {
        val (before, after) = answers
        val expected = before.source.zip(hard) { source, isHard -> if (isHard && source == SUBNET) mark else source }
        assertEquals(expected, after.source)
        assertEquals(before.output.floats().toList(), after.output.floats().toList())
        assertTrue(listOf(mark, SUBNET).all { it in after.source }, "some, not all, have to be hard: ${after.source}")
    }

    /** A decider that calls half of the samples hard that reach the end of the subnet. */
    private fun halfHard(answer: Answer): Decider {
        val atEnd = answer.confidence.filterIndexed { sample, _ -> answer.source[sample] == SUBNET }.sorted()
        return Decider.MaxConfidence(atEnd[atEnd.size / 2])
    }

    @Test
    fun `a plan abstains from hard samples that no exit answered`() {
        val decider = halfHard(answers(case = 3).first)
        val answers = answers(case = 3, hard = Hard.Abstain(decider))
        val (before, after) = answers
        assertMarked(ABSTAINED, hardSamples(decider, before.output), answers)
        for ((sample, label) in after.labels.withIndex()) {
            assertEquals(before.labels[sample].takeUnless { after.source[sample] == ABSTAINED }, label)
        }
        assertEquals(before.confidence, after.confidence)
    }

    @Test
    fun `hard samples of a plan that asks a server get the answer of the subnet`() {
        val decider = halfHard(answers(case = 3).first)
        val tail = subnetOf("o2 o3").edges
        for (ask in listOf(
            Hard.Ask(decider, RemoteRef("big", "ab".repeat(32))),
            Hard.Ask(decider, RemoteRef(), Sends.Activations(2), tail),
        )) {
            val answers = answers(case = 3, hard = ask)
            assertMarked(FALLBACK, hardSamples(decider, answers.first.output), answers)
            assertEquals(answers.first.labels, answers.second.labels)
        }
    }

    @Test
    fun `a plan that is split runs on the device alone`() {
        val server = RemoteRef("reference:tail", "cd".repeat(32))
        for (split in listOf(
            Split(0, listOf(8), subnetOf("o0 o1 o2 o3").edges, server),
            Split(2, listOf(8, 8), subnetOf("o2 o3").edges, server),
        )) {
            val (before, after) = answers(case = 0, split)
            assertEquals(before.source to before.labels, after.source to after.labels)
            assertEquals(List(input.batch) { SUBNET }, after.source)
        }
    }

    @Test
    fun `every plan of the vectors that names no home is taken and answers`() {
        open().use { model ->
            for (case in Contract.vectors["plans"].items.filter { "kind" in it.jsonObject && "home" !in it["json"].text }) {
                val plan = decodePlan(case["json"].text.toByteArray())
                model.use(plan)
                val start = model.bundle.supernet.cutPointsAt(plan.inputSize)[0]
                val answer = model.infer(goldenInputs(start, plans["seed"].seed, batch = 3)[0])
                assertEquals(case["kind"].text to 3, model.plan.kind to answer.labels.size)
            }
        }
    }

    @Test
    fun `one sample needs no batch axis, another shape or type is refused`() {
        open().use { model ->
            val one = Tensor.of(FloatArray(12), listOf(3, 2, 2))
            assertEquals(1, model.infer(one).labels.size)
            assertRefused<InputError> { model.infer(Tensor.of(FloatArray(12), listOf(2, 2, 3))) }
            assertRefused<InputError> { model.infer(Tensor.of(FloatArray(12), listOf(12))) }
            assertRefused<InputError> { model.infer(Tensor.converted(DType.INT8, listOf(1, 3, 2, 2), FloatArray(12))) }
        }
    }

    @Test
    fun `a plan that does not fit leaves the one in use`() {
        open().use { model ->
            val before = model.plan
            assertRefused<UsageError> { model.use(Plan(subnetOf("o0 o1"))) }
            val ask = Hard.Ask(Decider.Margin(0.5), RemoteRef(), Sends.Activations(4))
            assertRefused<UsageError> { model.use(before.copy(hard = ask)) }
            assertEquals(before, model.plan)
            assertEquals(cases[0]["labels"].texts, model.infer(input).labels)
        }
    }

    @Test
    fun `closed twice it answers no more`() {
        val model = open()
        model.close()
        model.close()
        assertRefused<ClosedError> { model.infer(input) }
        assertRefused<ClosedError> { model.use(planOf(cases[0])) }
        assertRefused<ClosedError> { model.plan }
        assertRefused<ClosedError> { model.imageSize }
    }

    @Test
    fun `calls from several threads end with the plan they began with`() {
        val threads = Executors.newFixedThreadPool(4)
        val cases = cases.take(8) // those at the model's own size
        val possible = cases.map { it["source"].texts to it["labels"].texts }
        open().use { model ->
            val running = List(4) {
                threads.submit(
                    Callable {
                        repeat(150) {
                            val answer = model.infer(input)
                            val given = answer.source to answer.labels
                            assertTrue(given in possible, "an answer of no plan: $given")
                        }
                    },
                )
            }
            for (round in 0 until 40) model.use(planOf(cases[round % cases.size]))
            running.forEach { it.get() }
        }
        threads.shutdown()
    }

    @Test
    fun `a call in progress outlives its plan and its model`() {
        val runtime = HoldingRuntime()
        val model = open(runtime)
        val threads = Executors.newSingleThreadExecutor()
        val call = threads.submit(Callable { model.infer(input).labels })
        assertTrue(runtime.entered.await(10, TimeUnit.SECONDS))
        model.use(planOf(cases[1]))
        model.close()
        assertEquals(1, runtime.closed, "only the plan that nobody is in is freed")
        runtime.goOn.countDown()
        assertEquals(cases[0]["labels"].texts, call.get(10, TimeUnit.SECONDS))
        assertEquals(2, runtime.closed)
        threads.shutdown()
    }

    /** ONNX Runtime whose runs wait until they may go on. */
    private class HoldingRuntime : Runtime {
        private val runtime = OnnxRuntime()
        val entered = CountDownLatch(1)
        val goOn = CountDownLatch(1)

        @Volatile
        var closed = 0

        override val identity get() = runtime.identity

        override fun load(stretch: Stretch): LoadedStretch {
            val loaded = runtime.load(stretch)
            return object : LoadedStretch {
                override fun run(inputs: List<Tensor>): List<Tensor> {
                    entered.countDown()
                    goOn.await(10, TimeUnit.SECONDS)
                    return loaded.run(inputs)
                }

                override fun close() {
                    loaded.close()
                    closed++
                }
            }
        }
    }
}
