package pathweave.sdk

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject
import org.bouncycastle.math.ec.rfc8032.Ed25519
import pathweave.sdk.bundles.SIGNATURE_BYTES
import pathweave.sdk.bundles.changed
import pathweave.sdk.files.sha256

/** The reference bundle in several versions, signed with the key of the golden vectors. */
object Published {
    const val PATH = "v1/bundles/reference"
    val privateKey = ByteArray(32) { it.toByte() } // for these tests only
    private val tree = Json.parseToJsonElement(File(Contract.referenceFolder, "manifest.json").readText())

    /**
     * Writes [version] below [www]; [ownBlob]: an exit's blob is replaced by these bytes, which are no fragment.
     * [name]: another product's.
     */
    fun write(
        www: File,
        version: Int,
        ownBlob: ByteArray? = null,
        name: String = "reference",
        path: String = PATH,
    ): File {
        val folder = File(www, path)
        folder.deleteRecursively()
        Contract.referenceFolder.copyRecursively(folder)
        var manifest = tree.changed(listOf("version"), JsonPrimitive(version))
            .changed(listOf("name"), JsonPrimitive(name))
        if (ownBlob != null) {
            val place = listOf("exits", "0", "renditions", "0")
            manifest = manifest.changed(place + "blob", JsonPrimitive(sha256(ownBlob)))
                .changed(place + "size_bytes", JsonPrimitive(ownBlob.size))
            File(folder, "blobs/${sha256(ownBlob)}").writeBytes(ownBlob)
        }
        return signed(folder, manifest)
    }

    /** The reference bundle in [folder] with [changed] fields of its manifest. */
    fun writeChanged(folder: File, changed: Map<String, JsonElement>): File {
        Contract.referenceFolder.copyRecursively(folder)
        return signed(folder, JsonObject(tree.jsonObject + changed))
    }

    private fun signed(folder: File, manifest: JsonElement): File {
        val data = manifest.toString().toByteArray()
        File(folder, "manifest.json").writeBytes(data)
        val signature = ByteArray(SIGNATURE_BYTES)
        Ed25519.sign(privateKey, 0, data, 0, data.size, signature, 0)
        File(folder, "manifest.sig").writeBytes(signature)
        return folder
    }

    /** Bytes that are those of [version] alone. */
    fun blob(version: Int, size: Int = 3_000): ByteArray = ByteArray(size) { (it * 31 + version * 7).toByte() }
}

/** A clock that `sleep` moves, and that may be moved. */
class FrozenClock {
    @Volatile
    var nowNs = 1_000_000_000L

    fun sleep(seconds: Double) {
        nowNs += (seconds * 1e9).toLong()
    }
}
