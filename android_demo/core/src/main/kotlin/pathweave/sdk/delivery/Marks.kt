/**
 * The high-water marks of a bundle: version and time that this device has had, and what it refuses because of them.
 * Pure.
 *
 * Two copies of a mark are kept. Each states its own digest, so a damaged one is recognised and the other one counts.
 */
package pathweave.sdk.delivery

import java.io.File
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.BundleError
import pathweave.sdk.LOG
import pathweave.sdk.RollbackError
import pathweave.sdk.bundles.TimeMark
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.sha256
import pathweave.sdk.files.writeIfChanged

internal val DIGEST = Regex("[0-9a-f]{64}")
internal const val ADDRESSES_MAX = 64 // more are forgotten, the oldest first
private const val DIGEST_LENGTH = 64
private const val BEFORE = "{\"mark\":"
private const val BETWEEN = ",\"sha256\":\""
private const val AFTER = "\"}"

/**
 * Bundle [name] was installed in [version], with the manifest [digest], from [addresses] (their sha256).
 *
 * [rolledBackTo]: digest of the lower version that a signed rollback let this device install since.
 */
internal data class Mark(
    val name: String,
    val version: Long,
    val digest: String,
    val addresses: List<String> = emptyList(),
    val rolledBackTo: String? = null,
) {
    /** Whether a bundle is not below the mark, or is the one that this device was rolled back to. */
    fun permits(version: Long, digest: String): Boolean =
        version > this.version || digest == this.digest || digest == rolledBackTo
}

/** One line of JSON: the mark, and the sha256 of its bytes. */
internal fun encodeMark(mark: Mark): ByteArray {
    val addresses = mark.addresses.joinToString(",") { quoted(it) }
    val back = mark.rolledBackTo?.let { ""","rolled_back_to":${quoted(it)}""" }.orEmpty()
    return record(
        """{"name":${quoted(mark.name)},"version":${mark.version},"digest":${quoted(mark.digest)},""" +
            """"addresses":[$addresses]$back}""",
    )
}

internal fun encodeTimeMark(mark: TimeMark): ByteArray =
    record("""{"keys":${mark.keys},"signed_at_s":${mark.signedAtS}}""")

private fun record(mark: String) = "$BEFORE$mark$BETWEEN${sha256(mark.toByteArray())}$AFTER\n".toByteArray()

/** The mark in [data]; null if the record is damaged. */
internal fun decodeMark(data: ByteArray): Mark? = decodeRecord(data) { root ->
    Mark(
        name = root["name"].text(),
        version = root["version"].whole(),
        digest = root["digest"].text(),
        addresses = root.optional("addresses")?.items().orEmpty().map { it.text() },
        rolledBackTo = root.optional("rolled_back_to")?.text(),
    ).takeIf { mark -> listOfNotNull(mark.digest, mark.rolledBackTo).all(DIGEST::matches) }
}

/** The mark of time in [data]; null if the record is damaged. */
internal fun decodeTimeMark(data: ByteArray): TimeMark? = decodeRecord(data) { root ->
    TimeMark(
        keys = root.optional("keys")?.whole(most = Int.MAX_VALUE.toLong())?.toInt() ?: 0,
        signedAtS = root.optional("signed_at_s")?.whole() ?: 0,
    )
}

private fun <T> decodeRecord(data: ByteArray, read: (JsonPlace) -> T?): T? {
    val text = data.decodeToString().trim()
    val end = text.length - AFTER.length - DIGEST_LENGTH - BETWEEN.length
    if (end < BEFORE.length || !text.startsWith(BEFORE) || !text.startsWith(BETWEEN, end)) return null
    val mark = text.substring(BEFORE.length, end)
    if (text.substring(end + BETWEEN.length) != sha256(mark.toByteArray()) + AFTER) return null
    return try {
        read(decodeJson(mark.toByteArray()))
    } catch (_: JsonError) {
        null
    }
}

private fun quoted(text: String): String = JsonPrimitive(text).toString()

/**
 * Refuse what is below [mark], or other bytes under its version. [source]: where it comes from.
 *
 * @throws RollbackError refused.
 */
internal fun refuseRollback(mark: Mark?, name: String, version: Long, digest: String, source: String) {
    if (mark == null || mark.permits(version, digest)) return
    if (version < mark.version) {
        throw RollbackError(
            "$source has version $version of $name; this device has had ${mark.version}",
            hint = "to install the older version, allow the rollback",
        )
    }
    throw RollbackError(
        "$source has version $version of $name with other contents than this device has had under that version",
        hint = "give the new contents a higher version, or allow the rollback",
    )
}

/**
 * Refuse another product than [pinned], the one that this address had at first.
 *
 * @throws BundleError refused.
 */
internal fun refuseOtherName(pinned: String?, name: String, source: String) {
    if (pinned == null || pinned == name) return
    throw BundleError(
        "$source has bundle $name; this device has had $pinned from there",
        hint = "serve another product at an address of its own",
    )
}

private val COPIES = listOf("time.copy", "time")

/** The later of the two copies that can be read. */
internal fun timeMark(store: BundleStore, name: String): TimeMark = files(store, name).mapNotNull { file ->
    val data = readSmall(file) ?: return@mapNotNull null
    decodeTimeMark(data).also { if (it == null) LOG.warning("$file is damaged") }
}.maxWithOrNull(compareBy(TimeMark::keys, TimeMark::signedAtS)) ?: TimeMark()

/**
 * Store what [raise] makes of the mark of bundle [name], under the lock; returns it.
 *
 * @throws StorageError it could not be written; what [raise] throws.
 */
internal fun updateTimeMark(store: BundleStore, name: String, raise: (TimeMark) -> TimeMark): TimeMark =
    store.writing().use {
        val mark = raise(timeMark(store, name))
        val data = encodeTimeMark(mark)
        for (file in files(store, name)) writeIfChanged(file, data)
        mark
    }

private fun files(store: BundleStore, name: String) = COPIES.map { File(store.folderOf(name), it) }
