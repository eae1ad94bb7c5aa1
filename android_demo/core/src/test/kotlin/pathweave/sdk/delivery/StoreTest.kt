package pathweave.sdk.delivery

import java.io.File
import java.nio.file.Path
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.BundleError
import pathweave.sdk.Contract
import pathweave.sdk.Published
import pathweave.sdk.RollbackError
import pathweave.sdk.assertRefused
import pathweave.sdk.bundles.decodeManifest
import pathweave.sdk.bytes
import pathweave.sdk.files.hex
import pathweave.sdk.files.sha256
import pathweave.sdk.get
import pathweave.sdk.items
import pathweave.sdk.text
import pathweave.sdk.texts

@Timeout(60)
class StoreTest {
    @TempDir
    lateinit var folder: Path

    private val url = "https://models.example.org/v1/bundles/reference"
    private val store by lazy { BundleStore(File(folder.toFile(), "store")) }

    private fun save(version: Int, name: String = "reference"): String {
        val published = Published.write(File(folder.toFile(), "www"), version, Published.blob(version), name)
        val named = decodeManifest(published.resolve("manifest.json").readBytes()).blobs()
        published.resolve("blobs").listFiles()!!.filter { it.name in named }.forEach { blob ->
            if (!store.hasBlob(blob.name, null)) {
                store.writer(blob.name, blob.length()).use {
                    it.append(blob.readBytes(), blob.length().toInt())
                    it.commit()
                }
            }
        }
        val manifest = published.resolve("manifest.json").readBytes()
        store.saveBundle(name, manifest, published.resolve("manifest.sig").readBytes())
        return sha256(manifest)
    }

    private fun install(version: Int): String = save(version).also { store.rememberGood(url, "reference", it) }

    private fun record(name: String) = File(store.folder, "bundles/reference/$name")

    @Test
    fun `the last good one is what was remembered, the one before stays beside it`() {
        val first = install(1)
        val second = install(2)
        assertEquals(second, store.lastGoodAt(url)!!.digest)
        assertEquals("$second\n" to "$first\n", record("current").readText() to record("previous").readText())
        assertNull(store.lastGoodAt("$url-other"))
    }

    @Test
    fun `no damage to one file brings back the version before`() {
        install(1)
        val second = install(2)
        for (name in listOf("current", "previous", "mark", "mark.copy")) {
            val damages = listOf(byteArrayOf(), "0".repeat(64).toByteArray(), byteArrayOf(-1, 0, 5), ByteArray(100_000))
            for (data in damages) {
                val file = record(name)
                val whole = file.readBytes()
                file.writeBytes(data)
                assertEquals(second, BundleStore(store.folder).lastGoodAt(url)?.digest, "$name = ${data.size} bytes")
                file.writeBytes(whole)
            }
            val file = record(name)
            val whole = file.readBytes()
            file.delete()
            assertEquals(second, store.lastGoodAt(url)?.digest, name)
            file.writeBytes(whole)
        }
        File(store.folder, "bundles/reference/$second/manifest.json").appendText(" ")
        assertNull(store.lastGoodAt(url))
        assertEquals(1L, store.lastGoodAt(url, allowRollback = true)?.version)
    }

    @Test
    fun `an older installer that is late does not lower the mark`() {
        val first = save(1)
        install(2)
        assertRefused<RollbackError> { store.rememberGood(url, "reference", first) }
        assertEquals(2L, store.lastGoodAt(url)!!.version)
        store.rememberGood(url, "reference", first, allowRollback = true)
        assertEquals(1L, store.lastGoodAt(url)!!.version)
    }

    @Test
    fun `a kill between any two writes of remembering leaves the old or the new one`() {
        install(1)
        val second = save(2)
        val records = listOf("previous", "current", "mark.copy", "mark") // in the order in which they are written
        val before = records.associateWith { name -> record(name).takeIf { it.exists() }?.readBytes() }
        store.rememberGood(url, "reference", second)
        val after = records.associateWith { record(it).readBytes() }
        for (written in 0..records.size) {
            for ((number, name) in records.withIndex()) {
                val data = if (number < written) after[name] else before[name]
                if (data == null) record(name).delete() else record(name).writeBytes(data)
            }
            val opened = store.lastGoodAt(url)!!.version
            assertEquals(if (written < 2) 1L else 2L, opened, "after $written writes")
            collect(store)
            assertTrue(store.hasBlob(sha256(Published.blob(opened.toInt())), 3_000))
            if (written > 1) assertRefused<RollbackError> { store.refuse(url, "reference", 1, "0".repeat(64), false) }
            save(2)
            store.rememberGood(url, "reference", second)
            assertEquals(2L, store.lastGoodAt(url)!!.version)
        }
    }

    @Test
    fun `nothing is written that is there already`() {
        val digest = install(1)
        val files = store.folder.walk().filter { it.isFile }.onEach { it.setLastModified(1_000) }.toList()
        store.rememberGood(url, "reference", digest)
        save(1)
        assertTrue(files.all { it.lastModified() == 1_000L })
    }

    @Test
    fun `what no bundle needs is deleted, what one needs or has open stays`() {
        val first = install(1)
        val lease = store.lease("reference", first)
        install(2)
        val third = install(3)
        val orphan = File(store.partial, "${"a".repeat(64)}.00.part").apply { writeText("x") }
        val temporary = File(record("current").parentFile, ".current.00.tmp").apply { writeText("x") }
        store.writer("b".repeat(64), 10).use { running ->
            running.append(byteArrayOf(1), 1)
            collect(store)
            assertFalse(orphan.exists() || temporary.exists())
            assertEquals(1, store.partial.listFiles()!!.size, "a writer still runs")
        }
        assertEquals(3, record("").listFiles()!!.count { it.isDirectory })
        lease.close()
        assertEquals(3_000L, collect(store))
        assertFalse(record(first).exists())
        assertTrue(store.hasBlob(sha256(Published.blob(2)), 3_000), "that of the previous one stays")
        assertEquals(third, store.lastGoodAt(url)!!.digest)
    }

    @Test
    fun `while another fetches nothing is deleted`() {
        install(1)
        install(2)
        install(3)
        store.installing().use { assertEquals(0L, collect(store)) }
        assertEquals(3_000L, collect(store))
    }

    @Test
    fun `if a manifest cannot be read all blobs stay`() {
        install(1)
        val second = install(2)
        record("$second/manifest.json").writeText("{}")
        install(3)
        assertEquals(0L, collect(store))
    }

    @Test
    fun `names that would leave the store are refused`() {
        for (name in listOf("../x", "", ".", "a/b")) {
            assertRefused<BundleError> { store.saveBundle(name, "{}".toByteArray(), null) }
            assertRefused<BundleError> { store.writer(name, 1) }
        }
    }

    @Test
    fun `marks are written the same everywhere, and damaged ones are recognised`() {
        for (case in Contract.vectors["marks"].items) {
            val mark = decodeMark(case["record"].bytes)
            if (case["outcome"].text == "damaged") {
                assertNull(mark, case["name"].text)
                continue
            }
            val expected = Mark(
                case["mark"]["name"].text,
                case["mark"]["version"].text.toLong(),
                case["mark"]["digest"].text,
                case["mark"]["addresses"].texts,
            )
            assertEquals(expected, mark)
            assertEquals(case["record"].text, hex(encodeMark(expected)))
        }
    }
}
