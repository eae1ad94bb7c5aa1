package pathweave.sdk.execution

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.Contract
import pathweave.sdk.double
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items

class DeadlineTest {
    private val cases =
        Json.parseToJsonElement(File(Contract.repository, "tests/contract/deadlines.json").readText()).items

    private fun numbers(value: JsonElement) = value.items.map { it.double }

    private fun JsonElement.orNull() = takeIf { it !is JsonNull }

    @Test
    fun `the same exit is chosen everywhere`() {
        assertTrue(cases.size > 50)
        for (case in cases) {
            val runs = case["runs_ms"].items.map(::numbers)
            val typical = numbers(case["typical_ms"])
            assertEquals(case["slowness"].double, slowness(runs, typical))
            val times = answerTimesMs(runs, typical, case["present_slowness"].orNull()?.double)
            assertEquals(numbers(case["answer_times_ms"]), times, "$case")
            for (choice in case["choices"].items) {
                val last = choice["last"].orNull()?.int
                assertEquals(last, lastInTime(times, choice["deadline_ms"].double), "$choice")
            }
        }
    }

    @Test
    fun `a deadline below the first exit has no answer`() {
        assertNull(lastInTime(listOf(2.0, 3.0), 1.9))
        assertEquals(0, lastInTime(listOf(2.0, 3.0), 2.0))
        assertEquals(1, lastInTime(listOf(2.0, 3.0), 99.0))
    }
}
