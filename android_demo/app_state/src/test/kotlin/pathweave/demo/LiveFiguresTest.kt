package pathweave.demo

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Test
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.tasks.ObjectBox
import pathweave.sdk.tasks.Prediction

class LiveFiguresTest {
    private val image = Reference.images(1)[0]
    private val whole = Plan(Subnet(listOf(Edge("o0"))))
    private val quick = Plan(Subnet(listOf(Edge("m0"))))

    private fun LiveFigures.answered(source: String, ms: Double, plan: Plan = whole) =
        with(Classified(image, "red", 0.9, source, ms), plan)

    @Test
    fun `sources, asks and what is too late are counted`() {
        val figures = LiveFigures().answered("subnet", 1.0).answered("exit x1", 1.0).answered("exit x1", 1.0)
            .answered("server", 9.0).answered("fallback", 9.0).withTooLate()
        assertEquals(mapOf("subnet" to 1, "exit x1" to 2, "server" to 1, "fallback" to 1), figures.sources)
        assertEquals(listOf(5, 2, 1, 1), listOf(figures.count, figures.asked, figures.answeredByServer, figures.tooLate))
    }

    @Test
    fun `a switch is another subnet than the time before, not other exits`() {
        val exits = whole.copy(exits = listOf(ExitChoice("x1", 0.5)))
        val figures = listOf(whole, whole, exits, quick, quick, whole).fold(LiveFigures()) { figures, plan ->
            figures.answered("subnet", 1.0, plan)
        }
        assertEquals(2, figures.switches)
    }

    @Test
    fun `the median is that of the last thirty answers`() {
        assertNull(LiveFigures().medianMs)
        val slow = (1..30).fold(LiveFigures()) { figures, _ -> figures.answered("subnet", 100.0) }
        val mixed = (1..15).fold(slow) { figures, _ -> figures.answered("subnet", 2.0) }
        assertEquals(51.0, mixed.medianMs)
        assertEquals(2.0, mixed.answered("subnet", 2.0).medianMs)
    }

    @Test
    fun `a plan is shown with its exits`() {
        assertEquals("subnet: o0", planText(whole))
        assertEquals("exits: o0, exits x1", planText(whole.copy(exits = listOf(ExitChoice("x1", 0.5)))))
    }

    @Test
    fun `what was found is one line, boxes counted, and the first of many`() {
        fun box(label: String) = Prediction(label, 0.9, box = ObjectBox(0, 0f, 0f, 1f, 1f))
        assertEquals("2 × cell, 1 × platelet", foundWords(listOf(box("cell"), box("platelet"), box("cell"))))
        assertEquals("road 67 %, sky 33 %", foundWords(listOf(Prediction("road", share = 0.667), Prediction("sky", share = 0.333))))
        assertEquals("width 0.5, weight -12", foundWords(listOf("width" to 0.5, "weight" to -12.0).map { Prediction(it.first, value = it.second) }))
        assertEquals("a, b, c, d, …", foundWords("abcde".map { Prediction("$it", 0.8) }))
        assertNull(foundWords(emptyList()))
    }
}
