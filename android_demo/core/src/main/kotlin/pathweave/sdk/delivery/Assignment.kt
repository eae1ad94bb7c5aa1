/**
 * The version of a bundle that is this device's: the request to a server that rolls releases out, and its answer.
 *
 * The answer is not signed: it only chooses among versions that are signed themselves.
 */
package pathweave.sdk.delivery

import pathweave.sdk.ProtocolError
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.VERSION_MAX
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.decodeJson

internal const val ASSIGNMENT = "assignment" // addresses below the bundle's
internal const val VERSIONS = "versions"
internal const val ASSIGNMENT_MAX_BYTES = 4096L
internal const val DEVICE_HEADER = "Pathweave-Device"
internal const val TAGS_HEADER = "Pathweave-Tags"
private const val TAGS_MAX = 16
private val WORD = Regex("[A-Za-z0-9_.-]{1,64}")
private val DEVICE = Regex("[A-Za-z0-9_.-]{1,128}")

/** The version that a device installs. [rollout], [stage]: that decided so; [rollback]: it may be a lower one. */
internal data class Assignment(
    val version: Long,
    val rollout: Long? = null,
    val stage: Long? = null,
    val rollback: Boolean = false,
)

/**
 * The value of the header, in the order of names: `board=orin,region=eu`.
 *
 * @throws UsageError too many tags, or one that is not plain.
 */
internal fun encodeTags(tags: Map<String, String>): String {
    if (tags.size > TAGS_MAX || !tags.all { (name, value) -> WORD.matches(name) && WORD.matches(value) }) {
        throw UsageError(
            "these tags cannot be sent",
            "at most $TAGS_MAX tags NAME=VALUE, of 1 to 64 letters, digits, dots, dashes and underscores each",
        )
    }
    return tags.toSortedMap().entries.joinToString(",") { (name, value) -> "$name=$value" }
}

/**
 * Headers that name the device; without [tags] the server goes by those of before.
 *
 * @throws UsageError the name or a tag cannot be sent.
 */
internal fun askingHeaders(device: String, tags: Map<String, String>?): Map<String, String> {
    val name = DEVICE_HEADER to checkedDevice(device)
    return if (tags == null) mapOf(name) else mapOf(name, TAGS_HEADER to encodeTags(tags))
}

/** [device], if servers take it as the name of a device; else [UsageError]. */
internal fun checkedDevice(device: String): String {
    if (DEVICE.matches(device)) return device
    throw UsageError(
        "'${device.take(80)}' cannot be the name of a device",
        "1 to 128 letters, digits, dots, dashes, underscores",
    )
}

/** A server's answer; [ProtocolError] if it is none. */
internal fun decodeAssignment(data: ByteArray): Assignment = try {
    val root = decodeJson(data)
    Assignment(
        version = root["version"].whole(1, VERSION_MAX),
        rollout = root.nullable("rollout")?.whole(0, VERSION_MAX),
        stage = root.nullable("stage")?.whole(0, VERSION_MAX),
        rollback = root.optional("rollback")?.flag() ?: false,
    )
} catch (error: JsonError) {
    throw ProtocolError(
        "the server's answer, which version is this device's, is invalid: ${error.message}",
        cause = error,
    )
}
