/** Updating a bundle in the background: when it may run, and whether to try again. The app's job only calls it. */
package pathweave.sdk

import java.io.File
import java.util.concurrent.CancellationException

private const val CLIENT_ERRORS_END = 500

/** What the device says of itself now. */
public data class DeviceConditions(public val unmetered: Boolean, public val charging: Boolean)

/** What an update needs. A scheduler is told the same, but conditions change while it runs. */
public data class UpdateConstraints(public val unmetered: Boolean = true, public val charging: Boolean = true) {
    /** Whether an update may run under [conditions]. */
    public fun allow(conditions: DeviceConditions): Boolean =
        (conditions.unmetered || !unmetered) && (conditions.charging || !charging)
}

/** How an update ended, and what a scheduler does next. */
public sealed interface UpdateResult {
    /** Whether to run again soon, with backoff; else at the next regular time. */
    public val retry: Boolean

    /** [version] is the last good one now. [changed]: it was not before. */
    public data class Done(public val version: Long, public val changed: Boolean) : UpdateResult {
        override val retry: Boolean get() = false
    }

    /** The constraints do not hold, or no longer; what came by then is kept. */
    public data object Postponed : UpdateResult {
        override val retry: Boolean get() = true
    }

    /** It failed, and the last good bundle, if there is one, stays. [reason]: one line. */
    public data class Failed(public val reason: String, override val retry: Boolean) : UpdateResult
}

/**
 * Fetches, verifies and self-tests the bundle at [url], and makes it the last good one. The model that is open stays
 * as it is; [openStored] gives the new one from then on.
 *
 * [open]: by default [openAt] with all the time of a first download, since no user waits for it.
 */
public class UpdateWork(
    private val url: String,
    private val stateFolder: File,
    private val trust: Trust?,
    private val token: String? = null,
    private val constraints: UpdateConstraints = UpdateConstraints(),
    private val open: (stopped: () -> Boolean) -> OpenedBundle = { stopped ->
        val options = DeliveryOptions(updateDeadlines = DEADLINES, stopped = stopped)
        openAt(url, stateFolder, trust, token, options = options)
    },
) {
    /**
     * Run once, as long as [conditions] allow and it is not [stopped]; both are asked again at every chunk. Does not
     * throw: an error is a result.
     */
    public fun run(conditions: () -> DeviceConditions, stopped: () -> Boolean = { false }): UpdateResult {
        val over = { stopped() || !constraints.allow(conditions()) }
        if (over()) return UpdateResult.Postponed
        return try {
            val before = storeIn(stateFolder).lastGoodAt(url)
            open(over).use { resultOf(it.delivered, before) }
        } catch (_: CancellationException) {
            UpdateResult.Postponed
        } catch (error: PathweaveError) {
            failed(error)
        }
    }

    private fun resultOf(delivered: Delivered, before: StoredBundle?): UpdateResult {
        delivered.error?.let { return failed(it) }
        return UpdateResult.Done(delivered.version, changed = delivered.digest != before?.digest)
    }
}

private fun failed(error: PathweaveError): UpdateResult {
    val mayPass = when (error) {
        is RefusedError -> error.status >= CLIENT_ERRORS_END || transient(error)
        is TransferError, is StorageError -> true
        else -> false // the same bundle fails the same way
    }
    return UpdateResult.Failed(error.message.orEmpty(), mayPass)
}
