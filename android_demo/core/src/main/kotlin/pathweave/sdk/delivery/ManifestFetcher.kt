/** The first steps of a delivery: a bundle's manifest, verified before it is parsed. Of device_sdk/delivery/download.py. */
package pathweave.sdk.delivery

import java.io.ByteArrayOutputStream
import java.io.File
import java.io.FileNotFoundException
import java.io.IOException
import pathweave.sdk.BundleError
import pathweave.sdk.LOG
import pathweave.sdk.RefusedError
import pathweave.sdk.SignatureError
import pathweave.sdk.bundles.KEYS_MAX_BYTES
import pathweave.sdk.bundles.MANIFEST
import pathweave.sdk.bundles.MANIFEST_MAX_BYTES
import pathweave.sdk.bundles.Manifest
import pathweave.sdk.bundles.RELEASE
import pathweave.sdk.bundles.RELEASE_MAX_BYTES
import pathweave.sdk.bundles.Release
import pathweave.sdk.bundles.SIGNATURE
import pathweave.sdk.bundles.SIGNATURE_BYTES
import pathweave.sdk.bundles.SignedParts
import pathweave.sdk.bundles.Trust
import pathweave.sdk.bundles.TrustedKeys
import pathweave.sdk.bundles.decodeManifest
import pathweave.sdk.bundles.listName
import pathweave.sdk.bundles.noRelease
import pathweave.sdk.bundles.readAtMost
import pathweave.sdk.bundles.verify
import pathweave.sdk.bundles.verifyRelease
import pathweave.sdk.files.sha256
import pathweave.sdk.files.writeIfChanged
import pathweave.sdk.transports.NOT_FOUND
import pathweave.sdk.transports.Transport
import pathweave.sdk.transports.requireSuccess

private const val SIGNATURE_MAX_BYTES = 1024L // a signature has 64; the rest is for error pages

/** A verified manifest. [release]: release.json, if it was verified by that. */
internal class FetchedManifest(
    val manifest: Manifest,
    val data: ByteArray,
    val signature: ByteArray?,
    val release: ByteArray? = null,
) {
    val digest = sha256(data)
}

private class Proven(val data: ByteArray, val signature: ByteArray?, val releaseData: ByteArray?, val release: Release?)

/** Fetches files of some kilobytes whole. */
internal class SmallFiles(private val transport: Transport, private val schedule: Schedule) {
    /** The file at [address], of at most [maxBytes]. */
    fun fetch(address: String, maxBytes: Long, headers: Map<String, String> = emptyMap()): ByteArray =
        schedule.retry { deadlines ->
            transport.get(address, headers, deadlines, maxBytes) { reply ->
                requireSuccess(reply, address)
                val body = ByteArrayOutputStream()
                reply.chunks { buffer, count ->
                    body.write(buffer, 0, count)
                    schedule.received(count)
                }
                body.toByteArray()
            }
        }

    /** The same; null if the server has no such file. */
    fun find(address: String, maxBytes: Long, headers: Map<String, String> = emptyMap()): ByteArray? = try {
        fetch(address, maxBytes, headers)
    } catch (error: RefusedError) {
        if (error.status != NOT_FOUND) throw error
        null
    }
}

/** Fetches the manifest of the bundle at [url]. [wallClockS]: seconds since 1970, for what expires. */
internal class ManifestFetcher(
    private val url: String,
    private val store: BundleStore,
    private val files: SmallFiles,
    private val trust: Trust?,
    private val allowRollback: Boolean,
    private val schedule: Schedule,
    private val wallClockS: () -> Long,
) {
    /**
     * With key lists, newer lists, release.json and the manifest that it names, unless something has expired; else the
     * manifest and its signature.
     *
     * The server may replace any of them between the requests, so what does not match is fetched again.
     *
     * @throws BundleError it is refused. [TransferError] it could not be fetched. [StorageError] a list or a time could
     *   not be kept.
     */
    fun fetch(): FetchedManifest {
        val proven = fetchProven()
        val manifest = decodeManifest(proven.data)
        proven.release?.requireSameName(manifest.name, manifest.version)
        return FetchedManifest(manifest, proven.data, proven.signature, proven.releaseData)
    }

    private fun fetchProven(): Proven {
        repeat(REPLACED_TRIES) { turn ->
            try {
                return if (trust is TrustedKeys) fetchReleased(trust) else fetchSigned()
            } catch (error: SignatureError) {
                if (turn == REPLACED_TRIES - 1) throw error
            }
            schedule.pause(turn)
        }
        throw SignatureError("$url has no manifest with a signature of its own")
    }

    private fun fetchReleased(pinned: TrustedKeys): Proven {
        val trusted = fetchLists(pinned, store) { name, maxBytes -> files.fetch("$url/$name", maxBytes) }
        val releaseData = files.find("$url/$RELEASE", RELEASE_MAX_BYTES.toLong()) ?: throw noRelease(url)
        val release = verifyRelease(releaseData, trusted, wallClockS(), allowRollback) { name, raise ->
            updateTimeMark(store, name, raise)
        }
        val data = files.fetch("$url/$MANIFEST", MANIFEST_MAX_BYTES).also(release::requireSameManifest)
        return Proven(data, null, releaseData, release)
    }

    private fun fetchSigned(): Proven {
        val data = files.fetch("$url/$MANIFEST", MANIFEST_MAX_BYTES)
        val signature = files.find("$url/$SIGNATURE", SIGNATURE_MAX_BYTES)
        if (signature != null && signature.size != SIGNATURE_BYTES) {
            throw SignatureError("$SIGNATURE has ${signature.size} bytes instead of $SIGNATURE_BYTES")
        }
        trust?.verify(SignedParts(url, data, signature, null))
        return Proven(data, signature, null, null)
    }
}

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
