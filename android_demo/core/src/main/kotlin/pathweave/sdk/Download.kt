/**
 * Fetching a bundle from a server, or any web server with the same layout (docs/bundle_format.md, "Over HTTP").
 *
 * The plain form of device_sdk/delivery: blobs one after the other, each whole or not at all; what is here is not
 * fetched again.
 */
package pathweave.sdk

import java.io.File
import java.io.IOException
import java.io.InputStream
import java.net.HttpURLConnection
import java.net.MalformedURLException
import java.net.SocketTimeoutException
import java.net.URL
import java.security.MessageDigest
import pathweave.sdk.runtimes.OnnxRuntime

private const val IDLE_TIMEOUT_MS = 20_000
private const val BUFFER_BYTES = 64 * 1024
private const val BLOB_MAX_BYTES = 2_000_000_000L // of one whose size the manifest does not state
private const val PAIR_ATTEMPTS = 3
private const val NOT_FOUND = 404

/** A bundle that was fetched: the [folder] of its manifest and that of its [blobs], for [AdaptiveModel.open]. */
public class Fetched(public val folder: File, public val blobs: File, public val fetchedBytes: Long)

/**
 * Fetch the bundle at [url] (`http(s)://…/v1/bundles/NAME`) into [into].
 *
 * 1. fetch manifest and signature, both again if they do not belong together; 2. check the signature, then parse; 3.
 * refuse a version below that of [previous]; 4. fetch the blobs that are not here, each verified before it gets its
 * name; 5. write manifest and signature into a folder of their own, named by their digest. Who opens it decides
 * whether it works.
 *
 * @throws TransferError no connection, a cut one ([DeadlineError]: too slow, [RefusedError]: the server says no).
 * @throws BundleError what came is not what the key's owner signed, or is older than [previous].
 * @throws StorageError a file cannot be written.
 */
public fun fetchBundle(
    url: String,
    into: File,
    trust: TrustedKey? = null,
    token: String? = null,
    previous: Manifest? = null,
): Fetched {
    val server = Server(url.trimEnd('/'), token)
    val head = fetchHead(server, trust)
    refuseOlder(head.manifest, previous)
    val blobs = folder(File(into, BLOBS))
    var fetchedBytes = head.data.size.toLong()
    for ((name, size) in head.manifest.blobs()) {
        val file = File(blobs, name)
        if (file.isFile && stored("look at $file") { digestOf(file.inputStream()) } == name) continue
        fetchBlob(server, name, size, file)
        fetchedBytes += file.length()
    }
    val folder = folder(File(into, sha256(head.data)))
    head.signature?.let { writeAtomically(File(folder, SIGNATURE), it) }
    writeAtomically(File(folder, MANIFEST), head.data)
    return Fetched(folder, blobs, fetchedBytes)
}

private class SignedManifest(val data: ByteArray, val signature: ByteArray?, val manifest: Manifest)

private fun fetchHead(server: Server, trust: TrustedKey?): SignedManifest {
    repeat(PAIR_ATTEMPTS) { attempt ->
        val data = server.get(MANIFEST, MANIFEST_MAX_BYTES) { it.readBytes() }
        val signature = try {
            server.get(SIGNATURE, SIGNATURE_BYTES.toLong()) { it.readBytes() }
        } catch (error: RefusedError) {
            if (error.status != NOT_FOUND) throw error
            null
        }
        try {
            trust?.verify(data, signature ?: throw SignatureError("the bundle at ${server.base} is not signed"))
            return SignedManifest(data, signature, decodeManifest(data).runnablePart(OnnxRuntime::runs))
        } catch (error: SignatureError) {
            if (attempt == PAIR_ATTEMPTS - 1) throw error // else it may have been replaced in between
        }
    }
    error("unreachable: the last attempt returns or throws")
}

private fun refuseOlder(manifest: Manifest, previous: Manifest?) {
    if (previous == null || manifest.name != previous.name || manifest.version >= previous.version) return
    throw RollbackError(
        "the server has version ${manifest.version}, this device already had ${previous.version}",
        hint = "package it again with a higher version",
    )
}

private fun fetchBlob(server: Server, name: String, size: Long?, file: File) {
    val partial = stored("write into ${file.parent}") { File.createTempFile("fetch", ".part", file.parentFile) }
    try {
        val digest = server.get("$BLOBS/$name", size ?: BLOB_MAX_BYTES) { body ->
            stored("write $partial") { partial.outputStream() }.use { out ->
                digestOf(body) { buffer, count -> stored("write $partial") { out.write(buffer, 0, count) } }
            }
        }
        if (digest != name) throw BlobError("the server sent something else as blob ${name.take(12)}…")
        if (!partial.renameTo(file)) throw StorageError("cannot rename $partial")
    } finally {
        partial.delete()
    }
}

private fun digestOf(body: InputStream, also: (ByteArray, Int) -> Unit = { _, _ -> }): String = body.use {
    val digest = MessageDigest.getInstance("SHA-256")
    val buffer = ByteArray(BUFFER_BYTES)
    generateSequence { body.read(buffer).takeIf { it >= 0 } }.forEach { count ->
        digest.update(buffer, 0, count)
        also(buffer, count)
    }
    hex(digest.digest())
}

/** One address below which a bundle lies. Redirects are not followed: a token belongs to one server. */
private class Server(val base: String, private val token: String?) {
    /** What [read] makes of the body of [path], which has at most [mostBytes]. */
    fun <T> get(path: String, mostBytes: Long, read: (InputStream) -> T): T {
        val connection = connect("$base/$path")
        try {
            val status = connection.responseCode
            if (status != HttpURLConnection.HTTP_OK) throw RefusedError("the server answered $status to $path", status)
            return read(Bounded(connection.inputStream, mostBytes, path))
        } catch (error: SocketTimeoutException) {
            throw DeadlineError("the server sent nothing of $path for ${IDLE_TIMEOUT_MS / 1000} s", error)
        } catch (error: IOException) {
            throw TransferError("cannot fetch $path: ${error.message}", null, error)
        } finally {
            connection.disconnect()
        }
    }

    private fun connect(address: String): HttpURLConnection {
        val connection = try {
            URL(address).openConnection() as? HttpURLConnection
        } catch (error: MalformedURLException) {
            throw UsageError("$address is not an address: ${error.message}")
        } ?: throw UsageError("$address is not an address of a web server")
        connection.connectTimeout = IDLE_TIMEOUT_MS
        connection.readTimeout = IDLE_TIMEOUT_MS
        connection.instanceFollowRedirects = false
        token?.let { connection.setRequestProperty("Authorization", "Bearer $it") }
        return connection
    }
}

/** Refuses a body that is longer than it may be, before it fills memory or disk. */
private class Bounded(private val body: InputStream, private val most: Long, private val path: String) : InputStream() {
    private var count = 0L

    override fun read(): Int = body.read().also { if (it >= 0) add(1) }

    override fun read(buffer: ByteArray, offset: Int, length: Int): Int =
        body.read(buffer, offset, length).also { if (it > 0) add(it) }

    override fun close() = body.close()

    private fun add(more: Int) {
        count += more
        if (count > most) throw BlobError("the server sends more than $most bytes of $path")
    }
}

private fun folder(path: File): File {
    if (!path.isDirectory && !path.mkdirs()) throw StorageError("cannot make the folder $path")
    return path
}

/** Temporary file in the same folder, then rename: there is the old content or the new one, never half of it. */
internal fun writeAtomically(file: File, data: ByteArray): Unit = stored("write $file") {
    val temporary = File.createTempFile("write", ".part", file.parentFile)
    try {
        temporary.outputStream().use { out ->
            out.write(data)
            out.fd.sync()
        }
        if (!temporary.renameTo(file)) throw IOException("cannot rename $temporary")
    } finally {
        temporary.delete()
    }
}

private inline fun <T> stored(what: String, work: () -> T): T = try {
    work()
} catch (error: IOException) {
    throw StorageError("cannot $what: ${error.message}", error)
}
