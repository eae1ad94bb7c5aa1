package pathweave.sdk

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.assertThrows
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime

class ProfilingTest {
    @Test
    fun `a profile predicts what its device measures`() {
        val device = SimulatedDevice(perBlockNs = 200_000, perRunNs = 50_000)
        val bundle = Contract.reference()
        val profile = profile(bundle, device, rounds = 5, clock = device::now)
        assertEquals(bundle.digest to device.identity, profile.bundle to profile.runtime)
        assertEquals(bundle.supernet.edges.toSet(), profile.edges.keys)
        assertEquals(bundle.supernet.exits.map { it.id to FP32 }.toSet(), profile.exits.keys)
        assertEquals(bundle.supernet.original, profile.fitted[0].subnet)
        val model = profile.costModel()
        for (measured in profile.fitted) {
            assertEquals(measured.measuredMs, model.latencyMs(measured.subnet), 0.05 * measured.measuredMs)
        }
        assertTrue(profile.edges.values.all { it.residentBytes > 0 && it.workingBytes > 0 })
        assertEquals(0, device.open)
    }

    @Test
    fun `a line is fitted through block sums and measured latencies`() {
        val measured = listOf(1.0, 2.0, 4.0).map { MeasuredSubnet(Subnet(emptyList()), it, 0.8 * it + 0.3) }
        val (scale, offsetMs) = fit(measured)
        assertEquals(0.8, scale, 1e-9)
        assertEquals(0.3, offsetMs, 1e-9)
    }

    @Test
    fun `with too little to tell them apart the offset is zero`() {
        val same = List(3) { MeasuredSubnet(Subnet(emptyList()), 2.0, 1.0 + 0.5 * it) }
        assertEquals(0.75 to 0.0, fit(same))
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
        val latencies = measureInterleaved(calls, rounds = 6, warmup = 1, clock = { now })
        assertEquals(listOf(1.0, 1.0, 1.0), latencies.map { it.p95Ms })
    }

    @Test
    fun `medians and spread are of the counted rounds`() {
        var now = 0L
        var call = 0
        val latency = measureInterleaved(
            listOf { now += if (call++ < 2) 1_000_000_000 else call * 1_000_000L },
            rounds = 5,
            warmup = 2,
            clock = { now },
        ).single()
        assertEquals(Latency(medianMs = 5.0, p95Ms = 6.8, p25Ms = 4.0, p75Ms = 6.0, runs = 5), latency)
        assertThrows<IllegalArgumentException> { measureInterleaved(emptyList(), rounds = 0, warmup = 0) }
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
private class SimulatedDevice(private val perBlockNs: Long, private val perRunNs: Long) : Runtime {
    private var nowNs = 0L
    var open = 0

    override val identity get() = "simulated"

    fun now(): Long = nowNs

    override fun load(stretch: Stretch): LoadedStretch {
        open++
        val blocks = stretch.fragments.count { fragment -> definedNames(fragment).none { it.startsWith("shared/") } }
        return object : LoadedStretch {
            override fun run(inputs: List<Tensor>): List<Tensor> {
                nowNs += perRunNs + blocks * perBlockNs
                return emptyList()
            }

            override fun close() {
                open--
            }
        }
    }
}
