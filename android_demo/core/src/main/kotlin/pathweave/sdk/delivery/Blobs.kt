/**
 * Downloads a bundle's blobs to the store, one after the other: resumes interrupted transfers, refuses altered blobs.
 */
package pathweave.sdk.delivery

import pathweave.sdk.BlobError
import pathweave.sdk.Clock
import pathweave.sdk.ProtocolError
import pathweave.sdk.TransferError
import pathweave.sdk.bundles.BLOBS
import pathweave.sdk.bundles.BLOB_MAX_BYTES
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.Manifest
import pathweave.sdk.bundles.partWithExits
import pathweave.sdk.files.pauseMs
import pathweave.sdk.transports.Deadlines
import pathweave.sdk.transports.Reply
import pathweave.sdk.transports.Transport
import pathweave.sdk.transports.base
import pathweave.sdk.transports.originOf
import pathweave.sdk.transports.requireSuccess

private const val REQUESTS_PER_BLOB = 100 // regardless of progress
private const val ALTERED_TRIES = 2 // the first may have resumed from a damaged orphan
private const val TEMPORARY_REDIRECT = 307
private const val SHOWN_CHARACTERS = 40
private val TAKES_SIGNED_URL = "Pathweave-Takes" to "signed-url" // a header: an address in an object store is followed

/** The blobs of [manifest] that are not in the [store], with their sizes where they are stated. */
internal fun missingBlobs(store: BundleStore, manifest: Manifest): Map<String, Long?> =
    manifest.blobs().filterNot { (name, size) -> store.hasBlob(name, size) }

/**
 * The address in an object store that the server sends a request for [url] to; null if it answers itself.
 *
 * The transport sends the server's token to no other origin.
 *
 * @throws ProtocolError no address, or one that leaves https.
 */
internal fun addressElsewhere(reply: Reply, url: String): String? {
    if (reply.status != TEMPORARY_REDIRECT) return null
    val address = reply.header("Location").orEmpty()
    val origin = originOf(address)
    val leavesHttps = originOf(url)?.startsWith("https:") == true && origin?.startsWith("https:") != true
    if (origin == null || leavesHttps) {
        throw ProtocolError("the server redirects a blob to '${address.take(SHOWN_CHARACTERS)}'")
    }
    return address
}

/** Transfer counters. */
internal class Tally {
    var blobs = 0
    var bytes = 0L
    var resumed = 0
}

internal class BlobFetcher(
    val url: String,
    val store: BundleStore,
    val transport: Transport,
    val schedule: Schedule,
    val tally: Tally,
    private val onBytes: (Int) -> Unit,
) {
    /**
     * Fetch [blobs], given with their sizes where known.
     *
     * @throws BlobError a digest does not match. [TransferError] a blob could not be fetched. [StorageError] written.
     */
    fun fetchAll(blobs: Map<String, Long?>) {
        for ((name, size) in blobs) {
            if (store.hasBlob(name, size)) continue // fetched by another process since the check
            store.writer(name, size ?: BLOB_MAX_BYTES).use { BlobTransfer(this, name, size, it).run() }
            tally.blobs++
        }
    }

    fun received(count: Int) {
        tally.bytes += count
        onBytes(count)
        schedule.received(count)
    }
}

/** The transfer of one blob in a bounded number of requests. */
private class BlobTransfer(
    private val fetcher: BlobFetcher,
    private val name: String,
    private val size: Long?,
    private val writer: BlobWriter,
) {
    private val what = "blob ${name.take(12)}…"
    private var etag: String? = null
    private var failures = 0 // consecutive, without a new byte
    private var altered = 0
    private var takesUrls = true // of a store, until one of them fails

    /** Run until the blob is in the store. */
    fun run() {
        repeat(REQUESTS_PER_BLOB) {
            val before = writer.size
            try {
                request()
                writer.commit()
                return
            } catch (error: BlobError) {
                startOver(error)
            } catch (error: TransferError) {
                countFailure(error, progress = writer.size > before)
            }
            fetcher.schedule.pause(failures)
        }
        throw TransferError("$what did not come whole in $REQUESTS_PER_BLOB requests")
    }

    private fun startOver(error: BlobError) {
        writer.restart()
        if (++altered == ALTERED_TRIES) throw error
    }

    private fun countFailure(error: TransferError, progress: Boolean) {
        failures = if (progress) 0 else failures + 1
        if (!transient(error) || failures >= fetcher.schedule.attempts) throw error
    }

    private fun request() {
        val offset = writer.size
        if (offset > 0 && offset == size) return
        val url = "${fetcher.url}/$BLOBS/$name"
        val headers = requestHeaders(offset, etag)
        val elsewhere = send(url, if (takesUrls) headers + TAKES_SIGNED_URL else headers) { reply ->
            val elsewhere = if (takesUrls) addressElsewhere(reply, url) else null
            if (elsewhere == null) accept(reply, offset)
            elsewhere
        }
        if (elsewhere != null) fetchFromStore(elsewhere, offset)
        if (size != null && writer.size < size) throw TransferError("$what ended after ${writer.size} of $size bytes")
    }

    /** Fetch from the [address] that the server signed; if that fails, all further requests go to the server. */
    private fun fetchFromStore(address: String, offset: Long) {
        try {
            send(address, requestHeaders(offset, null)) { accept(it, offset) } // the store has etags of its own
        } catch (error: TransferError) {
            takesUrls = false
            throw TransferError("$what did not come from the server's store: ${error.message}", cause = error)
        } finally {
            etag = null
        }
    }

    private fun <T> send(url: String, headers: Map<String, String>, use: (Reply) -> T): T =
        fetcher.transport.get(url, headers, fetcher.schedule.left(), size ?: BLOB_MAX_BYTES, use)

    private fun accept(reply: Reply, offset: Long) {
        if (reply.status != RANGE_NOT_SATISFIABLE || offset == 0L) requireSuccess(reply, what)
        take(reply, offset)
    }

    private fun take(reply: Reply, offset: Long) {
        when (nextStep(reply.status, reply.header("Content-Range"), offset)) {
            NextStep.COMPLETE -> return
            NextStep.AGAIN -> {
                writer.restart()
                throw TransferError("the server cannot resume $what")
            }
            NextStep.REPLACE -> writer.restart()
            NextStep.APPEND -> if (offset > 0) fetcher.tally.resumed++
        }
        etag = strongEtag(reply.header("ETag"))
        reply.chunks { buffer, count ->
            writer.append(buffer, count)
            fetcher.received(count)
        }
    }
}

private const val MS_PER_S = 1_000

/** Of [fetchExits]. */
internal val EXIT_DEADLINES: Deadlines = Deadlines(idleS = 5.0, totalS = 60.0)

/**
 * Fetch what is missing of [exits], each blob verified before it is stored; returns what was transferred.
 *
 * The manifest of [bundle] was verified when it was installed, so the digests of these blobs are trusted. A server that
 * has replaced the bundle may no longer have them: then nothing changes here. Hold `store.installing()` until the new
 * set is stored, or another process may delete the blobs.
 *
 * @throws UsageError the bundle has no such exit.
 * @throws TransferError, BlobError, StorageError: a blob could not be fetched, verified or written.
 */
internal fun fetchExits(
    url: String,
    bundle: Bundle,
    exits: Collection<String>,
    store: BundleStore,
    transport: Transport,
    deadlines: Deadlines = EXIT_DEADLINES,
    progress: (doneBytes: Long, ofBytes: Long) -> Unit = { _, _ -> },
    stopped: () -> Boolean = { false },
    clock: Clock = System::nanoTime,
    sleep: (seconds: Double) -> Unit = { pauseMs((it * MS_PER_S).toLong()) },
): Tally {
    val missing = missingBlobs(store, bundle.offered.partWithExits(exits))
    val tally = Tally()
    if (missing.isEmpty()) return tally
    val schedule = Schedule(deadlines, ATTEMPTS, clock, sleep, stopped)
    val totalBytes = missing.values.sumOf { it ?: 0L }
    var doneBytes = 0L
    BlobFetcher(base(url), store, transport, schedule, tally) { count ->
        doneBytes += count
        progress(doneBytes, totalBytes)
    }.fetchAll(missing)
    return tally
}
