/**
 * Numbered lists of the keys that may sign releases, each signed by root keys (device_sdk/bundles/key_list.py).
 *
 * A device starts with one list that its application brings along, the pinned one. It takes a further list only if its
 * number is exactly one higher, and if it is signed by the threshold of root keys of the list before it and of its own.
 */
package pathweave.sdk.bundles

import java.io.File
import java.io.IOException
import java.time.DateTimeException
import java.time.Instant
import java.time.ZoneOffset
import java.time.format.DateTimeFormatter
import org.bouncycastle.math.ec.rfc8032.Ed25519
import pathweave.sdk.ClockError
import pathweave.sdk.ExpiredError
import pathweave.sdk.LOG
import pathweave.sdk.RollbackError
import pathweave.sdk.SignatureError
import pathweave.sdk.UnsupportedFormatError
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.sha256

/** Bytes that the file of a key list may have. */
public const val KEYS_MAX_BYTES: Int = 65_536

private const val KEYS_CONTEXT = "pathweave keys\n"
private const val KEYS_PER_LIST = 32 // of each kind
private const val NUMBER_MAX = Int.MAX_VALUE.toLong()

/**
 * The payload of a list. Times are in seconds since 1970, UTC: once the newest list that a device knows has expired, it
 * installs nothing.
 */
public class KeyList internal constructor(
    public val number: Int,
    public val signedAtS: Long,
    public val expiresAtS: Long,
    internal val rootKeys: List<String>,
    internal val rootThreshold: Int,
    internal val releaseKeys: List<String>,
)

/** Key lists from the pinned one on, each verified by the one before. [digest] is that of the newest one's bytes. */
public class TrustedKeys private constructor(
    internal val lists: List<KeyList>,
    public val digest: String,
) : Trust {
    /** The last list. */
    public val newest: KeyList get() = lists.last()

    /**
     * With the list after the newest one.
     *
     * @throws SignatureError another number than the next one, or too few signatures of the root keys of either list.
     * @throws UnsupportedFormatError of another format.
     */
    public fun followedBy(data: ByteArray): TrustedKeys {
        val what = listName(newest.number.toLong() + 1)
        val (keys, envelope) = openList(data, what)
        if (keys.number.toLong() != newest.number.toLong() + 1) throw SignatureError("$what has number ${keys.number}")
        requireSignatures(envelope, newest, what, "list ${newest.number}'s")
        requireSignatures(envelope, keys, what, "its own")
        return TrustedKeys(lists + keys, sha256(data))
    }

    public companion object {
        /**
         * Trust that starts from the list in [data].
         *
         * @throws SignatureError not a list, or not signed by its own root keys.
         * @throws UnsupportedFormatError of another format.
         */
        public fun pinned(data: ByteArray, name: String = "the pinned key list"): TrustedKeys {
            val (keys, envelope) = openList(data, name)
            requireSignatures(envelope, keys, name, "its own")
            return TrustedKeys(listOf(keys), sha256(data))
        }

        /** The same from a [file]. */
        public fun read(file: File): TrustedKeys {
            if (file.length() > KEYS_MAX_BYTES) throw SignatureError("${file.name} has more than $KEYS_MAX_BYTES bytes")
            val data = try {
                file.readBytes()
            } catch (error: IOException) {
                throw SignatureError("cannot read the key list $file: ${error.message}", cause = error)
            }
            return pinned(data, file.name)
        }
    }
}

internal fun listName(number: Long) = "keys/$number.json"

private fun openList(data: ByteArray, what: String): Pair<KeyList, Envelope> {
    val envelope = decodeEnvelope(data, what, KEYS_MAX_BYTES)
    val keys = envelope.decode(what, ::keyList)
    if (listOf(keys.rootKeys, keys.releaseKeys).any { it.toSet().size != it.size }) {
        throw SignatureError("$what names a key twice")
    }
    if (keys.rootThreshold > keys.rootKeys.size) {
        throw SignatureError("$what asks for ${keys.rootThreshold} signatures of ${keys.rootKeys.size} root keys")
    }
    return keys to envelope
}

private fun keyList(root: JsonPlace): KeyList {
    root.only("format", "number", "signed_at_s", "expires_at_s", "root_keys", "root_threshold", "release_keys")
    return KeyList(
        number = root["number"].whole(1, NUMBER_MAX).toInt(),
        signedAtS = root["signed_at_s"].timeS(),
        expiresAtS = root["expires_at_s"].timeS(),
        rootKeys = root["root_keys"].keys(),
        rootThreshold = root["root_threshold"].whole(1, KEYS_PER_LIST.toLong()).toInt(),
        releaseKeys = root["release_keys"].keys(),
    )
}

private fun JsonPlace.keys(): List<String> {
    val found = items()
    if (found.size !in 1..KEYS_PER_LIST) throw wrong("1 to $KEYS_PER_LIST keys")
    return found.map { it.key() }
}

private fun requireSignatures(envelope: Envelope, keys: KeyList, what: String, whose: String) {
    val signed = envelope.signedBy(keys.rootKeys, KEYS_CONTEXT).size
    if (signed < keys.rootThreshold) {
        throw SignatureError(
            "$what has $signed of ${keys.rootThreshold} signatures by $whose root keys",
            "the list was altered, or its signing was not completed; do not use it",
        )
    }
}

private const val SIGNATURES_MAX = 64
private const val PAYLOAD_FORMAT = 1L
private const val LATEST_S = 253_402_300_799L // the last second of the year 9999
private val KEY_DIGITS = Regex("[0-9a-f]{64}")
private val SIGNATURE_DIGITS = Regex("[0-9a-f]{128}")

/** A payload and its signatures, of which nothing is verified yet. */
internal class Envelope(private val payload: String, private val signatures: List<Pair<String, String>>) {
    /** Those of [keys] whose signature verifies; each counts once, however often it signed. */
    fun signedBy(keys: Collection<String>, context: String): Set<String> {
        val signed = (context + payload).toByteArray()
        return signatures.filter { (key, _) -> key in keys }
            .filter { (key, signature) -> isSignature(bytes(signature), signed, key) }
            .mapTo(mutableSetOf()) { (key, _) -> key }
    }

    /**
     * What [read] makes of the payload; what it says is not verified by this.
     *
     * @throws UnsupportedFormatError of another format.
     * @throws SignatureError not what [read] expects.
     */
    fun <T> decode(what: String, read: (JsonPlace) -> T): T = try {
        val root = decodeJson(payload.toByteArray())
        val format = root["format"].whole()
        if (format != PAYLOAD_FORMAT) {
            throw UnsupportedFormatError("$what has format $format; this SDK reads $PAYLOAD_FORMAT", "update it")
        }
        read(root)
    } catch (error: JsonError) {
        throw SignatureError("$what is not valid: ${error.message}", cause = error)
    }
}

/**
 * The envelope in untrusted bytes. [what] is for messages.
 *
 * @throws SignatureError longer than [maxBytes], or not an envelope.
 */
internal fun decodeEnvelope(data: ByteArray, what: String, maxBytes: Int): Envelope {
    if (data.size > maxBytes) throw SignatureError("$what has more than $maxBytes bytes")
    try {
        val root = decodeJson(data).only("payload", "signatures")
        val signatures = root.optional("signatures")?.items().orEmpty()
        if (signatures.size > SIGNATURES_MAX) throw JsonError("more than $SIGNATURES_MAX signatures")
        return Envelope(
            root["payload"].text(),
            signatures.map {
                it.only("key", "signature")
                it["key"].digits(KEY_DIGITS) to it["signature"].digits(SIGNATURE_DIGITS)
            },
        )
    } catch (error: JsonError) {
        throw SignatureError("$what is not a signed file: ${error.message}", cause = error)
    }
}

/** Whether [signature] is valid for [data] and the public key with these digits. */
internal fun isSignature(signature: ByteArray, data: ByteArray, key: String): Boolean =
    signature.size == SIGNATURE_BYTES && Ed25519.verify(signature, 0, bytes(key), 0, data, 0, data.size)

internal fun JsonPlace.key(): String = digits(KEY_DIGITS)

/** Seconds since 1970, UTC, up to the year 9999. */
internal fun JsonPlace.timeS(): Long = whole(0, LATEST_S)

private fun JsonPlace.digits(pattern: Regex): String = text().also {
    if (!pattern.matches(it)) throw wrong("hexadecimal digits")
}

private fun bytes(digits: String): ByteArray = digits.chunked(2).map { it.toInt(16).toByte() }.toByteArray()

/** The name of its file. */
public const val RELEASE: String = "release.json"

/** Bytes that it may have. */
public const val RELEASE_MAX_BYTES: Int = 16_384

private const val RELEASE_CONTEXT = "pathweave release\n"
internal const val NAME_MAX = 200
internal const val VERSION_MAX = (1L shl 53) - 1
private const val KEYS_NUMBER_MAX = Int.MAX_VALUE.toLong()
private const val CLOCK_DOUBT_S = 366L * 24 * 3600 // expired for longer by the device's clock alone: it may be wrong
private val MANIFEST_DIGEST = Regex("[0-9a-f]{64}")
private val UTC = DateTimeFormatter.ofPattern("uuuu-MM-dd HH:mm 'UTC'").withZone(ZoneOffset.UTC)

/** The latest [Release.signedAtS] of a bundle that a device has seen; [keys]: the number of the newest key list then. */
public data class TimeMark(val keys: Int = 0, val signedAtS: Long = 0)

/** The payload. Times are in seconds since 1970, UTC. [keys]: the number of the newest key list when it was made. */
public class Release internal constructor(
    public val name: String,
    public val version: Long,
    public val manifestSha256: String,
    public val signedAtS: Long,
    public val expiresAtS: Long,
    public val keys: Int,
) {
    /** Refuse other bytes of manifest.json than those of this release with a [SignatureError]; before they are parsed. */
    public fun requireSameManifest(data: ByteArray) {
        if (sha256(data) == manifestSha256) return
        throw SignatureError(
            "manifest.json is not the one that $RELEASE names for $name $version",
            "two releases were mixed, or the bundle was replaced and not released again; do not use it",
        )
    }

    /** Refuse a manifest of another name or version with a [SignatureError]. */
    public fun requireSameName(manifestName: String, manifestVersion: Long) {
        if (manifestName == name && manifestVersion == version) return
        throw SignatureError("$RELEASE is of $name $version, manifest.json of $manifestName $manifestVersion")
    }
}

/**
 * The release in [data], if it may be installed now.
 *
 * 1. it is signed by a release key of the newest list; 2. that list is not older than one that this device has had; 3.
 * [updateMark] stores the raised mark, whether the release may be installed or not; 4. neither it nor the list has expired. The
 * time is the latest of [clockS], the device's clock, and of all signed times, so setting the clock back changes nothing.
 * A newer list begins a new mark: it ends the effect of a release that was signed with a clock far ahead. Next:
 * [Release.requireSameManifest], then [Release.requireSameName].
 *
 * [updateMark] reads the mark of the bundle of this name, stores what the function makes of it, and returns that, all
 * under one lock.
 *
 * @throws SignatureError too large, not a release, or signed by no release key.
 * @throws UnsupportedFormatError of another format.
 * @throws RollbackError 2.; not if [allowRollback].
 * @throws ExpiredError 4.; [ClockError]: the clock may be the reason.
 */
public fun verifyRelease(
    data: ByteArray,
    trusted: TrustedKeys,
    clockS: Long,
    allowRollback: Boolean = false,
    updateMark: (name: String, raise: (TimeMark) -> TimeMark) -> TimeMark,
): Release {
    val newest = trusted.newest
    val release = release(data, listOf(newest))
    val mark = updateMark(release.name) { raised(it, release, newest, allowRollback) }
    val provenS = maxOf(newest.signedAtS, mark.signedAtS)
    refuseExpired("the release of ${release.name} ${release.version}", release.expiresAtS, clockS, provenS, RENEW)
    refuseExpired("key list ${newest.number}", newest.expiresAtS, clockS, provenS, RENEW)
    return release
}

/**
 * The release of what is installed, to open it again: it may have expired since, and its key may have been revoked.
 *
 * @throws SignatureError signed by none of the keys that this device has trusted.
 */
public fun verifyInstalled(data: ByteArray, trusted: TrustedKeys): Release = try {
    release(data, listOf(trusted.newest))
} catch (_: SignatureError) {
    release(data, trusted.lists).also {
        LOG.warning("the key that released ${it.name} ${it.version} was revoked since")
    }
}

/**
 * What is installed without a release: a release key may have signed manifest.json itself, as it was while it was a
 * single key. [source]: where it is, for messages.
 *
 * @throws SignatureError none of the newest list has.
 */
public fun verifyInstalledBySignature(
    manifest: ByteArray,
    signature: ByteArray?,
    trusted: TrustedKeys,
    source: String = "the bundle",
) {
    if (signature != null && trusted.newest.releaseKeys.any { isSignature(signature, manifest, it) }) return
    throw noRelease(source)
}

private fun release(data: ByteArray, lists: List<KeyList>): Release {
    val envelope = decodeEnvelope(data, RELEASE, RELEASE_MAX_BYTES)
    if (envelope.signedBy(lists.flatMapTo(mutableSetOf()) { it.releaseKeys }, RELEASE_CONTEXT).isEmpty()) {
        throw SignatureError(
            "$RELEASE is not signed by a release key of key list ${lists.last().number}",
            "it was altered, or its key was revoked; the operator signs with: pathweave sign release sign",
        )
    }
    val release = envelope.decode(RELEASE, ::releaseOf)
    if (!IDENTIFIER.matches(release.name)) throw SignatureError("$RELEASE has a name that no bundle can have")
    if (release.keys > lists.last().number) {
        val newest = lists.last().number
        throw SignatureError("$RELEASE was made with key list ${release.keys}; the newest here is $newest")
    }
    return release
}

private fun releaseOf(root: JsonPlace): Release {
    root.only("format", "name", "version", "manifest_sha256", "signed_at_s", "expires_at_s", "keys")
    val name = root["name"].text()
    if (name.length > NAME_MAX) throw JsonError("the name has more than $NAME_MAX characters")
    return Release(
        name = name,
        version = root["version"].whole(1, VERSION_MAX),
        manifestSha256 = root["manifest_sha256"].manifestDigest(),
        signedAtS = root["signed_at_s"].timeS(),
        expiresAtS = root["expires_at_s"].timeS(),
        keys = root["keys"].whole(1, KEYS_NUMBER_MAX).toInt(),
    )
}

internal fun JsonPlace.manifestDigest(): String = digits(MANIFEST_DIGEST)

private fun raised(mark: TimeMark, release: Release, newest: KeyList, allowRollback: Boolean): TimeMark {
    if (mark.keys > newest.number && !allowRollback) {
        throw RollbackError(
            "the newest key list from there is ${newest.number}; this device has had ${mark.keys}",
            "to begin with new root keys, number their first list higher, or allow the rollback",
        )
    }
    if (mark.keys == newest.number && mark.signedAtS >= release.signedAtS) return mark
    return TimeMark(newest.number, release.signedAtS)
}

private const val RENEW = "ask who runs the server to renew it (pathweave sign release renew)"

/**
 * Refuse [what] if it has expired by the device's clock or by [provenS], the latest time that is signed.
 *
 * @throws ExpiredError refused; [renew] is its hint. [ClockError] refused, but the device's own clock may be the reason.
 */
internal fun refuseExpired(what: String, expiresAtS: Long, clockS: Long, provenS: Long, renew: String) {
    if (maxOf(clockS, provenS) <= expiresAtS) return
    if (provenS <= expiresAtS && clockS - expiresAtS > CLOCK_DOUBT_S) {
        throw ClockError(
            "$what expired on ${utc(expiresAtS)}, and this device's clock says ${utc(clockS)}: it may be wrong",
            "set the clock; if it is right, ask who runs the server for a new release",
        )
    }
    throw ExpiredError("$what expired on ${utc(expiresAtS)}: newer ones may be withheld", renew)
}

private fun utc(timeS: Long): String = try {
    UTC.format(Instant.ofEpochSecond(timeS))
} catch (_: DateTimeException) {
    "second $timeS since 1970"
}
