package pathweave.sdk.session

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.execution.AFTER_FAILURE
import pathweave.sdk.execution.AT_END
import pathweave.sdk.execution.AT_SERVER
import pathweave.sdk.execution.LoadedPlan
import pathweave.sdk.execution.Outcome
import pathweave.sdk.execution.UNANSWERED
import pathweave.sdk.execution.Waiting
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.execution.leastMemoryCapBytes
import pathweave.sdk.execution.segments
import pathweave.sdk.get
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.offload.Privacy
import pathweave.sdk.offload.RemoteModel
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.seed
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Fallback
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.Sends
import pathweave.sdk.supernet.Split
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE
import pathweave.sdk.supernet.confidence

/** Plans whose path goes on elsewhere, with what runs there in the test's hands. */
@Timeout(60)
class RemotePlansTest {
    private val bundle = Contract.reference()
    private val supernet = bundle.supernet
    private val plans = Contract.vectors["bundle"]["plans"]
    private val input = goldenInputs(supernet.cutPoints[0], plans["seed"].seed, batch = 6)[0]
    private val server = RemoteRef("reference:tail", bundle.digest)

    private fun tailFrom(position: Int) =
        supernet.walk(supernet.original).filter { (_, block) -> block.start >= position }.map { it.first }

    private fun split(position: Int, exits: List<ExitChoice> = emptyList()) = Plan(
        supernet.original,
        exits,
        Split(position, List(supernet.cutPoints[position].tensors.size) { 8 }, tailFrom(position), server),
    )

    private fun run(plan: Plan, runTail: ((List<Tensor>) -> Tensor?)?, cap: Long? = null): Outcome =
        LoadedPlan(bundle, OnnxRuntime(), plan, cap).use { it.run(input, runTail) }

    private fun assertClose(expected: Tensor, found: Tensor) {
        assertEquals(expected.shape, found.shape)
        for (at in 0 until expected.size) assertEquals(expected[at], found[at], 1e-5)
    }

    @Test
    fun `the tensors at the split go on elsewhere, at every cut point and in pages too`() {
        val whole = run(Plan(supernet.original), null)
        val leastBytes = leastMemoryCapBytes(bundle, Plan(supernet.original))
        for (position in 0 until supernet.outputIndex) {
            for (cap in listOf(null, leastBytes)) {
                val outcome = run(split(position), { features ->
                    OnnxRuntime().load(bundle.stretch(tailFrom(position))).use { it.run(features).last() }
                }, cap)
                assertEquals(List(6) { AT_SERVER }, outcome.answeredBy.toList())
                assertClose(whole.output, outcome.output)
            }
        }
    }

    @Test
    fun `without an answer the rest of the subnet runs here`() {
        val whole = run(Plan(supernet.original), null)
        for (position in 0 until supernet.outputIndex) {
            val failed = run(split(position), { null })
            assertEquals(List(6) { AFTER_FAILURE }, failed.answeredBy.toList())
            assertClose(whole.output, failed.output)
            val alone = run(split(position), null)
            assertEquals(List(6) { AT_END }, alone.answeredBy.toList())
            assertClose(whole.output, alone.output)
        }
    }

    @Test
    fun `what an exit answers is not sent`() {
        val plain = Plan(supernet.original, listOf(ExitChoice("x1-pooled", 1e-9)))
        val sure = LoadedPlan(bundle, OnnxRuntime(), plain).use { confidence(it.run(input).output) }.sorted()
        val exit = ExitChoice("x1-pooled", sure[3])
        for (position in 1 until supernet.outputIndex) {
            var sent = 0
            val outcome = run(split(position, listOf(exit)), { features ->
                sent = features[0].batch
                Tensor.of(FloatArray(3 * sent), listOf(sent, 3))
            })
            assertEquals(3, sent)
            assertEquals(3, outcome.answeredBy.count { it == 0 })
            assertEquals(3, outcome.answeredBy.count { it == 1 + AT_SERVER })
        }
    }

    @Test
    fun `activations that may be sent are kept for the samples that got there`() {
        val exit = ExitChoice("x1-pooled", 0.5)
        val ask = Hard.Ask(Decider.MaxConfidence(0.5), server, Sends.Activations(2), tailFrom(2))
        for (exits in listOf(emptyList(), listOf(exit))) {
            val outcome = run(Plan(supernet.original, exits, hard = ask), null)
            val kept = checkNotNull(outcome.kept)
            val atEnd = outcome.answeredBy.indices.filter { outcome.answeredBy[it] == exits.size }
            assertEquals(atEnd, kept.samples)
            if (atEnd.isEmpty()) continue
            val wanted = listOf(atEnd.last())
            val answer = OnnxRuntime().load(bundle.stretch(tailFrom(2))).use { it.run(kept.of(wanted)).last() }
            assertClose(outcome.output.rows(wanted), answer)
        }
        assertNull(run(Plan(supernet.original), null).kept)
    }

    /** An exit that answers the surer half of the samples, and below that asks about the least sure third. */
    private fun asksEarly(): Plan {
        val every = Plan(supernet.original, listOf(ExitChoice("x2-flat", 0.0)))
        val sure = LoadedPlan(bundle, OnnxRuntime(), every).use { confidence(it.run(input).output) }.sorted()
        val ask = Hard.Ask(Decider.MaxConfidence(0.0), server, Sends.Activations(2), tailFrom(2))
        return Plan(supernet.original, listOf(ExitChoice("x2-flat", sure[3], askBelow = sure[2])), hard = ask)
    }

    @Test
    fun `what asks at an exit leaves the path there, and goes on there if no answer comes`() {
        val whole = run(Plan(supernet.original), null)
        for (cap in listOf(null, leastMemoryCapBytes(bundle, asksEarly()))) {
            LoadedPlan(bundle, OnnxRuntime(), asksEarly(), cap).use { loaded ->
                val stays = loaded.run(input)
                assertEquals(emptyList<Waiting>(), stays.asking)
                assertEquals(3, stays.answeredBy.count { it == 0 })
                val outcome = loaded.run(input, null, asks = true)
                val waiting = outcome.asking.single()
                assertEquals(2, waiting.samples.size)
                assertEquals(waiting.samples, waiting.samples.sorted())
                assertEquals(5, outcome.answeredBy.count { it == 0 }) // until then the exit's answer stands for them
                val kept = checkNotNull(outcome.kept).of(waiting.samples)
                assertEquals(waiting.tensors.map { it.floats().toList() }, kept.map { it.floats().toList() })
                val after = loaded.goOn(outcome)
                assertEquals(List(2) { 1 + AT_END }, waiting.samples.map { after.answeredBy[it] })
                assertEquals(3, after.answeredBy.count { it == 0 })
                assertEquals(5, outcome.answeredBy.count { it == 0 })
                assertClose(whole.output.rows(waiting.samples), after.output.rows(waiting.samples))
            }
        }
    }

    private fun head(fallback: Fallback, position: Int, vararg exits: ExitChoice) =
        split(position, exits.toList()).let { it.copy(split = it.split?.copy(fallback = fallback)) }

    @Test
    fun `nothing behind the split of a head is loaded, and without its server it abstains`() {
        for (position in 0 until supernet.outputIndex) {
            val plan = head(Fallback.ABSTAIN, position)
            val edges = segments(supernet, plan).flatMap { it.edges }
            assertEquals(supernet.walk(supernet.original).filter { it.second.end <= position }.map { it.first }, edges)
            LoadedPlan(bundle, OnnxRuntime(), plan, leastMemoryCapBytes(bundle, plan)).use { loaded ->
                val served = loaded.run(input, { features -> Tensor.of(FloatArray(18), listOf(features[0].batch, 3)) })
                assertEquals(List(6) { AT_SERVER }, served.answeredBy.toList())
                for (failed in listOf(loaded.run(input, { null }), loaded.run(input))) {
                    assertEquals(List(6) { UNANSWERED }, failed.answeredBy.toList())
                    assertTrue(failed.output.floats().all { it.isNaN() })
                }
                assertRefused<UsageError> { loaded.stepped() }
            }
        }
    }

    @Test
    fun `an exit stands in for the server, whether it ran before or not`() {
        val every = run(Plan(supernet.original, listOf(ExitChoice("x2-flat", 0.0))), null).output
        val sure = confidence(every)
        for (position in listOf(2, 3)) {
            for (threshold in listOf(UNREACHABLE_CONFIDENCE, sure.sorted()[3])) {
                val plan = head(Fallback.EXIT, position, ExitChoice("x2-flat", threshold))
                var sent = 0
                val failed = run(plan, { features -> null.also { sent = features[0].batch } })
                assertEquals(sure.map { if (it >= threshold) 0 else 1 + AFTER_FAILURE }, failed.answeredBy.toList())
                assertEquals(sure.count { it < threshold }, sent)
                assertClose(every, failed.output)
            }
        }
    }

    @Test
    fun `a server that a plan needs is named when it is not connected, is another or may not be sent to`() {
        val remote = Remote(bundle, null)
        val asking = Plan(supernet.original, hard = Hard.Ask(Decider.MaxConfidence(0.5), RemoteRef("big:images")))
        val inner = Plan(supernet.original, hard = asking.hard.let { Hard.Ask(Decider.MaxConfidence(0.5), server, Sends.Activations(2), tailFrom(2)) })
        assertNull(remote.whyNot(Plan(supernet.original)))
        for (plan in listOf(asking, inner, split(1))) assertTrue("no server is connected" in remote.whyNot(plan)!!)
        fun connect(model: String, privacy: Privacy) = remote.connect(RemoteModel("http://127.0.0.1:1", model, privacy = privacy))
        connect("other:images", Privacy.INPUTS)
        assertTrue("connected is other:images" in remote.whyNot(asking)!!)
        for ((privacy, forbids) in listOf(Privacy.NEVER to 4, Privacy.ACTIVATIONS to 2, Privacy.INPUTS to 0)) {
            connect("big:images", privacy)
            connect("reference:tail", privacy)
            val reasons = listOf(asking, split(0), split(1), inner).mapNotNull(remote::whyNot)
            assertEquals(forbids, reasons.size, "$reasons")
            assertTrue(reasons.all { "the privacy setting $privacy forbids" in it })
        }
        remote.close()
        assertNotNull(remote.whyNot(split(1)))
    }

    @Test
    fun `a plan whose server is gone is answered here, and marked`() {
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, selfTested = { true }).use { model ->
            for (name in listOf("reference:images", "reference:tail")) {
                model.remote.connect(RemoteModel("http://127.0.0.1:1", name, privacy = Privacy.INPUTS, timeoutS = 1.0))
            }
            val whole = model.infer(input)
            val images = RemoteRef("reference:images", bundle.digest)
            val hard = Decider.MaxConfidence(UNREACHABLE_CONFIDENCE)
            for (plan in listOf(
                split(1),
                Plan(supernet.original, split = Split(0, emptyList(), emptyList(), images)),
                Plan(supernet.original, hard = Hard.Ask(hard, images)),
                Plan(supernet.original, hard = Hard.Ask(hard, server, Sends.Activations(2), tailFrom(2))),
                Plan(
                    supernet.original,
                    listOf(ExitChoice("x2-flat", UNREACHABLE_CONFIDENCE, askBelow = UNREACHABLE_CONFIDENCE)),
                    hard = Hard.Ask(hard, server, Sends.Activations(2), tailFrom(2)),
                ),
            )) {
                model.use(plan)
                val answer = model.infer(input)
                assertEquals(List(6) { FALLBACK }, answer.source)
                assertEquals(plan, answer.plan)
                assertClose(whole.output, answer.output)
                assertEquals(whole.labels, answer.labels)
            }
            model.use(split(1).copy(hard = Hard.Abstain(hard)))
            assertEquals(List(6) { ABSTAINED }, model.infer(input).source)
            model.use(head(Fallback.ABSTAIN, 1))
            val nothing = model.infer(input)
            assertEquals(List(6) { ABSTAINED }, nothing.source)
            assertEquals(List(6) { null }, nothing.labels)
            model.use(head(Fallback.EXIT, 2, ExitChoice("x2-flat", UNREACHABLE_CONFIDENCE)))
            assertEquals(List(6) { FALLBACK }, model.infer(input).source)
            assertEquals(listOf("exit x2-flat"), model.answerTimesMs(input).keys.toList())
            model.remote.disconnect()
            model.use(split(1))
            assertEquals(List(6) { SUBNET }, model.infer(input).source)
            assertEquals(listOf(FALLBACK), model.answerTimesMs(input).keys.toList())
        }
    }
}
