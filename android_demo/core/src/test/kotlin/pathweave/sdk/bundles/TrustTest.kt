package pathweave.sdk.bundles

import java.io.File
import java.nio.file.Path
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.assertThrows
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.Contract
import pathweave.sdk.DAY_S
import pathweave.sdk.ExpiredError
import pathweave.sdk.PathweaveError
import pathweave.sdk.RefusedError
import pathweave.sdk.RollbackError
import pathweave.sdk.SignatureError
import pathweave.sdk.assertRefused
import pathweave.sdk.bytes
import pathweave.sdk.delivery.BundleStore
import pathweave.sdk.delivery.decodeTimeMark
import pathweave.sdk.delivery.encodeTimeMark
import pathweave.sdk.delivery.fetchLists
import pathweave.sdk.delivery.storedLists
import pathweave.sdk.files.hex
import pathweave.sdk.files.sha256
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.text
import pathweave.sdk.texts
import pathweave.sdk.transports.NOT_FOUND

private const val MANIFEST_TEXT = """{"name": "tiny", "version": 1}"""

class TrustTest {
    private val vectors = Json.parseToJsonElement(File(Contract.repository, "tests/contract/trust.json").readText())

    /** The mark of the bundle tiny; [stored] is the last one that was written. */
    private class Marks(private val before: TimeMark = TimeMark()) {
        var stored: TimeMark? = null

        fun update(name: String, raise: (TimeMark) -> TimeMark): TimeMark {
            assertEquals("tiny", name)
            return raise(stored ?: before).also { stored = it }
        }
    }

    private fun list(name: String) = vectors["lists"][name].text.toByteArray()

    private fun chain(names: List<String>): TrustedKeys =
        names.drop(1).fold(TrustedKeys.pinned(list(names.first()))) { trusted, name -> trusted.followedBy(list(name)) }

    private fun check(case: JsonElement, work: () -> Unit) {
        val error = try {
            work()
            null
        } catch (error: PathweaveError) {
            error::class.simpleName
        }
        assertEquals(case["error"].orNull?.text, error, case["case"].text)
    }

    private val JsonElement.orNull: JsonElement? get() = takeIf { it !is JsonNull }

    private val JsonElement.mark: TimeMark get() = items.let { (keys, time) -> TimeMark(keys.int, time.seconds) }

    private val JsonElement.seconds: Long get() = jsonPrimitive.long

    @Test
    fun `the same lists may be pinned`() {
        assertTrue(vectors["pinned"].items.size > 30)
        for (case in vectors["pinned"].items) check(case) { TrustedKeys.pinned(case["list"].text.toByteArray()) }
    }

    @Test
    fun `the same lists follow others`() {
        for (case in vectors["next"].items) {
            val before = chain(listOf("one", case["after"].text).distinct())
            check(case) { before.followedBy(case["list"].text.toByteArray()) }
        }
    }

    @Test
    fun `the same releases are installed, and the same times are remembered`() {
        val manifests = listOf(MANIFEST_TEXT, "$MANIFEST_TEXT ").map { it.toByteArray() }.associateBy(::sha256)
        assertTrue(vectors["releases"].items.size > 40)
        for (case in vectors["releases"].items) {
            val marks = Marks(case["mark"].mark)
            check(case) {
                val release = verifyRelease(
                    case["release"].text.toByteArray(),
                    chain(case["lists"].texts),
                    case["clock_s"].seconds,
                    updateMark = marks::update,
                )
                release.requireSameManifest(manifests.getValue(case["manifest_sha256"].text))
                release.requireSameName(case["name"].text, case["version"].seconds)
            }
            assertEquals(case["mark_after"].orNull?.mark, marks.stored, case["case"].text)
        }
    }

    private fun release(name: String) =
        vectors["releases"].items.first { it["case"].text == name }["release"].text.toByteArray()

    @Test
    fun `what is installed opens after it has expired and its key was revoked`() {
        val installed = release("a release")
        val trusted = chain(listOf("one", "two"))
        assertRefused<SignatureError> { verifyRelease(installed, trusted, 0, updateMark = Marks()::update) }
        assertEquals("tiny", verifyInstalled(installed, trusted).name)
        assertRefused<SignatureError> { verifyInstalled(release("a stranger"), trusted) }
    }

    @Test
    fun `what a single key signed opens by a list that has it as a release key`() {
        val signed = vectors["signed_manifest"]
        val manifest = signed["manifest"].text.toByteArray()
        val trusted = chain(listOf("one"))
        verifyInstalledBySignature(manifest, signed["by_release_1"].bytes, trusted)
        for (signature in listOf(null, ByteArray(64), ByteArray(0), signed["by_root_1"].bytes)) {
            assertRefused<SignatureError> { verifyInstalledBySignature(manifest, signature, trusted) }
        }
        assertRefused<SignatureError> {
            verifyInstalledBySignature(manifest, signed["by_release_1"].bytes, chain(listOf("one", "two")))
        }
    }

    @Test
    fun `a rollback of the key list is taken if it is allowed`() {
        val marks = Marks(TimeMark(keys = 2, signedAtS = 1_800_000_000))
        val trusted = chain(listOf("one"))
        assertRefused<RollbackError> { verifyRelease(release("a release"), trusted, 0, updateMark = marks::update) }
        assertEquals(null, marks.stored)
        verifyRelease(release("a release"), trusted, 0, allowRollback = true, updateMark = marks::update)
        assertEquals(TimeMark(1, 1_800_000_000), marks.stored)
    }

    @Test
    fun `the messages say dates, whatever the clock says`() {
        fun message(clockS: Long) = assertThrows<ExpiredError> {
            verifyRelease(release("a release"), chain(listOf("one")), clockS, updateMark = Marks()::update)
        }.message

        val end = 1_800_000_000 + 30 * DAY_S
        assertEquals("the release of tiny 1 expired on 2027-02-14 08:00 UTC: newer ones may be withheld", message(end + 1))
        assertTrue(message(Long.MAX_VALUE)!!.endsWith("clock says second ${Long.MAX_VALUE} since 1970: it may be wrong"))
    }

    @Test
    fun `lists are fetched one after the other and found again by the one before`(@TempDir folder: Path) {
        val server = mutableMapOf("keys/2.json" to list("new roots"), "keys/3.json" to list("three"))
        val store = BundleStore(folder.toFile())
        val asked = mutableListOf<String>()
        fun fetch(name: String, maxBytes: Long): ByteArray {
            asked += name
            assertEquals(KEYS_MAX_BYTES.toLong(), maxBytes)
            return server[name] ?: throw RefusedError("there is no $name", NOT_FOUND)
        }

        val pinned = TrustedKeys.pinned(list("one"))
        assertEquals(3, fetchLists(pinned, store, ::fetch).newest.number)
        assertEquals(listOf("keys/2.json", "keys/3.json", "keys/4.json"), asked)
        server.clear()
        assertEquals(3, fetchLists(pinned, store, ::fetch).newest.number)
        assertEquals(3, storedLists(TrustedKeys.pinned(list("three")), store).newest.number)
        val files = listOf("json", "copy").map { File(store.folder, "keys/${sha256(list("new roots"))}.$it") }
        files[0].writeBytes(byteArrayOf(1))
        assertEquals(3, storedLists(pinned, store).newest.number)
        files[1].writeBytes(ByteArray(KEYS_MAX_BYTES + 1))
        assertEquals(2, storedLists(pinned, store).newest.number)
    }

    @Test
    fun `a list that is refused is not kept`(@TempDir folder: Path) {
        val store = BundleStore(folder.toFile())
        assertRefused<SignatureError> {
            fetchLists(TrustedKeys.pinned(list("one")), store) { _, _ -> list("three") }
        }
        assertEquals(emptyList<String>(), folder.toFile().list()!!.asList())
    }

    @Test
    fun `a key in PEM form and a key list are told apart`(@TempDir folder: Path) {
        val pem = Contract.vectors["signature"]["public_key"].text
        assertTrue(loadTrust(pem.toByteArray()) is TrustedKey)
        assertTrue(loadTrust("\n ".toByteArray() + list("one")) is TrustedKeys)
        val file = File(folder.toFile(), "trust")
        assertRefused<SignatureError> { loadTrust(file) }
        file.writeText(pem)
        assertTrue(loadTrust(file) is TrustedKey)
        for (bad in listOf("", "{}", "no key", "{".repeat(100_000))) {
            assertRefused<SignatureError> { loadTrust(bad.toByteArray()) }
        }
    }

    @Test
    fun `marks of time are written the same everywhere, and damaged ones are recognised`() {
        assertTrue(vectors["time_marks"].items.size > 6)
        for (case in vectors["time_marks"].items) {
            val expected = case["mark"].orNull?.mark
            assertEquals(expected, decodeTimeMark(case["record"].bytes))
            if (expected != null) assertEquals(case["record"].text, hex(encodeTimeMark(expected)))
        }
    }

    @Test
    fun `a list is pinned from a file`(@TempDir folder: Path) {
        val file = File(folder.toFile(), "keys.json")
        assertRefused<SignatureError> { TrustedKeys.read(file) }
        file.writeBytes(list("one"))
        assertEquals(1, TrustedKeys.read(file).newest.number)
        file.writeBytes(ByteArray(KEYS_MAX_BYTES + 1))
        assertRefused<SignatureError> { TrustedKeys.read(file) }
    }
}
