/**
 * A device's store of downloaded bundles. Mirrors device_sdk/delivery/store.py; the same layout.
 *
 * ```
 * blobs/<sha256>                            shared by all bundles and versions; verified before the rename
 * bundles/<name>/<sha256>/manifest.json     a bundle by the digest of its manifest, with manifest.sig and release.json
 * bundles/<name>/<sha256>/lease             locked by who has the bundle open
 * bundles/<name>/current                    the digest of the last good bundle
 * bundles/<name>/previous                   the digest of the one before it
 * bundles/<name>/mark, mark.copy            the highest version, its digest, the addresses it came from, and what it was
 *                                           rolled back to since (Marks.kt)
 * bundles/<name>/time, time.copy            the latest time that a release of it was signed at (TimeMarks.kt)
 * keys/<sha256>.json, .copy                 the key list after the one with this digest (KeyLists.kt)
 * partial/                                  blobs being downloaded (BlobWriter.kt)
 * lock, installing                          advisory locks
 * ```
 *
 * Files are written atomically, by a rename. Several processes may use one store at once: `lock` is held exclusively
 * for the few writes that make a bundle the last good one. `installing` is shared by fetching processes and held
 * exclusively to delete unneeded files.
 */
package pathweave.sdk.delivery

import java.io.Closeable
import java.io.File
import java.io.IOException
import pathweave.sdk.BundleError
import pathweave.sdk.LOG
import pathweave.sdk.StorageError
import pathweave.sdk.bundles.BLOBS
import pathweave.sdk.bundles.IDENTIFIER
import pathweave.sdk.bundles.MANIFEST
import pathweave.sdk.bundles.RELEASE
import pathweave.sdk.bundles.SIGNATURE
import pathweave.sdk.bundles.decodeManifest
import pathweave.sdk.bundles.readManifest
import pathweave.sdk.files.FREE_SPACE
import pathweave.sdk.files.deleteOrphan
import pathweave.sdk.files.digestOf
import pathweave.sdk.files.exclusive
import pathweave.sdk.files.removeTemporaries
import pathweave.sdk.files.sha256
import pathweave.sdk.files.shared
import pathweave.sdk.files.tryExclusive
import pathweave.sdk.files.tryLock
import pathweave.sdk.files.writeIfChanged
import pathweave.sdk.transports.base

private const val CURRENT = "current"
private const val PREVIOUS = "previous"
private val MARKS = listOf("mark.copy", "mark")
private const val LEASE = "lease"

/** A bundle in the store. [digest]: sha256 of its manifest; [folder] holds manifest and signature. */
public class StoredBundle internal constructor(
    public val name: String,
    public val version: Long,
    public val digest: String,
    public val folder: File,
)

/** The store in [folder], which is created by the first write. */
public class BundleStore(public val folder: File) {
    /** Where the blobs lie. */
    public val blobs: File = File(folder, BLOBS)

    internal val bundles = File(folder, "bundles")
    internal val partial = File(folder, "partial")
    internal val installingFile = File(folder, "installing")

    // Blobs

    /** Whether blob [name] is stored, with [size] bytes if given. Its digest was verified when it was stored. */
    internal fun hasBlob(name: String, size: Long?): Boolean {
        val file = blob(name)
        return file.isFile && (size == null || file.length() == size)
    }

    internal fun writer(name: String, maxBytes: Long): BlobWriter = BlobWriter(partial, name, blob(name), maxBytes)

    /** Read blobs and delete those that no longer match their digest, so that they are fetched again. */
    internal fun removeAltered(names: Iterable<String>) {
        for (name in names) {
            val file = blob(name)
            if (file.exists() && !matches(file, name) && !file.delete() && file.exists()) {
                throw StorageError("cannot delete $file", hint = FREE_SPACE)
            }
        }
    }

    // Bundles

    /**
     * Store a verified manifest with its signature; returns their folder. It does not become the last good one.
     *
     * [release]: release.json, if it was verified by that.
     *
     * @throws StorageError they could not be written.
     */
    internal fun saveBundle(
        name: String,
        manifest: ByteArray,
        signature: ByteArray?,
        release: ByteArray? = null,
    ): File {
        val folder = bundle(name, sha256(manifest))
        if (signature != null) writeIfChanged(File(folder, SIGNATURE), signature)
        if (release != null) writeIfChanged(File(folder, RELEASE), release)
        writeIfChanged(File(folder, MANIFEST), manifest)
        return folder
    }

    /**
     * Make the bundle with this digest the last good one of [url], the fallback of later downloads. Nothing is written
     * that is there already.
     *
     * [allowRollback] lowers the mark. [rollbackFrom]: a signed rollback permits it to devices that have had this
     * version at most; the mark stays where it is.
     *
     * @throws BundleError it is not in the store, or [url] has another name.
     * @throws RollbackError a newer version has become the last good one; not if [allowRollback].
     * @throws StorageError the record could not be written.
     */
    public fun rememberGood(
        url: String,
        name: String,
        digest: String,
        allowRollback: Boolean = false,
        rollbackFrom: Long? = null,
    ) {
        val stored = load(name, digest)
            ?: throw BundleError("the store has no bundle $name with digest ${digest.take(12)}…")
        writing().use {
            val had = highest(name)
            val rolledBack = rollbackFrom != null && had != null && had.version <= rollbackFrom
            refuse(url, name, stored.version, digest, allowRollback || rolledBack)
            val replaced = readDigest(name, CURRENT)
            if (replaced != null && replaced != digest) writeRecord(name, PREVIOUS, replaced)
            writeRecord(name, CURRENT, digest)
            // where there are no locks, another process may have raised it since the check
            val mark = listOfNotNull(had, mark(name)).maxByOrNull { it.version }
            val data = encodeMark(raised(mark, url, stored, allowRollback, rolledBack))
            for (copy in MARKS) { // last: until then a mark is too low, never too high
                writeIfChanged(File(folderOf(name), copy), data)
            }
        }
    }

    /** Refuse what may not be installed from [url]: another name, and, unless allowed, what is below the mark. */
    internal fun refuse(url: String, name: String, version: Long, digest: String, allowRollback: Boolean) {
        refuseOtherName(pinned(url), name, source = base(url))
        if (!allowRollback) refuseRollback(highest(name), name, version, digest, source = base(url))
    }

    /** The mark of bundle [name], or the current bundle where that is newer: it is written first. */
    internal fun highest(name: String): Mark? {
        val mark = mark(name)
        val digest = readDigest(name, CURRENT)
        if (digest == null || digest == mark?.digest) return mark
        val current = load(name, digest) ?: return mark
        if (mark != null && current.version <= mark.version) return mark
        return Mark(name, current.version, digest, mark?.addresses.orEmpty())
    }

    /**
     * The last good bundle [name]; null if there is none or it cannot be read.
     *
     * The first that is whole: the current one, the one of the mark, the previous one. None that is below the mark,
     * unless [allowRollback].
     */
    public fun lastGood(name: String, allowRollback: Boolean = false): StoredBundle? {
        val mark = mark(name)
        val digests = listOfNotNull(readDigest(name, CURRENT), mark?.digest, readDigest(name, PREVIOUS))
        return digests.distinct().firstNotNullOfOrNull { digest ->
            val stored = load(name, digest) ?: return@firstNotNullOfOrNull null
            val below = mark != null && stored.version < mark.version && digest != mark.rolledBackTo
            if (mark == null || !below || allowRollback) return stored
            LOG.warning("version ${stored.version} of $name is here, but this device has had ${mark.version}")
            null
        }
    }

    /** The last good bundle of the name that [url] had at first. */
    public fun lastGoodAt(url: String, allowRollback: Boolean = false): StoredBundle? =
        pinned(url)?.let { lastGood(it, allowRollback) }

    // Locks

    /** Held alone for the few writes that change records. */
    internal fun writing(): Closeable = exclusive(File(folder, "lock"))

    /** Held while a bundle is fetched and tested: no process deletes blobs or bundles until it is closed. */
    internal fun installing(): Closeable = shared(installingFile)

    /** Until it is closed, no process deletes this bundle or its blobs; where that cannot be said, nothing happens. */
    internal fun lease(name: String, digest: String): Closeable {
        val file = leaseOf(bundle(name, digest))
        return try {
            if (file.parentFile.isDirectory) tryLock(file, shared = true) else null
        } catch (_: IOException) {
            null
        } ?: Closeable {}
    }

    /** The file that is locked by who has the bundle in [folder] open. */
    internal fun leaseOf(folder: File): File = File(folder, LEASE)

    // Records

    internal fun names(): List<String> =
        bundles.list().orEmpty().filter(IDENTIFIER::matches).sorted()

    /** The digests that the records of bundle [name] refer to. */
    internal fun digestsOf(name: String): Set<String> =
        listOfNotNull(readDigest(name, CURRENT), readDigest(name, PREVIOUS), mark(name)?.digest).toSet()

    /** The mark with [stored]; [lower]: it may go below it. */
    private fun raised(mark: Mark?, url: String, stored: StoredBundle, lower: Boolean, rolledBack: Boolean): Mark {
        val addresses = (mark?.addresses.orEmpty() + address(url)).distinct().takeLast(ADDRESSES_MAX)
        if (mark != null && mark.version > stored.version && !lower) {
            val back = if (rolledBack) stored.digest else mark.rolledBackTo
            return mark.copy(addresses = addresses, rolledBackTo = back)
        }
        return Mark(stored.name, stored.version, stored.digest, addresses)
    }

    /** The name of the bundle that was installed from [url]; null if there was none. */
    private fun pinned(url: String): String? {
        val address = address(url)
        return names().find { mark(it)?.addresses.orEmpty().contains(address) }
    }

    /** The higher of the two copies that can be read; null if neither can. */
    private fun mark(name: String): Mark? = MARKS.mapNotNull { copy ->
        val file = File(folderOf(name), copy)
        val data = readSmall(file) ?: return@mapNotNull null
        decodeMark(data)?.takeIf { it.name == name }.also { if (it == null) LOG.warning("$file is damaged") }
    }.maxByOrNull { it.version }

    private fun readDigest(name: String, record: String): String? {
        val file = File(folderOf(name), record)
        val digest = readSmall(file)?.decodeToString()?.trim() ?: return null
        if (DIGEST.matches(digest)) return digest
        LOG.warning("$file is damaged")
        return null
    }

    private fun writeRecord(name: String, record: String, digest: String) =
        writeIfChanged(File(folderOf(name), record), "$digest\n".toByteArray())

    /** A stored bundle whose manifest is whole, else null. */
    private fun load(name: String, digest: String): StoredBundle? {
        val folder = bundle(name, digest)
        return try {
            val manifest = readManifest(folder)
            if (sha256(manifest) != digest) throw BundleError("its manifest does not match its digest")
            StoredBundle(name, decodeManifest(manifest).version, digest, folder)
        } catch (error: BundleError) {
            LOG.warning("bundle $name ${digest.take(12)}… in ${this.folder} cannot be used: ${error.message}")
            null
        }
    }

    private fun blob(name: String) = File(blobs, checked(name, DIGEST))

    private fun bundle(name: String, digest: String) = File(folderOf(name), checked(digest, DIGEST))

    internal fun folderOf(name: String): File = File(bundles, checked(name, IDENTIFIER))
}

private const val RECORD_MAX_BYTES = 64_000L // a mark with all its addresses has 5 kB

/** The bytes of a record; null if there is none. One that is too large or unreadable counts as damaged: empty. */
internal fun readSmall(file: File): ByteArray? = try {
    when {
        !file.exists() -> null
        file.length() > RECORD_MAX_BYTES -> ByteArray(0)
        else -> file.readBytes()
    }
} catch (_: IOException) {
    ByteArray(0)
}

private fun address(url: String): String = sha256(base(url).toByteArray())

/** [name], if it is safe as a part of a path. */
private fun checked(name: String, pattern: Regex): String {
    if (!pattern.matches(name)) throw BundleError("'${name.take(80)}' cannot be the name of a bundle or a blob")
    return name
}

private fun matches(file: File, name: String): Boolean = try {
    digestOf(file) == name
} catch (_: IOException) {
    false // an unreadable sector counts as a mismatch
}

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
