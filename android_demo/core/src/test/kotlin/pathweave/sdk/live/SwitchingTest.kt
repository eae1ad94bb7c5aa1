package pathweave.sdk.live

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.Contract
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.double
import pathweave.sdk.get
import pathweave.sdk.items
import pathweave.sdk.search.Candidate
import pathweave.sdk.subnetOf
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Cost
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.text
import pathweave.sdk.texts

class SwitchingTest {
    private val vectors =
        Json.parseToJsonElement(File(Contract.repository, "tests/contract/switching.json").readText())
    private val settings = LiveSettings(tolerance = 1.0 / 64, margin = 1.0 / 64)

    private fun <T> JsonElement.orNull(read: (JsonElement) -> T): T? = if (this is JsonNull) null else read(this)

    private fun last(value: JsonElement) =
        value.items.let { (at, up, wait) -> LastSwitch(at.double, up.text == "true", wait.double) }

    private fun cause(value: JsonElement) = Cause.entries.first { it.text == value.text }

    @Test
    fun `the same subnet is exchanged for the same one`() {
        for (case in vectors["switches"].items) check(case, last(case["last"]), Cause.UNKNOWN)
        assertTrue(vectors["switches"].items.size >= 144)
    }

    @Test
    fun `the same subnet is exchanged where the cause is known`() {
        for (case in vectors["caused"].items) {
            check(case, last(case["last"]).copy(cause = cause(case["last_cause"])), cause(case["cause"]))
        }
        assertTrue(vectors["caused"].items.size >= 72)
    }

    @Test
    fun `the same readings tell the same cause`() {
        for (case in vectors["causes"].items) {
            val (before, recent, now) = case["readings"].items.map(::reading)
            assertEquals(cause(case["stated"]), lastingCause(before, now), "$case")
            assertEquals(cause(case["cause"]), slowCause(before, recent, now), "$case")
        }
        assertTrue(vectors["causes"].items.size >= 96)
    }

    private fun reading(value: JsonElement) = SpeedReading(
        frequencyMhz = value["frequency_mhz"].orNull { it.double },
        limitShare = value["limit_share"].orNull { it.double },
        throttles = value["throttles"].orNull { it.text.toLong() },
        heldBack = value["held_back"].texts.toSet(),
        busyTicks = value["busy_ticks"].orNull { it.text.toLong() },
        totalTicks = value["total_ticks"].orNull { it.text.toLong() },
        ownTicks = value["own_ticks"].orNull { it.text.toLong() },
        cores = value["cores"].text.toInt(),
        runNs = value["run_ns"].orNull { it.text.toLong() },
        waitedNs = value["waited_ns"].orNull { it.text.toLong() },
        powerMode = value["power_mode"].text,
        saving = value["saving"].text == "true",
        thermalStatus = value["thermal_status"].orNull { it.text.toInt() },
    )

    private fun check(case: JsonElement, last: LastSwitch, cause: Cause) {
        val pool = case["pool"].items.map { one ->
            val (subnet, latency, peak, accuracy) = one.items
            Candidate(Plan(subnetOf(subnet.text)), Cost(latency.double, peak.text.toLong()), accuracy.double)
        }
        val current = pool.first { it.subnet.toString() == case["current"].text }
        val (latencyMs, memoryMb) = case["budget"].items
        val budget = Budget(latencyMs.double, memoryMb.orNull { it.double })
        val available = beside(current, pool, budget)
        assertEquals(case["beside"].texts, available.map { it.subnet.toString() })
        assertEquals(case["bounds_ms"].items.map { it.double }, boundsMs(current, pool, budget, settings).toList())
        val service = case["service_ms"].items.map { it.double }
        val found = decide(current, available, budget, service, 8.0, last, settings, cause)
        val expected = case["decision"].orNull { one ->
            val target = one["target"].orNull { it.text }
            listOf(target, one["ratio"].double, one["service_ms"].double, one["why"].text, one["fits"].text)
        }
        val given = found?.let {
            listOf(it.target?.subnet?.toString(), it.ratio, it.serviceMs, it.why.text, it.fits.toString())
        }
        assertEquals(expected, given, "$case")
        if (cause != Cause.UNKNOWN) assertEquals(case["is_over"].text == "true", isOver(current, service, budget, settings))
        val likely = likelyNext(current, available, budget, found?.ratio ?: 1.0, settings)
        assertEquals(case["likely"].texts, likely.map { it.subnet.toString() }, "$case")
    }

    @Test
    fun `after a switch up that is taken back the wait doubles`() {
        for (case in vectors["followed"].items) {
            var state = LastSwitch()
            for (step in case["steps"].items) {
                val why = Why.entries.first { it.text == step["why"].text }
                state = state.followedBy(why, step["now_s"].double, settings)
                assertEquals(last(step["last"]), state)
            }
        }
    }

    @Test
    fun `the same change of the network calls for a plan`() {
        fun uplink(value: JsonElement) =
            value.orNull { one -> one.items.let { (mbps, trip) -> Uplink(mbps.double, trip.double) } }
        for (case in vectors["drifts"].items) {
            val drift = NetworkDrift(uplink(case["planned"]), listOf(1, 4096), DriftSettings(1.5, 0.75, 1.5))
            for (look in case["looks"].items) {
                val calls = drift.callsForAPlan(uplink(look["uplink"]), look["now_s"].double)
                assertEquals(look["calls"].text == "true", calls, "$look")
                if (calls) drift.plannedWith(uplink(look["uplink"]), look["now_s"].double)
            }
        }
    }

    @Test
    fun `settings and uplinks that make no sense are refused`() {
        assertRefused<UsageError> { LiveSettings(window = 0) }
        assertRefused<UsageError> { LiveSettings(margin = 1.0) }
        assertRefused<UsageError> { Uplink(0.0) }
        assertRefused<UsageError> { Uplink(Double.NaN) }
        assertRefused<UsageError> { Uplink(1.0, -1.0) }
    }
}
