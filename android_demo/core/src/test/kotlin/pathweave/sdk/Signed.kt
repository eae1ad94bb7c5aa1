package pathweave.sdk

import java.io.File
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.buildJsonObject
import org.bouncycastle.math.ec.rfc8032.Ed25519
import pathweave.sdk.bundles.MANIFEST
import pathweave.sdk.bundles.RELEASE
import pathweave.sdk.bundles.SIGNATURE
import pathweave.sdk.bundles.SIGNATURE_BYTES
import pathweave.sdk.files.hex
import pathweave.sdk.files.sha256

const val DAY_S = 24L * 3600
const val START_S = 1_800_000_000L // 2027-01-15
const val SOON_S = START_S + DAY_S
const val END_S = START_S + 30 * DAY_S
private const val KEY_BYTES = 32

/** Key lists, releases and rollbacks, signed by keys that have names (tests/contract/signed_files.py). */
object Signed {
    /** The key of the golden vectors, which signs what [Published] writes. */
    const val OWNER = "owner"

    /** For tests only: anybody can make it from its name. */
    private fun private(name: String): ByteArray = if (name == OWNER) Published.privateKey else madeFrom(name)

    private fun madeFrom(name: String): ByteArray = sha256(name.toByteArray()).let { digits ->
        digits.chunked(2).map { it.toInt(16).toByte() }.toByteArray()
    }

    private fun digits(name: String): String {
        val public = ByteArray(KEY_BYTES)
        Ed25519.generatePublicKey(private(name), 0, public, 0)
        return hex(public)
    }

    private fun signed(payload: String, by: List<String>, context: String): ByteArray {
        val data = (context + payload).toByteArray()
        val signatures = by.map { name ->
            val signature = ByteArray(SIGNATURE_BYTES)
            Ed25519.sign(private(name), 0, data, 0, data.size, signature, 0)
            buildJsonObject {
                put("key", JsonPrimitive(digits(name)))
                put("signature", JsonPrimitive(hex(signature)))
            }
        }
        return buildJsonObject {
            put("payload", JsonPrimitive(payload))
            put("signatures", JsonArray(signatures))
        }.toString().toByteArray()
    }

    /** A list that is valid for a year from [START_S] on. */
    fun list(
        number: Int = 1,
        roots: List<String> = listOf("root-1", "root-2", "root-3"),
        by: List<String> = listOf("root-1", "root-2"),
        release: String = "release-1",
        signedAtS: Long = START_S,
        expiresAtS: Long = START_S + 365 * DAY_S,
    ): ByteArray = signed(
        buildJsonObject {
            put("format", JsonPrimitive(1))
            put("number", JsonPrimitive(number))
            put("signed_at_s", JsonPrimitive(signedAtS))
            put("expires_at_s", JsonPrimitive(expiresAtS))
            put("root_keys", JsonArray(roots.map { JsonPrimitive(digits(it)) }))
            put("root_threshold", JsonPrimitive(2))
            put("release_keys", JsonArray(listOf(JsonPrimitive(digits(release)))))
        }.toString(),
        by,
        "pathweave keys\n",
    )

    /** A release that is valid for 30 days from [START_S] on. */
    fun release(
        manifest: ByteArray,
        version: Int = 1,
        by: String = "release-1",
        keys: Int = 1,
        name: String = "reference",
        signedAtS: Long = START_S,
        expiresAtS: Long = END_S,
    ): ByteArray = signed(
        buildJsonObject {
            put("format", JsonPrimitive(1))
            put("name", JsonPrimitive(name))
            put("version", JsonPrimitive(version))
            put("manifest_sha256", JsonPrimitive(sha256(manifest)))
            put("signed_at_s", JsonPrimitive(signedAtS))
            put("expires_at_s", JsonPrimitive(expiresAtS))
            put("keys", JsonPrimitive(keys))
        }.toString(),
        listOf(by),
        "pathweave release\n",
    )

    /** A rollback that is valid for 30 days from [START_S] on. */
    fun rollback(
        manifest: ByteArray,
        toVersion: Int,
        fromVersion: Int = 3,
        by: List<String> = listOf(OWNER),
        name: String = "reference",
        expiresAtS: Long = END_S,
        format: Int = 1,
    ): ByteArray = signed(
        buildJsonObject {
            put("format", JsonPrimitive(format))
            put("name", JsonPrimitive(name))
            put("from_version", JsonPrimitive(fromVersion))
            put("to_version", JsonPrimitive(toVersion))
            put("to_manifest_sha256", JsonPrimitive(sha256(manifest)))
            put("signed_at_s", JsonPrimitive(START_S))
            put("expires_at_s", JsonPrimitive(expiresAtS))
        }.toString(),
        by,
        "pathweave rollback\n",
    )
}

/** The reference bundle below [www], released instead of signed. */
class Publisher(private val www: File, private val path: String = Published.PATH) {
    val folder = File(www, path)

    /** Writes [version] with its release. The key lists stay. */
    fun publish(
        version: Int = 1,
        ownBlob: ByteArray? = null,
        by: String = "release-1",
        keys: Int = 1,
        name: String = "reference",
        signedAtS: Long = START_S,
    ) {
        val lists = File(folder, "keys").listFiles().orEmpty().associate { it.name to it.readBytes() }
        Published.write(www, version, ownBlob, name, path)
        File(folder, SIGNATURE).delete() // the release stands in for it
        for ((file, data) in lists) write("keys/$file", data)
        release(version, by, keys, name, signedAtS)
    }

    /** Releases what is there. */
    fun release(
        version: Int = 1,
        by: String = "release-1",
        keys: Int = 1,
        name: String = "reference",
        signedAtS: Long = START_S,
        expiresAtS: Long = signedAtS + 30 * DAY_S,
    ): Unit = write(RELEASE, Signed.release(read(MANIFEST), version, by, keys, name, signedAtS, expiresAtS))

    fun give(number: Int, list: ByteArray): Unit = write("keys/$number.json", list)

    fun read(name: String): ByteArray = File(folder, name).readBytes()

    fun write(name: String, data: ByteArray) {
        File(folder, name).apply { parentFile.mkdirs() }.writeBytes(data)
    }

    fun remove(name: String): ByteArray = read(name).also { File(folder, name).delete() }
}
