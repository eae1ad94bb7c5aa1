package pathweave.sdk.live

import java.io.File
import java.nio.file.Path
import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.CountDownLatch
import java.util.concurrent.atomic.AtomicInteger
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.BeforeEach
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.InputError
import pathweave.sdk.SlowRuntime
import pathweave.sdk.StorageError
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.double
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.execution.Workspace
import pathweave.sdk.get
import pathweave.sdk.items
import pathweave.sdk.logs.AdaptationLog
import pathweave.sdk.policies.AdaptationSettings
import pathweave.sdk.policies.Adaptations
import pathweave.sdk.profiling.currentConditions
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.search.Candidate
import pathweave.sdk.search.latencyRangeMs
import pathweave.sdk.session.DeviceState
import pathweave.sdk.session.Signal
import pathweave.sdk.session.logPath
import pathweave.sdk.subnetOf
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Cost
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.text

private val FULL = subnetOf("o0 o1 o2 o3")
private val SMALL = subnetOf("m0-2 s2 o3")
private val FASTER = subnetOf("o0 m1-3 o3") // is not; what a search in the background brings

/** What live update does when nothing of the pool fits. Service times are told, plans and their exchange are real. */
@Timeout(60)
class LiveSearchTest {
    @TempDir
    lateinit var folder: Path

    private val bundle = Contract.reference()
    private val inUse = PlanInUse(Workspace(bundle, SlowRuntime()))
    private val logFile by lazy { File(folder.toFile(), "adaptation.jsonl") }
    private val pool =
        PlanPool(Budget(latencyMs = 12.0), FULL, listOf(candidate(SMALL, 4.0, 0.7), candidate(FULL, 10.0, 0.9)))
    private var live: LiveUpdate? = null

    private fun candidate(subnet: Subnet, latencyMs: Double, accuracy: Double) =
        Candidate(Plan(subnet), Cost(latencyMs, 1_000_000L), accuracy)

    @BeforeEach
    fun begin() = inUse.begin(Plan(FULL))

    @AfterEach
    fun end() {
        live?.close()
        inUse.close()
    }

    private fun watch(settings: LiveSettings = EAGER, remember: (PlanPool) -> Unit = {}, search: Search) {
        val log = AdaptationLog(logFile, bundle.digest, "told")
        live = LiveUpdate(inUse, log, pool, settings, search, remember).also { it.start() }
    }

    private fun until(what: String, holds: () -> Boolean) {
        val endNs = System.nanoTime() + 20_000_000_000
        while (!holds()) {
            assertTrue(System.nanoTime() < endNs, what)
            Thread.sleep(2)
        }
    }

    /** Whatever is in use takes [slowness] times its estimate, until [holds]. */
    private fun callsUntil(slowness: Double, what: String, holds: () -> Boolean) = until(what) {
        val active = inUse.running()
        live!!.pool.find(active.plan.subnet)?.let { active.times?.record(slowness * it.cost.latencyMs) }
        holds()
    }

    private fun events(file: File, name: String): List<JsonElement> = if (!file.exists()) emptyList() else
        file.readLines().map { Json.parseToJsonElement(it)["event"] }.filter { it["event"].text == name }

    private fun events(name: String) = events(logFile, name)

    @Test
    fun `a search in the background widens the pool while the old subnet serves`() {
        val mayEnd = CountDownLatch(1)
        val asked = CopyOnWriteArrayList<Budget>()
        val remembered = CopyOnWriteArrayList<PlanPool>()
        watch(remember = { remembered += it }) { budget, _ ->
            asked += budget
            mayEnd.await()
            listOf(candidate(FASTER, 0.5, 0.4))
        }
        callsUntil(8.0, "the fastest runs, and a search is under way") {
            inUse.running().plan.subnet == SMALL && asked.isNotEmpty()
        }
        assertEquals("true", events("out_of_reach").first()["searching"].text)
        assertEquals(12.0 * 0.98 / 8, asked.first().latencyMs!!, 1e-9)
        mayEnd.countDown()
        callsUntil(8.0, "what was found runs") { inUse.running().plan.subnet == FASTER }
        until("the search is logged") { events("searched").isNotEmpty() }
        val searched = events("searched").single()
        val fields = listOf("event", "budget_latency_ms", "drift_ratio", "candidates", "seconds", "failure")
        assertEquals(fields, searched.jsonObject.keys.toList())
        assertEquals(listOf("1", "null"), listOf("candidates", "failure").map { searched[it].text })
        assertEquals(asked.first().latencyMs, searched["budget_latency_ms"].double)
        assertNotNull(remembered.single().find(FASTER))
    }

    @Test
    fun `a search that finds nothing is not repeated, and says why`() {
        val begun = AtomicInteger()
        watch(EAGER.copy(searchCooldownS = 0.0)) { _, _ ->
            begun.incrementAndGet()
            throw InfeasibleBudgetError("nothing fits", emptyList(), 1.0, 1L)
        }
        callsUntil(8.0, "the search ended") { events("searched").isNotEmpty() }
        repeat(60) {
            inUse.running().times!!.record(32.0)
            Thread.sleep(2)
        }
        assertEquals(1 to "nothing fits", begun.get() to events("searched").single()["failure"].text)
    }

    @Test
    fun `a full disk does not stop what a search found`() {
        watch(remember = { throw StorageError("the disk is full") }) { _, _ -> listOf(candidate(FASTER, 0.5, 0.4)) }
        callsUntil(8.0, "what was found runs") { inUse.running().plan.subnet == FASTER }
    }

    @Test
    fun `stopping ends a search and its threads`() {
        val begun = CountDownLatch(1)
        val ended = CopyOnWriteArrayList<Boolean>()
        watch { _, cancelled ->
            begun.countDown()
            val endNs = System.nanoTime() + 20_000_000_000
            while (!cancelled() && System.nanoTime() < endNs) Thread.sleep(1)
            ended += cancelled()
            emptyList()
        }
        callsUntil(8.0, "a search began") { begun.count == 0L }
        live!!.close()
        live!!.close()
        assertEquals(listOf(true), ended.toList())
        assertEquals(emptyList<JsonElement>(), events("searched"))
        val names = Thread.getAllStackTraces().keys.filter { it.isAlive }.map { it.name }
        assertFalse(names.any { it == "pathweave-search" || it == "pathweave-live" }, "$names")
    }

    @Test
    fun `private samples are searched again if they may be kept, with the fields of the schema`() {
        openProfiled().use { model ->
            model.adaptBlocking(Adaptations.inputs(), WIDE, labels = Adaptations.labels, settings = AdaptationSettings(keepSamples = true))
            model.live.start(Signal.LATENCY, goal = Goal(latencyMs = 1e-6), settings = EAGER)
            val log = logOf(model)
            until("a search in vain was logged") {
                call(model)
                events(log, "searched").isNotEmpty()
            }
            assertEquals("true", events(log, "out_of_reach").first()["searching"].text)
            val searched = events(log, "searched").first()
            assertTrue(searched["failure"].text.startsWith("no subnet runs in"), "$searched")
            val schema = Json.parseToJsonElement(File(Contract.repository, "docs/adaptation_log.schema.json").readText())
            val fields = schema["\$defs"]["Searched"]
            assertEquals(fields["required"].items.map { it.text }, searched.jsonObject.keys.toList())
        }
    }

    @Test
    fun `samples are not kept unasked, and a live model's pool reaches to the fastest subnet`() {
        openProfiled().use { model ->
            val plain = model.adaptBlocking(Adaptations.inputs(), WIDE)
            assertEquals(emptySet<Signal>(), model.live.running)
            val notes = mutableListOf<String>()
            val filling = AdaptationSettings(fillPool = true)
            model.adaptBlocking(Adaptations.inputs(), WIDE, settings = filling) { notes += it.note }
            model.live.start(Signal.LATENCY)
            assertEquals(setOf(Signal.LATENCY), model.live.running)
            assertTrue(notes.any { it.startsWith("plan pool at") }, "$notes")
            val watching = events(logOf(model), "watching").single()
            val costs = model.profileBlocking().costModel()
            val fastestMs = latencyRangeMs(bundle.supernet, costs).first
            val correction = plain.measured!!.latencyMs / plain.expected.latencyMs!!
            assertTrue(watching["fastest_ms"].double in fastestMs * correction / 3..fastestMs * correction * 3)
            model.live.start(Signal.LATENCY, goal = Goal(latencyMs = 1e-6), settings = EAGER)
            until("nothing fits") {
                call(model)
                events(logOf(model), "out_of_reach").isNotEmpty()
            }
            assertEquals("false", events(logOf(model), "out_of_reach").first()["searching"].text)
            assertRefused<UsageError> {
                model.adaptBlocking(Adaptations.inputs(), Goal(memoryMb = 1e3), settings = filling)
            }
        }
    }

    /** The model with the drawn profile: latencies of milliseconds, far more than anything here takes. */
    private fun openProfiled(): AdaptiveModel {
        val runtime = OnnxRuntime()
        val state = DeviceState(folder.toFile(), bundle, runtime)
        state.saveProfile(Adaptations.profile.copy(conditions = currentConditions(), runtime = runtime.identity))
        return AdaptiveModel.open(
            Contract.referenceFolder, Contract.key, runtime, selfTested = { true }, stateFolder = folder.toFile(),
        )
    }

    /** One sample at the input size of the plan in use; without an answer where an exchange has changed that size since. */
    private fun call(model: AdaptiveModel) {
        try {
            model.infer(Adaptations.inputs().take(listOf(0), model.plan.inputSize))
        } catch (_: InputError) {
            return
        }
    }

    private fun logOf(model: AdaptiveModel) = logPath(folder.toFile(), model.bundle)

    private companion object {
        val EAGER = LiveSettings(cooldownS = 0.0, upCooldownS = 0.0)
        val WIDE = Goal(latencyMs = 100.0)
    }
}
