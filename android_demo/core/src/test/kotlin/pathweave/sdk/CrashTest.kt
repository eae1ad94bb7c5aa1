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
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime

private const val KILLS = 6 // PATHWEAVE_KILLS: more
private const val BLOB_BYTES = 100_000

/** `kill -9` at random moments of an update, in a JVM of its own. */
class CrashTest {
    @TempDir
    lateinit var folder: Path

    private val kills = System.getenv("PATHWEAVE_KILLS")?.toInt() ?: KILLS

    @Test
    fun `after a kill at any moment the old or the new bundle opens, and the download resumes`() {
        val www = File(folder.toFile(), "www").also { Published.write(it, 1) }
        val key = File(folder.toFile(), "key.pub").apply { writeText(Contract.vectors["signature"]["public_key"].text) }
        val (start, state) = File(folder.toFile(), "start") to File(folder.toFile(), "state")
        FaultServer(www).use { server ->
            val url = "${server.url}/${Published.PATH}"
            open(url, start)
            Published.write(www, 2, Published.blob(2, BLOB_BYTES))
            server.pauseMs = 2
            val wholeMs = killed(url, begin(start, state), key, afterMs = null)
            val random = SplitMix64(35)
            val seen = HashMap<Long, Int>()
            var resumed = 0
            repeat(kills) {
                server.pauseMs = 2
                killed(url, begin(start, state), key, afterMs = random.below(wholeMs.toInt()).toLong())
                server.pauseMs = 0
                val version = storedVersion(url, state)
                seen.merge(version, 1, Int::plus)
                val came = partials(storeIn(state).partial).maxOfOrNull { it.length() } ?: 0
                val delivered = open(url, state)
                assertEquals(2L, delivered.version)
                if (version == 1L && delivered.blobsFetched == 1) {
                    assertEquals(BLOB_BYTES - came, delivered.bytesFetched, "fetched again")
                    if (came > 0) resumed++
                }
                assertEquals(0, storeIn(state).partial.list()!!.size)
                assertEquals(emptyList<File>(), state.walk().filter { it.name.endsWith(".tmp") }.toList())
            }
            println("kills=$kills torn=0 resumed=$resumed opened=$seen after whole_ms=$wholeMs")
        }
    }

    /** All that is in the store is whole, and what opens offline is one of both versions. */
    private fun storedVersion(url: String, state: File): Long {
        val store = storeIn(state)
        for (blob in store.blobs.listFiles()!!) assertEquals(blob.name, digestOf(blob), "torn")
        return openStored(url, state, Contract.key, NoRuntime).use {
            it.bundle.verify()
            assertTrue(it.delivered.version in 1L..2L, "torn")
            it.delivered.version
        }
    }


    private fun begin(start: File, state: File): File {
        state.deleteRecursively()
        start.copyRecursively(state)
        return state
    }

    private fun open(url: String, state: File): Delivered =
        openAt(url, state, Contract.key, runtime = NoRuntime, selfTest = {}).use { it.delivered }

    /** Runs an update in a JVM of its own, killed [afterMs] after it has begun; returns how long it ran, in ms. */
    private fun killed(url: String, state: File, key: File, afterMs: Long?): Long {
        val child = child("pathweave.sdk.UpdateChild", url, state.path, key.path)
        assertEquals("begun", child.inputStream.bufferedReader().readLine())
        val startedNs = System.nanoTime()
        if (afterMs != null) {
            Thread.sleep(afterMs)
            child.destroyForcibly() // SIGKILL
        }
        assertTrue(child.waitFor(60, TimeUnit.SECONDS))
        if (afterMs == null) assertEquals(0, child.exitValue())
        return (System.nanoTime() - startedNs) / 1_000_000
    }

    @Test
    fun `several processes that install at once leave one bundle, whole`() {
        val www = File(folder.toFile(), "www").also { Published.write(it, 1) }
        val key = File(folder.toFile(), "key.pub").apply { writeText(Contract.vectors["signature"]["public_key"].text) }
        val state = File(folder.toFile(), "state")
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
            assertEquals(2L, storedVersion(url, state))
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

/** [main] of a class in a JVM of its own. */
fun child(main: String, vararg arguments: String, options: List<String> = listOf("-Xmx128m")): Process {
    val java = File(System.getProperty("java.home"), "bin/java").path
    val common = listOf("-XX:TieredStopAtLevel=1", "-cp", System.getProperty("java.class.path"))
    return ProcessBuilder(listOf(java) + options + common + main + arguments)
        .redirectError(ProcessBuilder.Redirect.DISCARD).start()
}

/** A runtime in name: the self-test is none here. */
object NoRuntime : Runtime {
    override val identity = "none"

    override fun load(stretch: Stretch): LoadedStretch = throw RuntimeFailedError("it runs nothing")
}

/** Updates what its first argument names. */
object UpdateChild {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val (url, state, key) = arguments
        println("begun")
        openAt(url, File(state), TrustedKey.read(File(key)), runtime = NoRuntime, selfTest = {}).close()
    }
}

/** Holds a lock until it is killed. */
object LockChild {
    @JvmStatic
    fun main(arguments: Array<String>) {
        exclusive(File(arguments[0])).use {
            println("begun")
            Thread.sleep(60_000)
        }
    }
}
