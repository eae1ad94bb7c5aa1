package pathweave.sdk.live

import java.io.File
import java.nio.file.Path
import java.util.concurrent.atomic.AtomicInteger
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.SlowRuntime
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.execution.Active
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.logs.AdaptationLog
import pathweave.sdk.search.Candidate
import pathweave.sdk.session.Signal
import pathweave.sdk.subnetOf
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Cost
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet

private const val SMALL = "m0-2 s2 o3"
private const val FULL = "o0 o1 o2 o3"

/** The service times are told, the plans and their exchange are real. */
@Timeout(60)
class LiveUpdateTest {
    @TempDir
    lateinit var folder: Path

    private val bundle = Contract.reference()
    private val runtime = SlowRuntime()
    private val inUse = PlanInUse(Workspace(bundle, runtime))
    private val input = goldenInputs(bundle.supernet.cutPoints[0], seed = 7L, batch = 1)[0]
    private val logFile by lazy { File(folder.toFile(), "adaptation.jsonl") }
    private val settings = LiveSettings(cooldownS = 0.0, upCooldownS = 0.0)

    private fun candidate(subnet: String, latencyMs: Double, accuracy: Double) =
        Candidate(Plan(subnetOf(subnet)), Cost(latencyMs, 1_000_000L), accuracy)

    private val pool = PlanPool(
        Budget(latencyMs = 12.0),
        subnetOf(FULL),
        listOf(candidate(SMALL, 4.0, 0.7), candidate(FULL, 10.0, 0.9)),
    )

    private fun live(
        pool: PlanPool = this.pool,
        settings: LiveSettings = this.settings,
        signals: SpeedSignals = SpeedSignals { SpeedReading() },
    ) = LiveUpdate(inUse, AdaptationLog(logFile, bundle.digest, "told"), pool, settings, signals = signals)

    private fun until(what: String, holds: () -> Boolean) {
        val endNs = System.nanoTime() + 20_000_000_000
        while (!holds()) {
            assertTrue(System.nanoTime() < endNs, what)
            Thread.sleep(2)
        }
    }

    /** Calls took so long, for whatever plan is in use, until [holds]. */
    private fun calls(latencyMs: (Subnet) -> Double, what: String, holds: () -> Boolean) = until(what) {
        val active: Active = inUse.running()
        active.times?.record(latencyMs(active.plan.subnet))
        holds()
    }

    private val subnet get() = inUse.running().plan.subnet

    private fun logged(event: String) = logFile.readLines().count { "\"event\":\"$event\"" in it }

    @Test
    fun `down when the budget is exceeded, up when there is room again`() {
        inUse.begin(Plan(subnetOf(FULL)))
        live().use { live ->
            live.start()
            until("the small one is prepared ahead") { live.warmSubnets == setOf(subnetOf(SMALL)) }
            calls({ if (it == subnetOf(FULL)) 25.0 else 10.0 }, "down") { subnet == subnetOf(SMALL) }
            assertEquals(1, inUse.running().loaded.run(input).output.batch)
            calls({ if (it == subnetOf(FULL)) 10.0 else 4.0 }, "up") { subnet == subnetOf(FULL) }
        }
        assertEquals(listOf(1, 2), listOf("watching", "switched").map(::logged))
        assertTrue("\"ahead\":true" in logFile.readLines()[1], logFile.readText())
        inUse.close()
        assertEquals(0, runtime.open.get(), "sessions left open")
    }

    @Test
    fun `after throttling it stays down, and the log says why`() {
        inUse.begin(Plan(subnetOf(FULL)))
        val readings = AtomicInteger()
        val hot = SpeedSignals { SpeedReading(heldBack = if (readings.getAndIncrement() > 0) setOf("cpufreq") else setOf()) }
        live(signals = hot).use { live ->
            live.start()
            calls({ if (it == subnetOf(FULL)) 25.0 else 10.0 }, "down") { logFile.exists() && logged("switched") == 1 }
            until("the full one is kept ready") { live.warmSubnets == setOf(subnetOf(FULL)) }
            repeat(100) {
                inUse.running().times!!.record(4.0)
                Thread.sleep(2)
            }
            assertEquals(subnetOf(SMALL), subnet)
        }
        assertTrue("\"cause\":\"throttled\"" in logFile.readText(), logFile.readText())
        inUse.close()
    }

    @Test
    fun `noise leaves the plan in use`() {
        inUse.begin(Plan(subnetOf(FULL)))
        live().use { live ->
            live.start()
            var calls = 0
            until("many calls") {
                inUse.running().times!!.record(if (calls % 10 == 0) 60.0 else 10.0)
                calls++ > 200
            }
        }
        assertEquals(subnetOf(FULL) to 0, subnet to logged("switched"))
        inUse.close()
    }

    @Test
    fun `when nothing keeps the budget the fastest runs, and it is noted once`() {
        inUse.begin(Plan(subnetOf(FULL)))
        live().use { live ->
            live.start()
            calls({ if (it == subnetOf(FULL)) 100.0 else 40.0 }, "down") { subnet == subnetOf(SMALL) }
            repeat(60) {
                inUse.running().times!!.record(40.0)
                Thread.sleep(2)
            }
        }
        assertEquals(1, logged("out_of_reach"))
        inUse.close()
    }

    @Test
    fun `a subnet that does not load is noted and left alone`() {
        inUse.begin(Plan(subnetOf(FULL)))
        val broken = Candidate(Plan(subnetOf(SMALL), listOf(ExitChoice("x1-pooled", 0.5))), Cost(4.0, 1_000_000L), 0.7)
        live(pool.copy(candidates = listOf(broken, pool.candidates[1]))).use { live ->
            live.start()
            calls({ 25.0 }, "the failure") { logFile.exists() && logged("switch_failed") > 0 }
            repeat(30) {
                inUse.running().times!!.record(25.0)
                Thread.sleep(2)
            }
        }
        assertEquals(subnetOf(FULL) to 1, subnet to logged("switch_failed"))
        inUse.close()
    }

    @Test
    fun `it comes back to the plan that was taken on purpose`() {
        val calibrated = Plan(subnetOf(FULL), listOf(ExitChoice("x1-pooled", 0.999)))
        inUse.begin(calibrated)
        live().use { live ->
            live.start()
            calls({ if (it == subnetOf(FULL)) 25.0 else 10.0 }, "down") { subnet == subnetOf(SMALL) }
            calls({ if (it == subnetOf(FULL)) 10.0 else 4.0 }, "up") { subnet == subnetOf(FULL) }
            assertEquals(calibrated, inUse.running().plan)
            live.keepExits(emptySet())
            assertFalse(live.warmSubnets.isNotEmpty())
        }
        inUse.close()
        assertEquals(0, runtime.open.get())
    }

    @Test
    fun `without an adaptation there is nothing to watch`() {
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, selfTested = { true }).use { model ->
            val refused = assertRefused<UsageError> { model.live.start(Signal.LATENCY) }
            assertEquals("there is no plan pool to switch in", refused.message)
            assertEquals(emptySet<Signal>(), model.live.running)
            model.live.stop()
        }
        inUse.close()
    }
}
