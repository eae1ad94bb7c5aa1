/**
 * Numbered lists of the keys that may sign releases, each signed by root keys (device_sdk/bundles/key_list.py).
 *
 * A device starts with one list that its application brings along, the pinned one. It takes a further list only if its
 * number is exactly one higher, and if it is signed by the threshold of root keys of the list before it and of its own.
 */
package pathweave.sdk.bundles

import java.io.File
import java.io.IOException
import pathweave.sdk.SignatureError
import pathweave.sdk.files.JsonPlace
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
