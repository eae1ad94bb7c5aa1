package pathweave.demo

import java.util.Locale
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

class AdaptationPictureTest {
    private fun picture(vararg plans: PlanPoint, chosen: PlanPoint = plans[0], limitMs: Double? = null) =
        AdaptationPicture(plans.toList(), chosen, PlanPoint(8.0, 0.9), limitMs)

    @Test
    fun `the front has the plans than which no other is both faster and more accurate`() {
        val (quick, good, best) = listOf(PlanPoint(1.0, 0.5), PlanPoint(2.0, 0.7), PlanPoint(4.0, 0.8))
        val beaten = listOf(PlanPoint(2.0, 0.6), PlanPoint(3.0, 0.7), PlanPoint(1.5, 0.5))
        assertEquals(listOf(quick, good, best), picture(best, beaten[0], quick, beaten[1], good, beaten[2]).front)
    }

    @Test
    fun `the axes hold every point and the limit, and latencies begin at zero`() {
        val drawn = picture(PlanPoint(1.0, 0.5), PlanPoint(2.0, 1.0), limitMs = 20.0)
        assertEquals(0.0, drawn.latencyAxis.from)
        assertTrue(drawn.latencyAxis.to > 20.0)
        assertTrue(drawn.accuracyAxis.from < 0.5 && drawn.accuracyAxis.to == 1.0)
        for (point in drawn.plans) assertTrue(drawn.accuracyAxis.share(point.accuracy) in 0.0..1.0)
        val alike = AdaptationPicture(listOf(PlanPoint(1.0, 0.8)), PlanPoint(1.0, 0.8), null, null)
        assertTrue(alike.accuracyAxis.run { from < 0.8 && to > 0.8 })
    }

    @Test
    fun `ticks are round, even and few`() {
        assertEquals(listOf(0.0, 2.0, 4.0, 6.0, 8.0), Axis(0.0, 9.5).ticks(5))
        assertEquals(listOf(0.6, 0.7, 0.8), Axis(0.55, 0.83).ticks(4).map { Math.round(it * 1e6) / 1e6 })
        assertEquals(listOf(3.0), Axis(3.0, 3.0).ticks(4))
        for (most in 1..9) assertTrue(Axis(0.0123, 7.7).ticks(most).size <= most + 1)
    }

    @Test
    fun `numbers have three digits that count`() {
        val written = listOf(0.0, 0.012345, 1.2345, 12.0, 123.45, 98765.4, 99.96).map { shortNumber(it, Locale.ENGLISH) }
        assertEquals(listOf("0", "0.0123", "1.23", "12", "123", "98800", "100"), written)
        assertEquals("1,23", shortNumber(1.2345, Locale.GERMAN))
    }
}
