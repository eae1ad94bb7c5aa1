package pathweave.sdk.session

import java.io.File
import java.nio.file.Path
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.atomic.AtomicBoolean
import kotlin.concurrent.thread
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.BudgetError
import pathweave.sdk.Contract
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.InfeasibleDeadlineError
import pathweave.sdk.InputError
import pathweave.sdk.UsageError
import pathweave.sdk.adapt
import pathweave.sdk.assertRefused
import pathweave.sdk.data.searchPositions
import pathweave.sdk.get
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.argmax
import pathweave.sdk.policies.AdaptationSettings
import pathweave.sdk.policies.AdaptationStage
import pathweave.sdk.policies.Adaptations
import pathweave.sdk.policies.exits.timedPlan
import pathweave.sdk.policies.withinCap
import pathweave.sdk.search.Stopped
import pathweave.sdk.search.smallestSubnet
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Kind
import pathweave.sdk.supernet.Optimised
import pathweave.sdk.supernet.Plan
import pathweave.sdk.text

private val EXITS = setOf(Kind.EXITS)
private val QUICKER = Goal(optimise = Optimised.LATENCY_MS, maxDrop = 0.5)
private val ALL_FIT = Goal(latencyMs = 1000.0)
private val NONE_FITS = Goal(latencyMs = 1e-6)

/** Adapts for real: ONNX Runtime runs and times the reference bundle. */
class AdaptingTest {
    @TempDir
    lateinit var folder: Path

    private val state: File get() = File(folder.toFile(), "state")
    private val stateOfBundle: File get() = state.listFiles()!!.single()

    /** The model, with a profile that was measured before unless [profiled] is false. */
    private fun open(profiled: Boolean = true): AdaptiveModel {
        if (profiled && !state.exists()) Profiled.folder.copyRecursively(state)
        return AdaptiveModel.open(Contract.referenceFolder, Contract.key, stateFolder = state)
    }

    private val labels get() = Adaptations.labels

    @Test
    fun `a model adapts, runs what it found and starts with it the next time`(): Unit = runBlocking {
        open(profiled = false).use { model ->
            val stages = mutableListOf<AdaptationStage>()
            val found = model.adapt(Adaptations.inputs(), ALL_FIT, labels = labels) { stages += it.stage }
            assertEquals(AdaptationStage.entries, stages.distinct())
            assertEquals(found.plan, model.plan)
            assertTrue(found.expected.accuracy!! > 0.9 && found.heldOut!!.accuracy!! > 0.9)
            assertTrue(found.measured!!.latencyMs in 1e-4..1000.0 && found.measured.fullMs in 1e-4..1000.0)
            assertEquals(labels.size, found.samples)
            assertTrue(found.judged in 1 until labels.size)
            assertEquals(Stopped.DONE, found.stopped)
            val sample = Adaptations.inputs().take(listOf(0, 1, 2), model.plan.inputSize)
            val whole = Plan(found.plan.subnet)
            val answer = model.infer(sample)
            model.use(whole)
            assertArrayEquals(argmax(model.infer(sample).output), argmax(answer.output))
        }
        open().use { again ->
            assertNotNull(again.plan)
            val before = again.profileBlocking()
            assertEquals(before, again.profileBlocking())
        }
        val lines = File(stateOfBundle, "adaptation.jsonl").readLines().map { Json.parseToJsonElement(it) }
        assertEquals(listOf("opened", "profiled", "adapted", "opened"), lines.map { it["event"]["event"].text })
        assertEquals(listOf("false", "true"), lines.mapNotNull { it["event"].jsonObject["restored"]?.text })
        val names = stateOfBundle.list()!!.map { it.substringBefore('-') }.toSet()
        assertEquals(setOf("self", "profile", "plan", "pool", "adaptation.jsonl"), names)
    }

    @Test
    fun `under a memory cap a subnet is found that runs without pages, if there is one`() {
        open().use { model ->
            val (supernet, costs) = model.bundle.supernet to model.profileBlocking().costModel()
            val capBytes = costs.peakBytes(smallestSubnet(supernet, costs)) + 1
            val all = Budget(latencyMs = 1000.0)
            assertEquals(all.copy(memoryMb = capBytes / 1e6), withinCap(supernet, costs, all, capBytes))
            assertEquals(all, withinCap(supernet, costs, all, capBytes = null))
            assertEquals(all, withinCap(supernet, costs, all, capBytes = 1), "all would run in pages")
            val less = Budget(memoryMb = 1e-6)
            assertEquals(less, withinCap(supernet, costs, less, capBytes))
            model.memoryCapBytes = 8_000_000 // the original runs, and all of the reference bundle fits
            val found = model.adaptBlocking(Adaptations.inputs(), ALL_FIT, labels = labels)
            assertEquals(8.0, found.goal.memoryMb)
            assertTrue(found.expected.peakBytes <= 8_000_000)
        }
    }

    @Test
    fun `exits may join the search, and what was found is run, judged and watched`() {
        open().use { model ->
            val kinds = setOf(Kind.SUBNETS, Kind.EXITS)
            val found = model.adaptBlocking(Adaptations.inputs(), Goal(latencyRatio = 2.0), kinds, labels)
            assertEquals(found.plan, model.plan)
            assertTrue(found.pool.any { it.subnet == found.plan.subnet })
            assertTrue(found.expected.accuracy!! > 0.5 && found.heldOut!!.accuracy!! > 0.5)
            model.live.start(Signal.LATENCY)
        }
    }

    @Test
    fun `without labels the full model's answers stand in`(): Unit = runBlocking {
        open().use { model ->
            val found = model.adapt(Adaptations.inputs(), ALL_FIT)
            assertEquals(1.0, found.fullAccuracy)
        }
    }

    @Test
    fun `a budget that nothing keeps is refused, names the nearest, and the plan in use stays`(): Unit = runBlocking {
        open().use { model ->
            val before = model.plan
            val error = assertRefused<InfeasibleBudgetError> {
                runBlocking { model.adapt(Adaptations.inputs(), NONE_FITS, labels = labels) }
            }
            assertTrue(error.nearest.isNotEmpty() && error.nearestLatencyMs > 1e-6)
            assertTrue(error.message!!.startsWith("no subnet ran in 0.000001 ms; the fastest candidate took"))
            assertEquals(before, model.plan)
        }
        assertEquals(listOf("infeasible"), lastEvents(1))
    }

    @Test
    fun `exits of the subnet in use are chosen, timed and kept, and answer by deadlines`(): Unit = runBlocking {
        val found = open().use { model ->
            val found = model.adapt(Adaptations.inputs(), QUICKER, EXITS, labels)
            assertEquals(found.plan, model.plan)
            assertTrue(found.measured == null || found.measured.latencyMs < found.measured.withoutExitsMs!!)
            val sample = Adaptations.inputs().take(listOf(0), null)
            val times = model.answerTimesMs(sample)
            assertEquals(found.plan.exits.map { "exit ${it.exit}" } + SUBNET, times.keys.toList())
            assertEquals(model.infer(sample).labels, model.infer(sample, deadlineMs = 60_000.0).labels)
            assertRefused<InfeasibleDeadlineError> { model.infer(sample, deadlineMs = 1e-6) }
            found
        }
        open().use { model ->
            assertEquals(found.plan, model.plan)
            val sample = Adaptations.inputs().take(listOf(0), null)
            model.use(Plan(found.plan.subnet))
            assertEquals(listOf(SUBNET), model.answerTimesMs(sample).keys.toList())
            val answer = model.infer(sample).labels
            model.use(timedPlan(model.bundle.supernet, found.plan.subnet))
            val exits = listOf("exit x1-pooled", "exit x2-flat", "exit x3-pooled")
            assertEquals(exits + SUBNET, model.answerTimesMs(sample).keys.toList())
            assertEquals(answer, model.infer(sample).labels)
        }
        assertEquals("plan_chosen", lastEvents(2)[0])
    }

    @Test
    fun `what was adapted to is watched, until another plan is taken on purpose`(): Unit = runBlocking {
        open().use { model ->
            val found = model.adapt(Adaptations.inputs(), ALL_FIT, labels = labels)
            model.live.start(Signal.LATENCY)
            assertEquals(setOf(Signal.LATENCY), model.live.running)
            val sample = Adaptations.inputs().take(listOf(0), model.plan.inputSize)
            val answer = model.infer(sample).labels
            repeat(50) { assertEquals(answer, model.infer(sample).labels) }
            model.adapt(Adaptations.inputs(), QUICKER, EXITS, labels)
            assertEquals(setOf(Signal.LATENCY), model.live.running, "it goes on with the same subnet")
            model.use(Plan(found.plan.subnet))
            assertEquals(emptySet<Signal>(), model.live.running)
            assertRefused<UsageError> { model.live.start(Signal.LATENCY, goal = Goal(memoryMb = 100.0)) }
        }
        open().use { again ->
            again.live.start(Signal.LATENCY, goal = Goal(latencyMs = 500.0))
            assertEquals(setOf(Signal.LATENCY), again.live.running)
        }
        assertTrue("watching" in lastEvents(3))
    }

    private fun lastEvents(count: Int) = File(stateOfBundle, "adaptation.jsonl").readLines().takeLast(count)
        .map { Json.parseToJsonElement(it)["event"]["event"].text }

    @Test
    fun `a cancelled coroutine leaves the plan in use`(): Unit = runBlocking {
        open().use { model ->
            model.profileBlocking()
            val started = AtomicBoolean()
            var thrown: Throwable? = null
            val job = launch(Dispatchers.Default) {
                try {
                    model.adapt(Adaptations.inputs(), ALL_FIT, labels = labels) {
                        started.set(true)
                        Thread.sleep(20)
                    }
                } catch (error: CancellationException) {
                    thrown = error
                    throw error
                }
            }
            while (!started.get()) Thread.sleep(1)
            job.cancelAndJoin()
            assertTrue(thrown is CancellationException)
            assertEquals(Contract.reference().supernet.original, model.plan.subnet)
        }
    }

    @Test
    fun `a search that is stopped takes the best so far, or says that there is none`() {
        open().use { model ->
            var asked = 0
            val late = AdaptationSettings(cancelled = { ++asked > 16 })
            assertEquals(Stopped.CANCELLED, model.adaptBlocking(Adaptations.inputs(), ALL_FIT, labels = labels, settings = late).stopped)
            val atOnce = AdaptationSettings(cancelled = { true })
            assertRefused<BudgetError> { model.adaptBlocking(Adaptations.inputs(), ALL_FIT, settings = atOnce) }
            val inNoTime = AdaptationSettings(timeLimitS = 0.0)
            val found = model.adaptBlocking(Adaptations.inputs(), ALL_FIT, settings = inNoTime)
            assertEquals(Stopped.TIME_LIMIT, found.stopped)
        }
    }

    @Test
    fun `calls are answered while the model adapts`() {
        open().use { model ->
            val done = AtomicBoolean()
            val sample = Adaptations.inputs().take(listOf(0), null)
            val answers = ConcurrentHashMap.newKeySet<List<Float>>()
            val before = model.infer(sample).output.floats().toList()
            val callers = List(4) {
                thread {
                    while (!done.get()) answers += model.infer(sample).output.floats().toList()
                }
            }
            val found = model.adaptBlocking(Adaptations.inputs(), ALL_FIT, labels = labels)
            done.set(true)
            callers.forEach { it.join() }
            assertNull(found.plan.inputSize) // else the sample's size would no longer fit
            assertEquals(setOf(before, model.infer(sample).output.floats().toList()), answers + setOf(before))
        }
    }

    @Test
    fun `bad input is refused with what is wrong`() {
        open().use { model ->
            val (inputs, few) = Adaptations.inputs() to intArrayOf(0, 1)
            fun refused(work: () -> Unit) = assertRefused<InputError> { work() }.message
            assertEquals(
                "there are 500 samples and 2 labels",
                refused { model.adaptBlocking(inputs, ALL_FIT, labels = few) },
            )
            val unknown = labels.copyOf().also { it[3] = 3 }
            assertEquals(
                "labels must lie between 0 and 2, got 0 to 3",
                refused { model.adaptBlocking(inputs, ALL_FIT, labels = unknown) },
            )
            assertEquals(
                "there are no samples to adapt on",
                refused { model.adaptBlocking(model.inputs(emptyList()), ALL_FIT) },
            )
            val broken = FloatArray(24).also { it[13] = Float.NaN }
            assertEquals(
                "1 of 2 samples have values that are no numbers, number 1 first",
                refused { model.inputs(Tensor.of(broken, listOf(2, 3, 2, 2))) },
            )
            assertRefused<UsageError> {
                model.adaptBlocking(inputs, ALL_FIT, settings = AdaptationSettings(strategy = "luck"))
            }
            assertRefused<UsageError> { AdaptationSettings(batch = 0) }
            assertRefused<UsageError> { searchPositions(labels, 1.0, 0) }
            assertNull(model.plan.split)
        }
    }
}

/** A state folder with the profile of the reference bundle, measured once. */
private object Profiled {
    val folder: File by lazy {
        val state = kotlin.io.path.createTempDirectory("state").toFile()
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, stateFolder = state).use { it.profileBlocking() }
        Runtime.getRuntime().addShutdownHook(thread(start = false) { state.deleteRecursively() })
        state
    }
}
