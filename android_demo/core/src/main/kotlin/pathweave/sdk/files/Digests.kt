/** SHA-256, as blobs and manifests are named. */
package pathweave.sdk.files

import java.io.File
import java.security.MessageDigest

private const val CHUNK_BYTES = 65_536

/** The sha256 of [data] in lower-case hexadecimal digits. */
internal fun sha256(data: ByteArray): String = hex(MessageDigest.getInstance("SHA-256").digest(data))

internal fun hex(digest: ByteArray): String =
    digest.joinToString("") { (it.toInt() and 0xff).toString(16).padStart(2, '0') }

/** The sha256 of a file, read in chunks. */
internal fun digestOf(file: File): String {
    val digest = MessageDigest.getInstance("SHA-256")
    val buffer = ByteArray(CHUNK_BYTES)
    file.inputStream().use { input ->
        while (true) {
            val count = input.read(buffer)
            if (count < 0) break
            digest.update(buffer, 0, count)
        }
    }
    return hex(digest.digest())
}
