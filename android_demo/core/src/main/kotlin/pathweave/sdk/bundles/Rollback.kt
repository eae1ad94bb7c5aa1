/** Signed rollbacks: permission of an operator to install one version below a device's high-water mark. */
package pathweave.sdk.bundles

import pathweave.sdk.RollbackError
import pathweave.sdk.SignatureError
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace

/** The name of its file. */
public const val ROLLBACK: String = "rollback.json"

/** Bytes that it may have. */
public const val ROLLBACK_MAX_BYTES: Int = 16_384

private const val ROLLBACK_CONTEXT = "pathweave rollback\n"
private const val SIGN_ANOTHER = "the operator signs another: pathweave sign rollback"

/**
 * The payload: devices that have had at most [fromVersion] may go back to [toVersion] with that manifest.
 *
 * [toManifestSha256]: of the exact bytes of its manifest.json. Times are in seconds since 1970, UTC.
 */
public class Rollback internal constructor(
    public val name: String,
    public val fromVersion: Long,
    public val toVersion: Long,
    public val toManifestSha256: String,
    public val signedAtS: Long,
    public val expiresAtS: Long,
) {
    /**
     * Refuse it where it is for something else. [had]: the highest version that this device has had.
     *
     * @throws RollbackError refused.
     */
    public fun requirePermitted(name: String, version: Long, digest: String, had: Long) {
        if (this.name != name || toVersion != version || toManifestSha256 != digest) {
            throw RollbackError("$ROLLBACK leads to ${this.name} $toVersion, not to this $name $version", SIGN_ANOTHER)
        }
        if (had > fromVersion) {
            throw RollbackError(
                "$ROLLBACK is for devices that have had $name $fromVersion at most; this one has had $had",
                SIGN_ANOTHER,
            )
        }
    }

    /**
     * Refuse it once it has expired. [clockS]: of the device; [provenS]: the latest signed time that it knows.
     *
     * @throws ExpiredError refused. [ClockError] refused, but the device's own clock may be the reason.
     */
    public fun requireValid(clockS: Long, provenS: Long): Unit =
        refuseExpired("the rollback to $name $toVersion", expiresAtS, clockS, maxOf(provenS, signedAtS), SIGN_ANOTHER)
}

/**
 * The rollback in [data], signed by one of the keys [signers]; null: no signature is needed.
 *
 * @throws SignatureError too large, not a rollback, or signed by none of the keys.
 * @throws UnsupportedFormatError of another format.
 */
public fun verifyRollback(data: ByteArray, signers: Collection<String>?): Rollback {
    val envelope = decodeEnvelope(data, ROLLBACK, ROLLBACK_MAX_BYTES)
    if (signers != null && envelope.signedBy(signers, ROLLBACK_CONTEXT).isEmpty()) {
        throw SignatureError("$ROLLBACK is not signed by a key that this device trusts", SIGN_ANOTHER)
    }
    val rollback = envelope.decode(ROLLBACK, ::rollbackOf)
    if (!IDENTIFIER.matches(rollback.name) || rollback.toVersion >= rollback.fromVersion) {
        throw SignatureError("$ROLLBACK names no version to go back to")
    }
    return rollback
}

private fun rollbackOf(root: JsonPlace): Rollback {
    root.only("format", "name", "from_version", "to_version", "to_manifest_sha256", "signed_at_s", "expires_at_s")
    return Rollback(
        name = root["name"].text().also { if (it.length > NAME_MAX) throw JsonError("the name is too long") },
        fromVersion = root["from_version"].whole(1, VERSION_MAX),
        toVersion = root["to_version"].whole(1, VERSION_MAX),
        toManifestSha256 = root["to_manifest_sha256"].manifestDigest(),
        signedAtS = root["signed_at_s"].timeS(),
        expiresAtS = root["expires_at_s"].timeS(),
    )
}
