package pathweave.sdk.logs

import java.io.File
import java.nio.file.Path
import kotlinx.serialization.json.JsonPrimitive
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.files.LINE_MAX_BYTES
import pathweave.sdk.files.LOG_MAX_BYTES
import pathweave.sdk.files.filesOf

class LogReadingTest {
    @TempDir
    lateinit var folder: Path

    private val path get() = File(folder.toFile(), "adaptation.jsonl")

    private fun log(maxBytes: Long = LOG_MAX_BYTES) = AdaptationLog(path, "b".repeat(64), "none", maxBytes)

    @Test
    fun `events come back as they were written, also across rotated files`() {
        val log = log(maxBytes = 400)
        repeat(4) { log.write(event("opened", "subnet" to JsonPrimitive("o$it"), "restored" to JsonPrimitive(true))) }
        assertTrue(filesOf(path).size > 1)
        val lines = readLog(path)
        assertEquals(listOf("o0", "o1", "o2", "o3"), lines.map { it.fields["subnet"] })
        assertEquals(setOf("opened"), lines.map { it.event }.toSet())
        assertEquals(mapOf("subnet" to "o0", "restored" to "true"), lines[0].fields)
        assertEquals("b".repeat(64) to "none", lines[0].bundle to lines[0].runtime)
        assertTrue(lines.zipWithNext().all { (before, after) -> before.time <= after.time })
    }

    @Test
    fun `a line that a crash cut short is left out`() {
        log().write(event("opened"))
        path.appendText("{\"schema\":1,\"ti")
        assertEquals(listOf("opened"), readLog(path).map { it.event })
    }

    @Test
    fun `what is no log is refused with the line`() {
        assertTrue("cannot read the log" in assertRefused<UsageError> { readLog(path) }.message!!)
        log().write(event("opened"))
        path.appendText("{\"schema\":1}\n")
        assertTrue(assertRefused<UsageError> { readLog(path) }.message!!.startsWith("line 2 of adaptation.jsonl breaks"))
        path.writeText("x".repeat(LINE_MAX_BYTES + 1) + "\n")
        assertTrue("more than $LINE_MAX_BYTES bytes" in assertRefused<UsageError> { readLog(path) }.message!!)
    }
}
