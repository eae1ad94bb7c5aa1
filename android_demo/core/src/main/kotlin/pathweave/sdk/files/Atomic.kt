/** Atomic file writes, and the removal of what a killed writer left. Mirrors device_sdk/files/atomic.py. */
package pathweave.sdk.files

import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.ClosedByInterruptException
import java.nio.channels.FileChannel
import java.nio.file.FileAlreadyExistsException
import java.nio.file.FileSystemException
import java.nio.file.Files
import java.nio.file.StandardCopyOption.ATOMIC_MOVE
import java.nio.file.StandardOpenOption.CREATE_NEW
import java.nio.file.StandardOpenOption.READ
import java.security.SecureRandom
import java.util.concurrent.CancellationException
import java.util.concurrent.atomic.AtomicLong
import pathweave.sdk.StorageError

internal const val FREE_SPACE = "free some space or choose another folder"
private const val NAMES_TRIED = 8
private const val RUN_BYTES = 8
private val TEMPORARY = Regex("\\..+\\.[0-9a-f]+\\.tmp")

private val run = hex(ByteArray(RUN_BYTES).also(SecureRandom()::nextBytes)) // identifies this process run
private val numbers = AtomicLong()

/** Hexadecimal digits, unique in this run and different in every other. */
internal fun unique(): String = run + numbers.getAndIncrement().toString(16)

/**
 * Make a new file `<prefix><unique><suffix>` in [folder] and hold its lock: while it is held, the writer still runs.
 *
 * @throws IOException it cannot be made.
 */
internal fun newOwnFile(folder: File, prefix: String, suffix: String): Pair<File, Lock> {
    repeat(NAMES_TRIED) {
        val file = File(folder, prefix + unique() + suffix)
        val lock = try {
            tryLock(file, shared = false, CREATE_NEW)
        } catch (_: FileAlreadyExistsException) {
            null
        }
        if (lock != null && file.exists()) return file to lock
        lock?.close() // another process took the file for an orphan before it was locked
    }
    throw IOException("no file can be locked in $folder")
}

/**
 * Write [data] to [file]: a temporary file in the same folder, fsync, rename, fsync of the folder.
 *
 * @throws StorageError it could not be written; the old content is unchanged.
 */
internal fun writeAtomically(file: File, data: ByteArray): Unit = storageErrors(file) {
    val folder = file.absoluteFile.parentFile
    makeFolder(folder)
    val (temporary, lock) = newOwnFile(folder, ".${file.name}.", ".tmp")
    lock.use {
        try {
            writeFully(lock.channel, ByteBuffer.wrap(data))
            lock.channel.force(true)
            Files.move(temporary.toPath(), file.toPath(), ATOMIC_MOVE)
        } finally {
            temporary.delete() // nothing is left of it after the rename
        }
    }
    syncFolder(folder)
}

/** [writeAtomically], unless [file] has this content: a full disk then does not matter. */
internal fun writeIfChanged(file: File, data: ByteArray) {
    try {
        if (file.length() == data.size.toLong() && file.readBytes().contentEquals(data)) return
    } catch (_: IOException) {
        // then it is written
    }
    writeAtomically(file, data)
}

/** All bytes of [data], or IOException. */
internal fun writeFully(channel: FileChannel, data: ByteBuffer) {
    while (data.hasRemaining()) channel.write(data)
}

/**
 * Make [folder] and its missing parents; each new entry is synced to disk.
 *
 * @throws IOException it cannot be made.
 */
internal fun makeFolder(folder: File) {
    if (folder.isDirectory) return
    val missing = generateSequence(folder.absoluteFile) { it.parentFile }.takeWhile { !it.exists() }.toList()
    Files.createDirectories(folder.toPath())
    missing.forEach { syncFolder(it.parentFile) }
}

/** Make renames in [folder] survive a power failure, where the system can open folders. */
internal fun syncFolder(folder: File) {
    try {
        FileChannel.open(folder.toPath(), READ).use { it.force(true) }
    } catch (_: IOException) {
        // Windows opens no folders, some file systems do not sync them; the rename itself is done
    }
}

/** Delete what killed writers of [writeAtomically] left in [folder]. */
internal fun removeTemporaries(folder: File) {
    for (file in folder.listFiles().orEmpty()) if (TEMPORARY.matches(file.name)) deleteOrphan(file)
}

/** Delete [file] unless its writer still runs. */
internal fun deleteOrphan(file: File) {
    try {
        tryLock(file, shared = false, READ)?.use { if (it.certain) file.delete() }
    } catch (_: IOException) {
        // gone, or not ours to delete
    }
}

/** Turns IOException into StorageError; an interrupted thread gives CancellationException. */
internal inline fun <T> storageErrors(file: File, work: () -> T): T = try {
    work()
} catch (error: ClosedByInterruptException) {
    throw CancellationException("interrupted").initCause(error)
} catch (error: IOException) {
    throw StorageError("cannot write $file: ${reason(error)}", error, FREE_SPACE)
}

/** Waits; an interrupted thread gives CancellationException. */
internal fun pauseMs(milliseconds: Long) {
    try {
        Thread.sleep(milliseconds)
    } catch (error: InterruptedException) {
        Thread.currentThread().interrupt()
        throw CancellationException("interrupted").initCause(error)
    }
}

internal fun reason(error: IOException): String =
    (error as? FileSystemException)?.reason ?: error.message ?: error.javaClass.simpleName
