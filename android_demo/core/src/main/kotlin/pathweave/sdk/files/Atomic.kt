/** Atomic file writes, and the removal of what a killed writer left. */
package pathweave.sdk.files

import java.io.ByteArrayOutputStream
import java.io.File
import java.io.FileNotFoundException
import java.io.IOException
import java.io.InputStream
import java.io.RandomAccessFile
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
import pathweave.sdk.UsageError

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

internal const val LOG_MAX_BYTES = 1_000_000L
internal const val LINE_MAX_BYTES = 64_000
private const val KEPT_FILES = 3
private val rotating = Any() // held by what appends, rotates, or opens the files of a log

/**
 * Append [line], which ends with a newline; rotate [path] first if it would exceed [maxBytes].
 *
 * An incomplete last line, left by a crash or a full disk, is removed first.
 *
 * @throws IOException it cannot be written.
 */
internal fun appendLine(path: File, line: ByteArray, maxBytes: Long = LOG_MAX_BYTES): Unit = synchronized(rotating) {
    path.parentFile.mkdirs()
    if (path.length() > 0 && path.length() + line.size > maxBytes) rotate(path)
    RandomAccessFile(path, "rw").use { file ->
        file.setLength(endOfLastLine(file))
        file.seek(file.length())
        file.write(line)
    }
}

/** The existing files, oldest first; [path] itself is always the last. */
internal fun filesOf(path: File): List<File> {
    val prefix = "${path.name}."
    val numbered = path.absoluteFile.parentFile.listFiles().orEmpty().mapNotNull { file ->
        val suffix = file.name.removePrefix(prefix).takeIf { file.name.startsWith(prefix) }
        suffix?.takeIf { it.all(Char::isDigit) }?.toIntOrNull()?.let { it to File(path.parentFile, file.name) }
    }
    return numbered.sortedByDescending { it.first }.map { it.second } + path
}

/**
 * Gives [use] all files of [path], opened, oldest first. A rotation in this process neither skips nor repeats a file.
 *
 * @throws IOException [path] itself cannot be opened, or what [use] throws.
 */
internal fun <T> openedFiles(path: File, use: (List<Pair<File, InputStream>>) -> T): T {
    val opened = mutableListOf<Pair<File, InputStream>>()
    try {
        synchronized(rotating) {
            for (file in filesOf(path)) {
                try {
                    opened += file to file.inputStream()
                } catch (error: FileNotFoundException) {
                    if (file == path) throw error
                }
            }
        }
        return use(opened)
    } finally {
        opened.forEach { (_, file) -> file.close() }
    }
}

/**
 * The lines of [input], which is the content of [path], each with its newline; an incomplete last line is left out.
 *
 * @throws UsageError a line is longer than LINE_MAX_BYTES.
 */
internal fun completeLines(path: File, input: InputStream): Sequence<ByteArray> = sequence {
    val line = ByteArrayOutputStream()
    var number = 1
    while (true) {
        val byte = input.read()
        if (byte < 0) return@sequence // what is left has no newline
        line.write(byte)
        if (line.size() > LINE_MAX_BYTES) throw UsageError("line $number of $path has more than $LINE_MAX_BYTES bytes")
        if (byte == '\n'.code) {
            yield(line.toByteArray())
            line.reset()
            number++
        }
    }
}

private fun endOfLastLine(file: RandomAccessFile): Long {
    var end = file.length()
    while (end > 0) {
        file.seek(end - 1)
        if (file.read() == '\n'.code) break
        end--
    }
    return end
}

private fun rotate(path: File) {
    fun numbered(number: Int) = if (number == 0) path else File(path.parentFile, "${path.name}.$number")
    for (number in KEPT_FILES downTo 1) {
        val (newer, older) = numbered(number - 1) to numbered(number)
        if (newer.exists() && !newer.renameTo(older)) throw IOException("cannot rename $newer")
    }
}
