/**
 * Advisory locks between processes, on files that are made if need be.
 *
 * A lock goes with its holder: one that is killed leaves none behind. Where the system or the file system has no locks,
 * [shared] and [exclusive] only hold within this process, and [tryExclusive] always fails, so what must run alone is
 * skipped. The system's locks belong to the process and end when any channel of the file is closed, so this file keeps
 * one channel per locked file, and no other part opens a file that may be locked.
 */
package pathweave.sdk.files

import java.io.Closeable
import java.io.File
import java.io.IOException
import java.nio.channels.FileChannel
import java.nio.channels.FileLock
import java.nio.channels.OverlappingFileLockException
import java.nio.file.OpenOption
import java.nio.file.StandardOpenOption.CREATE
import java.nio.file.StandardOpenOption.READ
import java.nio.file.StandardOpenOption.WRITE
import pathweave.sdk.LOG
import pathweave.sdk.StorageError

private const val WAIT_S = 10.0 // holders do a few small writes
private const val POLL_MS = 10L
private const val NANOSECONDS_PER_S = 1e9

/** An open file that is locked. [certain]: other processes see it. */
internal class LockedFile(val channel: FileChannel, val shared: Boolean, val certain: Boolean) {
    var users = 1
}

private val held = HashMap<String, LockedFile>() // by path, guarded by itself

/** A lock that is held until [close], which may be called twice. */
internal class Lock(private val path: String, private val locked: LockedFile) : Closeable {
    private var open = true

    val channel: FileChannel get() = locked.channel

    /** Whether other processes see the lock. */
    val certain: Boolean get() = locked.certain

    override fun close(): Unit = synchronized(held) {
        if (open && --locked.users == 0) {
            held.remove(path)
            locked.channel.close()
        }
        open = false
    }
}

/**
 * Take the lock on [file] if it is free now, else null.
 *
 * @throws IOException the file cannot be opened with [options].
 */
internal fun tryLock(file: File, shared: Boolean, vararg options: OpenOption = arrayOf(CREATE)): Lock? {
    val path = file.canonicalPath
    return synchronized(held) {
        val known = held[path]
        if (known != null) {
            if (!shared || !known.shared) return null
            known.users++
            return Lock(path, known)
        }
        val locked = opened(file, shared, options) ?: return null
        held[path] = locked
        Lock(path, locked)
    }
}

private fun opened(file: File, shared: Boolean, options: Array<out OpenOption>): LockedFile? {
    val channel = FileChannel.open(file.toPath(), READ, WRITE, *options)
    var lock: FileLock? = null
    val certain = try {
        lock = channel.tryLock(0, Long.MAX_VALUE, shared)
        true
    } catch (_: OverlappingFileLockException) {
        true // another class loader of this process has it
    } catch (_: IOException) {
        false
    }
    if (certain && lock == null) {
        channel.close()
        return null
    }
    return LockedFile(channel, shared, certain)
}

/**
 * Hold the lock on [file] alone.
 *
 * @throws StorageError another holder had it for [waitS], or the file cannot be made.
 */
internal fun exclusive(file: File, waitS: Double = WAIT_S): Lock = waitFor(file, shared = false, waitS)

/**
 * Hold the lock on [file] together with others that share it.
 *
 * @throws StorageError as [exclusive].
 */
internal fun shared(file: File, waitS: Double = WAIT_S): Lock = waitFor(file, shared = true, waitS)

/** What [lock] takes; where it cannot be had, nothing, and the log of the process says why. */
internal fun ifPossible(lock: () -> Closeable): Closeable = try {
    lock()
} catch (error: StorageError) {
    LOG.warning(error.message)
    Closeable {}
}

/** Runs [work] under the lock if it is free now, and tells it whether that worked. */
internal fun <T> tryExclusive(file: File, work: (alone: Boolean) -> T): T {
    val lock = try {
        tryLock(file, shared = false)
    } catch (_: IOException) {
        null
    }
    return lock.use { work(it != null && it.certain) }
}

private fun waitFor(file: File, shared: Boolean, waitS: Double): Lock {
    val startedNs = System.nanoTime()
    while (true) {
        val lock = try {
            makeFolder(file.absoluteFile.parentFile)
            tryLock(file, shared)
        } catch (error: IOException) {
            throw StorageError("cannot lock $file: ${reason(error)}", error, FREE_SPACE)
        }
        if (lock != null) return lock
        if (System.nanoTime() - startedNs > waitS * NANOSECONDS_PER_S) {
            throw StorageError("another process holds $file", hint = "try again once it has ended")
        }
        pauseMs(POLL_MS)
    }
}
