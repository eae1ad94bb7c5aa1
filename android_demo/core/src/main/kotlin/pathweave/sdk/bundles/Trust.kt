/**
 * What a caller trusts: one public key, or a pinned key list from which releases are verified. Mirrors
 * device_sdk/bundles/trust.py.
 */
package pathweave.sdk.bundles

import java.io.File
import java.io.IOException
import pathweave.sdk.SignatureError

private const val NO_RELEASE = "who publishes the bundle makes it: pathweave sign release sign"
private const val ANY_KEY = "make a pair with: pathweave sign key new NAME"

/** What of a bundle is signed, in exact bytes. [source]: where it is, for messages. */
internal class SignedParts(
    val source: String,
    val manifest: ByteArray,
    /** manifest.sig. */
    val signature: ByteArray?,
    /** release.json. */
    val release: ByteArray?,
)

/** Decides whether a bundle is signed by a key that the caller trusts: a [TrustedKey] or [TrustedKeys]. */
public sealed interface Trust

/**
 * Verify what is in a folder, before its manifest is parsed; returns the release that it was verified by, if by one.
 *
 * A [TrustedKey] looks at manifest.sig alone. With [TrustedKeys] the release may have expired, and its key may have been
 * revoked since; without a release a release key may have signed manifest.json itself.
 *
 * @throws SignatureError, UnsupportedFormatError: it cannot be verified.
 */
internal fun Trust.verify(parts: SignedParts): Release? {
    when (this) {
        is TrustedKey -> verify(
            parts.manifest,
            parts.signature ?: throw SignatureError("${parts.source} is not signed, but a trusted key was given"),
        )
        is TrustedKeys -> {
            if (parts.release != null) {
                return verifyInstalled(parts.release, this).also { it.requireSameManifest(parts.manifest) }
            }
            verifyInstalledBySignature(parts.manifest, parts.signature, this, parts.source)
        }
    }
    return null
}

/** [source] has no release, but a key list was given. */
internal fun noRelease(source: String): SignatureError =
    SignatureError("$source has no $RELEASE, but a key list was given", NO_RELEASE)

/**
 * What [data] stands for: a public key in PEM form, or a key list (JSON). [name] is for messages.
 *
 * @throws SignatureError neither. [UnsupportedFormatError] a key list of another format.
 */
public fun loadTrust(data: ByteArray, name: String = "the trusted key"): Trust {
    val first = data.indexOfFirst { it.toInt().toChar() !in " \t\r\n" }
    if (first >= 0 && data[first] == '{'.code.toByte()) return TrustedKeys.pinned(data, name)
    return TrustedKey.fromPem(data.decodeToString(), name)
}

/** The same from a [file]; also [SignatureError] if it cannot be read. */
public fun loadTrust(file: File): Trust {
    val data = try {
        file.inputStream().use { readAtMost(it, KEYS_MAX_BYTES + 1) }
    } catch (error: IOException) {
        throw SignatureError("cannot read the key $file: ${error.message}", ANY_KEY, error)
    }
    return loadTrust(data, file.name)
}
