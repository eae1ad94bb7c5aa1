package pathweave.sdk.bundles

import java.io.File
import java.io.RandomAccessFile
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.file.Path
import java.util.concurrent.TimeUnit
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.BlobError
import pathweave.sdk.Published
import pathweave.sdk.assertRefused
import pathweave.sdk.child
import pathweave.sdk.files.digestOf
import pathweave.sdk.files.sha256
import pathweave.sdk.files.writeAtomically
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.supernet.TensorSpec

private const val LARGE_ELEMENTS = 24 shl 20 // 96 MB of float32
private const val SMALL_HEAP = "-Xmx48m"

class BlobBytesTest {
    @TempDir
    lateinit var folder: Path

    private fun blob(data: ByteArray): String =
        sha256(data).also { File(folder.toFile(), it).writeBytes(data) }

    private fun bytes(blob: BlobBytes) = ByteArray(blob.size).also { blob.view().get(it) }

    @Test
    fun `blobs of any size are read alike`() {
        for (size in listOf(0, 1, 1_000, (1 shl 20) - 1, 1 shl 20, (1 shl 20) + 1, 3_000_000)) {
            val data = Published.blob(1, size)
            val name = blob(data)
            assertArrayEquals(data, bytes(BlobBytes.read(folder.toFile(), name, size.toLong())))
            BlobBytes.verify(folder.toFile(), name, null)
        }
    }

    @Test
    fun `what is altered, missing or of another size is refused`() {
        for (size in listOf(1_000, 2_000_000)) {
            val name = blob(Published.blob(1, size))
            val file = File(folder.toFile(), name)
            assertRefused<BlobError> { BlobBytes.read(folder.toFile(), name, size + 1L) }
            file.appendText("x")
            assertRefused<BlobError> { BlobBytes.read(folder.toFile(), name, size.toLong()) }
            assertRefused<BlobError> { BlobBytes.read(folder.toFile(), name, null) }
            assertRefused<BlobError> { BlobBytes.verify(folder.toFile(), name, null) }
            file.delete()
            assertRefused<BlobError> { BlobBytes.read(folder.toFile(), name, null) }
        }
    }

    @Test
    fun `a blob that is larger than one may be is refused before it is read`() {
        val name = "a".repeat(64)
        RandomAccessFile(File(folder.toFile(), name), "rw").use { it.setLength(1L shl 32) } // takes no room
        val startedNs = System.nanoTime()
        val error = assertRefused<BlobError> { BlobBytes.read(folder.toFile(), name, null) }
        assertTrue("2147483647 are allowed" in error.message!!, error.message)
        assertTrue(System.nanoTime() - startedNs < 1e9)
    }

    @Test
    fun `a mapped blob stays whole when its file is deleted or replaced`() {
        val data = Published.blob(1, 2_000_000)
        val name = blob(data)
        val mapped = BlobBytes.read(folder.toFile(), name, null)
        writeAtomically(File(folder.toFile(), name), ByteArray(10))
        assertTrue(File(folder.toFile(), name).delete())
        assertArrayEquals(data, bytes(mapped))
    }

    @Test
    fun `a model that is larger than the heap is verified, composed and run`() {
        val (file, temporary) = File(folder.toFile(), "blob") to File(folder.toFile(), "tmp").apply { mkdirs() }
        val child = child(
            "pathweave.sdk.bundles.LargeModelChild", file.path, options = listOf(SMALL_HEAP, "-Djava.io.tmpdir=$temporary"),
        )
        val said = child.inputStream.bufferedReader().readText()
        assertTrue(child.waitFor(60, TimeUnit.SECONDS))
        assertEquals("[2.0]\n", said)
        assertEquals(emptyList<File>(), temporary.walk().filter { it.isFile }.toList(), "the model's file is gone")
    }
}

/** Writes a fragment of 96 MB piece by piece, then loads and runs it with the small heap that it was given. */
object LargeModelChild {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val file = File(arguments[0])
        val raw = LARGE_ELEMENTS.toLong() * Float.SIZE_BYTES
        val tensor = ProtobufWriter().integer(1, LARGE_ELEMENTS.toLong()).integer(2, 1).text(8, "w")
            .head(9, raw.toInt())
        val node = ProtobufWriter().message(1) { text(1, "w").text(1, "i").text(2, "g").text(4, "Gather") }
            .message(1) { text(1, "cut_0").text(1, "g").text(2, "cut_1").text(4, "Mul") }
            .message(5) { integer(1, 1).integer(2, 7).text(8, "i").bytes(9, ByteArray(8)) }
        file.outputStream().use { out ->
            out.write(node.toByteArray())
            out.write(ProtobufWriter().head(5, (tensor.toByteArray().size + raw).toInt()).toByteArray())
            out.write(tensor.toByteArray())
            val piece = ByteBuffer.allocate(1 shl 20).order(ByteOrder.LITTLE_ENDIAN)
            while (piece.hasRemaining()) piece.putFloat(2f)
            repeat((raw shr 20).toInt()) { out.write(piece.array()) }
        }
        val name = digestOf(file)
        val blob = File(file.parentFile, name).also(file::renameTo)
        val fragment = BlobBytes.read(blob.parentFile, name, blob.length())
        val ends = List(2) { TensorSpec("cut_$it", listOf(1)) }
        val stretch = Stretch(listOf(fragment), ends.take(1), ends.drop(1), irVersion = 10, opset = 20)
        OnnxRuntime().load(stretch).use { loaded ->
            println(loaded.run(listOf(Tensor.of(floatArrayOf(1f), listOf(1, 1))))[0].floats().toList())
        }
    }
}
