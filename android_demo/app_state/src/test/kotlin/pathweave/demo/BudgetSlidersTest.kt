package pathweave.demo

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.supernet.Goal

class BudgetSlidersTest {
    private val ranges = BudgetRanges(SliderRange(2.0, 32.0), SliderRange(1.0, 10.0))

    @Test
    fun `a slider runs from the least to the most in equal ratios, and its end sets no limit`() {
        val range = SliderRange(2.0, 32.0)
        assertEquals(2.0, range.at(0)!!, 1e-9)
        assertEquals(32.0, range.at(SLIDER_STEPS - 1)!!, 1e-9)
        assertNull(range.at(SLIDER_STEPS))
        val ratios = (0 until SLIDER_STEPS).map { range.at(it)!! }.zipWithNext { before, after -> after / before }
        assertTrue(ratios.max() - ratios.min() < 1e-9)
        assertEquals(7.0, SliderRange(7.0, 7.0).at(50)!!, 1e-9)
    }

    @Test
    fun `a slider can be put where a limit is`() {
        for (position in 0..SLIDER_STEPS) assertEquals(position, DEADLINES_MS.positionOf(DEADLINES_MS.at(position)))
        assertEquals(listOf(0, SLIDER_STEPS - 1), listOf(1e-6, 1e6).map(DEADLINES_MS::positionOf))
        assertEquals(0, SliderRange(7.0, 7.0).positionOf(7.0))
    }

    @Test
    fun `ranges that are none are refused`() {
        assertThrows(IllegalArgumentException::class.java) { SliderRange(0.0, 1.0) }
        assertThrows(IllegalArgumentException::class.java) { SliderRange(2.0, 1.0) }
        assertThrows(IllegalArgumentException::class.java) { SliderRange(Double.NaN, 1.0) }
    }

    /** A share of the full model's latency, which is half of the most. */
    private fun limitMs(goal: Goal) = goal.latencyRatio!! * ranges.latencyMs.most / 2

    @Test
    fun `every slider sets its limit, and none sets none`() {
        assertNull(ranges.goal(BudgetPositions()))
        assertEquals(Goal(memoryMb = 1.0), ranges.goal(BudgetPositions(memory = 0)))
        val both = ranges.goal(BudgetPositions(latency = 0, memory = SLIDER_STEPS - 1))!!
        assertEquals(2.0, limitMs(both), 1e-9)
        assertEquals(10.0, both.memoryMb!!, 1e-9)
    }

    @Test
    fun `a limit on energy is one on latency at the power that was metered`() {
        assertNull(ranges.energyMj)
        assertNull(ranges.goal(BudgetPositions(energy = 0)), "without a meter there is no such slider")
        val metered = ranges.copy(watts = 2.5)
        assertEquals(5.0, metered.energyMj!!.at(0)!!, 1e-9)
        assertEquals(2.0, limitMs(metered.goal(BudgetPositions(energy = 0))!!), 1e-9)
        val tighter = metered.goal(BudgetPositions(latency = 0, energy = SLIDER_STEPS - 1))!!
        assertEquals(2.0, limitMs(tighter), 1e-9)
    }

    @Test
    fun `the ranges of a profile hold subnets at both ends`() {
        AdaptiveModel.open(Reference.folder).use { model ->
            val profile = model.profileBlocking()
            val ranges = rangesOf(model.bundle.supernet, profile, watts = null)
            val costs = profile.costModel()
            assertTrue(costs.latencyMs(model.bundle.supernet.original) <= ranges.latencyMs.most * (1 + 1e-9))
            assertTrue(ranges.latencyMs.least <= ranges.latencyMs.most)
            assertTrue(ranges.memoryMb.least > 0)
            assertNull(rangesOf(model.bundle.supernet, profile, watts = 0.0).energyMj)
        }
    }

    @Test
    fun `the mean power leaves out what the meter does not say`() {
        val readings = ArrayDeque(listOf(2.0, null, 4.0, Double.NaN, -1.0))
        val power = MeanPower { readings.removeFirst() }
        assertNull(power.watts)
        repeat(5) { power.read() }
        assertEquals(3.0, power.watts)
        assertNull(MeanPower(null).apply { read() }.watts)
    }

    @Test
    fun `a battery that states no plausible power has no meter`() {
        assertEquals(1.54, wattsOf(-400_000, 3850)!!, 1e-9)
        assertEquals(1.54, wattsOf(400_000, 3850)!!, 1e-9)
        for ((current, voltage) in listOf(0L to 3850, 400L to 3850, Long.MIN_VALUE to 3850, 400_000L to 0, 400_000L to -1)) {
            assertNull(wattsOf(current, voltage), "$current at $voltage")
        }
    }
}
