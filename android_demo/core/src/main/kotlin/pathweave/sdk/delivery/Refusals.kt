/** Versions that a device was offered and does not use, with the kind of reason, for the log. */
package pathweave.sdk.delivery

import pathweave.sdk.BudgetError
import pathweave.sdk.CompositionError
import pathweave.sdk.ExpiredError
import pathweave.sdk.PathweaveError
import pathweave.sdk.RollbackError
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.SelfTestError
import pathweave.sdk.SignatureError
import pathweave.sdk.StorageError
import pathweave.sdk.TransferError

/** Kinds of reasons for which a version is refused; [text]: in the log. */
public enum class RefusalReason(internal val text: String) {
    SELF_TEST("self_test"),
    MEMORY("memory"),
    EXPIRED("expired"),
    SIGNATURE("signature"),
    ROLLBACK("rollback"),
    TRANSFER("transfer"),
    STORAGE("storage"),

    /** Damaged, another name, a format that this SDK does not read. */
    BUNDLE("bundle"),
}

/** [version] was offered; [digest] of its manifest if that came. */
public data class Refusal(public val version: Long, public val digest: String?, public val reason: RefusalReason)

/** The version that a delivery is about to install, as far as it is known. */
internal class Offered(var version: Long? = null, var digest: String? = null) {
    /** The refusal because of [error]; null if nothing is offered but what is [kept]. */
    fun refused(error: PathweaveError, kept: StoredBundle): Refusal? {
        val version = this.version ?: return null
        val known = digest?.let { it == kept.digest } ?: (version == kept.version)
        return if (known) null else Refusal(version, digest, reasonOf(error))
    }
}

/** The kind of reason that an error is. */
internal fun reasonOf(error: PathweaveError): RefusalReason = when (error) {
    is SelfTestError, is CompositionError, is RuntimeFailedError -> RefusalReason.SELF_TEST
    is BudgetError -> RefusalReason.MEMORY
    is ExpiredError -> RefusalReason.EXPIRED
    is SignatureError -> RefusalReason.SIGNATURE
    is RollbackError -> RefusalReason.ROLLBACK
    is TransferError -> RefusalReason.TRANSFER
    is StorageError -> RefusalReason.STORAGE
    else -> RefusalReason.BUNDLE
}
