package pathweave.sdk.session

import java.io.File
import java.io.IOException
import java.io.RandomAccessFile
import java.util.concurrent.Callable
import java.util.concurrent.Executors
import java.util.concurrent.atomic.AtomicInteger
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import org.junit.jupiter.api.Timeout
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.Fault
import pathweave.sdk.PathweaveError
import pathweave.sdk.Published
import pathweave.sdk.PublishedTest
import pathweave.sdk.SelfTestError
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.data.Image
import pathweave.sdk.delivery.DeliveryOptions
import pathweave.sdk.delivery.DeliverySource
import pathweave.sdk.execution.STRIKES
import pathweave.sdk.execution.SelfTestAbortedError
import pathweave.sdk.execution.SelfTestAttempts
import pathweave.sdk.execution.SelfTestLimits
import pathweave.sdk.execution.SelfTestState
import pathweave.sdk.execution.runGuardedSelfTest
import pathweave.sdk.files.digestOf
import pathweave.sdk.files.sha256
import pathweave.sdk.runtimes.OnnxRuntime

private const val PAGE_BYTES = 4_096L // what tmpfs counts in
private const val FREE_PAGES = 16L

@Timeout(60)
class OpeningTest : PublishedTest() {
    /** Version and source of what opens, all its blobs verified. */
    private fun open(
        state: File = this.state,
        options: DeliveryOptions = DeliveryOptions(),
        selfTest: (Bundle) -> Unit = {},
    ): Pair<Long, DeliverySource> = openAt(url, state, Contract.key, options = options, selfTest = selfTest).use {
        it.bundle.verify()
        it.bundle.manifest.version to it.delivered.source
    }

    @Test
    fun `what opens was tested with the runtime, answers, and is remembered`() {
        AdaptiveModel.open(openAt(url, state, Contract.key)).use { model ->
            val size = model.imageSize!!
            assertEquals(1, model(Image(ByteArray(12), size, 3)).labels.size)
        }
        stop()
        assertEquals(1L to DeliverySource.KEPT, open(selfTest = { throw AssertionError("tested again") }))
        openStored(url, state, Contract.key).use { assertEquals(1L, it.bundle.manifest.version) }
        assertRefused<UsageError> { openStored("$url-other", state, Contract.key) }
    }

    @TestFactory
    fun `no fault of the network opens anything but the old or the new bundle`(): List<DynamicTest> =
        listOf("manifest.json", "manifest.sig", "blobs/").flatMap { part ->
            listOf(
                Fault(Fault.Kind.CUT, 30),
                Fault(Fault.Kind.RESET, 0),
                Fault(Fault.Kind.FLIP, 30),
                Fault(Fault.Kind.WRONG_LENGTH, 1),
                Fault(Fault.Kind.STATUS, 500),
            ).map { fault ->
                DynamicTest.dynamicTest("$part: ${fault.kind} at ${fault.at}") {
                    val own = File(folder.toFile(), "${fault.kind}-${part.hashCode()}")
                    Published.write(www, 1)
                    server.fault(part, fault)
                    val first = try {
                        open(own)
                    } catch (_: PathweaveError) {
                        open(own)
                    }
                    assertEquals(1L to DeliverySource.DOWNLOADED, first)
                    Published.write(www, 2, Published.blob(2))
                    server.fault(part, fault)
                    val second = open(own)
                    assertTrue(second in listOf(1L to DeliverySource.KEPT, 2L to DeliverySource.DOWNLOADED), "$second")
                    assertEquals(2L, open(own).first)
                    assertEquals(0, storeIn(own).partial.list().orEmpty().size)
                }
            }
        }

    @Test
    fun `a bundle that fails its self-test is not used, and not tried again`() {
        open()
        Published.write(www, 2, Published.blob(2))
        var tests = 0
        val failing = { _: Bundle ->
            tests++
            throw SelfTestError("block o1 does not reproduce its golden outputs")
        }
        assertEquals(1L to DeliverySource.KEPT, open(selfTest = failing))
        assertEquals(1L to DeliverySource.KEPT, open(selfTest = failing))
        assertEquals(1, tests)
        Published.write(www, 3, Published.blob(3))
        assertEquals(3L, open().first)
    }

    @Test
    fun `what takes the process with it is tried three times`() {
        open()
        Published.write(www, 2, Published.blob(2))
        var tests = 0
        repeat(5) {
            // as after a crash: the attempt was written down, and nothing after it
            assertEquals(1L, open(selfTest = { tests++; throw SelfTestAbortedError("it crashed") }).first)
        }
        assertEquals(STRIKES, tests)
    }

    @Test
    fun `an attempt is written down before it begins`() {
        open()
        Published.write(www, 2, Published.blob(2))
        var seen = SelfTestAttempts()
        open(selfTest = { bundle -> seen = SelfTestState(state, bundle, OnnxRuntime()).loadAttempts() })
        assertEquals(1, seen.strikes)
    }

    @Test
    fun `of eight that open a bundle at once, one tests it`() {
        open()
        Published.write(www, 2, Published.blob(2))
        val (tests, threads) = AtomicInteger() to Executors.newFixedThreadPool(8)
        val slow = { _: Bundle -> tests.incrementAndGet().let { Thread.sleep(50) } }
        val opened = List(8) { threads.submit(Callable { open(selfTest = slow) }) }.map { it.get().first }
        threads.shutdown()
        assertEquals(List(8) { 2L } to 1, opened to tests.get())
    }

    @Test
    fun `a self-test that hangs or takes all memory ends`() {
        val bundle = Contract.reference()
        val runtime = OnnxRuntime()
        assertRefused<SelfTestAbortedError> {
            runGuardedSelfTest(bundle, runtime, SelfTestLimits(stepS = 0.2)) { _, _, _ -> Thread.sleep(60_000) }
        }
        assertRefused<SelfTestAbortedError> {
            runGuardedSelfTest(bundle, runtime, SelfTestLimits(totalS = 0.3)) { _, _, step ->
                while (true) step(1, 2).also { Thread.sleep(10) }
            }
        }
        assertRefused<SelfTestAbortedError> {
            runGuardedSelfTest(bundle, runtime) { _, _, _ -> throw OutOfMemoryError() }
        }
        runGuardedSelfTest(bundle, runtime)
    }

    @Test
    fun `a blob that decayed on the disk is fetched again`() {
        open()
        val blob = storeIn(state).blobs.listFiles()!!.first()
        blob.writeBytes(blob.readBytes().also { it[0] = (it[0] + 1).toByte() })
        assertEquals(1L, open().first)
        assertEquals(blob.name, digestOf(blob))
    }

    @Test
    fun `a full disk leaves the old bundle usable, and the update comes when there is room`() = onSmallDisk { disk ->
        val own = File(disk, "state")
        assertEquals(1L, open(own).first)
        Published.write(www, 2, Published.blob(2, size = 300_000))
        val filler = File(disk, "filler")
        fill(filler)
        repeat(2) { assertEquals(1L to DeliverySource.KEPT, open(own)) }
        assertEquals(0, storeIn(own).partial.list().orEmpty().size, "a full disk is not kept full")
        assertEquals(1L, openStored(url, own, Contract.key, selfTest = {}).use { it.delivered.version })
        assertTrue(filler.delete())
        assertEquals(2L to DeliverySource.DOWNLOADED, open(own))
    }

    @Test
    fun `a disk that is full from any write on leaves the old or the new bundle`() = onSmallDisk { disk ->
        val start = File(folder.toFile(), "start")
        open(start)
        Published.write(www, 2, Published.blob(2))
        val (own, filler) = File(disk, "state") to File(disk, "filler")
        val opened = (0L until FREE_PAGES).map { pages ->
            start.copyRecursively(own)
            fill(filler)
            RandomAccessFile(filler, "rw").use { it.setLength(maxOf(0, it.length() - pages * PAGE_BYTES)) }
            val (version, source) = open(own)
            assertEquals(version == 1L, source == DeliverySource.KEPT, "with $pages pages free")
            assertTrue(openStored(url, own, Contract.key, selfTest = {}).use { it.delivered.version } in 1L..2L)
            assertTrue(filler.delete())
            assertEquals(2L, open(own).first)
            own.deleteRecursively()
            version
        }
        assertEquals(setOf(1L, 2L), opened.toSet())
    }

    /** A tmpfs of 1 MB. */
    private fun onSmallDisk(work: (File) -> Unit) {
        val disk = File(folder.toFile(), "disk").apply { mkdirs() }
        val mount = listOf("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk.path)
        val mounted = try {
            ProcessBuilder(mount).redirectErrorStream(true).start().waitFor() == 0
        } catch (_: IOException) {
            false
        }
        assumeTrue(mounted, "a small disk can only be mounted by root on Linux")
        try {
            work(disk)
        } finally {
            ProcessBuilder("umount", "-l", disk.path).start().waitFor()
        }
    }

    /** Takes all room. */
    private fun fill(file: File) = file.outputStream().use { out ->
        for (size in listOf(1 shl 16, 1 shl 12, 1)) {
            try {
                while (true) out.write(ByteArray(size))
            } catch (_: IOException) {
                // full
            }
        }
    }

    @Test
    fun `eight installers at once leave one bundle, whole`() {
        open()
        val blob = Published.blob(2, size = 40_000)
        Published.write(www, 2, blob)
        server.pauseMs = 1
        val threads = Executors.newFixedThreadPool(8)
        val opened = List(8) { threads.submit(Callable { open() }) }.map { it.get() }
        threads.shutdown()
        assertEquals(setOf(2L), opened.map { it.first }.toSet())
        val store = storeIn(state)
        assertEquals(0, store.partial.list()!!.size)
        assertEquals(sha256(blob), digestOf(File(store.blobs, sha256(blob))))
        assertEquals(2L, store.lastGoodAt(url)!!.version)
    }

    @Test
    fun `an older version that is late does not replace a newer one`() {
        Published.write(www, 2, Published.blob(2))
        val started = openAt(url, state, Contract.key, selfTest = {
            Published.write(www, 3, Published.blob(3))
            assertEquals(3L, open().first) // another process is faster with a newer one
        })
        started.use { assertEquals(3L to DeliverySource.KEPT, it.bundle.manifest.version to it.delivered.source) }
    }

    @Test
    fun `a model that is open keeps its blobs from the collector`() {
        openAt(url, state, Contract.key, selfTest = {}).use { opened ->
            for (version in 2..4) {
                Published.write(www, version, Published.blob(version))
                assertEquals(version.toLong(), open().first)
            }
            opened.bundle.verify()
            assertTrue(opened.bundle.folder.isDirectory)
        }
        Published.write(www, 5, Published.blob(5))
        open()
        assertFalse(storeIn(state).bundles.walk().any { it.name == Contract.reference().digest })
    }
}
