package pathweave.sdk

import com.sun.net.httpserver.HttpServer
import java.io.File
import java.net.InetSocketAddress
import java.nio.file.Path
import java.util.concurrent.CopyOnWriteArrayList
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

class DownloadTest {
    @TempDir
    lateinit var folder: Path

    private val asked = CopyOnWriteArrayList<String>()
    private val instead = mutableMapOf<String, ByteArray>() // what is served in place of a file
    private val server = HttpServer.create(InetSocketAddress("127.0.0.1", 0), 0).apply {
        createContext("/bundles/reference/") { exchange ->
            val path = exchange.requestURI.path.removePrefix("/bundles/reference/")
            asked += path
            val data = instead[path] ?: File(Contract.referenceFolder, path).takeIf { it.isFile }?.readBytes()
            val token = exchange.requestHeaders.getFirst("Authorization")
            when {
                token == "Bearer wrong" -> exchange.sendResponseHeaders(401, -1)
                data == null -> exchange.sendResponseHeaders(404, -1)
                else -> {
                    exchange.sendResponseHeaders(200, data.size.toLong().takeIf { it > 0 } ?: -1)
                    exchange.responseBody.use { it.write(data) }
                }
            }
            exchange.close()
        }
        start()
    }
    private val url = "http://127.0.0.1:${server.address.port}/bundles/reference"
    private val into get() = File(folder.toFile(), "store")

    @AfterEach
    fun stop() = server.stop(0)

    @Test
    fun `a fetched bundle opens and answers`() {
        val fetched = fetchBundle(url, into, Contract.key, token = "right")
        AdaptiveModel.open(fetched.folder, Contract.key, blobs = fetched.blobs).use { model ->
            assertEquals(Contract.reference().digest, model.bundle.digest)
        }
    }

    @Test
    fun `what is here is not fetched again, what was altered is`() {
        val first = fetchBundle(url, into)
        val blob = first.blobs.listFiles()!!.first()
        blob.writeText("altered")
        asked.clear()
        fetchBundle(url, into)
        assertEquals(listOf("manifest.json", "manifest.sig", "blobs/${blob.name}"), asked.toList())
        assertEquals(blob.name, sha256(blob.readBytes()))
    }

    @Test
    fun `nothing that was not verified is kept`() {
        val name = Contract.reference().manifest.blocks[0].renditions[0].blob
        val size = File(Contract.referenceFolder, "blobs/$name").length().toInt()
        for (bad in listOf(ByteArray(size), ByteArray(size - 1), ByteArray(size + 1), ByteArray(0))) {
            instead["blobs/$name"] = bad
            assertRefused<BlobError> { fetchBundle(url, into) }
            assertTrue(into.walk().none { it.name == name || it.name.endsWith(".part") || it.name == "manifest.json" })
        }
    }

    @Test
    fun `a manifest that the key's owner did not sign is refused before any blob is asked for`() {
        instead["manifest.json"] = File(Contract.referenceFolder, "manifest.json").readBytes() + '\n'.code.toByte()
        assertRefused<SignatureError> { fetchBundle(url, into, Contract.key) }
        assertTrue(asked.none { it.startsWith("blobs/") })
    }

    @Test
    fun `an older version than the one that was here is refused`() {
        val newer = Contract.reference().manifest.copy(version = 2)
        assertRefused<RollbackError> { fetchBundle(url, into, Contract.key, previous = newer) }
        fetchBundle(url, into, Contract.key, previous = newer.copy(name = "another"))
    }

    @Test
    fun `the server's status and an absent server are told apart`() {
        assertEquals(404, assertRefused<RefusedError> { fetchBundle("$url-not", into) }.status)
        assertEquals(401, assertRefused<RefusedError> { fetchBundle(url, into, token = "wrong") }.status)
        stop()
        assertRefused<TransferError> { fetchBundle(url, into) }
    }

    @Test
    fun `an address that is none is refused`() {
        for (address in listOf("", "bundles/reference", "ftp://127.0.0.1/x", "file:///etc")) {
            assertRefused<UsageError> { fetchBundle(address, into) }
        }
    }

    @Test
    fun `a folder that cannot be written is said to be`() {
        val file = File(folder.toFile(), "file").apply { writeText("in the way") }
        assertRefused<StorageError> { fetchBundle(url, file) }
    }
}
