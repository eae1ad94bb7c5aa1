/**
 * Writes one blob to the store: a temporary file per writer, verified before it is renamed to its digest.
 *
 * A temporary file is called `<sha256>.<unique>.part` and is locked while its writer runs. Unlocked it is an orphan:
 * the next writer of that blob takes it over and resumes.
 */
package pathweave.sdk.delivery

import java.io.Closeable
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.ClosedByInterruptException
import java.nio.file.Files
import java.nio.file.StandardCopyOption.ATOMIC_MOVE
import java.nio.file.StandardOpenOption.READ
import java.security.MessageDigest
import pathweave.sdk.BlobError
import pathweave.sdk.files.Lock
import pathweave.sdk.files.deleteOrphan
import pathweave.sdk.files.hex
import pathweave.sdk.files.makeFolder
import pathweave.sdk.files.newOwnFile
import pathweave.sdk.files.storageErrors
import pathweave.sdk.files.syncFolder
import pathweave.sdk.files.tryLock
import pathweave.sdk.files.writeFully

private const val COPY_BYTES = 1 shl 16
private val PARTIAL = Regex("([0-9a-f]{64})\\.[0-9a-f]+\\.part")

/**
 * Collects the bytes of blob [name], at most [maxBytes], and moves them to [target].
 *
 * It starts with the bytes of an orphan, if there is one (see [size]). Bytes that are not committed on [close] become
 * an orphan for the next writer of this blob.
 *
 * @throws StorageError the file cannot be made.
 */
internal class BlobWriter(
    private val folder: File,
    private val name: String,
    private val target: File,
    private val maxBytes: Long,
) : Closeable {
    private val own: Pair<File, Lock>
    private val digest = MessageDigest.getInstance("SHA-256")
    private var inStore = false
    private var failed = false // the disk is full, or broken

    /** Bytes collected so far. */
    var size = 0L
        private set

    init {
        own = storageErrors(folder) {
            makeFolder(folder)
            inherited() ?: newOwnFile(folder, "$name.", ".part")
        }
        try {
            readInherited()
        } catch (error: IOException) {
            restart()
        }
    }

    private val channel get() = own.second.channel

    /** Discard the bytes collected so far. */
    fun restart(): Unit = storing {
        channel.truncate(0)
        digest.reset()
        size = 0
    }

    /**
     * Add the first [count] bytes of [data].
     *
     * @throws BlobError more than [maxBytes]. [StorageError] the disk is full.
     */
    fun append(data: ByteArray, count: Int) {
        if (size + count > maxBytes) {
            throw BlobError("blob ${name.take(12)}… is larger than the $maxBytes bytes that it should have")
        }
        storing { writeFully(channel, ByteBuffer.wrap(data, 0, count)) }
        digest.update(data, 0, count)
        size += count
    }

    /**
     * Move the blob to the store if its digest matches its name.
     *
     * @throws BlobError the digest does not match; the collected bytes are discarded. [StorageError] not written.
     */
    fun commit() {
        if (hex(digest.digest()) != name) {
            restart()
            throw BlobError(
                "blob ${name.take(12)}… does not match its digest",
                "it was altered on the way or on the server; do not use this server",
            )
        }
        storing {
            channel.force(true)
            makeFolder(target.parentFile)
            Files.move(own.first.toPath(), target.toPath(), ATOMIC_MOVE)
        }
        inStore = true
        syncFolder(target.parentFile)
    }

    override fun close() {
        if (!inStore && (size == 0L || failed)) own.first.delete() // frees the space of a full disk
        own.second.close()
    }

    private inline fun storing(work: () -> Unit) = storageErrors(own.first) {
        try {
            work()
        } catch (error: IOException) {
            failed = error !is ClosedByInterruptException
            throw error
        }
    }

    /** Takes over the longest orphan of this blob that may be continued, and deletes the others. */
    private fun inherited(): Pair<File, Lock>? {
        var found: Pair<File, Lock>? = null
        for (file in partials(folder, name).sortedByDescending { it.length() }) {
            if (found != null || file.length() !in 1..maxBytes) {
                deleteOrphan(file)
                continue
            }
            val lock = try {
                tryLock(file, shared = false, READ)
            } catch (_: IOException) {
                null
            }
            if (lock != null && lock.certain && file.exists()) found = file to lock else lock?.close()
        }
        return found
    }

    private fun readInherited() {
        val buffer = ByteArray(COPY_BYTES)
        while (size < maxBytes) {
            val count = channel.read(ByteBuffer.wrap(buffer))
            if (count <= 0) break
            digest.update(buffer, 0, count)
            size += count
        }
        if (size < channel.size()) restart() // it grew beyond what the blob has
    }
}

/** Temporary files of blob [name], or of all blobs, whether their writers run or not. */
internal fun partials(folder: File, name: String? = null): List<File> = folder.listFiles().orEmpty().filter { file ->
    PARTIAL.matchEntire(file.name)?.let { name == null || it.groupValues[1] == name } ?: false
}

private val CONTENT_RANGE = Regex("bytes (?:([0-9]{1,18})-([0-9]{1,18})|\\*)/(?:([0-9]{1,18})|\\*)")
private const val OK = 200
private const val PARTIAL_CONTENT = 206
internal const val RANGE_NOT_SATISFIABLE = 416

/** How to handle a response. */
internal enum class NextStep {
    APPEND,

    /** Discard the bytes received so far and store the body. */
    REPLACE,

    /** All bytes were received before. */
    COMPLETE,

    /** Discard the bytes received so far and request the whole blob. */
    AGAIN,
}

/**
 * Headers that request the bytes from [offset] on, on condition that the entity tag is still [etag].
 *
 * Without an etag the range is unconditional; the digest check detects a mismatch.
 */
internal fun requestHeaders(offset: Long, etag: String?): Map<String, String> = buildMap {
    if (offset == 0L) return@buildMap
    put("Range", "bytes=$offset-")
    if (etag != null) put("If-Range", etag)
}

/** [etag], if it is a strong one, else null. */
internal fun strongEtag(etag: String?): String? =
    etag?.takeIf { it.length > 2 && it.startsWith('"') && it.endsWith('"') }

/** How to handle the response to a request from [offset] on, whose status is 200, 206 or 416. */
internal fun nextStep(status: Int, contentRange: String?, offset: Long): NextStep {
    if (status == OK) return if (offset > 0) NextStep.REPLACE else NextStep.APPEND
    val (start, _, total) = CONTENT_RANGE.matchEntire(contentRange.orEmpty().trim())?.destructured
        ?: return NextStep.AGAIN
    return when {
        status == PARTIAL_CONTENT && start.toLongOrNull() == offset -> NextStep.APPEND
        status == RANGE_NOT_SATISFIABLE && start.isEmpty() && offset > 0 && total.toLongOrNull() == offset ->
            NextStep.COMPLETE
        else -> NextStep.AGAIN
    }
}
