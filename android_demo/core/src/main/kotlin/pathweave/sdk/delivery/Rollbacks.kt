/** The signed rollback to a version that a server assigned: fetched, and verified for this device. */
package pathweave.sdk.delivery

import pathweave.sdk.RollbackError
import pathweave.sdk.bundles.Rollback
import pathweave.sdk.bundles.Trust
import pathweave.sdk.bundles.signers
import pathweave.sdk.bundles.verifyRollback

/**
 * The rollback that permits [version] to a device that has had the version [had].
 *
 * [fetch]: the contents of rollback.json, null if the server has none. [trust]: its newest list in the store counts;
 * null: unsigned will do.
 *
 * @throws RollbackError there is none, or it is for something else. [SignatureError], [ExpiredError], [TransferError].
 */
internal fun requireRollback(
    store: BundleStore,
    fetch: () -> ByteArray?,
    trust: Trust?,
    name: String,
    version: Long,
    digest: String,
    had: Long,
    clockS: Long,
): Rollback {
    val data = fetch() ?: throw RollbackError(
        "the server assigns version $version of $name without a signed rollback; this device has had $had",
        hint = "who publishes the bundle makes it: pathweave sign rollback",
    )
    val rollback = verifyRollback(data, withStoredLists(trust, store)?.signers())
    rollback.requirePermitted(name, version, digest, had)
    rollback.requireValid(clockS, provenS = timeMark(store, name).signedAtS)
    return rollback
}
