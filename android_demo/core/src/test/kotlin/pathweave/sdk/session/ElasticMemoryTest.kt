package pathweave.sdk.session

import java.io.File
import java.nio.file.Path
import kotlin.concurrent.thread
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.BudgetError
import pathweave.sdk.ClosedError
import pathweave.sdk.Contract
import pathweave.sdk.MeasurementError
import pathweave.sdk.SlowRuntime
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.execution.LoadedPlan
import pathweave.sdk.execution.MemoryCap
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.execution.leastMemoryCapBytes
import pathweave.sdk.execution.planOf
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.live.ElasticSettings
import pathweave.sdk.memory_pressure.MemoryPressure
import pathweave.sdk.memory_pressure.MemoryReading
import pathweave.sdk.memory_pressure.SystemMemory
import pathweave.sdk.memory_pressure.TrimMemory
import pathweave.sdk.numerics.argmax
import pathweave.sdk.policies.exits.leastPlanBytes
import pathweave.sdk.policies.exits.wholePlanBytes
import pathweave.sdk.seed
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE
import pathweave.sdk.texts

@Timeout(60)
class ElasticMemoryTest {
    private val bundle = Contract.reference()
    private val plans = Contract.vectors["bundle"]["plans"]
    private val cases = plans["cases"].items
    private val input = goldenInputs(bundle.supernet.cutPoints[0], plans["seed"].seed, plans["batch"].int)[0]
    private val one = goldenInputs(bundle.supernet.cutPoints[0], seed = 7L, batch = 1)[0]
    private val ends = Plan(bundle.supernet.original, listOf("x1-pooled", "x3-pooled").map { ExitChoice(it, 0.99) })
    private val timed = Plan(
        bundle.supernet.original,
        listOf("x1-pooled", "x2-flat", "x3-pooled").map { ExitChoice(it, UNREACHABLE_CONFIDENCE) },
    )

    @TempDir
    lateinit var folder: Path

    private fun open(runtime: SlowRuntime = SlowRuntime(), state: File? = null) = AdaptiveModel.open(
        Contract.referenceFolder, Contract.key, runtime, selfTested = { true }, stateFolder = state,
    )

    /** Tells what it was told, and fails while it is told nothing. */
    private class Told(@Volatile var availableBytes: Long?) : MemoryPressure {
        override val name get() = "told"

        override fun read() = MemoryReading(availableBytes ?: throw MeasurementError("nothing was told"))
    }

    private fun until(what: String, holds: () -> Boolean) {
        val endNs = System.nanoTime() + 20_000_000_000
        while (!holds()) {
            assertTrue(System.nanoTime() < endNs, what)
            Thread.sleep(2)
        }
    }

    @Test
    fun `in pages it answers the same, and never takes more than the cap`() {
        for (case in cases.take(8)) {
            val plan = planOf(case)
            val least = leastMemoryCapBytes(bundle, plan)
            for (capBytes in listOf(least, least + 600_000, wholePlanBytes(bundle, plan))) {
                val cap = MemoryCap(capBytes)
                Workspace(bundle, SlowRuntime(), capBytes).loadPlan(plan, cap).use { loaded ->
                    repeat(3) {
                        val outcome = loaded.run(input)
                        val labels = argmax(outcome.output).map(bundle.manifest.task.classNames::get)
                        assertEquals(case["labels"].texts, labels)
                        assertEquals(case["source"].texts, sources(plan, outcome))
                    }
                    assertTrue(cap.peakBytes in 1..capBytes, "${cap.peakBytes} of $capBytes")
                }
                assertEquals(0, cap.usedBytes)
            }
        }
    }

    @Test
    fun `under a small cap pages are loaded again, under a large one never`() {
        val plan = Plan(bundle.supernet.original)
        val loads = listOf(leastMemoryCapBytes(bundle, plan), wholePlanBytes(bundle, plan)).map { capBytes ->
            LoadedPlan(bundle, SlowRuntime(), plan, capBytes).use { loaded ->
                repeat(3) { loaded.run(one) }
                loaded.pageLoads!!
            }
        }
        assertTrue(loads[0] > 8, "$loads")
        assertEquals(1, loads[1])
    }

    @Test
    fun `a cap below the largest block is refused and says the least one`() {
        val least = leastMemoryCapBytes(bundle, Plan(bundle.supernet.original))
        val plan = Plan(bundle.supernet.original)
        val error = assertRefused<BudgetError> { LoadedPlan(bundle, SlowRuntime(), plan, least - 1) }
        assertTrue("block o" in error.message!!, error.message)
        assertTrue(error.hint!!.startsWith("allow at least"), error.hint)
    }

    @Test
    fun `exits for deadlines go first, and the plan comes back with the room`() {
        val runtime = SlowRuntime()
        val state = folder.toFile()
        open(runtime, state).use { model ->
            model.use(timed)
            val answer = model.infer(one).output.floats().toList()
            model.memoryCapBytes = leastMemoryCapBytes(bundle, timed)
            assertEquals(Plan(timed.subnet), model.plan)
            assertEquals(answer, model.infer(one).output.floats().toList())
            model.memoryCapBytes = null
            assertEquals(timed, model.plan)
            assertEquals(answer, model.infer(one).output.floats().toList())
            assertNull(model.memoryCapBytes)
        }
        assertEquals(0, runtime.open.get())
        val lines = state.walk().first { it.name == "adaptation.jsonl" }.readLines().filter { "resized" in it }
        assertEquals(2, lines.size)
        assertTrue("\"why\":\"asked\",\"old_cap_bytes\":null" in lines[0], lines[0])
    }

    @Test
    fun `nonsense is refused and nothing changes`() {
        open().use { model ->
            model.use(timed)
            for (nonsense in listOf(0L, -5L)) assertRefused<UsageError> { model.memoryCapBytes = nonsense }
            assertRefused<BudgetError> { model.memoryCapBytes = 1L }
            assertEquals(timed to null, model.plan to model.memoryCapBytes)
            model.close()
            assertRefused<ClosedError> { model.memoryCapBytes = 10_000_000L }
        }
    }

    @Test
    fun `the cap sinks with the system's memory and rises when there was room for a while`() {
        val pressure = Told(1_000_000_000)
        open().use { model ->
            model.use(timed)
            val settings = ElasticSettings(reserveBytes = 1_000_000, growAfterS = 0.1, intervalS = 0.005)
            model.live.start(Signal.MEMORY, elastic = settings, pressure = pressure)
            Thread.sleep(30)
            assertNull(model.memoryCapBytes)
            pressure.availableBytes = 0
            until("the cap sinks") { model.memoryCapBytes == leastPlanBytes(bundle, timed) }
            assertEquals(emptyList<ExitChoice>(), model.plan.exits)
            assertEquals(1, model.infer(one).labels.size)
            pressure.availableBytes = null
            Thread.sleep(30)
            pressure.availableBytes = 1_000_000_000
            until("the cap is lifted") { model.memoryCapBytes == null }
            assertEquals(timed, model.plan)
            model.live.stop(Signal.MEMORY)
        }
    }

    @Test
    fun `under pressure calls in progress answer with the last exit that they reached`() {
        val runtime = SlowRuntime { outputs -> if ("x1-pooled" in outputs.last()) 1 else 3_000 }
        val pressure = Told(1_000_000_000)
        open(runtime).use { model ->
            model.use(ends)
            model.live.start(Signal.MEMORY, elastic = ElasticSettings(reserveBytes = 1_000_000, intervalS = 0.005), pressure = pressure)
            var source = listOf<String>()
            val call = thread { source = model.infer(one).source }
            Thread.sleep(300)
            val beganNs = System.nanoTime()
            pressure.availableBytes = 0
            call.join()
            assertEquals(listOf("exit x1-pooled"), source)
            assertTrue(System.nanoTime() - beganNs < 2_500_000_000, "it waited for the second segment")
        }
    }

    @Test
    fun `Android's levels shrink the cap step by step`() {
        val memory = TrimMemory { 50_000_000 }
        fun stalls(level: Int): Int {
            memory.onTrimMemory(level)
            return (1..20).count { memory.read().stalledShare == 1.0 }
        }
        assertEquals(listOf(0, 1, 3, 0, 1, 3, 8), listOf(5, 10, 15, 20, 40, 60, 80).map(::stalls))
        assertEquals(listOf(0, 8), listOf(-1, 1000).map(::stalls))
        assertEquals(0L, TrimMemory { -5 }.read().availableBytes)
        open().use { model ->
            model.use(timed)
            model.live.start(Signal.MEMORY, elastic = ElasticSettings(growAfterS = 60.0, intervalS = 0.005), pressure = memory)
            Thread.sleep(30)
            assertNull(model.memoryCapBytes)
            memory.onTrimMemory(80)
            until("the cap sinks") { model.memoryCapBytes != null }
            assertEquals(1, model.infer(one).labels.size)
        }
    }

    @Test
    fun `the system's files are read, and odd ones are no reading`() {
        assertTrue(SystemMemory().read().availableBytes > 0)
        val root = folder.toFile()
        assertRefused<MeasurementError> { SystemMemory(root).read() }
        val info = File(root, "proc/meminfo").apply { parentFile.mkdirs() }
        info.writeText("MemTotal: 5 kB\n")
        assertRefused<MeasurementError> { SystemMemory(root).read() }
        info.writeText("MemTotal: 5 kB\nMemAvailable:    3 kB\n")
        assertEquals(MemoryReading(3072, null), SystemMemory(root).read())
        File(root, "proc/pressure/memory").apply { parentFile.mkdirs() }
            .writeText("some avg10=12.50 avg60=0.00 avg300=0.00 total=1\n")
        assertEquals(MemoryReading(3072, 0.125), SystemMemory(root).read())
    }
}
