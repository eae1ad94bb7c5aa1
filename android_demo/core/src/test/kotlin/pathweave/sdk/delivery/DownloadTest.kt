package pathweave.sdk.delivery

import com.sun.net.httpserver.HttpServer
import java.io.File
import java.net.InetSocketAddress
import java.util.concurrent.CancellationException
import java.util.concurrent.CopyOnWriteArrayList
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.assertThrows
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.BundleError
import pathweave.sdk.Contract
import pathweave.sdk.DeadlineError
import pathweave.sdk.Fault
import pathweave.sdk.FrozenClock
import pathweave.sdk.PathweaveError
import pathweave.sdk.Published
import pathweave.sdk.PublishedTest
import pathweave.sdk.RefusedError
import pathweave.sdk.RollbackError
import pathweave.sdk.SignatureError
import pathweave.sdk.StorageError
import pathweave.sdk.TransferError
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.bundles.Trust
import pathweave.sdk.files.digestOf
import pathweave.sdk.files.sha256
import pathweave.sdk.transports.Deadlines
import pathweave.sdk.transports.HttpTransport
import pathweave.sdk.transports.Reply
import pathweave.sdk.transports.Transport
import pathweave.sdk.transports.base

@Timeout(60)
class DownloadTest : PublishedTest() {
    private val store by lazy { BundleStore(File(folder.toFile(), "store")) }
    private val clock = FrozenClock()

    /** Without waiting: pauses only move a clock. */
    private fun fetch(options: DeliveryOptions = DeliveryOptions(), trust: Trust? = Contract.key) =
        fetchBundle(url, store, HttpTransport(null), trust, options, clock = { clock.nowNs }, sleep = clock::sleep)

    private fun install(version: Int, ownBlob: ByteArray? = Published.blob(version)): Delivered {
        Published.write(www, version, ownBlob)
        return fetch().also { store.rememberGood(url, it.name, it.digest) }
    }

    @Test
    fun `a fetched bundle opens and answers`() {
        val fetched = fetchBundle(url, store, Contract.key, token = "secret")
        assertEquals(DeliverySource.DOWNLOADED to 12, fetched.source to fetched.blobsFetched)
        assertTrue(server.tokens.all { it == "Bearer secret" })
        AdaptiveModel.open(fetched.folder, Contract.key, blobs = fetched.blobs).use { model ->
            assertEquals(fetched.digest, model.bundle.digest)
        }
    }

    @Test
    fun `what is here is not fetched again`() {
        install(1, null)
        server.requests.clear()
        assertEquals(DeliverySource.UNCHANGED, fetch().source)
        val heads = listOf("manifest.json", "manifest.sig").map { "/${Published.PATH}/$it" }
        assertEquals(heads, server.requests.toList())
        server.requests.clear()
        assertEquals(1, install(2).blobsFetched)
        assertEquals(3, server.requests.size)
    }

    @Test
    fun `a cut transfer resumes where it stopped`() {
        val blob = Published.blob(2)
        Published.write(www, 2, blob)
        server.fault(sha256(blob), Fault(Fault.Kind.CUT, 1_000), Fault(Fault.Kind.RESET, 1_000))
        val fetched = fetch()
        assertEquals(listOf("bytes=1000-", "bytes=2000-"), server.ranges.filterNotNull())
        assertTrue(fetched.resumed in 1..2)
        assertEquals(sha256(blob), digestOf(File(store.blobs, sha256(blob))))
    }

    @Test
    fun `a transfer that one delivery gave up is resumed by the next`() {
        val blob = Published.blob(2)
        Published.write(www, 2, blob)
        server.fault(sha256(blob), Fault(Fault.Kind.CUT, 1_500), *Array(9) { Fault(Fault.Kind.CUT, 0) })
        assertRefused<TransferError> { fetch() }
        assertEquals(listOf(1_500L), store.partial.listFiles()!!.map { it.length() })
        server.fault(sha256(blob))
        server.ranges.clear()
        assertEquals(1, fetch().resumed)
        assertEquals(listOf("bytes=1500-"), server.ranges.filterNotNull())
        assertEquals(emptyList<File>(), store.partial.listFiles()!!.asList())
    }

    @Test
    fun `a server without ranges, or with another file, sends the blob again`() {
        val blob = Published.blob(2)
        Published.write(www, 2, blob)
        server.fault(sha256(blob), Fault(Fault.Kind.CUT, 1_000), Fault(Fault.Kind.NO_RANGES))
        assertEquals(0, fetch().resumed)
        assertEquals(sha256(blob), digestOf(File(store.blobs, sha256(blob))))
    }

    @Test
    fun `a damaged orphan costs one more transfer`() {
        val blob = Published.blob(2)
        Published.write(www, 2, blob)
        store.partial.mkdirs()
        File(store.partial, "${sha256(blob)}.00.part").writeBytes(ByteArray(1_000) { 9 })
        fetch()
        assertEquals(sha256(blob), digestOf(File(store.blobs, sha256(blob))))
    }

    @Test
    fun `a blob that is altered on the way is fetched once more, then refused`() {
        val blob = Published.blob(2)
        Published.write(www, 2, blob)
        server.fault(sha256(blob), Fault(Fault.Kind.FLIP, 100))
        fetch()
        install(3, null)
        Published.write(www, 4, Published.blob(4))
        val flip = Fault(Fault.Kind.FLIP, 100)
        server.fault(sha256(Published.blob(4)), flip, flip)
        val kept = fetch()
        assertEquals(DeliverySource.KEPT to 3L, kept.source to kept.version)
        assertTrue("does not match its digest" in kept.failure!!)
        assertEquals(emptyList<File>(), store.partial.listFiles()!!.asList())
    }

    @Test
    fun `nothing that was not verified is kept`() {
        val name = Contract.reference().manifest.exits[0].renditions[0].blob
        val file = File(www, "${Published.PATH}/blobs/$name")
        val size = file.length().toInt()
        for (bad in listOf(ByteArray(size), ByteArray(size - 1), ByteArray(size + 1), ByteArray(0))) {
            file.writeBytes(bad)
            assertThrows<PathweaveError> { fetch() }
            val left = store.folder.walk().filter { it.isFile }.map { it.name }.toList()
            assertTrue(left.none { it == name || it == "manifest.json" }, left.toString())
        }
    }

    @Test
    fun `a manifest that the key's owner did not sign is refused before any blob is asked for`() {
        File(www, "${Published.PATH}/manifest.json").appendText("\n")
        assertRefused<SignatureError> { fetch() }
        assertTrue(server.requests.none { "blobs/" in it })
        fetch(trust = null)
    }

    @Test
    fun `another name, a lower version and other bytes under the same version are refused, and the last good stays`() {
        install(2)
        for ((version, name, blob) in listOf(
            Triple(3, "another", null),
            Triple(1, "reference", null),
            Triple(2, "reference", Published.blob(9)),
        )) {
            Published.write(www, version, blob, name)
            val kept = fetch()
            assertEquals(DeliverySource.KEPT to 2L, kept.source to kept.version)
            assertTrue(kept.error is BundleError, kept.failure)
        }
        Published.write(www, 1)
        assertEquals(1L, fetch(DeliveryOptions(allowRollback = true)).version)
    }

    @Test
    fun `a mirror cannot bring back what the device has left behind`() {
        install(2)
        Published.write(www, 1, path = "mirror/reference")
        val mirror = "${server.url}/mirror/reference"
        assertRefused<RollbackError> { fetchBundle(mirror, store, Contract.key) }
    }

    @Test
    fun `a stalled server ends at the idle deadline, a dripping one at the total`() {
        install(1, null)
        val blob = Published.blob(2)
        Published.write(www, 2, blob)
        val manifest = Fault(Fault.Kind.DRIP_HEADERS)
        for ((part, fault) in listOf(
            "manifest.json" to Fault(Fault.Kind.STALL, 10),
            sha256(blob) to Fault(Fault.Kind.DRIP, 10),
            "manifest.sig" to manifest,
        )) {
            server.faults.clear()
            server.fault(part, fault, fault, fault)
            val startedNs = System.nanoTime()
            val options = DeliveryOptions(updateDeadlines = Deadlines(idleS = 0.3, totalS = 0.8), attempts = 2)
            val kept = fetchBundle(url, store, HttpTransport(null), Contract.key, options)
            assertEquals(DeliverySource.KEPT, kept.source)
            assertTrue(kept.error is DeadlineError, kept.error.toString())
            assertTrue((System.nanoTime() - startedNs) / 1e9 < 2.0)
        }
    }

    @Test
    fun `a server below the minimum rate is given up`() {
        val slow = object : Transport {
            private val real = HttpTransport(null)

            override fun <T> send(
                method: String, url: String, headers: Map<String, String>, body: ByteArray?, deadlines: Deadlines,
                maxBytes: Long, use: (Reply) -> T,
            ): T = real.send(method, url, headers, body, deadlines, maxBytes) {
                clock.sleep(16.0).let { _ -> use(it) }
            }
        }
        val error = assertRefused<DeadlineError> {
            fetchBundle(url, store, slow, Contract.key, clock = { clock.nowNs }, sleep = clock::sleep)
        }
        assertTrue("bytes per second" in error.message!!, error.message)
    }

    @Test
    fun `a delivery that is stopped keeps what came`() {
        val blob = Published.blob(2, size = 200_000)
        Published.write(www, 2, blob)
        var done = 0L
        val options = DeliveryOptions(progress = { bytes, _ -> done = bytes }, stopped = { done > 100_000 })
        assertThrows<CancellationException> { fetch(options) }
        assertTrue(store.partial.listFiles()!!.single().length() > 90_000)
        assertEquals(1, fetch().resumed)
    }

    @Test
    fun `the server's status and an absent server are told apart`() {
        server.fault("manifest.json", Fault(Fault.Kind.STATUS, 401))
        val refused = assertRefused<RefusedError> { fetch() }
        assertEquals(401, refused.status)
        assertTrue("status 401" in refused.message!!)
        assertEquals(404, assertRefused<RefusedError> { fetchBundle("$url-not", store, null) }.status)
        server.fault("manifest.json", *Array(9) { Fault(Fault.Kind.STATUS, 503) })
        assertEquals(503, assertRefused<RefusedError> { fetch() }.status)
        stop()
        assertRefused<TransferError> { fetch() }
    }

    @Test
    fun `an address that is none is refused, and a secret in it is not repeated`() {
        for (address in listOf(
            "", "bundles/reference", "ftp://127.0.0.1/x", "file:///etc", "http://a b/", "http://x/y?secret", "http://",
            "https://me:secret@host/x", "http://host:99999/x", "http://host:port/x", "http://[x]/x",
        )) {
            val error = assertRefused<UsageError> { fetchBundle(address, store, null) }
            assertTrue("secret" !in error.message!!, error.message)
        }
    }

    @Test
    fun `one connection serves all blobs`() {
        val ports = CopyOnWriteArrayList<Int>()
        val http = HttpServer.create(InetSocketAddress("127.0.0.1", 0), 0).apply {
            createContext("/") { exchange ->
                ports += exchange.remoteAddress.port
                val data = File(www, exchange.requestURI.path).readBytes()
                exchange.sendResponseHeaders(200, data.size.toLong())
                exchange.responseBody.use { it.write(data) }
            }
            start()
        }
        fetchBundle("http://127.0.0.1:${http.address.port}/${Published.PATH}", store, Contract.key)
        http.stop(0)
        assertEquals(14 to 1, ports.size to ports.distinct().size)
    }

    @Test
    fun `addresses of every form are taken`() {
        for (address in listOf("http://model_server:8000/v1", "HTTPS://h/x", "http://[::1]:8080/x", "http://10.0.0.1")) {
            assertEquals(address, base("$address/"))
        }
    }

    @Test
    fun `a thread that is interrupted ends the delivery and keeps what came`() {
        val blob = Published.blob(2, size = 200_000)
        Published.write(www, 2, blob)
        val options = DeliveryOptions(progress = { bytes, _ -> if (bytes > 100_000) Thread.currentThread().interrupt() })
        assertThrows<CancellationException> { fetchBundle(url, store, Contract.key, options = options) }
        assertTrue(Thread.interrupted())
        assertTrue(store.partial.listFiles()!!.single().length() > 90_000)
        assertEquals(1, fetch().resumed)
    }

    @Test
    fun `a folder that cannot be written is said to be`() {
        val file = File(folder.toFile(), "file").apply { writeText("in the way") }
        assertRefused<StorageError> { fetchBundle(url, BundleStore(file), null) }
    }
}
