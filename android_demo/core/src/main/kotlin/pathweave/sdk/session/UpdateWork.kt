/** Updating a bundle in the background. */
package pathweave.sdk.session

import java.io.File
import pathweave.sdk.bundles.Trust
import pathweave.sdk.delivery.DEADLINES
import pathweave.sdk.delivery.Delivered
import pathweave.sdk.delivery.DeliveryOptions
import pathweave.sdk.delivery.StoredBundle

/**
 * Fetches, verifies and self-tests the bundle at [url], and makes it the last good one. The model that is open stays
 * as it is; [openStored] gives the new one from then on. After a failure the last good bundle, if there is one, stays.
 *
 * [open]: by default [openAt] with all the time of a first download, since no user waits for it.
 */
public class UpdateWork(
    private val url: String,
    private val stateFolder: File,
    private val trust: Trust?,
    private val token: String? = null,
    private val constraints: WorkConstraints = WorkConstraints(),
    private val open: (stopped: () -> Boolean) -> OpenedBundle = { stopped ->
        val options = DeliveryOptions(updateDeadlines = DEADLINES, stopped = stopped)
        openAt(url, stateFolder, trust, token, options = options)
    },
) {
    /**
     * Run once, as long as [conditions] allow and it is not [stopped]; both are asked again at every chunk. Does not
     * throw: an error is a result.
     */
    public fun run(conditions: () -> DeviceConditions, stopped: () -> Boolean = { false }): WorkResult =
        runWithin(constraints, conditions, stopped) { over ->
            val before = storeIn(stateFolder).lastGoodAt(url)
            open(over).use { resultOf(it.delivered, before) }
        }

    private fun resultOf(delivered: Delivered, before: StoredBundle?): WorkResult =
        delivered.error?.let(::failed)
            ?: WorkResult.Updated(delivered.version, changed = delivered.digest != before?.digest)
}
