package pathweave.sdk.profiling

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.assertThrows
import pathweave.sdk.BudgetError
import pathweave.sdk.Contract
import pathweave.sdk.MeasurementError
import pathweave.sdk.assertRefused
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.bundles.readFragment
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.elements
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.session.decodeProfile
import pathweave.sdk.session.encodeProfile
import pathweave.sdk.size
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Cost
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.EdgeCost
import pathweave.sdk.supernet.ExitAtSize
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Subnet

class ProfilingTest {
    @Test
    fun `a profile predicts what its device measures`() {
        val device = SimulatedDevice(perBlockNs = 200_000, perRunNs = 50_000)
        val bundle = Contract.reference()
        val profile = profile(bundle, device, rounds = 5, clock = device::now)
        assertEquals(bundle.digest to device.identity, profile.bundle to profile.runtime)
        assertEquals(bundle.supernet.edges.toSet(), profile.edges.keys)
        val sized = setOf(ExitAtSize("x1-pooled"), ExitAtSize("x2-flat"), ExitAtSize("x3-pooled")) +
            bundle.supernet.sizes.drop(1).flatMap {
                listOf(ExitAtSize("x1-pooled", inputSize = it), ExitAtSize("x3-pooled", inputSize = it))
            }
        assertEquals(sized, profile.exits.keys)
        assertEquals(bundle.supernet.original, profile.fitted[0].subnet)
        val model = profile.costModel()
        for (measured in profile.fitted) {
            assertEquals(measured.measuredMs, model.latencyMs(measured.subnet), 0.05 * measured.measuredMs)
        }
        assertTrue(profile.edges.values.all { it.residentBytes > 0 && it.workingBytes > 0 })
        assertEquals(0, device.open)
    }

    @Test
    fun `what an exit costs beyond its branch is measured`() {
        for (perExitNs in listOf(0L, 30_000L)) {
            val device = SimulatedDevice(perBlockNs = 200_000, perRunNs = 50_000, perExitNs)
            val profile = profile(Contract.reference(), device, rounds = 3, clock = device::now)
            assertEquals(perExitNs / 1e6, profile.exitOverheadMs, 1e-9)
            val called = profile.copy(callOverheadMs = 0.02, decisionMs = mapOf("margin" to 0.05))
            for (one in listOf(profile, called)) assertEquals(one, decodeProfile(encodeProfile(one)))
            assertEquals(0.05, called.costModel().decidingMs(Decider.Margin(0.5)), 0.0)
            val choice = ExitChoice("x2-flat", 0.9)
            val branchMs = profile.exits.getValue(ExitAtSize("x2-flat")).latencyMs
            assertEquals(branchMs + perExitNs / 1e6, profile.costModel().exitLatencyMs(choice), 1e-9)
            assertEquals(0, device.open)
        }
    }

    @Test
    fun `one session serves a block at all input sizes, and its memory grows with them`() {
        val device = SimulatedDevice(perBlockNs = 200_000, perRunNs = 50_000)
        val bundle = Contract.reference()
        val supernet = bundle.supernet
        val profile = profile(bundle, device, rounds = 2, clock = device::now)
        val renditions = (supernet.blocks.map { it.renditions } + supernet.exits.map { it.renditions }).flatten()
        assertEquals(renditions.size, device.loaded.take(renditions.size).count { it.freeAxes.isNotEmpty() })
        val forOverhead = 1 + supernet.exits.size + 1 // the original path, without exits and with each
        assertEquals(renditions.size + profile.fitted.size + forOverhead, device.loaded.size)
        val sizes = profile.fitted.map { it.subnet.inputSize }
        assertEquals(supernet.sizes.toSet(), sizes.toSet())
        val (small, own, large) = listOf(SampleSize(1, 1), null, SampleSize(4, 4)).map { size ->
            profile.edges.getValue(Edge("o1", inputSize = size))
        }
        assertEquals(listOf(own.residentBytes, own.residentBytes), listOf(small.residentBytes, large.residentBytes))
        assertTrue(listOf(small, own, large).all { it.workingBytes >= 4 * (4 + 4 + 4) })
        assertTrue(large.workingBytes >= 4 * (64 + 64 + 4))
    }

    @Test
    fun `costs are looked up by input size`() {
        val size = SampleSize(4, 4)
        val costs = listOf(null to 1.0, size to 4.0).flatMap { (at, latencyMs) ->
            val cost = EdgeCost(latencyMs, latencyMs, residentBytes = 10, workingBytes = (5 * latencyMs).toLong())
            listOf("o0", "o1").map { Edge(it, inputSize = at) to cost }
        }
        val exits = mapOf(
            ExitAtSize("x1") to EdgeCost(0.5, 0.5, 1, 1),
            ExitAtSize("x1", inputSize = size) to EdgeCost(2.0, 2.0, 1, 1),
        )
        val model = CostModel(costs.toMap(), exitCosts = exits)
        val subnet = Subnet(listOf(Edge("o0"), Edge("o1")))
        assertEquals(Cost(2.0, 25), model.cost(subnet))
        assertEquals(Cost(8.0, 40), model.cost(subnet.at(size)))
        assertEquals(0.5 to 2.0, ExitChoice("x1", 0.9).let { model.exitLatencyMs(it) to model.exitLatencyMs(it, size) })
    }

    @Test
    fun `a line is fitted through block sums and measured latencies`() {
        val sums = listOf(1.0, 2.0, 4.0)
        val (scale, offsetMs) = fitLine(sums, sums.map { 0.8 * it + 0.3 })
        assertEquals(0.8, scale, 1e-9)
        assertEquals(0.3, offsetMs, 1e-9)
    }

    @Test
    fun `with too little to tell them apart the offset is zero`() {
        assertEquals(0.75 to 0.0, fitLine(listOf(2.0, 2.0, 2.0), listOf(1.0, 1.5, 2.0)))
    }

    @Test
    fun `what interrupted calls take counts for the highest latencies only`() {
        var now = 0L
        var call = 0
        var interruptions = 0L
        val latency = measureInterleaved(
            listOf {
                val slow = call++ % 2 == 1
                now += if (slow) 9_000_000L else 1_000_000L
                if (slow) interruptions++
            },
            Timing(rounds = 10, clock = { now }),
            warmup = 0,
            interruptions = { interruptions },
        ).single()
        assertEquals(listOf(1.0, 1.0, 9.0), listOf(latency.medianMs, latency.p75Ms, latency.p95Ms))
    }

    @Test
    fun `waiting for a processor does not count as the calls' time`() {
        var now = 0L
        var waited = 0L
        var calls = 0L
        fun work(ms: Long, waitsMs: Long) {
            calls++
            waited += waitsMs * 1_000_000L
            now += (ms + waitsMs) * 1_000_000L
        }
        val (full, half) = measureInterleaved(
            listOf({ work(10, 12) }, { work(5, if (calls % 8 == 7L) 4 else 0) }),
            Timing(rounds = 20, clock = { now }),
            warmup = 0,
            reference = 0,
            interruptions = { calls },
            waitedNs = { waited },
        )
        assertEquals(listOf(10.0, 5.0), listOf(full.medianMs, half.medianMs))
        assertEquals(0.5, half.ratio!!.value, 1e-9)
        assertEquals(22.0, full.elapsedMs)
        assertTrue(waitedForProcessorNs() >= 0)
    }

    @Test
    fun `calls on several threads wait for their own, which counts`() {
        var now = 0L
        var waited = 0L
        fun work(ms: Long, waitsMs: Long) {
            waited += waitsMs * 1_000_000L
            now += (ms + waitsMs) * 1_000_000L
        }
        val (alone, several) = measureInterleaved(
            listOf({ work(10, 2) }, { work(6, 5) }),
            Timing(rounds = 20, clock = { now }),
            warmup = 0,
            reference = 0,
            interruptions = { now },
            waitedNs = { waited },
            waiting = setOf(1),
        )
        assertEquals(listOf(10.0, 11.0), listOf(alone.medianMs, several.medianMs))
        assertEquals(1.1, several.ratio!!.value, 1e-9)
    }

    @Test
    fun `rounds end early once medians are as precise as wanted, or time is up`() {
        var now = 0L
        fun runs(patience: Patience) =
            measureInterleaved(listOf { now += 1_000_000L }, Timing(100, patience, clock = { now }), 0, interruptions = { 0L })
                .single().runs
        assertEquals(10, runs(Patience(rounds = 10, precision = 0.01, limitS = 9.0)))
        assertEquals(20, runs(Patience(rounds = 90, precision = 0.01, limitS = 0.020, least = 5)))
    }

    @Test
    fun `a clock that stands still is an error`() {
        assertRefused<MeasurementError> { measureInterleaved(listOf {}, Timing(rounds = 4, clock = { 7L }), warmup = 0) }
    }

    @Test
    fun `competitors take turns in an order that changes`() {
        assertEquals(listOf(listOf(0, 1, 2), listOf(1, 2, 0), listOf(2, 0, 1)), (0..2).map { order(3, it) })
        assertEquals(listOf(listOf(2, 1, 0), listOf(0, 2, 1), listOf(1, 0, 2)), (3..5).map { order(3, it) })
    }

    @Test
    fun `what a competitor leaves in the caches is not timed`() {
        var now = 0L
        var last = -1
        val calls = List(3) { { now += if (last == it) 1_000_000L else 9_000_000L; last = it } }
        val latencies = measureInterleaved(calls, Timing(rounds = 6, clock = { now }), warmup = 1, interruptions = { 0 })
        assertEquals(listOf(1.0, 1.0, 1.0), latencies.map { it.p95Ms })
    }

    @Test
    fun `medians and spread are of the counted rounds`() {
        var now = 0L
        var call = 0
        val latency = measureInterleaved(
            listOf { now += if (call++ < 2) 1_000_000_000 else call * 1_000_000L },
            Timing(rounds = 5, clock = { now }),
            warmup = 2,
            interruptions = { 0 }, // of this thread, while the machine is busy, would leave calls out
        ).single()
        assertEquals(Latency(medianMs = 5.0, p95Ms = 6.8, p25Ms = 4.0, p75Ms = 6.0, runs = 5, elapsedMs = 5.0), latency)
        assertThrows<IllegalArgumentException> { measureInterleaved(emptyList(), Timing(rounds = 0), warmup = 0) }
    }

    @Test
    fun `memory is what all blocks keep and the largest of them needs`() {
        val edges = listOf(Edge("o0"), Edge("o1"))
        val costs = listOf(EdgeCost(1.0, 1.0, 10, 5), EdgeCost(2.0, 2.0, 20, 7))
        val model = CostModel(edges.zip(costs).toMap(), offsetMs = 0.5)
        val cost = model.cost(Subnet(edges))
        assertEquals(Cost(latencyMs = 3.5, peakBytes = 37), cost)
        assertTrue(Budget(latencyMs = 3.5).fits(cost))
        assertTrue(!Budget(latencyMs = 3.4).fits(cost))
        assertTrue(!Budget(memoryMb = 36e-6).fits(cost))
    }

    @Test
    fun `a budget limits something, to more than nothing`() {
        assertRefused<BudgetError> { Budget() }
        assertRefused<BudgetError> { Budget(latencyMs = 0.0) }
        assertRefused<BudgetError> { Budget(latencyMs = 1.0, memoryMb = Double.NaN) }
    }
}

/** A device whose clock goes on only while it runs: some time per block and some per run. */
/** [perExitNs]: what a run takes longer whose stretch ends with an exit. */
private class SimulatedDevice(
    private val perBlockNs: Long,
    private val perRunNs: Long,
    private val perExitNs: Long = 0,
) : Runtime {
    private var nowNs = 0L
    var open = 0
    val loaded = mutableListOf<Stretch>()

    override val identity get() = "simulated"

    fun now(): Long = nowNs

    override fun load(stretch: Stretch): LoadedStretch {
        open++
        loaded += stretch
        val blocks = stretch.fragments.count { fragment ->
            readFragment(fragment).definedNames().none { it.startsWith("shared/") }
        }
        val exits = if (listOf("block", "exit").all { kind -> stretch.owners.any { kind in it } }) 1 else 0
        return object : LoadedStretch {
            override fun run(inputs: List<Tensor>): List<Tensor> {
                nowNs += perRunNs + blocks * perBlockNs + exits * perExitNs
                return stretch.outputs.map { spec ->
                    val shape = listOf(inputs[0].batch) + spec.shape
                    Tensor.converted(spec.dtype, shape, FloatArray(elements(shape, Float.SIZE_BYTES)))
                }
            }

            override fun close() {
                open--
            }
        }
    }
}
