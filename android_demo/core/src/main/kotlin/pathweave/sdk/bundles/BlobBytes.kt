/**
 * The bytes of a blob: on the heap where they are few, mapped from their file where they are many.
 *
 * A blob may have 2 GiB, more than an app's heap. A file that shrinks under a map kills the process: nothing changes a
 * blob in place, the store replaces and deletes whole files, and a deleted one stays whole for who has mapped it.
 */
package pathweave.sdk.bundles

import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.channels.FileChannel.MapMode.READ_ONLY
import java.nio.file.StandardOpenOption.READ
import java.security.MessageDigest
import pathweave.sdk.BlobError
import pathweave.sdk.files.digestOf
import pathweave.sdk.files.hex
import pathweave.sdk.files.reason

internal const val BLOB_MAX_BYTES = Int.MAX_VALUE.toLong() // protobuf's limit; the manifest does not size shared blobs
private const val MAPPED_FROM_BYTES = 1L shl 20

/** Read-only bytes of a blob or a fragment. */
public class BlobBytes private constructor(private val bytes: ByteBuffer) {
    /** How many. */
    public val size: Int get() = bytes.capacity()

    /** A view of its own of these bytes. */
    internal fun view(): ByteBuffer = bytes.duplicate()

    internal operator fun get(index: Int): Byte = bytes.get(index)

    public companion object {
        /** [bytes], which must not change from then on. */
        public fun of(bytes: ByteArray): BlobBytes = BlobBytes(ByteBuffer.wrap(bytes))

        /**
         * The bytes of blob [name], which lies in [folder], their digest verified.
         *
         * @throws BlobError missing, unreadable, altered, not of the [stated] size, or larger than a blob may be. The
         *   size is checked before a byte is read.
         */
        internal fun read(folder: File, name: String, stated: Long?): BlobBytes {
            val bytes = opened(folder, name, stated) { channel, size ->
                if (size >= MAPPED_FROM_BYTES) channel.map(READ_ONLY, 0, size) else read(channel, size.toInt())
            }
            val digest = MessageDigest.getInstance("SHA-256").apply { update(bytes.duplicate()) }
            checkDigest(name, hex(digest.digest()))
            return BlobBytes(bytes)
        }

        /** Throws [BlobError] as [read]; the bytes are read in chunks and not kept. */
        internal fun verify(folder: File, name: String, stated: Long?) {
            opened(folder, name, stated) { _, _ -> }
            val digest = try {
                digestOf(File(folder, name))
            } catch (error: IOException) {
                throw unreadable(name, error)
            }
            checkDigest(name, digest)
        }

        private inline fun <T> opened(
            folder: File,
            name: String,
            stated: Long?,
            use: (FileChannel, Long) -> T,
        ): T = try {
            FileChannel.open(File(folder, name).toPath(), READ).use { channel ->
                checkSize(name, channel.size(), stated)
                use(channel, channel.size())
            }
        } catch (error: IOException) {
            throw unreadable(name, error)
        }

        private fun read(channel: FileChannel, size: Int): ByteBuffer {
            val buffer = ByteBuffer.allocate(size)
            while (buffer.hasRemaining()) if (channel.read(buffer) < 0) break
            return ByteBuffer.wrap(buffer.array(), 0, buffer.position()).slice()
        }
    }
}

/** Throws [BlobError] unless blob [name] has the [stated] size, and one that a blob may have. */
internal fun checkSize(name: String, actual: Long, stated: Long?) {
    if (stated != null && actual != stated) {
        throw BlobError("blob ${name.take(12)}… has $actual bytes instead of $stated", FETCH_AGAIN)
    }
    if (actual > BLOB_MAX_BYTES) {
        throw BlobError("blob ${name.take(12)}… has $actual bytes; $BLOB_MAX_BYTES are allowed", FETCH_AGAIN)
    }
}

private fun checkDigest(name: String, digest: String) {
    if (digest != name) throw BlobError("blob ${name.take(12)}… does not match its digest", FETCH_AGAIN)
}

private fun unreadable(name: String, error: IOException) =
    BlobError("blob ${name.take(12)}… cannot be read: ${reason(error)}", FETCH_AGAIN, error)
