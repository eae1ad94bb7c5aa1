/**
 * `release.json`: which manifest a bundle's name and version stand for, and until when it may be installed
 * (device_sdk/bundles/release.py).
 */
package pathweave.sdk.bundles

import java.time.DateTimeException
import java.time.Instant
import java.time.ZoneOffset
import java.time.format.DateTimeFormatter
import pathweave.sdk.ClockError
import pathweave.sdk.ExpiredError
import pathweave.sdk.LOG
import pathweave.sdk.RollbackError
import pathweave.sdk.SignatureError
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.sha256

/** The name of its file. */
public const val RELEASE: String = "release.json"

/** Bytes that it may have. */
public const val RELEASE_MAX_BYTES: Int = 16_384

private const val RELEASE_CONTEXT = "pathweave release\n"
private const val RELEASE_NAME_MAX = 200
private const val VERSION_MAX = (1L shl 53) - 1
private const val KEYS_NUMBER_MAX = Int.MAX_VALUE.toLong()
private const val CLOCK_DOUBT_S = 366L * 24 * 3600 // expired for longer by the device's clock alone: it may be wrong
private val RELEASE_NAME = Regex("[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
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
    requireUnexpired("the release of ${release.name} ${release.version}", release.expiresAtS, clockS, provenS)
    requireUnexpired("key list ${newest.number}", newest.expiresAtS, clockS, provenS)
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
    if (!RELEASE_NAME.matches(release.name)) throw SignatureError("$RELEASE has a name that no bundle can have")
    if (release.keys > lists.last().number) {
        val newest = lists.last().number
        throw SignatureError("$RELEASE was made with key list ${release.keys}; the newest here is $newest")
    }
    return release
}

private fun releaseOf(root: JsonPlace): Release {
    root.only("format", "name", "version", "manifest_sha256", "signed_at_s", "expires_at_s", "keys")
    val name = root["name"].text()
    if (name.length > RELEASE_NAME_MAX) throw JsonError("the name has more than $RELEASE_NAME_MAX characters")
    return Release(
        name = name,
        version = root["version"].whole(1, VERSION_MAX),
        manifestSha256 = root["manifest_sha256"].text().also {
            if (!MANIFEST_DIGEST.matches(it)) throw JsonError("manifest_sha256 is not 64 hexadecimal digits")
        },
        signedAtS = root["signed_at_s"].timeS(),
        expiresAtS = root["expires_at_s"].timeS(),
        keys = root["keys"].whole(1, KEYS_NUMBER_MAX).toInt(),
    )
}

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

private fun requireUnexpired(what: String, expiresAtS: Long, clockS: Long, provenS: Long) {
    if (maxOf(clockS, provenS) <= expiresAtS) return
    if (provenS <= expiresAtS && clockS - expiresAtS > CLOCK_DOUBT_S) {
        throw ClockError(
            "$what expired on ${utc(expiresAtS)}, and this device's clock says ${utc(clockS)}: it may be wrong",
            "set the clock; if it is right, ask who runs the server for a new release",
        )
    }
    throw ExpiredError(
        "$what expired on ${utc(expiresAtS)}: newer ones may be withheld",
        "ask who runs the server to renew it (pathweave sign release renew)",
    )
}

private fun utc(timeS: Long): String = try {
    UTC.format(Instant.ofEpochSecond(timeS))
} catch (_: DateTimeException) {
    "second $timeS since 1970"
}
