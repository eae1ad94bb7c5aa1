/** What a caller trusts: one public key, or a pinned key list from which releases are verified. */
package pathweave.sdk.bundles

import java.io.File
import java.io.IOException
import java.util.Base64
import org.bouncycastle.math.ec.rfc8032.Ed25519
import pathweave.sdk.SignatureError
import pathweave.sdk.files.hex

private const val NO_RELEASE = "who publishes the bundle makes it: pathweave sign release sign"
private const val ANY_KEY = "make a pair with: pathweave sign key new NAME"

/** What of a bundle is signed, in exact bytes. [source]: where it is, for messages. */
internal class SignedParts(
    val source: String,
    val manifest: ByteArray,
    /** manifest.sig. */
    val signature: ByteArray?,
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

/** The keys that may sign releases and rollbacks now, as 64 hexadecimal digits each. */
internal fun Trust.signers(): Set<String> = when (this) {
    is TrustedKey -> setOf(digits)
    is TrustedKeys -> newest.releaseKeys.toSet()
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

/** Bytes of a signature. */
public const val SIGNATURE_BYTES: Int = 64

private const val KEY_BYTES = 32
private const val NEW_KEY = "make a pair with: pathweave sign key new NAME"
private val PEM = Regex("-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\\s]+)-----END PUBLIC KEY-----")

// SubjectPublicKeyInfo of an Ed25519 key: these bytes of DER (RFC 8410), then the key
private val SPKI_HEADER = byteArrayOf(0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00)

/**
 * A public key that the caller trusts. Releases are not looked at, so nothing expires.
 *
 * Bouncy Castle checks signatures, not the platform: Android has Ed25519 from API 33 on only.
 */
public class TrustedKey private constructor(private val key: ByteArray, private val name: String) : Trust {
    internal val digits: String get() = hex(key)

    /** Throws [SignatureError] unless [signature] is that of [data] by the owner of this key. */
    public fun verify(data: ByteArray, signature: ByteArray) {
        val valid = signature.size == SIGNATURE_BYTES && Ed25519.verify(signature, 0, key, 0, data, 0, data.size)
        if (!valid) {
            throw SignatureError(
                "the bundle's signature is not by $name",
                hint = "the bundle was altered or signed with another key; do not use it",
            )
        }
    }

    public companion object {
        /**
         * The key in [pem], as openssl writes it. [name] is for messages.
         *
         * @throws SignatureError not a public Ed25519 key in PEM form.
         */
        public fun fromPem(pem: String, name: String = "the trusted key"): TrustedKey {
            val der = try {
                PEM.find(pem)?.let { Base64.getMimeDecoder().decode(it.groupValues[1].trim()) }
            } catch (error: IllegalArgumentException) {
                throw SignatureError("$name is not a public key in PEM form", NEW_KEY, error)
            } ?: throw SignatureError("$name is not a public key in PEM form", NEW_KEY)
            val ed25519 = der.size == SPKI_HEADER.size + KEY_BYTES &&
                der.copyOf(SPKI_HEADER.size).contentEquals(SPKI_HEADER)
            val key = der.copyOfRange(minOf(SPKI_HEADER.size, der.size), der.size)
            if (!ed25519 || !Ed25519.validatePublicKeyFull(key, 0)) {
                throw SignatureError("$name is not an Ed25519 key", NEW_KEY)
            }
            return TrustedKey(key, name)
        }

        /** The key in [file]; [SignatureError] as for [fromPem], or if it cannot be read. */
        public fun read(file: File): TrustedKey {
            val pem = try {
                file.readText()
            } catch (error: IOException) {
                throw SignatureError("cannot read the key $file: ${error.message}", NEW_KEY, error)
            }
            return fromPem(pem, file.name)
        }
    }
}
