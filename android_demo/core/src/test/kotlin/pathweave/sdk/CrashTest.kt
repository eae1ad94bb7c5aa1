package pathweave.sdk

import java.io.File
import java.nio.file.Path
import java.util.concurrent.TimeUnit
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.bundles.TrustedKeys
import pathweave.sdk.bundles.loadTrust
import pathweave.sdk.delivery.Delivered
import pathweave.sdk.delivery.DeliveryOptions
import pathweave.sdk.delivery.partials
import pathweave.sdk.delivery.timeMark
import pathweave.sdk.delivery.withStoredLists
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.digestOf
import pathweave.sdk.files.exclusive
import pathweave.sdk.files.tryLock
import pathweave.sdk.profiling.currentConditions
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.session.DeviceState
import pathweave.sdk.session.openAt
import pathweave.sdk.session.openStored
import pathweave.sdk.session.storeIn

private const val KILLS = 6 // PATHWEAVE_KILLS: more
private const val SEED = 35L // PATHWEAVE_SEED: other moments
private const val BLOB_BYTES = 100_000
private const val SAMPLES = 12
private const val ADAPTING_MS = 1_500
private const val EXCHANGING_MS = 400

/** `kill -9` at random moments, in a JVM of its own. */
class CrashTest {
    @TempDir
    lateinit var folder: Path

    private val kills = System.getenv("PATHWEAVE_KILLS")?.toInt() ?: KILLS
    private val random = SplitMix64(System.getenv("PATHWEAVE_SEED")?.toLong() ?: SEED)
    private val www by lazy { File(folder.toFile(), "www") }
    private val state by lazy { File(folder.toFile(), "state") }
    private val key by lazy { File(folder.toFile(), "trust") }

    // Download

    @Test
    fun `after a kill at any moment the old or the new bundle opens, and the download resumes`() {
        key.writeText(Contract.vectors["signature"]["public_key"].text)
        val seen = updates(Published.write(www, 1)) { Published.write(www, 2, Published.blob(2, BLOB_BYTES)) }
        println("download: kills=$kills torn=0 $seen")
    }

    @Test
    fun `after a kill at any moment of a rotation neither a key nor a time goes back`() {
        key.writeBytes(Signed.list())
        val publisher = Publisher(www).apply { publish(1) }
        val seen = updates(publisher.folder) {
            publisher.give(2, Signed.list(2, release = "release-2"))
            publisher.publish(2, Published.blob(2, BLOB_BYTES), by = "release-2", keys = 2, signedAtS = START_S + 9)
        }
        println("rotation: kills=$kills torn=0 $seen")
    }

    /** Kills updates from what is served to what [publish] serves; what was seen after the kills. */
    private fun updates(served: File, publish: () -> Unit): String {
        val start = File(folder.toFile(), "start")
        val seen = HashMap<Pair<Int, Long>, Int>()
        var resumed = 0
        FaultServer(www).use { server ->
            val url = "${server.url}/${served.relativeTo(www).path}"
            open(url, start)
            publish()
            val pausesMs = listOf(2L, 0L) // a download that is mostly transfer, and one that is mostly writes
            val wholeMs = pausesMs.map { pauseMs ->
                server.pauseMs = pauseMs
                killed(begin(url, start), afterMs = null)
            }
            repeat(kills) { number ->
                server.pauseMs = pausesMs[number % 2]
                killed(begin(url, start), afterMs = random.below(wholeMs[number % 2].toInt()).toLong())
                server.pauseMs = 0
                val version = storedVersion(url)
                seen.merge(newestList() to version, 1, Int::plus)
                val came = partials(storeIn(state).partial).maxOfOrNull { it.length() } ?: 0
                val delivered = open(url, state)
                assertEquals(2L, delivered.version)
                if (version == 1L && delivered.blobsFetched == 1) {
                    assertEquals(BLOB_BYTES - came, delivered.bytesFetched, "fetched again")
                    if (came > 0) resumed++
                }
                assertEquals(0, storeIn(state).partial.list()!!.size)
                assertNoTemporaries()
            }
            return "resumed=$resumed opened=$seen after whole_ms=$wholeMs"
        }
    }

    private fun begin(url: String, start: File): Process {
        state.deleteRecursively()
        start.copyRecursively(state)
        return child("pathweave.sdk.UpdateChild", url, state.path, key.path)
    }

    /** All that is in the store is whole, and what opens offline is one of both versions. */
    private fun storedVersion(url: String): Long {
        val store = storeIn(state)
        for (blob in store.blobs.listFiles()!!) assertEquals(blob.name, digestOf(blob), "torn")
        return openStored(url, state, loadTrust(key), NoRuntime, selfTest = {}).use {
            it.bundle.verify()
            assertTrue(it.delivered.version in 1L..2L, "torn")
            it.delivered.version
        }
    }

    /** The newest key list here; 0 if a single key is trusted. A time of it is never here before the list itself. */
    private fun newestList(): Int {
        val trusted = withStoredLists(loadTrust(key), storeIn(state)) as? TrustedKeys ?: return 0
        val newest = trusted.newest.number
        assertTrue(timeMark(storeIn(state), "reference").keys in 1..newest, "torn")
        return newest
    }

    private fun open(url: String, state: File): Delivered {
        val options = DeliveryOptions(wallClockS = { SOON_S })
        return openAt(url, state, loadTrust(key), runtime = NoRuntime, options = options, selfTest = {})
            .use { it.delivered }
    }

    private fun assertNoTemporaries() =
        assertEquals(emptyList<File>(), state.walk().filter { it.name.endsWith(".tmp") }.toList())

    // Adaptation and exchange

    @Test
    fun `after a kill at any moment of an adaptation what is remembered is whole`() {
        val seen = HashMap<Set<String>, Int>()
        repeat(kills) { number ->
            if (number % 10 == 0) state.deleteRecursively() // from no state at all, and from what kills have left
            kill("pathweave.sdk.AdaptChild", ADAPTING_MS, "$SAMPLES")
            seen.merge(remembered(), 1, Int::plus)
            AdaptiveModel.open(Contract.referenceFolder, stateFolder = state).use {
                assertEquals(1, it(drawnImages(1)[0]).labels.size)
            }
            assertLogWhole()
            assertNoTemporaries()
        }
        println("adaptation: kills=$kills torn=0 remembered=$seen")
    }

    @Test
    fun `after a kill at any moment of an exchange the old or the new plan is in use`() {
        val seen = HashMap<Int, Int>()
        val plans = exchangedPlans(Contract.reference())
        repeat(kills) {
            kill("pathweave.sdk.ExchangeChild", EXCHANGING_MS)
            remembered()
            AdaptiveModel.open(Contract.referenceFolder, stateFolder = state).use { model ->
                val plan = plans.indexOf(model.plan)
                assertTrue(plan >= 0, "torn")
                seen.merge(plan, 1, Int::plus)
                assertEquals(1, model(drawnImages(1)[0]).labels.size)
            }
            assertLogWhole()
            assertNoTemporaries()
        }
        println("exchange: kills=$kills torn=0 plans=$seen")
    }

    private fun kill(main: String, spanMs: Int, vararg arguments: String) {
        // a killed JVM does not delete the libraries that it unpacked
        val temporary = File(folder.toFile(), "tmp").apply { mkdirs() }
        val options = listOf("-Xmx192m", "-Djava.io.tmpdir=$temporary")
        killed(child(main, state.path, *arguments, options = options), random.below(spanMs).toLong())
        temporary.deleteRecursively()
    }

    /** What of plan, pool and profile is there; each is whole. */
    private fun remembered(): Set<String> {
        val known = DeviceState(state, Contract.reference(), OnnxRuntime())
        val files = known.folder.list().orEmpty().map { it.substringBefore('-') }.toSet()
        for ((kind, load) in mapOf(
            "plan" to { known.loadPlan() },
            "pool" to { known.loadPool() },
            "profile" to { known.loadProfile(currentConditions()) },
        )) {
            assertEquals(kind in files, load() != null, "torn: $kind")
        }
        return files intersect setOf("plan", "pool", "profile")
    }

    /** After the next event was written every line is whole. */
    private fun assertLogWhole() {
        val log = File(DeviceState(state, Contract.reference(), OnnxRuntime()).folder, "adaptation.jsonl")
        for (line in log.readLines()) assertEquals(1L, decodeJson(line.toByteArray())["schema"].whole())
    }

    // Processes side by side

    @Test
    fun `several processes that install at once leave one bundle, whole`() {
        key.writeText(Contract.vectors["signature"]["public_key"].text)
        Published.write(www, 1)
        FaultServer(www).use { server ->
            val url = "${server.url}/${Published.PATH}"
            open(url, state)
            Published.write(www, 2, Published.blob(2, BLOB_BYTES))
            server.pauseMs = 2
            val children = List(3) { child("pathweave.sdk.UpdateChild", url, state.path, key.path) }
            for (one in children) {
                assertTrue(one.waitFor(60, TimeUnit.SECONDS))
                assertEquals(0, one.exitValue())
            }
            assertEquals(2L, storedVersion(url))
            assertEquals(0, storeIn(state).partial.list()!!.size)
        }
    }

    @Test
    fun `a lock holds between processes and goes with its holder`() {
        val file = File(folder.toFile(), "lock")
        val child = child("pathweave.sdk.LockChild", file.path)
        assertEquals("begun", child.inputStream.bufferedReader().readLine())
        assertNull(tryLock(file, shared = true))
        assertRefused<StorageError> { exclusive(file, waitS = 0.05) }
        child.destroyForcibly().waitFor()
        val lock = tryLock(file, shared = true)
        assertNotNull(lock)
        assertNotNull(tryLock(file, shared = true), "shared by two of this process")
        assertNull(tryLock(file, shared = false))
    }
}
