package pathweave.sdk.session

import java.io.File
import java.nio.file.Path
import kotlinx.serialization.json.JsonPrimitive
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.FaultServer
import pathweave.sdk.NoRuntime
import pathweave.sdk.PostAnswer
import pathweave.sdk.Published
import pathweave.sdk.delivery.LogKeeper
import pathweave.sdk.delivery.UploadResult
import pathweave.sdk.files.jsonOf
import pathweave.sdk.logs.AdaptationLog

@Timeout(60)
class LogUploadWorkTest {
    @TempDir
    lateinit var folder: Path

    private val www by lazy { File(folder.toFile(), "www").also { Published.write(it, 1) } }
    private val keeper = LogKeeper()
    private val server by lazy { FaultServer(www).also { it.post = keeper::store } }
    private val url by lazy { "${server.url}/${Published.PATH}" }
    private val state by lazy { File(folder.toFile(), "state") }
    private val good = DeviceConditions(unmetered = true, charging = true)
    private val work by lazy { LogUploadWork(url, state, "secret") }

    @AfterEach
    fun stop() = server.close()

    /** Opens what the server has: two lines in the log of that version, how it came and that it was opened. */
    private fun opened(): File {
        val opened = openAt(url, state, Contract.key, runtime = NoRuntime, selfTest = {})
        return AdaptiveModel.open(opened, stateFolder = state).use { logPath(state, it.bundle) }
    }

    @Test
    fun `the logs of all versions of the bundle are sent, and no others`() {
        val logs = listOf(1, 2).map { version ->
            Published.write(www, version)
            opened()
        }
        val other = File(state, "reference-more-${"0".repeat(16)}/adaptation.jsonl")
        AdaptationLog(other, "b".repeat(64), "none").write(jsonOf("event" to JsonPrimitive("of another bundle")))
        assertEquals(WorkResult.Uploaded(UploadResult(4, 0)), work.run({ good }))
        assertEquals(WorkResult.Uploaded(UploadResult(0, 4)), work.run({ good }))
        assertEquals(logs.flatMap { it.readLines() }.toSet(), keeper.lines)
        assertEquals(setOf(deviceId(state)), keeper.posts.map { it.headers["pathweave-device"] }.toSet())
        assertEquals(setOf("Bearer secret"), keeper.posts.map { it.headers["authorization"] }.toSet())
    }

    @Test
    fun `nothing is sent where the constraints do not hold, or no longer`() {
        opened()
        assertEquals(WorkResult.Postponed, work.run({ good.copy(unmetered = false) }))
        assertEquals(WorkResult.Postponed, work.run({ good.copy(charging = false) }))
        assertEquals(WorkResult.Postponed, work.run({ good }, { true }))
        var asked = 0
        assertEquals(WorkResult.Postponed, work.run({ good.copy(charging = asked++ == 0) }))
        assertEquals(0, keeper.posts.size)
        val anyTime = LogUploadWork(url, state, constraints = WorkConstraints(unmetered = false, charging = false))
        assertTrue(anyTime.run({ DeviceConditions(unmetered = false, charging = false) }) is WorkResult.Uploaded)
    }

    @Test
    fun `before anything was fetched there is nothing to send`() {
        assertEquals(WorkResult.Uploaded(UploadResult(0, 0)), work.run({ good }))
        assertEquals(emptyList<String>(), server.requests.toList())
    }

    @Test
    fun `what may pass is tried again soon, what cannot is not`() {
        opened()
        for ((status, retry) in listOf(503 to true, 429 to true, 401 to false, 422 to false)) {
            server.post = { PostAnswer(status, "{}", "Retry-After: 60") }
            assertEquals(retry, work.run({ good }).retry, "$status")
        }
        server.post = { null }
        assertEquals(true, work.run({ good }).retry)
        assertEquals(false, LogUploadWork("${server.url}/elsewhere", state).run({ good }).retry)
        stop()
        assertTrue(work.run({ good }).let { it is WorkResult.Failed && it.retry })
    }
}
