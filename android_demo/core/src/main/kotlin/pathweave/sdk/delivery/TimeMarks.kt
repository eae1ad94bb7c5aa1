/**
 * The mark of time of each bundle in a store: `bundles/<name>/time` and `time.copy`. Mirrors
 * device_sdk/delivery/schedule.py.
 */
package pathweave.sdk.delivery

import java.io.File
import pathweave.sdk.LOG
import pathweave.sdk.bundles.TimeMark
import pathweave.sdk.files.writeIfChanged

private val COPIES = listOf("time.copy", "time")

/** The later of the two copies that can be read. */
internal fun timeMark(store: BundleStore, name: String): TimeMark = files(store, name).mapNotNull { file ->
    val data = readSmall(file) ?: return@mapNotNull null
    decodeTimeMark(data).also { if (it == null) LOG.warning("$file is damaged") }
}.maxWithOrNull(compareBy(TimeMark::keys, TimeMark::signedAtS)) ?: TimeMark()

/**
 * Store what [raise] makes of the mark of bundle [name], under the lock; returns it.
 *
 * @throws StorageError it could not be written; what [raise] throws.
 */
internal fun updateTimeMark(store: BundleStore, name: String, raise: (TimeMark) -> TimeMark): TimeMark =
    store.writing().use {
        val mark = raise(timeMark(store, name))
        val data = encodeTimeMark(mark)
        for (file in files(store, name)) writeIfChanged(file, data)
        mark
    }

private fun files(store: BundleStore, name: String) = COPIES.map { File(store.folderOf(name), it) }
