/**
 * JSON that several keys may sign (device_sdk/bundles/signed_json.py):
 *
 * ```
 * {"payload": "<JSON as text>", "signatures": [{"key": "<64 hexadecimal digits>", "signature": "<128>"}, …]}
 * ```
 *
 * A signature is Ed25519 over a context and the UTF-8 bytes of the payload's text. The context says what kind of payload
 * it is, so that a signature of one kind never counts for another, nor for a manifest.
 */
package pathweave.sdk.bundles

import org.bouncycastle.math.ec.rfc8032.Ed25519
import pathweave.sdk.SignatureError
import pathweave.sdk.UnsupportedFormatError
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.decodeJson

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

/** The digits of a public key. */
internal fun JsonPlace.key(): String = digits(KEY_DIGITS)

/** Seconds since 1970, UTC, up to the year 9999. */
internal fun JsonPlace.timeS(): Long = whole(0, LATEST_S)

private fun JsonPlace.digits(pattern: Regex): String = text().also {
    if (!pattern.matches(it)) throw wrong("hexadecimal digits")
}

private fun bytes(digits: String): ByteArray = digits.chunked(2).map { it.toInt(16).toByte() }.toByteArray()
