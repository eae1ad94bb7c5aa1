package pathweave.sdk.delivery

import java.io.File
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.BlobError
import pathweave.sdk.Contract
import pathweave.sdk.Fault
import pathweave.sdk.FaultServer
import pathweave.sdk.FrozenClock
import pathweave.sdk.ProtocolError
import pathweave.sdk.Published
import pathweave.sdk.PublishedTest
import pathweave.sdk.RefusedError
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.files.digestOf
import pathweave.sdk.files.sha256
import pathweave.sdk.transports.HttpTransport
import pathweave.sdk.transports.Reply
import pathweave.sdk.transports.originOf

private const val BLOBS_OF_REFERENCE = 12
private const val TOKEN = "authorization"

/** Blobs from the object store that the server sends the device to. */
@Timeout(60)
class SignedUrlTest : PublishedTest() {
    private val store by lazy { BundleStore(File(folder.toFile(), "store")) }
    private val objects by lazy { FaultServer(www) } // another origin, with the same files
    private val clock = FrozenClock()

    @AfterEach
    fun stopStore() = objects.close()

    private fun redirecting(place: (path: String) -> String) {
        server.redirect = { path, headers ->
            place(path).takeIf { "/blobs/" in path && headers["pathweave-takes"] == "signed-url" }
        }
    }

    private fun fetch() = fetchBundle(
        url, store, HttpTransport("secret", url), Contract.key, DeliveryOptions(attempts = 3),
        clock = { clock.nowNs }, sleep = clock::sleep,
    )

    @Test
    fun `blobs come from the store, which gets no token`() {
        redirecting { "${objects.url}$it?signature=1" }
        assertEquals(BLOBS_OF_REFERENCE, fetch().blobsFetched)
        assertEquals(BLOBS_OF_REFERENCE, objects.requests.count { "/blobs/" in it && it.endsWith("?signature=1") })
        assertTrue(objects.headers.none { TOKEN in it })
        assertTrue(server.headers.all { it[TOKEN] == "Bearer secret" })
        assertTrue(server.requests.none { "signature=1" in it })
    }

    @Test
    fun `a store that refuses or is away is gone around, blob by blob`() {
        redirecting { "${objects.url}$it" }
        objects.fault("/blobs/", Fault(Fault.Kind.STATUS, 403))
        assertEquals(BLOBS_OF_REFERENCE, fetch().blobsFetched)
        assertEquals(BLOBS_OF_REFERENCE, objects.requests.size)
        assertEquals(2 + 1, server.headers.count { "pathweave-takes" !in it }, "the manifest, its signature, and that blob")
        store.folder.deleteRecursively()
        stopStore()
        assertEquals(BLOBS_OF_REFERENCE, fetch().blobsFetched)
    }

    @Test
    fun `what came from the store before it was cut is not fetched again`() {
        val blob = Published.blob(2)
        Published.write(www, 2, blob)
        redirecting { "${objects.url}$it" }
        objects.fault(sha256(blob), Fault(Fault.Kind.CUT, 1_000))
        assertEquals(1, fetch().resumed)
        val resumed = server.headers.single { "range" in it }
        assertEquals("bytes=1000-", resumed["range"])
        assertNull(resumed["if-range"], "the store has etags of its own")
        assertEquals(sha256(blob), digestOf(File(store.blobs, sha256(blob))))
    }

    @Test
    fun `altered bytes of the store are refused`() {
        val blob = Published.blob(2)
        Published.write(www, 2, blob)
        redirecting { "${objects.url}$it" }
        val flip = Fault(Fault.Kind.FLIP, 100)
        objects.fault(sha256(blob), flip)
        fetch()
        store.folder.deleteRecursively()
        objects.fault(sha256(blob), flip, flip)
        assertRefused<BlobError> { fetch() }
    }

    @Test
    fun `a redirect leaves neither https nor http`() {
        fun to(location: String?, status: Int = 307) = object : Reply {
            override val status = status

            override fun header(name: String) = location

            override fun chunks(use: (ByteArray, Int) -> Unit) = Unit
        }
        for ((url, location) in listOf(
            "https://a/b" to "http://s/b", "HTTPS://a/b" to "http://s/b", "http://a/b" to "file:///etc", "http://a/b" to "",
            "http://a/b" to null, "http://a/b" to "/b", "http://a/b" to "http://", "http://a/b" to "http://s:99999/b",
            "http://a/b" to "http://s:port/b", "http://a/b" to "http://s/a b",
        )) {
            assertRefused<ProtocolError> { addressElsewhere(to(location), url) }
        }
        assertEquals("https://s/b?x=1", addressElsewhere(to("https://s/b?x=1"), "http://a/b"))
        assertNull(addressElsewhere(to("https://s/b", status = 302), "http://a/b"))
    }

    @Test
    fun `other redirects are not followed`() {
        server.redirect = { path, _ -> "${objects.url}$path" }
        assertEquals(307, assertRefused<RefusedError> { fetch() }.status)
        assertEquals(emptyList<String>(), objects.requests.toList())
    }

    @Test
    fun `a token belongs to one origin`() {
        assertRefused<UsageError> { HttpTransport("secret") }
        for (same in listOf("https://H:443/x", "HTTPS://h/", "https://h")) assertEquals("https://h:443", originOf(same))
        for (other in listOf("http://h", "https://h:8443", "https://h.example")) {
            assertTrue(originOf(other) != originOf("https://h"), other)
        }
        assertEquals("http://[::1]:80", originOf("http://[::1]/"))
    }
}
