package pathweave.sdk.delivery

import java.io.File
import java.nio.file.Path
import java.util.concurrent.CancellationException
import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit
import kotlinx.serialization.json.JsonPrimitive
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.assertThrows
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.Fault
import pathweave.sdk.FaultServer
import pathweave.sdk.PostAnswer
import pathweave.sdk.Posted
import pathweave.sdk.ProtocolError
import pathweave.sdk.RefusedError
import pathweave.sdk.TransferError
import pathweave.sdk.UsageError
import pathweave.sdk.child
import pathweave.sdk.files.LINE_MAX_BYTES
import pathweave.sdk.files.jsonOf
import pathweave.sdk.logs.AdaptationLog
import pathweave.sdk.session.deviceId

/** Keeps each line once, as server/state/log_store.py does. */
class LogKeeper {
    val posts = CopyOnWriteArrayList<Posted>()
    val lines = LinkedHashSet<String>()

    /** What the server answers once it has stored the lines. */
    fun store(posted: Posted): PostAnswer = synchronized(lines) {
        posts += posted
        val new = String(posted.body).lines().dropLast(1)
        val accepted = new.count(lines::add)
        PostAnswer(200, """{"accepted": $accepted, "duplicates": ${new.size - accepted}, "dropped": 0}""")
    }
}

@Timeout(60)
class LogUploadTest {
    @TempDir
    lateinit var folder: Path

    private val keeper = LogKeeper()
    private val server by lazy { FaultServer(folder.toFile()).also { it.post = keeper::store } }
    private val path by lazy { File(folder.toFile(), "state/adaptation.jsonl") }

    @AfterEach
    fun stop() = server.close()

    private fun logged(count: Int, maxBytes: Long = 1_000_000) = AdaptationLog(path, "b".repeat(64), "none", maxBytes)
        .also { log -> repeat(count) { log.write(jsonOf("event" to JsonPrimitive("none"), "n" to JsonPrimitive(it))) } }

    private fun upload(token: String? = null) = uploadLog(path, server.url, "device-1.a", token)

    private fun written(bytes: ByteArray) = path.apply { parentFile.mkdirs() }.writeBytes(bytes)

    @Test
    fun `the lines arrive as they are, once however often they are sent`() {
        logged(3)
        assertEquals(UploadResult(3, 0), upload("secret"))
        assertEquals(UploadResult(0, 3), upload("secret"))
        assertEquals(2, keeper.posts.size)
        for (posted in keeper.posts) {
            assertEquals("/v1/logs", posted.path)
            assertEquals("device-1.a", posted.headers["pathweave-device"])
            assertEquals("Bearer secret", posted.headers["authorization"])
            assertArrayEquals(path.readBytes(), posted.body)
        }
    }

    @Test
    fun `the older files of a log are sent first, and rotation in between loses and repeats nothing`() {
        val log = logged(12, maxBytes = 500)
        val files = listOf("adaptation.jsonl.3", "adaptation.jsonl.2", "adaptation.jsonl.1", "adaptation.jsonl")
            .map { File(path.parentFile, it) }
        val kept = files.map { it.readText() }
        server.post = { posted ->
            repeat(3) { log.write(jsonOf("event" to JsonPrimitive("meanwhile"), "n" to JsonPrimitive(it))) }
            keeper.store(posted)
        }
        upload()
        val sent = keeper.posts.map { String(it.body) }
        assertEquals(kept, sent.dropLast(1) + sent.last().take(kept.last().length))
        assertEquals(keeper.lines.size, sent.sumOf { it.lines().size - 1 })
    }

    @Test
    fun `a line that was cut short is left out, and an empty log sends nothing`() {
        logged(2)
        val whole = path.readBytes()
        path.appendBytes("{\"schema\": 1, \"ti".toByteArray())
        upload()
        assertArrayEquals(whole, keeper.posts.single().body)
        written(ByteArray(0))
        assertEquals(UploadResult(0, 0), upload())
        assertEquals(1, keeper.posts.size)
    }

    @Test
    fun `a long log goes in bodies of whole lines`() {
        val lines = List(2_500) { "{\"n\": $it, \"text\": \"${"x".repeat(900)}\"}\n" }
        written(lines.joinToString("").toByteArray())
        assertEquals(UploadResult(2_500, 0), upload())
        assertEquals(3, keeper.posts.size)
        assertEquals(lines.joinToString(""), keeper.posts.joinToString("") { String(it.body) })
        assertTrue(keeper.posts.all { it.body.size <= BODY_MAX_BYTES && it.body.last() == '\n'.code.toByte() })
    }

    @Test
    fun `a connection that is cut in the middle is a transfer error, and the next upload sends the rest`() {
        val lines = List(2_500) { "{\"n\": $it, \"text\": \"${"x".repeat(900)}\"}\n" }
        written(lines.joinToString("").toByteArray())
        for (kind in listOf(Fault.Kind.CUT, Fault.Kind.RESET)) {
            server.fault("/v1/logs", Fault(kind, 400_000))
            assertThrows<TransferError> { upload() }
        }
        var bodies = 0
        server.post = { if (bodies++ == 1) null else keeper.store(it) } // the first is acknowledged, the second is not
        assertThrows<TransferError> { upload() }
        val acknowledged = keeper.lines.size.toLong()
        assertTrue(acknowledged in 1 until 2_500)
        server.post = keeper::store
        assertEquals(UploadResult(2_500 - acknowledged, acknowledged), upload())
    }

    @Test
    fun `a process that is killed before the acknowledgement came leaves no line twice`() {
        logged(50)
        val stored = CountDownLatch(1)
        server.post = { posted ->
            keeper.store(posted)
            stored.countDown()
            Thread.sleep(60_000) // the answer never comes
            null
        }
        val child = child(UploadChild::class.java.name, path.path, server.url)
        assertTrue(stored.await(30, TimeUnit.SECONDS))
        child.destroyForcibly().waitFor()
        server.post = keeper::store
        assertEquals(UploadResult(0, 50), upload())
        assertEquals(path.readLines(), keeper.lines.toList())
    }

    @Test
    fun `what the server refuses is named with the lines and the server's words`() {
        written(List(20) { "{\"text\": \"${"x".repeat(60_000)}\"}\n" }.joinToString("").toByteArray())
        server.post = { if (keeper.posts.isEmpty()) keeper.store(it) else PostAnswer(422, """{"error": "line 3: bad"}""") }
        val error = assertThrows<RefusedError> { upload() }
        assertEquals(422, error.status)
        assertEquals("adaptation.jsonl, from line 17: the server answered 422: line 3: bad", error.message)
    }

    @Test
    fun `a busy server and a refused token keep their status`() {
        logged(1)
        server.post = { PostAnswer(503, """{"error": "busy"}""", "Retry-After: 60") }
        assertEquals(503, assertThrows<RefusedError> { upload() }.status)
        for (status in listOf(401, 403)) {
            server.post = { PostAnswer(status, """{"error": "no"}""", "WWW-Authenticate: Bearer") }
            val error = assertThrows<RefusedError> { upload("wrong") }
            assertEquals(status, error.status)
            assertEquals("give a valid token for this server", error.hint)
        }
        assertThrows<UsageError> { upload("a token") }
    }

    @Test
    fun `a line over the limit is named`() {
        written(("{}\n" + "x".repeat(LINE_MAX_BYTES) + "\n").toByteArray())
        val error = assertThrows<UsageError> { upload() }
        assertTrue(error.message!!.startsWith("line 2 of "), error.message)
        assertEquals(0, keeper.posts.size)
    }

    @Test
    fun `an answer that is none is a protocol error`() {
        logged(1)
        for (body in listOf("", "{}", """{"accepted": "all", "duplicates": 0}""", """{"accepted":-1,"duplicates":0}""")) {
            server.post = { PostAnswer(200, body) }
            assertThrows<ProtocolError>(body) { upload() }
        }
        server.post = { PostAnswer(200, " ".repeat(64_001)) }
        assertThrows<ProtocolError> { upload() }
    }

    @Test
    fun `what cannot be sent is refused before anything is`() {
        val missing = assertThrows<UsageError> { upload() }
        assertTrue(path.path in missing.message!!)
        logged(1)
        for (device in listOf("", "a b", "a/b", "a\r\nX: 1", "x".repeat(129), "gerät")) {
            assertThrows<UsageError> { uploadLog(path, server.url, device) }
        }
        assertThrows<UsageError> { uploadLog(path, "nowhere", "d") }
        assertThrows<CancellationException> { uploadLog(path, server.url, "d", stopped = { true }) }
        assertEquals(0, keeper.posts.size)
        stop()
        assertThrows<TransferError> { upload() }
    }

    @Test
    fun `a device keeps its name, and one that was damaged is made again`() {
        val state = File(folder.toFile(), "named")
        val name = deviceId(state)
        assertTrue(Regex("[0-9a-f]{16}").matches(name))
        assertEquals(name, deviceId(state))
        File(state, "device").writeText("a b\n")
        val next = deviceId(state)
        assertNotEquals(name, next)
        assertEquals("$next\n", File(state, "device").readText())
    }
}

/** Sends the log that its first argument names. */
object UploadChild {
    @JvmStatic
    fun main(arguments: Array<String>) {
        uploadLog(File(arguments[0]), arguments[1], "device-1.a")
    }
}
