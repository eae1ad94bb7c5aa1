package pathweave.sdk.delivery

import java.io.File
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.Contract
import pathweave.sdk.DAY_S
import pathweave.sdk.Fault
import pathweave.sdk.FrozenClock
import pathweave.sdk.Published
import pathweave.sdk.PublishedTest
import pathweave.sdk.Publisher
import pathweave.sdk.RefusedError
import pathweave.sdk.RollbackError
import pathweave.sdk.SOON_S
import pathweave.sdk.START_S
import pathweave.sdk.Signed
import pathweave.sdk.StorageError
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.bundles.MANIFEST
import pathweave.sdk.bundles.RELEASE
import pathweave.sdk.bundles.ROLLBACK
import pathweave.sdk.bundles.SIGNATURE
import pathweave.sdk.bundles.Trust
import pathweave.sdk.bundles.loadTrust
import pathweave.sdk.transports.HttpTransport

private const val DEVICE = "device-7"

/** Which version is this device's: asked with its tags, served by its number, gone back to only with a signature. */
@Timeout(60)
class AssignmentTest : PublishedTest() {
    private val store by lazy { BundleStore(File(folder.toFile(), "store")) }
    private val clock = FrozenClock()
    private var clockS = SOON_S
    private var trust: Trust? = Contract.key
    private val own = { DEVICE }

    /** Versions 1 to 3, each by its number, the highest at the bundle's own address too. */
    private val versions by lazy {
        Published.write(www, 3, Published.blob(3))
        for (version in 1..3) publish(version)
        File(www, "${Published.PATH}/$VERSIONS")
    }

    private fun publish(version: Int) = Published.write(
        www, version, Published.blob(version), path = "${Published.PATH}/$VERSIONS/$version",
    )

    private fun assign(version: Int, rollback: Boolean = false) {
        val told = """{"version": $version, "rollout": 1, "stage": 0, "rollback": $rollback}"""
        File(versions.parentFile, ASSIGNMENT).writeText(told)
    }

    private fun manifest(version: Int) = File(versions, "$version/$MANIFEST").readBytes()

    private fun permit(to: Int, data: ByteArray = Signed.rollback(manifest(to), to)) =
        File(versions, "$to/$ROLLBACK").apply { writeBytes(data) }

    private fun fetchOnly(device: (() -> String)? = own, tags: Map<String, String>? = null): Delivered {
        versions // published by now
        val options = DeliveryOptions(attempts = 2, wallClockS = { clockS }, device = device, tags = tags)
        return fetchBundle(
            url, store, HttpTransport(null), trust, options, clock = { clock.nowNs }, sleep = clock::sleep,
        )
    }

    /** As a device does: fetches, and remembers what it tested. */
    private fun fetch(device: (() -> String)? = own, tags: Map<String, String>? = null): Delivered =
        fetchOnly(device, tags).also { remember(it) }

    private fun remember(delivered: Delivered) =
        store.rememberGood(url, delivered.name, delivered.digest, rollbackFrom = delivered.rollbackFrom)

    /** What opens offline, and the mark. */
    private val had get() = store.lastGood("reference")!!.version to store.highest("reference")!!.version

    /** The device has version 3, and is to go back to 2. */
    private fun atThree() {
        assign(3)
        fetch()
        assign(2, rollback = true)
    }

    private fun keptThree(reason: RefusalReason, why: String, version: Long = 2) {
        val delivered = fetch()
        assertEquals(DeliverySource.KEPT to 3L, delivered.source to delivered.version, delivered.failure)
        assertEquals(reason to version, delivered.refused?.let { it.reason to it.version }, delivered.failure)
        assertTrue(why in delivered.failure!!, delivered.failure)
        assertEquals(3L to 3L, had)
    }

    // Asking

    @Test
    fun `the assigned version comes by its number, and not the highest`() {
        assign(2)
        val delivered = fetch(tags = mapOf("region" to "eu", "board" to "pixel"))
        assertEquals(2L to DeliverySource.DOWNLOADED, delivered.version to delivered.source)
        val asked = "/${Published.PATH}/$ASSIGNMENT"
        assertEquals(asked, server.requests[0])
        assertTrue(server.requests.drop(1).all { it.startsWith("/${Published.PATH}/$VERSIONS/2/") })
        val headers = server.headers[0]
        assertEquals(listOf(DEVICE, "board=pixel,region=eu"), listOf("pathweave-device", "pathweave-tags").map(headers::get))
        assertEquals(DeliverySource.UNCHANGED, fetch().source)
        assertNull(server.headers[server.requests.lastIndexOf(asked)]["pathweave-tags"], "those of before")
    }

    @Test
    fun `without a name nothing is asked, and a server without rollouts gives the highest version`() {
        assign(2)
        assertEquals(3L, fetchOnly(device = null).version)
        assertTrue(server.requests.none { ASSIGNMENT in it })
        File(versions.parentFile, ASSIGNMENT).delete()
        assertEquals(3L, fetchOnly().version)
        assertTrue(server.requests.any { ASSIGNMENT in it })
    }

    @Test
    fun `what cannot be sent is the caller's error, and nothing is asked`() {
        assertRefused<UsageError> { fetchOnly(tags = mapOf("region" to "e u")) }
        assertRefused<UsageError> { fetchOnly(device = { "two\nlines" }) }
        assertEquals(emptyList<String>(), server.requests.toList())
    }

    @Test
    fun `an answer that makes no sense changes nothing`() {
        assign(2)
        fetch()
        for (answer in listOf("", "{}", """{"version": 0}""", """{"version": "2"}""", "x".repeat(5000))) {
            File(versions.parentFile, ASSIGNMENT).writeText(answer)
            val delivered = fetch()
            assertEquals(Triple(2L, DeliverySource.KEPT, null), delivered.run { Triple(version, source, refused) })
        }
    }

    @Test
    fun `another version than the assigned one is refused`() {
        atThree()
        File(versions, "2").deleteRecursively()
        File(versions, "1").copyRecursively(File(versions, "2"))
        keptThree(RefusalReason.TRANSFER, "has version 1 of reference", version = 1)
    }

    @Test
    fun `a server that is away, and a device that cannot keep its name, leave the last good version`() {
        assign(2)
        fetch()
        val nameless = fetch(device = { throw StorageError("the disk is full") })
        assertEquals(2L to DeliverySource.KEPT, nameless.version to nameless.source)
        stop()
        val delivered = fetch()
        assertEquals(Triple(2L, DeliverySource.KEPT, null), delivered.run { Triple(version, source, refused) })
    }

    @Test
    fun `a server that refuses to assign is not gone around`() {
        versions
        server.fault(ASSIGNMENT, Fault(Fault.Kind.STATUS, 403))
        assertEquals(403, assertRefused<RefusedError> { fetchOnly() }.status)
        assertTrue(server.requests.none { MANIFEST in it })
    }

    // Going back

    @Test
    fun `a lower version is refused unless a signed rollback permits it`() {
        atThree()
        keptThree(RefusalReason.ROLLBACK, "without a signed rollback")
        permit(2)
        val delivered = fetch()
        assertEquals(2L to DeliverySource.DOWNLOADED, delivered.version to delivered.source)
        assertEquals(3L to 1, delivered.rollbackFrom to delivered.blobsFetched)
        assertEquals(2L to 3L, had)
    }

    @Test
    fun `after going back the device stays there, offline and when the rollback has expired`() {
        atThree()
        val file = permit(2)
        fetch()
        file.delete()
        clockS = START_S + 300 * DAY_S
        val again = fetch()
        assertEquals(Triple(2L, DeliverySource.UNCHANGED, null), again.run { Triple(version, source, rollbackFrom) })
        assertEquals(2L to 3L, had)
        stop()
        assertEquals(2L, fetch().version)
        assertEquals(2L, BundleStore(store.folder).lastGoodAt(url)!!.version)
    }

    @Test
    fun `after going back newer versions come, and no other lower one`() {
        atThree()
        permit(2)
        fetch()
        assign(1, rollback = true)
        assertEquals(2L to (2L to 3L), fetch().version to had)
        publish(4)
        assign(4)
        assertEquals(4L to (4L to 4L), fetch().version to had)
    }

    @Test
    fun `the version that was left may come again, and going back needs the rollback anew`() {
        atThree()
        val file = permit(2)
        fetch()
        assign(3)
        assertEquals(3L to (3L to 3L), fetch().version to had)
        file.delete()
        assign(2, rollback = true)
        keptThree(RefusalReason.ROLLBACK, "without a signed rollback")
    }

    @Test
    fun `a rollback is not looked for unless the server says so`() {
        atThree()
        permit(2)
        assign(2, rollback = false)
        keptThree(RefusalReason.ROLLBACK, "this device has had 3")
        assertTrue(server.requests.none { ROLLBACK in it })
    }

    @Test
    fun `a rollback that is forged, expired or for something else is refused`() {
        atThree()
        fun rollback(
            by: List<String> = listOf(Signed.OWNER),
            from: Int = 3,
            to: Int = 2,
            name: String = "reference",
            expiresAtS: Long = SOON_S,
            format: Int = 1,
            manifest: ByteArray = manifest(2),
        ) = Signed.rollback(manifest, to, from, by, name, expiresAtS, format)
        for ((data, reason, why) in listOf(
            Triple(rollback(by = listOf("stranger")), RefusalReason.SIGNATURE, "not signed by a key"),
            Triple(rollback(by = emptyList()), RefusalReason.SIGNATURE, "not signed by a key"),
            Triple(rollback(expiresAtS = START_S), RefusalReason.EXPIRED, "expired"),
            Triple(rollback(manifest = manifest(1)), RefusalReason.ROLLBACK, "leads to"),
            Triple(rollback(to = 1), RefusalReason.ROLLBACK, "leads to"),
            Triple(rollback(name = "other"), RefusalReason.ROLLBACK, "leads to"),
            Triple(rollback(from = 1), RefusalReason.SIGNATURE, "no version to go back to"),
            Triple(rollback(format = 2), RefusalReason.BUNDLE, "format 2"),
            Triple(rollback() + ByteArray(17_000) { ' '.code.toByte() }, RefusalReason.TRANSFER, "bytes allowed"),
        )) {
            permit(2, data)
            keptThree(reason, why)
        }
        assign(1, rollback = true)
        permit(1, Signed.rollback(manifest(1), toVersion = 1, fromVersion = 2))
        keptThree(RefusalReason.ROLLBACK, "have had reference 2 at most", version = 1)
    }

    @Test
    fun `a clock before all times goes back, and one far ahead is doubted`() {
        atThree()
        permit(2)
        clockS = START_S + 900 * DAY_S
        keptThree(RefusalReason.EXPIRED, "it may be wrong")
        clockS = 0
        assertEquals(2L, fetch().version)
    }

    @Test
    fun `a release key of the newest list signs rollbacks, and a revoked one does not`() {
        trust = loadTrust(Signed.list())
        for (version in 1..3) {
            File(versions, "$version/$SIGNATURE").delete()
            val publisher = Publisher(www, "${Published.PATH}/$VERSIONS/$version")
            publisher.write(RELEASE, Signed.release(publisher.read(MANIFEST), version))
        }
        atThree()
        for (version in 2..3) {
            val publisher = Publisher(www, "${Published.PATH}/$VERSIONS/$version")
            publisher.give(2, Signed.list(2, release = "release-2"))
            publisher.write(RELEASE, Signed.release(publisher.read(MANIFEST), version, by = "release-2", keys = 2))
        }
        permit(2, Signed.rollback(manifest(2), 2, by = listOf("release-1")))
        keptThree(RefusalReason.SIGNATURE, "not signed by a key")
        permit(2, Signed.rollback(manifest(2), 2, by = listOf("release-2")))
        assertEquals(2L, fetch().version)
    }

    @Test
    fun `a device that trusts any key still wants the rollback to be for it`() {
        trust = null
        atThree()
        permit(2, Signed.rollback(manifest(2), 2, by = emptyList(), name = "other"))
        keptThree(RefusalReason.ROLLBACK, "leads to")
        permit(2, Signed.rollback(manifest(2), 2, by = emptyList()))
        assertEquals(2L, fetch().version)
    }

    @Test
    fun `a device that has had more by now does not go back`() {
        atThree()
        permit(2)
        val back = fetchOnly()
        publish(4)
        assign(4)
        fetch() // another process was faster with a newer version
        assertRefused<RollbackError> { remember(back) }
        assertEquals(4L to 4L, had)
    }

    @Test
    fun `a store whose mark was not written is not below what it has`() {
        atThree()
        permit(2)
        val marks = listOf("mark", "mark.copy").map { File(store.folderOf("reference"), it) }
        val before = marks.map { it.readBytes() }
        fetch()
        marks.zip(before) { file, data -> file.writeBytes(data) } // as if it was cut off before it wrote them
        assertEquals(3L to 3L, had)
        assertEquals(2L to (2L to 3L), fetch().version to had)
    }

    @Test
    fun `an allowed rollback needs no signature and lowers the mark`() {
        atThree()
        val options = DeliveryOptions(allowRollback = true, device = own)
        val delivered = fetchBundle(url, store, Contract.key, options = options)
        store.rememberGood(url, delivered.name, delivered.digest, allowRollback = true)
        assertEquals(2L to 2L, had)
        assertFalse(server.requests.any { ROLLBACK in it })
    }
}
