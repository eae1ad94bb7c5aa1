/**
 * Exits on demand: fetches those of a bundle that is here already. Mirrors
 * device_sdk/delivery/exits.py.
 */
package pathweave.sdk.delivery

import pathweave.sdk.Clock
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.partWithExits
import pathweave.sdk.files.pauseMs
import pathweave.sdk.transports.Deadlines
import pathweave.sdk.transports.Transport
import pathweave.sdk.transports.base

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
