/** A bundle from a server, with the last good one in reserve. */
package pathweave.sdk.session

import java.io.Closeable
import java.io.File
import java.util.concurrent.CancellationException
import pathweave.sdk.BlobError
import pathweave.sdk.BudgetError
import pathweave.sdk.BundleError
import pathweave.sdk.LOG
import pathweave.sdk.PathweaveError
import pathweave.sdk.RefusedError
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.StorageError
import pathweave.sdk.TransferError
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.Trust
import pathweave.sdk.bundles.decodeManifest
import pathweave.sdk.bundles.readManifest
import pathweave.sdk.bundles.verify
import pathweave.sdk.delivery.BundleStore
import pathweave.sdk.delivery.DEADLINES
import pathweave.sdk.delivery.Delivered
import pathweave.sdk.delivery.DeliveryOptions
import pathweave.sdk.delivery.DeliverySource
import pathweave.sdk.delivery.Offered
import pathweave.sdk.delivery.StoredBundle
import pathweave.sdk.delivery.UploadResult
import pathweave.sdk.delivery.collect
import pathweave.sdk.delivery.fetchBundle
import pathweave.sdk.delivery.transient
import pathweave.sdk.delivery.uploadLog
import pathweave.sdk.delivery.withStoredLists
import pathweave.sdk.execution.SelfTestState
import pathweave.sdk.execution.ensureSelfTested
import pathweave.sdk.execution.runGuardedSelfTest
import pathweave.sdk.files.ifPossible
import pathweave.sdk.files.removeTemporaries
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.transports.base
import pathweave.sdk.transports.serverAndName

/** A bundle that is open, and how it came. No process deletes its blobs until it is closed. */
public class OpenedBundle internal constructor(
    public val bundle: Bundle,
    public val delivered: Delivered,
    /** Where what is known of the bundle lies. */
    public val stateFolder: File,
    private val lease: Closeable,
    /** The server that it came from. */
    internal val origin: Origin,
) : Closeable {
    override fun close(): Unit = lease.close()
}

/** The store below [stateFolder]. */
public fun storeIn(stateFolder: File): BundleStore = BundleStore(File(stateFolder, "store"))

/**
 * Fetch the bundle at [url], verify and self-test it here, and make it the last good one; else open the last good one.
 *
 * [trust]: a public key, a key list ([loadTrust]), or null, which takes a bundle whatever key signed it. [stateFolder]:
 * the store and the results of self-tests lie there. [selfTest]: by default all blocks run on [runtime], with deadlines (SelfTesting.kt); an app may run it in a
 * process of its own. A server that rolls releases out chooses this device's version by its [deviceId] and the options'
 * tags. How the bundle came, and what was refused for it, is written to its adaptation log.
 *
 * @throws UsageError [url] is not an address.
 * @throws BundleError, TransferError, RuntimeFailedError, StorageError: and there is no last good bundle.
 */
public fun openAt(
    url: String,
    stateFolder: File,
    trust: Trust?,
    token: String? = null,
    runtime: Runtime = OnnxRuntime(),
    options: DeliveryOptions = DeliveryOptions(),
    selfTest: (Bundle) -> Unit = { runGuardedSelfTest(it, runtime) },
): OpenedBundle {
    val store = storeIn(stateFolder)
    val ofDevice = options.of(stateFolder)
    val opening = Opening(base(url), store, trust, ofDevice) { bundle ->
        ready(bundle, stateFolder, runtime, selfTest)
    }
    val opened = ifPossible(store::installing).use {
        val (bundle, delivered) = opening.openFetched { fetchBundle(url, store, trust, token, ofDevice) }
        DeviceState(stateFolder, bundle, runtime).logDelivered(delivered)
        val lease = store.lease(bundle.manifest.name, bundle.digest)
        OpenedBundle(bundle, delivered, stateFolder, lease, ServerOrigin(url, store, token))
    }
    if (opened.delivered.source != DeliverySource.KEPT) collect(store)
    return opened
}

/** With the exits that the device decided to keep, or else those that are wanted, and with its name. */
private fun DeliveryOptions.of(stateFolder: File) = DeliveryOptions(
    allowRollback,
    deadlines,
    updateDeadlines,
    attempts,
    progress,
    stopped,
    exits = { name, digest -> loadExits(stateFolder, name, digest) ?: exits(name, digest) },
    wallClockS,
    device ?: { deviceId(stateFolder) },
    tags,
)

private fun ready(bundle: Bundle, stateFolder: File, runtime: Runtime, selfTest: (Bundle) -> Unit) {
    val state = SelfTestState(stateFolder, bundle, runtime)
    removeTemporaries(state.folder)
    ensureSelfTested(state) { selfTest(bundle) }
}

/**
 * What was fetched from [url] last and passed its self-test; nothing is fetched. It is tested again if [runtime] is
 * another one than then. [exits]: those that the device holds of the bundle with this name and digest; null: all. By
 * default those that were kept last. [token]: for what is fetched from the server later.
 *
 * @throws UsageError nothing was fetched from this address yet. [BundleError], [RuntimeFailedError] it cannot be used.
 */
public fun openStored(
    url: String,
    stateFolder: File,
    trust: Trust?,
    runtime: Runtime = OnnxRuntime(),
    exits: (name: String, digest: String) -> Collection<String>? = { name, digest ->
        loadExits(stateFolder, name, digest)
    },
    token: String? = null,
    selfTest: (Bundle) -> Unit = { runGuardedSelfTest(it, runtime) },
): OpenedBundle {
    val store = storeIn(stateFolder)
    return ifPossible(store::installing).use {
        val stored = store.lastGoodAt(url)
            ?: throw UsageError("nothing was fetched from ${base(url)} yet", "open it first")
        val bundle = openInStore(stored.folder, store, trust, exits)
        ready(bundle, stateFolder, runtime, selfTest)
        val delivered = Delivered(
            stored.folder, store.blobs, stored.name, stored.digest, stored.version, DeliverySource.KEPT,
        )
        val lease = store.lease(stored.name, stored.digest)
        OpenedBundle(bundle, delivered, stateFolder, lease, ServerOrigin(url, store, token))
    }
}

private fun openInStore(
    folder: File,
    store: BundleStore,
    trust: Trust?,
    exits: (name: String, digest: String) -> Collection<String>?,
): Bundle {
    val (name, digest) = folder.parentFile.name to folder.name // as the store lays them out
    return Bundle.open(folder, withStoredLists(trust, store), store.blobs, exits(name, digest))
}

/** Opens what was fetched, and makes it the last good bundle once it has shown that it works here. */
private class Opening(
    private val url: String,
    private val store: BundleStore,
    private val trust: Trust?,
    private val options: DeliveryOptions,
    private val ready: (Bundle) -> Unit,
) {
    fun openFetched(fetch: () -> Delivered): Pair<Bundle, Delivered> {
        val delivered = fetch()
        return try {
            open(delivered)
        } catch (_: BlobError) {
            // a blob decayed on this disk since it was verified: fetch it again, once
            store.removeAltered(decodeManifest(readManifest(delivered.folder)).blobs().keys)
            open(fetch())
        }
    }

    private fun open(delivered: Delivered): Pair<Bundle, Delivered> {
        val bundle = try {
            bundleIn(delivered.folder).also {
                it.verify() // disks decay: better now than when a search first needs a block
                ready(it)
            }
        } catch (error: PathweaveError) {
            if (error !is BundleError && error !is RuntimeFailedError && error !is BudgetError) throw error
            return openKept(otherGood(delivered) ?: throw error, delivered, error)
        }
        try {
            val name = bundle.manifest.name
            store.rememberGood(url, name, bundle.digest, options.allowRollback, delivered.rollbackFrom)
        } catch (error: PathweaveError) { // another process was faster with a newer one; a full disk
            if (error !is BundleError && error !is StorageError) throw error
            otherGood(delivered)?.let { return openKept(it, delivered, error) }
            if (store.lastGoodAt(url) == null) throw error
            LOG.warning("$url: ${error.message}")
        }
        return bundle to delivered
    }

    private fun openKept(kept: StoredBundle, delivered: Delivered, error: PathweaveError): Pair<Bundle, Delivered> {
        LOG.warning("version ${delivered.version} is not used here, version ${kept.version} stays: ${error.message}")
        val bundle = bundleIn(kept.folder).also(ready)
        return bundle to delivered.copy(
            folder = kept.folder,
            name = kept.name,
            digest = kept.digest,
            version = kept.version,
            source = DeliverySource.KEPT,
            failure = error.message,
            rollbackFrom = null,
            refused = Offered(delivered.version, delivered.digest).refused(error, kept),
            error = error,
        )
    }

    private fun otherGood(delivered: Delivered): StoredBundle? =
        store.lastGoodAt(url, options.allowRollback)?.takeIf { it.digest != delivered.digest }

    private fun bundleIn(folder: File): Bundle = openInStore(folder, store, trust, options.exits)
}

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

internal fun failed(error: PathweaveError): WorkResult.Failed {
    val mayPass = when (error) {
        is RefusedError -> error.status >= CLIENT_ERRORS_END || transient(error)
        is TransferError, is StorageError -> true
        else -> false // the same bytes fail the same way
    }
    return WorkResult.Failed(error.message.orEmpty(), mayPass)
}

/**
 * Fetches, verifies and self-tests the bundle at [url], and makes it the last good one. The model that is open stays
 * as it is; [openStored] gives the new one from then on. After a failure the last good bundle, if there is one, stays.
 *
 * [tags]: of this device, as in [DeliveryOptions]. [open]: by default [openAt] with all the time of a first download, since
 * no user waits for it.
 */
public class UpdateWork(
    private val url: String,
    private val stateFolder: File,
    private val trust: Trust?,
    private val token: String? = null,
    private val constraints: WorkConstraints = WorkConstraints(),
    private val tags: Map<String, String>? = null,
    private val open: (stopped: () -> Boolean) -> OpenedBundle = { stopped ->
        val options = DeliveryOptions(updateDeadlines = DEADLINES, stopped = stopped, tags = tags)
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

/**
 * Sends the logs of all versions of the bundle at [url] (`http(s)://…/v1/bundles/NAME`) that ran on this device to the
 * server of that address. Logs of other bundles stay here.
 */
public class LogUploadWork(
    private val url: String,
    private val stateFolder: File,
    private val token: String? = null,
    private val constraints: WorkConstraints = WorkConstraints(),
) {
    /**
     * Run once, as long as [conditions] allow and it is not [stopped]; both are asked again before each body of at most
     * 1 MB. Does not throw: an error is a result. The next run sends everything again, and the server stores no line
     * twice.
     */
    public fun run(conditions: () -> DeviceConditions, stopped: () -> Boolean = { false }): WorkResult =
        runWithin(constraints, conditions, stopped) { over ->
            val (server, _) = serverAndName(url)
            val logs = storeIn(stateFolder).lastGoodAt(url)?.let { logsOf(stateFolder, it.name) }.orEmpty()
            val stored = logs.map { uploadLog(it, server, deviceId(stateFolder), token, stopped = over) }
            WorkResult.Uploaded(stored.fold(UploadResult(0, 0), UploadResult::plus))
        }
}
