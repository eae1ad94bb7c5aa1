package pathweave.sdk.delivery

import java.io.File
import java.nio.file.Path
import java.util.concurrent.Callable
import java.util.concurrent.Executors
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.BlobError
import pathweave.sdk.Published
import pathweave.sdk.assertRefused
import pathweave.sdk.files.digestOf
import pathweave.sdk.files.sha256

class BlobWriterTest {
    @TempDir
    lateinit var temporary: Path

    private val partial by lazy { File(temporary.toFile(), "partial") }
    private val blobs by lazy { File(temporary.toFile(), "blobs") }
    private val data = Published.blob(1)
    private val name = sha256(data)

    private fun writer(maxBytes: Long = data.size.toLong()) = BlobWriter(partial, name, File(blobs, name), maxBytes)

    @Test
    fun `what is committed is whole, and nothing else is left`() {
        writer().use {
            it.append(data, data.size)
            it.commit()
        }
        assertArrayEquals(data, File(blobs, name).readBytes())
        assertEquals(0, partial.list()!!.size)
    }

    @Test
    fun `the longest orphan is taken over, the others go`() {
        partial.mkdirs()
        for (size in listOf(10, 2_000, 500)) File(partial, "$name.$size.part").writeBytes(data.copyOf(size))
        File(partial, "$name.999.part").writeBytes(ByteArray(data.size + 1))
        writer().use {
            assertEquals(2_000L, it.size)
            assertEquals(1, partial.list()!!.size)
            it.append(data.copyOfRange(2_000, data.size), data.size - 2_000)
            it.commit()
        }
        assertArrayEquals(data, File(blobs, name).readBytes())
    }

    @Test
    fun `two writers of one blob do not share a file`() {
        writer().use { first ->
            first.append(data, 100)
            writer().use { second ->
                assertEquals(0L, second.size)
                second.append(data, data.size)
                second.commit()
            }
            assertArrayEquals(data, File(blobs, name).readBytes())
            first.append(data.copyOfRange(100, data.size), data.size - 100)
            first.commit()
        }
        assertArrayEquals(data, File(blobs, name).readBytes())
        assertEquals(0, partial.list()!!.size)
    }

    @Test
    fun `eight writers at once leave one whole blob`() {
        val threads = Executors.newFixedThreadPool(8)
        val running = List(8) {
            threads.submit(
                Callable {
                    repeat(20) {
                        writer().use { one ->
                            one.restart()
                            for (start in data.indices step 500) one.append(data.copyOfRange(start, start + 500), 500)
                            one.commit()
                        }
                        assertEquals(name, digestOf(File(blobs, name)))
                    }
                },
            )
        }
        running.forEach { it.get() }
        threads.shutdown()
        assertEquals(0, partial.list()!!.size)
    }

    @Test
    fun `too many bytes and other bytes are refused`() {
        writer().use {
            it.append(data, data.size)
            assertRefused<BlobError> { it.append(data, 1) }
        }
        writer().use {
            it.restart()
            it.append(ByteArray(data.size), data.size)
            assertRefused<BlobError> { it.commit() }
            assertEquals(0L, it.size)
        }
        assertFalse(blobs.exists())
        assertTrue(partial.list()!!.isEmpty(), "what does not match is not kept for the next writer")
    }
}
