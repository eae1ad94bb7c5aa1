/** Work without a user who waits for it: when it may run, and whether to try again. An app's job only calls it. */
package pathweave.sdk.session

import java.util.concurrent.CancellationException
import pathweave.sdk.PathweaveError
import pathweave.sdk.RefusedError
import pathweave.sdk.StorageError
import pathweave.sdk.TransferError
import pathweave.sdk.delivery.UploadResult
import pathweave.sdk.delivery.transient

private const val CLIENT_ERRORS_END = 500

/** What the device says of itself now. */
public data class DeviceConditions(public val unmetered: Boolean, public val charging: Boolean)

/** What background work needs. A scheduler is told the same, but conditions change while it runs. */
public data class WorkConstraints(public val unmetered: Boolean = true, public val charging: Boolean = true) {
    /** Whether it may run under [conditions]. */
    public fun allow(conditions: DeviceConditions): Boolean =
        (conditions.unmetered || !unmetered) && (conditions.charging || !charging)
}

/** How background work ended, and what a scheduler does next. */
public sealed interface WorkResult {
    /** Whether to run again soon, with backoff; else at the next regular time. */
    public val retry: Boolean

    /** [version] is the last good one now. [changed]: it was not before. */
    public data class Updated(public val version: Long, public val changed: Boolean) : WorkResult {
        override val retry: Boolean get() = false
    }

    /** The server has the logs. [stored]: lines new to it, and lines it had already. */
    public data class Uploaded(public val stored: UploadResult) : WorkResult {
        override val retry: Boolean get() = false
    }

    /** The constraints do not hold, or no longer; what was done by then is kept. */
    public data object Postponed : WorkResult {
        override val retry: Boolean get() = true
    }

    /** It failed; what was there before stays. [reason]: one line. */
    public data class Failed(public val reason: String, override val retry: Boolean) : WorkResult
}

/**
 * Runs [work] as long as [conditions] allow and it is not [stopped]; it asks `over` at every step and ends with
 * CancellationException. Does not throw: an error is a result.
 */
internal fun runWithin(
    constraints: WorkConstraints,
    conditions: () -> DeviceConditions,
    stopped: () -> Boolean,
    work: (over: () -> Boolean) -> WorkResult,
): WorkResult {
    val over = { stopped() || !constraints.allow(conditions()) }
    if (over()) return WorkResult.Postponed
    return try {
        work(over)
    } catch (_: CancellationException) {
        WorkResult.Postponed
    } catch (error: PathweaveError) {
        failed(error)
    }
}

/** The result for an error. */
internal fun failed(error: PathweaveError): WorkResult.Failed {
    val mayPass = when (error) {
        is RefusedError -> error.status >= CLIENT_ERRORS_END || transient(error)
        is TransferError, is StorageError -> true
        else -> false // the same bytes fail the same way
    }
    return WorkResult.Failed(error.message.orEmpty(), mayPass)
}
