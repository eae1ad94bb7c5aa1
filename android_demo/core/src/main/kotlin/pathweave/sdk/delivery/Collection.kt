/**
 * Deletes from a store what no bundle needs: old bundles, blobs, and what interrupted writers left. Mirrors
 * device_sdk/delivery/store.py.
 */
package pathweave.sdk.delivery

import java.io.File
import pathweave.sdk.BundleError
import pathweave.sdk.LOG
import pathweave.sdk.bundles.decodeManifest
import pathweave.sdk.bundles.readManifest
import pathweave.sdk.files.deleteOrphan
import pathweave.sdk.files.removeTemporaries
import pathweave.sdk.files.tryExclusive

/**
 * Delete what no bundle needs, unless another process fetches or tests one now; returns the bytes of its blobs.
 *
 * A bundle stays that a record refers to (current, previous, mark), and one that a process has open (a lease). If the
 * manifest of one of these cannot be read, all blobs stay. Errors of the disk are ignored: the next call tries again.
 */
internal fun collect(store: BundleStore): Long {
    if (!store.bundles.isDirectory) return 0
    return tryExclusive(store.installingFile) { alone ->
        if (!alone) return@tryExclusive 0L
        partials(store.partial).forEach(::deleteOrphan)
        removeTemporaries(File(store.folder, KEYS))
        collectBlobs(store, store.names().flatMap { keptBundles(store, it) })
    }
}

/** The folders that stay; deletes the others. */
private fun keptBundles(store: BundleStore, name: String): List<File> {
    val parent = File(store.bundles, name)
    val needed = store.digestsOf(name)
    removeTemporaries(parent)
    return parent.listFiles().orEmpty().filter { it.isDirectory }.filter { folder ->
        tryExclusive(store.leaseOf(folder)) { unused ->
            val kept = folder.name in needed || !unused
            if (kept) removeTemporaries(folder) else folder.deleteRecursively()
            kept
        }
    }
}

private fun collectBlobs(store: BundleStore, bundles: List<File>): Long {
    val needed = HashSet<String>()
    for (folder in bundles) {
        try {
            needed += decodeManifest(readManifest(folder)).blobs().keys
        } catch (error: BundleError) {
            LOG.warning("blobs stay, since the manifest in $folder cannot be read: ${error.message}")
            return 0
        }
    }
    return store.blobs.listFiles().orEmpty().filter { it.name !in needed }.sumOf { blob ->
        val size = blob.length()
        if (blob.delete()) size else 0
    }
}
