/**
 * The key lists that a device has fetched: `keys/<sha256 of the list before it>.json` in its store, and `.copy`. Mirrors
 * device_sdk/delivery/key_lists.py.
 *
 * A list is found by the one before it, so an application that pins a newer list goes on with the same files. It counts
 * only if it is verified from the pinned one on, each time that it is read.
 */
package pathweave.sdk.delivery

import java.io.File
import java.io.FileNotFoundException
import java.io.IOException
import pathweave.sdk.BundleError
import pathweave.sdk.LOG
import pathweave.sdk.RefusedError
import pathweave.sdk.bundles.KEYS_MAX_BYTES
import pathweave.sdk.bundles.Trust
import pathweave.sdk.bundles.TrustedKeys
import pathweave.sdk.bundles.listName
import pathweave.sdk.bundles.readAtMost
import pathweave.sdk.files.writeIfChanged
import pathweave.sdk.transports.NOT_FOUND

internal const val KEYS = "keys"
internal const val LISTS_AT_ONCE = 64 // fetched in one delivery; the next one goes on
private const val LISTS_MAX = 1024 // behind the pinned one
private val ENDINGS = listOf("json", "copy")

/** [trust] with the key lists of [store] that follow its own; anything but key lists as it is. */
internal fun withStoredLists(trust: Trust?, store: BundleStore): Trust? =
    if (trust is TrustedKeys) storedLists(trust, store) else trust

/** [trusted] with the lists that follow it. A list whose copies are damaged ends them: it is fetched again. */
internal fun storedLists(trusted: TrustedKeys, store: BundleStore): TrustedKeys {
    var newest = trusted
    repeat(LISTS_MAX) { newest = storedNext(newest, store) ?: return newest }
    return newest
}

private fun storedNext(trusted: TrustedKeys, store: BundleStore): TrustedKeys? =
    files(store, trusted).firstNotNullOfOrNull { file ->
        try {
            trusted.followedBy(file.inputStream().use { readAtMost(it, KEYS_MAX_BYTES + 1) })
        } catch (error: FileNotFoundException) {
            if (file.exists()) LOG.warning("$file cannot be read: ${error.message}")
            null
        } catch (error: IOException) {
            null.also { LOG.warning("$file is damaged: ${error.message}") }
        } catch (error: BundleError) {
            null.also { LOG.warning("$file is damaged: ${error.message}") }
        }
    }

/**
 * [trusted] with the lists that [store] and the server have; each one is stored once it is verified.
 *
 * [fetch]: name and most bytes to contents; 404 ends the lists.
 *
 * @throws SignatureError, UnsupportedFormatError: a list is refused. TransferError, StorageError.
 */
internal fun fetchLists(
    trusted: TrustedKeys,
    store: BundleStore,
    fetch: (name: String, maxBytes: Long) -> ByteArray,
): TrustedKeys {
    var newest = storedLists(trusted, store)
    repeat(LISTS_AT_ONCE) {
        val data = try {
            fetch(listName(newest.newest.number.toLong() + 1), KEYS_MAX_BYTES.toLong())
        } catch (error: RefusedError) {
            if (error.status == NOT_FOUND) return newest
            throw error
        }
        val longer = newest.followedBy(data)
        for (file in files(store, newest)) writeIfChanged(file, data)
        newest = longer
    }
    return newest
}

private fun files(store: BundleStore, trusted: TrustedKeys): List<File> =
    ENDINGS.map { File(store.folder, "$KEYS/${trusted.digest}.$it") }
