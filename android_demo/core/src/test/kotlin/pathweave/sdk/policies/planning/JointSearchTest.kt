package pathweave.sdk.policies.planning

import kotlin.random.Random
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.numerics.percentile
import pathweave.sdk.policies.costs.ExitSamples
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Optimised
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE

private const val COUNT = 24
private const val MOST = 4

class JointSearchTest {
    private val power = Power(2.0, 3.0, 0.5)
    private val call = RemoteCall(1000, 4.0, 2.0)

    private class World(seed: Int) {
        private val random = Random(seed)
        private val skill = DoubleArray(COUNT) { random.nextDouble() }
        val exits = listOf(exit("x1", 2.0, 0.4), exit("x2", 5.0, 0.7))
        val ease = DoubleArray(COUNT) { skill[it] + random.nextDouble() }
        val right = BooleanArray(COUNT) { skill[it] > 0.2 }
        val serverRight = BooleanArray(COUNT) { random.nextInt(8) > 0 }

        private fun exit(id: String, reachMs: Double, sure: Double): ExitSamples {
            val confidence = DoubleArray(COUNT) { 0.3 + 0.7 * (sure * skill[it] + (1 - sure) * random.nextDouble()) }
            return ExitSamples(
                ExitChoice(id, UNREACHABLE_CONFIDENCE), confidence, BooleanArray(COUNT) { skill[it] > 0.6 - sure / 2 }, reachMs, 0.5,
            )
        }
    }

    /** Per sample: wrong answers, milliseconds, millijoules, bytes; and the milliseconds of all samples in order. */
    private fun judged(world: World, limits: List<ExitLimits>, hard: Set<Int>): Pair<List<Double>, List<Double>> {
        val sums = DoubleArray(4)
        val each = List(COUNT) { sample ->
            var (triedMs, leaves) = 0.0 to -1
            var asks = false
            for ((at, exit) in world.exits.withIndex()) {
                val (threshold, askBelow) = limits[at]
                if (leaves >= 0 || threshold == UNREACHABLE_CONFIDENCE && askBelow == 0.0) continue
                triedMs += exit.branchMs
                asks = exit.confidence[sample] < askBelow
                if (asks || exit.confidence[sample] >= threshold) leaves = at
            }
            val deviceMs = triedMs + if (leaves >= 0) world.exits[leaves].reachMs else 9.0
            asks = asks || leaves < 0 && sample in hard
            val own = if (leaves >= 0) world.exits[leaves].right else world.right
            val isRight = if (asks) world.serverRight[sample] else own[sample]
            if (!isRight) sums[0] += 1.0
            val ms = deviceMs + if (asks) call.totalMs else 0.0
            sums[1] += ms
            sums[2] += power.activeW * deviceMs + if (asks) power.radioW * call.transferMs + power.waitingW * call.serverMs else 0.0
            if (asks) sums[3] += call.sizeBytes.toDouble()
            ms
        }
        return sums.map { it / COUNT } to each.sorted()
    }

    /** The best value of all combinations of the grid, one by one. */
    private fun exhaustive(world: World, requirement: Requirement, grid: JointGrid, rates: Rates): Double? {
        fun pairs(at: Int) = (grid.thresholds[at].asList() + UNREACHABLE_CONFIDENCE).flatMap { threshold ->
            (listOf(0.0) + grid.asks[at].asList()).filter { it <= threshold }.map { ExitLimits(threshold, it) }
        }
        val ordered = distinct(world.ease)
        var best: Double? = null
        for (first in pairs(0)) for (second in pairs(1)) for (hardEases in grid.hardEases[0]) {
            val hard = world.ease.indices.filter { hardEases == ordered.size || world.ease[it] < ordered[hardEases] }.toSet()
            val (means, each) = judged(world, listOf(first, second), hard)
            if (means.indices.any { means[it] > rates.limits[it] + 1e-9 }) continue
            if (requirement.p95LatencyMs?.let { percentile(each, 0.95) > it + 1e-9 } == true) continue
            val value = if (requirement.optimise == Optimised.ACCURACY) 1 - means[0] else -means[rates.optimised]
            best = maxOf(best ?: value, value)
        }
        return best
    }

    @Test
    fun `branch and bound finds what trying all combinations finds`() {
        val requirements = listOf(
            Requirement(latencyMs = 8.0),
            Requirement(Optimised.LATENCY_MS, accuracy = 0.85),
            Requirement(Optimised.ENERGY_MJ, accuracy = 0.8, p95LatencyMs = 15.0),
            Requirement(Optimised.BYTES_SENT, accuracy = 0.85, latencyMs = 9.0),
        )
        var early = 0
        for (seed in 0 until 6) for (requirement in requirements) {
            val world = World(seed)
            val end = AskingEnd(listOf(world.ease), world.right, world.serverRight, 9.0, call)
            val grid = JointGrid.of(world.exits, end.eases, MOST, asksEarly = true)
            val rates = Rates.of(requirement, call, power)
            val bounds = JointBounds(world.exits, end, rates, asksEarly = true)
            fun search(steps: Int) = JointSearch(
                world.exits, end, requirement, rates, bounds, JointTable(world.exits.last(), end, grid),
                JointMemory(0, listOf(0, 0), null), grid, Effort(steps),
            )
            val found = search(10_000).run(Double.NEGATIVE_INFINITY)
            val best = exhaustive(world, requirement, grid, rates)
            assertEquals(best == null, found == null)
            if (best == null || found == null) continue
            assertEquals(best, found.value, 1e-9, "$requirement, world $seed")
            assertTrue(objectiveOf(requirement, best) >= bounds.least - 1e-9)
            assertNull(search(10_000).run(best + 1e-9))
            if (found.exits.any { it.askBelow > 0.0 }) early++
        }
        assertTrue(early >= 4, "$early searches ask early")
    }

    @Test
    fun `exits that do not fit into the memory are left out`() {
        val world = World(1)
        val requirement = Requirement(Optimised.LATENCY_MS, accuracy = 0.5, peakBytes = 100)
        val end = AskingEnd(listOf(world.ease), world.right, world.serverRight, 9.0, call)
        val grid = JointGrid.of(world.exits, end.eases, MOST, asksEarly = true)
        val rates = Rates.of(requirement, call, null)
        val cases = listOf(listOf(10L, 10L) to setOf("x1", "x2"), listOf(60L, 10L) to setOf("x2"), listOf(60L, 60L) to emptySet())
        for ((sizes, allowed) in cases) {
            val found = JointSearch(
                world.exits, end, requirement, rates, JointBounds(world.exits, end, rates, asksEarly = true),
                JointTable(world.exits.last(), end, grid), JointMemory(50, sizes, 100), grid, Effort(10_000),
            ).run(Double.NEGATIVE_INFINITY)
            assertTrue(allowed.containsAll(found!!.exits.map { it.exit }))
        }
    }
}
