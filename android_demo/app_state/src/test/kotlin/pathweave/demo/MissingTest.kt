package pathweave.demo

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Test

class MissingTest {
    private val ranges = BudgetRanges(SliderRange(2.0, 32.0), SliderRange(1.0, 10.0))
    private val limited = BudgetPositions(latency = 40)
    private val opened = Opened("digits", 3, "81", exits = 2, listOf("0", "1"), fromServer = true)
    private val ready = AppState(opened = opened, ranges = ranges, pictures = Pictures(3, 3))

    @Test
    fun `before a bundle is open only one can be opened`() {
        for (action in Action.entries) {
            assertEquals(Missing.BUNDLE.takeIf { action != Action.OPEN }, AppState().missing(action, limited), "$action")
        }
    }

    @Test
    fun `with everything there everything can be done`() {
        for (action in Action.entries) assertNull(ready.missing(action, limited), "$action")
    }

    @Test
    fun `what runs is waited for, but live classification and the sliders go on`() {
        val beside = setOf(Action.CAMERA, Action.LIVE_PICTURES, Action.LIMIT)
        for (action in Action.entries) {
            val missing = ready.copy(busy = Busy.ADAPTING).missing(action, limited)
            assertEquals(Missing.TURN.takeIf { action !in beside }, missing, "$action")
        }
    }

    @Test
    fun `adapting needs a profile, pictures and a limit, and says the first that is missing`() {
        assertEquals(Missing.PROFILE, ready.copy(ranges = null, pictures = Pictures()).missing(Action.ADAPT))
        assertEquals(Missing.PICTURES, ready.copy(pictures = Pictures()).missing(Action.ADAPT))
        assertEquals(Missing.LIMITS, ready.missing(Action.ADAPT))
        assertEquals(Missing.LIMITS, ready.copy(busy = Busy.READING).missing(Action.ADAPT))
        for (positions in listOf(limited, BudgetPositions(memory = 1), BudgetPositions(energy = 1))) {
            assertNull(ready.missing(Action.ADAPT, positions))
        }
    }

    @Test
    fun `a server is missing for bundles from folders and while the app is offline`() {
        for (action in listOf(Action.ASK, Action.SEND_LOG)) {
            assertEquals(Missing.SERVER, ready.copy(opened = opened.copy(fromServer = false)).missing(action))
            assertEquals(Missing.ONLINE, ready.copy(offline = true).missing(action))
        }
        assertEquals(Missing.EXITS, ready.copy(opened = opened.copy(exits = 0)).missing(Action.EXITS))
    }
}
