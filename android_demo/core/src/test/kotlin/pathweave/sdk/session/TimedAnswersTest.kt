package pathweave.sdk.session

import java.util.concurrent.CountDownLatch
import kotlin.concurrent.thread
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.ClosedError
import pathweave.sdk.Contract
import pathweave.sdk.InfeasibleDeadlineError
import pathweave.sdk.InputError
import pathweave.sdk.NoAnswerYetError
import pathweave.sdk.SlowRuntime
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.execution.planOf
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.StopSignal
import pathweave.sdk.seed
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE
import pathweave.sdk.texts

private const val STEP_MS = 8L

@Timeout(60)
class TimedAnswersTest {
    private val bundle = Contract.reference()
    private val input = goldenInputs(bundle.supernet.cutPoints[0], seed = 7L, batch = 1)[0]
    private val timed = listOf("x1-pooled", "x2-flat", "x3-pooled").map { ExitChoice(it, UNREACHABLE_CONFIDENCE) }
    private val plan = Plan(bundle.supernet.original, timed)
    private val sources = timed.map { "exit ${it.exit}" } + SUBNET

    private fun open(runtime: SlowRuntime, plan: Plan = this.plan) =
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, runtime, selfTested = { true })
            .also { it.use(plan) }

    private fun answers(answer: Answer) = answer.output.floats().toList()

    @Test
    fun `without a deadline the plan answers as without its exits, with a long one too`() {
        open(SlowRuntime()).use { model ->
            val answer = model.infer(input)
            assertEquals(listOf(SUBNET), answer.source)
            val timed = model.infer(input, deadlineMs = 10_000.0)
            assertEquals(answer.source to answer.output.floats().toList(), timed.source to answers(timed))
        }
    }

    @Test
    fun `the last exit that is sure to be in time answers`() {
        open(SlowRuntime { STEP_MS }).use { model ->
            val times = model.answerTimesMs(input)
            assertEquals(sources, times.keys.toList())
            assertEquals(times.values.sorted(), times.values.toList())
            for ((source, next) in sources.zipWithNext()) {
                val deadlineMs = (times.getValue(source) + times.getValue(next)) / 2
                val answer = model.infer(input, deadlineMs)
                val (given, sure) = sources.indexOf(answer.source[0]) to sources.indexOf(source)
                assertTrue(given <= sure, "$deadlineMs: ${answer.source}")
                assertTrue(answer.latencyMs < times.getValue(next), "${answer.latencyMs} of $deadlineMs")
            }
        }
    }

    @Test
    fun `an exit that answers by a deadline says what its branch says`() {
        open(SlowRuntime { STEP_MS }).use { model ->
            val times = model.answerTimesMs(input)
            val answer = model.infer(input, deadlineMs = (times.values.first() + 1.5 * STEP_MS))
            val first = Plan(plan.subnet, listOf(ExitChoice(answer.source[0].removePrefix("exit "), 0.0)))
            model.use(first)
            assertEquals(model.infer(input).output.floats().toList(), answer.output.floats().toList())
        }
    }

    @Test
    fun `a deadline below the first exit is refused and says the least one`() {
        open(SlowRuntime { STEP_MS }).use { model ->
            val error = assertRefused<InfeasibleDeadlineError> { model.infer(input, deadlineMs = STEP_MS / 2.0) }
            assertTrue(error.leastMs >= STEP_MS, "${error.leastMs}")
            assertTrue(error.message!!.startsWith("no answer is sure to be there within 4.00 ms"), error.message)
            for (nonsense in listOf(0.0, -1.0, Double.NaN)) {
                assertRefused<UsageError> { model.infer(input, deadlineMs = nonsense) }
            }
        }
    }

    @Test
    fun `a run that is slower than expected ends with the step before`() {
        val runtime = SlowRuntime { STEP_MS }
        open(runtime).use { model ->
            val times = model.answerTimesMs(input).values.toList()
            runtime.delayMs = { outputs -> if ("x1-pooled" in outputs.last()) STEP_MS else 2_000 }
            val deadlineMs = times.last() + 2 * STEP_MS
            val answer = model.infer(input, deadlineMs)
            assertEquals(listOf(sources[0]), answer.source)
            assertTrue(answer.latencyMs < deadlineMs + 500, "${answer.latencyMs} of $deadlineMs")
        }
    }

    @Test
    fun `samples that are sure keep the answer of their exit`() {
        val cases = Contract.vectors["bundle"]["plans"]["cases"].items
        val plans = Contract.vectors["bundle"]["plans"]
        val batch = goldenInputs(bundle.supernet.cutPoints[0], plans["seed"].seed, plans["batch"].int)[0]
        open(SlowRuntime(), planOf(cases[4])).use { model ->
            val answer = model.infer(batch, deadlineMs = 10_000.0)
            assertEquals(cases[4]["source"].texts to cases[4]["labels"].texts, answer.source to answer.labels)
        }
    }

    @Test
    fun `an anytime run has better and better answers and may be stopped by another thread`() {
        val runtime = SlowRuntime { outputs -> if ("x3-pooled" in outputs.last()) 20_000 else STEP_MS }
        open(runtime).use { model ->
            model.stream(input).use { running ->
                assertEquals(listOf(sources[0]), running.waitFirst().source)
                while (running.latest().source != listOf(sources[1])) Thread.sleep(1)
                thread { running.stop() }
                assertEquals(listOf(sources[1]), running.waitEnd().source)
                assertTrue(running.done && running.answered)
            }
        }
    }

    @Test
    fun `left alone, an anytime run ends with the answer of the subnet`() {
        open(SlowRuntime()).use { model ->
            model.stream(input).use { running ->
                assertEquals(listOf(SUBNET), running.waitEnd().source)
                assertEquals(model.infer(input).output.floats().toList(), running.latest().output.floats().toList())
            }
        }
    }

    @Test
    fun `before the first exit there is no answer yet`() {
        open(SlowRuntime { 20_000 }).use { model ->
            model.stream(input).use { running ->
                assertEquals("no exit was reached yet", assertRefused<NoAnswerYetError> { running.latest() }.message)
                assertRefused<NoAnswerYetError> { running.waitFirst(timeoutMs = 1) }
                running.stop()
                val stopped = assertRefused<NoAnswerYetError> { running.waitEnd() }
                assertEquals("the run was stopped before its first exit", stopped.message)
                assertFalse(running.answered)
            }
        }
    }

    @Test
    fun `what is no input is refused before a run begins, and a closed model begins none`() {
        val runtime = SlowRuntime()
        val model = open(runtime)
        assertRefused<InputError> { model.stream(Tensor.of(FloatArray(3), listOf(1, 3))) }
        model.close()
        assertRefused<ClosedError> { model.stream(input) }
        assertRefused<ClosedError> { model.infer(input, deadlineMs = 5.0) }
        assertEquals(0, runtime.open.get())
    }

    @Test
    fun `ONNX Runtime ends a run when it is told to`() {
        val stretch = bundle.stretch(bundle.supernet.original.edges)
        val batch = goldenInputs(bundle.supernet.cutPoints[0], seed = 1L, batch = 400_000)
        OnnxRuntime().load(stretch).use { loaded ->
            assertEquals(400_000, checkNotNull(loaded.runUntil(batch, StopSignal())).last().batch)
            assertNull(loaded.runUntil(batch, StopSignal().apply { set() }))
            val begun = CountDownLatch(1)
            val ended = (1..20).count {
                val stop = StopSignal()
                val stopper = thread {
                    begun.await()
                    Thread.sleep(2)
                    stop.set()
                }
                begun.countDown()
                val outputs = loaded.runUntil(batch, stop)
                stopper.join()
                outputs == null
            }
            assertTrue(ended > 0, "no run was ended")
            assertEquals(1, loaded.run(listOf(input)).last().batch, "it runs on afterwards")
        }
    }
}
