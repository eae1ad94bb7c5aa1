package pathweave.sdk.delivery

import java.io.File
import java.util.concurrent.CancellationException
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.assertThrows
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.BlobError
import pathweave.sdk.Contract
import pathweave.sdk.Fault
import pathweave.sdk.Published
import pathweave.sdk.PublishedTest
import pathweave.sdk.RefusedError
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.verify
import pathweave.sdk.data.Image
import pathweave.sdk.session.SUBNET
import pathweave.sdk.transports.HttpTransport

private val ALL = listOf("x1-pooled", "x2-flat", "x3-pooled")

@Timeout(60)
class ExitDeliveryTest : PublishedTest() {
    private val store by lazy { BundleStore(File(folder.toFile(), "store")) }
    private val transport = HttpTransport(null)

    /** The bundle with [exits] of its exits, and nothing of the others. */
    private fun delivered(vararg exits: String): Bundle {
        val options = DeliveryOptions(exits = { name, digest -> exits.toList().also { assertEquals(64, digest.length) } })
        val delivered = fetchBundle(url, store, Contract.key, options = options)
        return Bundle.open(delivered.folder, Contract.key, delivered.blobs, exits.toList())
    }

    private fun fetch(bundle: Bundle, vararg exits: String) = fetchExits(url, bundle, exits.toList(), store, transport)

    @Test
    fun `a bundle comes and opens without its exits, and knows what is offered`() {
        val bundle = delivered()
        assertEquals(emptyList<String>() to ALL, bundle.exits to bundle.offered.exits.map { it.id })
        assertEquals(bundle.offered.blobs().size - ALL.size, store.blobs.list()!!.size)
        assertRefused<BlobError> { bundle.withExits(listOf("x2-flat")) }
        assertRefused<BlobError> { Bundle.open(bundle.folder, Contract.key, store.blobs) }
        bundle.verify()
        AdaptiveModel.open(bundle.folder, Contract.key, blobs = store.blobs, exits = emptyList()).use { model ->
            assertEquals(listOf(SUBNET), model(Image(ByteArray(12), model.imageSize!!, 3)).source)
        }
    }

    @Test
    fun `only what is missing of the wanted exits is fetched`() {
        val bundle = delivered("x1-pooled")
        server.requests.clear()
        val tally = fetch(bundle, "x1-pooled", "x3-pooled")
        assertEquals(1, tally.blobs)
        val blob = bundle.offered.exits[2].renditions[0].blob
        assertEquals(listOf("/${Published.PATH}/blobs/$blob"), server.requests.toList())
        val new = bundle.withExits(listOf("x3-pooled", "x1-pooled"))
        assertEquals(listOf("x1-pooled", "x3-pooled"), new.exits)
        new.verify(listOf("x3-pooled"))
        assertEquals(0 to 0L, fetch(bundle, "x3-pooled").let { it.blobs to it.bytes })
        assertEquals(listOf("x1-pooled"), bundle.exits, "a bundle that is open stays as it is")
    }

    @Test
    fun `an exit that the bundle does not have is refused before anything is asked for`() {
        val bundle = delivered()
        server.requests.clear()
        val error = assertRefused<UsageError> { fetch(bundle, "x1-pooled", "x9") }
        assertEquals("bundle reference has no exit x9" to "its exits: ${ALL.joinToString()}", error.message to error.hint)
        assertRefused<UsageError> { bundle.withExits(listOf("x9")) }
        assertEquals(emptyList<String>(), server.requests.toList())
    }

    @Test
    fun `an exit that is altered, or gone with its version, leaves what is here`() {
        val bundle = delivered("x1-pooled")
        val blob = bundle.offered.exits[1].renditions[0].blob
        val flip = Fault(Fault.Kind.FLIP, 100)
        server.fault(blob, flip, flip)
        assertRefused<BlobError> { fetch(bundle, "x2-flat") }
        assertFalse(File(store.blobs, blob).exists())
        File(www, "${Published.PATH}/blobs/$blob").delete()
        assertEquals(404, assertRefused<RefusedError> { fetch(bundle, "x2-flat") }.status)
        assertEquals(0, store.partial.list()!!.size)
        bundle.verify()
    }

    @Test
    fun `a transfer that is cut or stopped is resumed, also by the next process`() {
        val bundle = delivered()
        val name = bundle.offered.exits[1].renditions[0].blob
        server.fault(name, Fault(Fault.Kind.CUT, 100))
        assertEquals(1, fetch(bundle, "x2-flat").resumed)
        File(store.blobs, name).delete()
        server.fault(name, Fault(Fault.Kind.CUT, 100))
        var came = 0L
        assertThrows<CancellationException> {
            fetchExits(
                url, bundle, listOf("x2-flat"), store, transport,
                progress = { done, of -> came = done.also { assertTrue(it <= of) } }, stopped = { came > 0 },
            )
        }
        server.ranges.clear()
        assertEquals(1, fetch(bundle, "x2-flat").resumed)
        assertEquals(listOf("bytes=$came-"), server.ranges.filterNotNull())
    }
}
