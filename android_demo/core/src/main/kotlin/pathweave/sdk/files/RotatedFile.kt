/**
 * Line-based log files with rotation by size. Mirrors device_sdk/files/rotated_file.py.
 *
 * `NAME` is the newest file, `NAME.1` the one before it, and so on. Not for several processes that append at a time.
 */
package pathweave.sdk.files

import java.io.ByteArrayOutputStream
import java.io.File
import java.io.FileNotFoundException
import java.io.IOException
import java.io.InputStream
import java.io.RandomAccessFile
import pathweave.sdk.UsageError

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
