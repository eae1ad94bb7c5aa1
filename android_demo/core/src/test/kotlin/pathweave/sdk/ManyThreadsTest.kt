package pathweave.sdk

import java.util.concurrent.Callable
import java.util.concurrent.Executors
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicInteger
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.execution.LoadedPlan
import pathweave.sdk.execution.Outcome
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.execution.leastMemoryCapBytes
import pathweave.sdk.execution.planOf
import pathweave.sdk.numerics.argmax
import pathweave.sdk.session.Answer
import pathweave.sdk.session.sources
import pathweave.sdk.supernet.Plan

private const val THREADS = 8
private const val ROUNDS = 60

/** Calls while plans are exchanged, pages evicted, the cap changed and the model closed. */
@Timeout(120)
class ManyThreadsTest {
    private val bundle = Contract.reference()
    private val plans = Contract.vectors["bundle"]["plans"]
    private val cases = plans["cases"].items.take(8) // those at the model's own size
    private val input = goldenInputs(bundle.supernet.cutPoints[0], plans["seed"].seed, plans["batch"].int)[0]

    /** What each plan answers, under any cap; paths that a cap cuts short included. */
    private val possible: Set<Pair<List<String>, List<String?>>> = cases.flatMap { case ->
        val plan = planOf(case)
        val shorter = plan.exits.map { last ->
            Plan(plan.subnet, plan.exits.takeWhile { it != last } + last.copy(threshold = 0.0))
        }
        (listOf(plan) + shorter).map { one ->
            LoadedPlan(bundle, SlowRuntime(), one).use { loaded ->
                val outcome = loaded.run(input)
                sources(one, outcome) to labels(outcome)
            }
        }
    }.toSet()

    private fun labels(outcome: Outcome): List<String?> =
        argmax(outcome.output).map { bundle.manifest.task.classNames[it] }

    @Test
    fun `no call gets a wrong answer, and nothing stays open`() {
        val runtime = SlowRuntime()
        val model = AdaptiveModel.open(Contract.referenceFolder, Contract.key, runtime, selfTested = { true })
        val threads = Executors.newFixedThreadPool(THREADS)
        val (answers, wrong) = AtomicInteger() to AtomicInteger()
        val calls = List(THREADS) { number ->
            threads.submit(
                Callable {
                    while (true) {
                        val answer = try {
                            if (number % 4 == 3) model.stream(input).use { it.waitEnd() } else call(model, number)
                        } catch (_: ClosedError) {
                            return@Callable
                        }
                        answers.incrementAndGet()
                        val given = answer.source to answer.labels
                        if (given !in possible) wrong.incrementAndGet()
                    }
                },
            )
        }
        val least = planOf(cases[0]).let { leastMemoryCapBytes(bundle, it) } + 4_000_000
        for (round in 0 until ROUNDS) {
            model.use(planOf(cases[round % cases.size]))
            if (round % 3 == 0) model.memoryCapBytes = if (round % 2 == 0) least else least / 4
            if (round % 7 == 6) model.memoryCapBytes = null
        }
        val before = answers.get()
        while (answers.get() < before + THREADS && calls.none { it.isDone }) Thread.sleep(1)
        model.close()
        calls.forEach { it.get(30, TimeUnit.SECONDS) }
        threads.shutdown()
        assertEquals(0, wrong.get(), "wrong answers of ${answers.get()}")
        assertTrue(answers.get() > 100, "${answers.get()} answers")
        val endNs = System.nanoTime() + 10_000_000_000
        while (runtime.open.get() > 0 && System.nanoTime() < endNs) Thread.sleep(5)
        assertEquals(0, runtime.open.get(), "sessions left open")
    }

    private fun call(model: AdaptiveModel, number: Int): Answer =
        if (number < 2) model.infer(input) else model.infer(input, deadlineMs = 10_000.0)
}
