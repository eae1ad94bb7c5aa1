package pathweave.sdk.delivery

import java.io.File
import java.nio.file.Path
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.BundleError
import pathweave.sdk.ClockError
import pathweave.sdk.DAY_S
import pathweave.sdk.END_S
import pathweave.sdk.ExpiredError
import pathweave.sdk.Fault
import pathweave.sdk.FaultServer
import pathweave.sdk.FrozenClock
import pathweave.sdk.NoRuntime
import pathweave.sdk.PathweaveError
import pathweave.sdk.Published
import pathweave.sdk.Publisher
import pathweave.sdk.RefusedError
import pathweave.sdk.RollbackError
import pathweave.sdk.SOON_S
import pathweave.sdk.START_S
import pathweave.sdk.SignatureError
import pathweave.sdk.Signed
import pathweave.sdk.StorageError
import pathweave.sdk.assertRefused
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.MANIFEST
import pathweave.sdk.bundles.RELEASE
import pathweave.sdk.bundles.TimeMark
import pathweave.sdk.bundles.TrustedKeys
import pathweave.sdk.bundles.loadTrust
import pathweave.sdk.session.openStored
import pathweave.sdk.size
import pathweave.sdk.transports.HttpTransport

/** Key lists and releases from a server: what is installed, what is refused, what stays in use. */
@Timeout(60)
class ReleasedDownloadTest {
    @TempDir
    lateinit var folder: Path

    private val www by lazy { File(folder.toFile(), "www") }
    private val server by lazy { FaultServer(www) }
    private val url by lazy { "${server.url}/${Published.PATH}" }
    private val store by lazy { BundleStore(File(folder.toFile(), "store")) }
    private val publisher by lazy { Publisher(www).also { it.publish() } }
    private val clock = FrozenClock()
    private var clockS = SOON_S
    private var pinned = Signed.list()

    @AfterEach
    fun stop() = server.close()

    /** Fetches, opens and remembers, as a device does; pauses only move a clock. */
    private fun fetch(allowRollback: Boolean = false): Delivered {
        val trust = loadTrust(pinned)
        val options = DeliveryOptions(allowRollback, wallClockS = { clockS })
        val delivered = fetchBundle(
            url, store, HttpTransport(null), trust, options, clock = { clock.nowNs }, sleep = clock::sleep,
        )
        val bundle = Bundle.open(delivered.folder, withStoredLists(trust, store), delivered.blobs)
        assertEquals(delivered.digest, bundle.digest)
        store.rememberGood(url, delivered.name, delivered.digest, allowRollback)
        return delivered
    }

    /** Version [version] stays, because of an [E] that says [why]. */
    private inline fun <reified E : PathweaveError> kept(why: String, version: Long = 1) {
        val delivered = fetch()
        assertEquals(DeliverySource.KEPT to version, delivered.source to delivered.version)
        assertTrue(delivered.error is E && why in delivered.failure!!, "${delivered.error}")
    }

    private fun newest() = storedLists(TrustedKeys.pinned(pinned), store).newest.number

    @Test
    fun `a release by the pinned list is installed, opens offline and is not fetched twice`() {
        publisher.publish()
        assertEquals(DeliverySource.DOWNLOADED, fetch().source)
        server.requests.clear()
        assertEquals(DeliverySource.UNCHANGED, fetch().source)
        assertEquals(
            listOf("keys/2.json", "release.json", "manifest.json").map { "/${Published.PATH}/$it" },
            server.requests.toList(),
        )
        stop()
        openStored(url, folder.toFile(), loadTrust(pinned), NoRuntime, selfTest = {}).use {
            assertEquals(1L, it.bundle.manifest.version)
        }
    }

    @Test
    fun `without a release nothing is installed, whoever signed the manifest`() {
        Published.write(www, 1) // with manifest.sig
        val error = assertRefused<SignatureError> { fetch() }
        assertEquals("$url has no release.json, but a key list was given", error.message)
        assertTrue(server.requests.none { "blobs/" in it })
        assertFalse(store.folder.exists())
    }

    @Test
    fun `a manifest that its release key signed opens, and is not installed without a release`() {
        val manifest = publisher.remove(RELEASE).let { publisher.read(MANIFEST) }
        assertRefused<SignatureError> { Bundle.open(publisher.folder, loadTrust(pinned)) }
        publisher.write(RELEASE, Signed.release(manifest, version = 2))
        assertRefused<SignatureError> { Bundle.open(publisher.folder, loadTrust(pinned)) }
        publisher.release()
        assertEquals(1L, Bundle.open(publisher.folder, loadTrust(pinned)).manifest.version)
    }

    // Rotation and revocation

    @Test
    fun `a rotated release key is taken, and the old one refused`() {
        publisher.publish()
        fetch()
        publisher.give(2, Signed.list(2, release = "release-2"))
        publisher.publish(2, by = "release-1")
        kept<SignatureError>("is not signed by a release key of key list 2")
        publisher.publish(2, by = "release-2", keys = 2)
        assertEquals(2L, fetch().version)
    }

    @Test
    fun `a revoked key stays revoked when the server withholds the list`() {
        publisher.publish()
        fetch()
        publisher.give(2, Signed.list(2, release = "release-2"))
        kept<SignatureError>("key list 2") // what is installed opens: its key was good
        publisher.remove("keys/2.json")
        publisher.publish(2, by = "release-1")
        kept<SignatureError>("key list 2")
    }

    @Test
    fun `root keys rotate over several lists in one delivery`() {
        val (roots, after) = listOf("root-2", "root-4") to listOf("root-4", "root-5")
        publisher.give(2, Signed.list(2, roots, by = listOf("root-1") + roots))
        publisher.give(3, Signed.list(3, after, by = roots + "root-5", release = "release-3"))
        publisher.publish(2, by = "release-3", keys = 3)
        assertEquals(2L to 3, fetch().version to newest())
        server.requests.clear()
        fetch()
        assertEquals(listOf("/${Published.PATH}/keys/4.json"), server.requests.filter { "keys/" in it })
        pinned = Signed.list(2, roots, by = listOf("root-1") + roots) // a newer version of the app
        assertEquals(3, newest())
    }

    @Test
    fun `a list that the previous root keys did not sign is refused`() {
        publisher.publish()
        fetch()
        val roots = listOf("root-4", "root-5")
        publisher.give(2, Signed.list(2, roots, by = roots, release = "release-2"))
        publisher.publish(2, by = "release-2", keys = 2)
        kept<SignatureError>("0 of 2 signatures by list 1's root keys")
        assertEquals(1, newest())
    }

    @Test
    fun `one damaged copy of a list loses nothing, and with both no revoked key comes back`() {
        publisher.give(2, Signed.list(2, release = "release-2"))
        publisher.publish(by = "release-2", keys = 2)
        fetch()
        val list = publisher.remove("keys/2.json")
        val copies = File(store.folder, "keys").listFiles()!!
        assertEquals(2, copies.size)
        copies[0].writeBytes(list.copyOf(list.size - 9))
        publisher.publish(2, by = "release-1")
        kept<SignatureError>("key list 2")
        copies[1].writeBytes(ByteArray(0))
        assertRefused<SignatureError> { fetch() } // nothing here verifies what is installed
        assertEquals(1L, store.highest("reference")!!.version)
        publisher.give(2, list)
        publisher.publish(3, by = "release-2", keys = 2)
        assertEquals(3L, fetch().version)
    }

    @Test
    fun `lists that begin again from number 1 are a rollback unless it is allowed`() {
        publisher.give(2, Signed.list(2, release = "release-2"))
        publisher.publish(by = "release-2", keys = 2)
        fetch()
        publisher.remove("keys/2.json")
        val roots = listOf("root-7", "root-8")
        pinned = Signed.list(1, roots, by = roots, release = "release-7")
        publisher.publish(2, by = "release-7")
        assertRefused<SignatureError> { fetch() } // what is installed is by keys that are not trusted any more
        assertEquals(2L, fetch(allowRollback = true).version)
        assertEquals(DeliverySource.UNCHANGED, fetch().source)
    }

    @Test
    fun `a long chain is taken over several deliveries`() {
        val newest = LISTS_AT_ONCE + 3
        publisher.publish()
        for (number in 2..newest) publisher.give(number, Signed.list(number))
        for (expected in listOf(LISTS_AT_ONCE + 1, newest)) {
            fetch()
            assertEquals(expected, newest())
        }
    }

    // Freeze and clocks

    @Test
    fun `an expired release is not installed`() {
        publisher.publish()
        clockS = END_S + 1
        val error = assertRefused<ExpiredError> { fetch() }
        assertTrue("the release of reference 1 expired on 2027-02-14 08:00 UTC" in error.message!!)
        assertTrue(server.requests.none { "manifest" in it || "blobs/" in it })
    }

    @Test
    fun `a frozen server is told, and the installed bundle stays in use until the release is renewed`() {
        publisher.publish()
        fetch()
        clockS = END_S + 1
        kept<ExpiredError>("newer ones may be withheld")
        publisher.release(signedAtS = END_S)
        assertEquals(DeliverySource.UNCHANGED, fetch().source)
    }

    @Test
    fun `an expired key list stops updates until there is a newer one`() {
        publisher.publish()
        fetch()
        clockS = START_S + 366 * DAY_S
        publisher.publish(2, signedAtS = clockS - 1)
        kept<ExpiredError>("key list 1 expired")
        publisher.give(2, Signed.list(2, signedAtS = clockS - 1, expiresAtS = clockS + DAY_S))
        assertEquals(2L, fetch().version)
    }

    @Test
    fun `a clock that is behind does not keep from installing, and does not bring back what has expired`() {
        publisher.publish()
        clockS = 0
        fetch()
        val old = publisher.read(RELEASE)
        publisher.release(signedAtS = END_S + DAY_S)
        clockS = END_S + DAY_S
        fetch()
        publisher.write(RELEASE, old)
        clockS = SOON_S
        kept<ExpiredError>("expired")
    }

    @Test
    fun `the time is remembered even if what was signed then is not installed, and in two copies`() {
        publisher.publish(signedAtS = END_S + DAY_S)
        clockS = END_S + 99 * DAY_S
        assertRefused<ExpiredError> { fetch() }
        assertEquals(TimeMark(1, END_S + DAY_S), timeMark(store, "reference"))
        File(store.bundles, "reference/time").writeText("damaged")
        publisher.publish()
        clockS = SOON_S
        assertRefused<ExpiredError> { fetch() }
        assertEquals(TimeMark(1, END_S + DAY_S), timeMark(store, "reference"))
    }

    @Test
    fun `a clock far ahead is doubted, and does not lose what is installed`() {
        publisher.publish()
        clockS = Long.MAX_VALUE
        assertTrue("set the clock" in assertRefused<ClockError> { fetch() }.hint!!)
        clockS = SOON_S
        fetch()
        clockS = END_S + 80 * 365 * DAY_S
        publisher.publish(2)
        kept<ClockError>("it may be wrong")
        clockS = SOON_S
        assertEquals(2L, fetch().version)
    }

    @Test
    fun `a release that was signed with a clock far ahead is undone by a new key list`() {
        publisher.publish(signedAtS = START_S + 300 * DAY_S)
        fetch()
        publisher.release()
        kept<ExpiredError>("expired")
        publisher.give(2, Signed.list(2))
        assertEquals(DeliverySource.UNCHANGED, fetch().source)
    }

    // Mix and match, rollback, another product

    @Test
    fun `parts of two releases are not installed`() {
        publisher.publish()
        fetch()
        for (part in listOf(MANIFEST, RELEASE)) {
            publisher.publish()
            val old = publisher.read(part)
            publisher.publish(2)
            publisher.write(part, old)
            kept<SignatureError>("is not the one that release.json names")
        }
        assertTrue(server.requests.none { "manifest.sig" in it })
    }

    @Test
    fun `what is replaced or rotated during the delivery is fetched again`() {
        publisher.publish()
        fetch()
        publisher.publish(2)
        server.before(MANIFEST) { publisher.publish(3) }
        assertEquals(3L, fetch().version)
        server.before(RELEASE) {
            publisher.give(2, Signed.list(2, release = "release-2"))
            publisher.publish(4, by = "release-2", keys = 2)
        }
        assertEquals(4L, fetch().version)
    }

    @Test
    fun `an older release that has not expired is a rollback`() {
        publisher.publish(2)
        fetch()
        publisher.publish(1)
        kept<RollbackError>("this device has had 2", version = 2)
        assertEquals(1L, fetch(allowRollback = true).version)
    }

    @Test
    fun `another product at the address is refused, although its release is good`() {
        publisher.publish()
        fetch()
        publisher.publish(2, name = "another")
        kept<BundleError>("this device has had reference from there")
    }

    @Test
    fun `a release of another name or version than the manifest's is refused`() {
        publisher.publish()
        fetch()
        publisher.publish(2)
        publisher.release(3)
        kept<SignatureError>("release.json is of reference 3, manifest.json of reference 2")
        publisher.release(2, name = "another")
        kept<SignatureError>("release.json is of another 2")
    }

    // Bounds and faults

    @Test
    fun `what is too large, no signed file or unreachable is refused, and the last good bundle stays`() {
        publisher.publish()
        fetch()
        for ((name, data) in listOf(
            RELEASE to ByteArray(10_000_000) { ' '.code.toByte() },
            RELEASE to "<html>welcome</html>".toByteArray(),
            "keys/2.json" to ByteArray(10_000_000) { ' '.code.toByte() },
            "keys/2.json" to "<html>welcome</html>".toByteArray(),
        )) {
            publisher.publish()
            publisher.write(name, data)
            assertEquals(DeliverySource.KEPT, fetch().source, name)
            File(publisher.folder, "keys").deleteRecursively()
        }
        publisher.publish()
        for (name in listOf("keys/2.json", RELEASE)) {
            server.fault(name, *Array(9) { Fault(Fault.Kind.STATUS, 500) })
            kept<RefusedError>("500")
            server.fault(name, Fault(Fault.Kind.STATUS, 503))
            assertEquals(DeliverySource.UNCHANGED, fetch().source, name)
        }
        server.fault(RELEASE, Fault(Fault.Kind.CUT, 3), Fault(Fault.Kind.RESET, 90))
        assertEquals(DeliverySource.UNCHANGED, fetch().source)
    }

    @Test
    fun `where the lists cannot be written nothing is installed, and what is installed stays`() {
        publisher.publish()
        fetch()
        File(store.folder, "keys").writeText("no folder")
        publisher.give(2, Signed.list(2, release = "release-2"))
        publisher.publish(2, by = "release-2", keys = 2)
        kept<StorageError>("cannot write")
    }
}
