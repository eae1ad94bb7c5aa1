/** Downloads a bundle to the store, or falls back to the last good one (docs/bundle_format.md, "Over HTTP"). */
package pathweave.sdk.delivery

import java.io.File
import java.util.concurrent.CancellationException
import pathweave.sdk.Clock
import pathweave.sdk.DeadlineError
import pathweave.sdk.LOG
import pathweave.sdk.PathweaveError
import pathweave.sdk.ProtocolError
import pathweave.sdk.RefusedError
import pathweave.sdk.TransferError
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Manifest
import pathweave.sdk.bundles.ROLLBACK
import pathweave.sdk.bundles.ROLLBACK_MAX_BYTES
import pathweave.sdk.bundles.Trust
import pathweave.sdk.bundles.partWithExits
import pathweave.sdk.bundles.runnablePart
import pathweave.sdk.files.pauseMs
import pathweave.sdk.supernet.Rendition
import pathweave.sdk.transports.Deadlines
import pathweave.sdk.transports.HttpTransport
import pathweave.sdk.transports.NOT_FOUND
import pathweave.sdk.transports.Transport
import pathweave.sdk.transports.base

internal const val ATTEMPTS = 5
internal const val REPLACED_TRIES = 3 // restarts after the server has replaced the bundle during the download
private const val MS_PER_S = 1_000

/** Of the first download. */
public val DEADLINES: Deadlines = Deadlines(idleS = 10.0, totalS = 600.0)

/** Where the last good bundle can open instead. */
public val UPDATE_DEADLINES: Deadlines = Deadlines(idleS = 5.0, totalS = 20.0)

/** Where a [Delivered] comes from. */
public enum class DeliverySource {
    DOWNLOADED,

    /** The server still has the last good bundle. */
    UNCHANGED,

    /** Fetching failed, so it is the last good bundle. */
    KEPT,
}

/**
 * A bundle in the store, ready for `Bundle.open(folder, trust, blobs)`.
 *
 * [resumed]: number of resumed transfers. [failure]: why it is the last good bundle, in one line. [rollbackFrom]: of the
 * signed rollback that permits this version, if one was needed. [refused]: what was offered instead.
 */
public data class Delivered(
    public val folder: File,
    public val blobs: File,
    public val name: String,
    public val digest: String,
    public val version: Long,
    public val source: DeliverySource,
    public val blobsFetched: Int = 0,
    public val bytesFetched: Long = 0,
    public val resumed: Int = 0,
    public val failure: String? = null,
    public val rollbackFrom: Long? = null,
    public val refused: Refusal? = null,
    internal val error: PathweaveError? = null,
)

/** How a delivery goes on: what [fetchBundle] may wait for, and who hears of it. */
public class DeliveryOptions(
    /** Install an older version, or other contents under the same version, too. */
    public val allowRollback: Boolean = false,
    /** Of the first download. */
    public val deadlines: Deadlines = DEADLINES,
    /** Where there is a last good bundle. */
    public val updateDeadlines: Deadlines = UPDATE_DEADLINES,
    /** Consecutive attempts without a new byte. */
    public val attempts: Int = ATTEMPTS,
    /** Told how many bytes of how many have come. */
    public val progress: (doneBytes: Long, ofBytes: Long) -> Unit = { _, _ -> },
    /** Asked at every chunk; true ends the delivery with CancellationException, and what came is kept. */
    public val stopped: () -> Boolean = { false },
    /** The exits that the device wants of the bundle with this name and digest; null: all. */
    public val exits: (name: String, digest: String) -> Collection<String>? = { _, _ -> null },
    /** Seconds since 1970, for what expires. */
    public val wallClockS: () -> Long = { System.currentTimeMillis() / MS_PER_S },
    /**
     * Names this device to a server that rolls releases out, as [uploadLog] does; by default [openAt] gives its
     * [deviceId]. Null: the version that the address has comes.
     */
    public val device: (() -> String)? = null,
    /** Of this device, such as its region, by which such a server chooses too; null: those of before. */
    public val tags: Map<String, String>? = null,
) {
    init {
        if (tags != null) encodeTags(tags) // refuses what cannot be sent
    }
}

/**
 * Fetch the bundle at [url] (`http(s)://…/v1/bundles/NAME`) to the [store]; on failure, the last good one of that URL.
 *
 * With a [DeliveryOptions.device]: 0. request the version that is this device's, with its tags; a server that rolls
 * nothing out answers 404, and the highest version comes. 1. fetch manifest.json and manifest.sig; 2. verify the
 * signature over the exact bytes, then parse them. With key lists ([TrustedKeys]) instead: newer lists, release.json,
 * and the manifest that it names, unless something has expired; 3. refuse another name than this URL had at first, a
 * version below the high-water mark without a signed rollback to it, and other bytes under the version of the mark; 4.
 * fetch the blobs that are not in the store, each verified before it is stored; 5. store manifest and signature.
 *
 * The result is not yet the last good bundle: call `store.rememberGood(url, name, digest)` after its self-test passed,
 * with its `rollbackFrom`; [openAt] does all of it. [trust]: null takes a bundle whatever key signed it. If the server
 * replaces the bundle during the transfer, the download restarts; verified blobs are kept.
 *
 * @throws UsageError [url] is not an address, or the name of the device cannot be sent.
 * @throws BundleError refused; TransferError: not received; StorageError, RuntimeFailedError (nothing runs here): and
 *   there is no last good bundle.
 */
public fun fetchBundle(
    url: String,
    store: BundleStore,
    trust: Trust?,
    token: String? = null,
    options: DeliveryOptions = DeliveryOptions(),
): Delivered = fetchBundle(url, store, HttpTransport(token, url), trust, options)

internal fun fetchBundle(
    url: String,
    store: BundleStore,
    transport: Transport,
    trust: Trust?,
    options: DeliveryOptions = DeliveryOptions(),
    clock: Clock = System::nanoTime,
    sleep: (seconds: Double) -> Unit = { pauseMs((it * MS_PER_S).toLong()) },
): Delivered {
    val address = base(url)
    val good = store.lastGoodAt(address, options.allowRollback)
    val limits = if (good == null) options.deadlines else options.updateDeadlines
    val schedule = Schedule(limits, options.attempts, clock, sleep, options.stopped)
    val delivery = Delivery(address, store, transport, trust, options, schedule)
    return try {
        delivery.run()
    } catch (error: UsageError) {
        throw error
    } catch (error: PathweaveError) {
        val kept = store.lastGoodAt(address, options.allowRollback) ?: throw error
        LOG.warning("$address: ${error.message}; the last good version, ${kept.version}, stays in use")
        delivery.kept(kept, error)
    }
}

private class Delivery(
    private val url: String,
    private val store: BundleStore,
    private val transport: Transport,
    private val trust: Trust?,
    private val options: DeliveryOptions,
    private val schedule: Schedule,
) {
    private val tally = Tally()
    private val offered = Offered()
    private val files = SmallFiles(transport, schedule)
    private var assigned: Assignment? = null

    /** The address that files are fetched from; [url] stays what the bundle is known by. */
    private val place: String get() = assigned?.let { "$url/$VERSIONS/${it.version}" } ?: url

    /** The steps of [fetchBundle], restarted if the server replaced the bundle in between. */
    fun run(): Delivered {
        assigned = ask()?.also { offered.version = it.version } // 0
        val manifests =
            ManifestFetcher(place, store, files, trust, options.allowRollback, schedule, options.wallClockS)
        repeat(REPLACED_TRIES) { turn ->
            val fetched = manifests.fetch() // 1, 2
            val rollbackFrom = refuse(fetched) // 3
            try {
                fetchBlobs(wanted(fetched)) // 4
                return keep(fetched).copy(rollbackFrom = rollbackFrom) // 5
            } catch (error: RefusedError) {
                if (error.status != NOT_FOUND || turn == REPLACED_TRIES - 1) throw error
                schedule.pause(turn)
            }
        }
        throw TransferError("$url was replaced again and again while it was fetched")
    }

    /** The last good bundle as the result, with the reason. */
    fun kept(good: StoredBundle, error: PathweaveError): Delivered = delivered(good, DeliverySource.KEPT)
        .copy(failure = error.message, refused = offered.refused(error, good), error = error)

    private fun delivered(bundle: StoredBundle, source: DeliverySource) = Delivered(
        folder = bundle.folder,
        blobs = store.blobs,
        name = bundle.name,
        digest = bundle.digest,
        version = bundle.version,
        source = source,
        blobsFetched = tally.blobs,
        bytesFetched = tally.bytes,
        resumed = tally.resumed,
    )

    /** The version that is assigned to this device, if the server assigns any. */
    private fun ask(): Assignment? {
        val headers = askingHeaders(options.device?.invoke() ?: return null, options.tags)
        return files.find("$url/$ASSIGNMENT", ASSIGNMENT_MAX_BYTES, headers)?.let(::decodeAssignment)
    }

    /** Refuse what may not be installed. Returns the version that a signed rollback is from, if one was needed. */
    private fun refuse(fetched: FetchedManifest): Long? {
        val (name, version, digest) = Triple(fetched.manifest.name, fetched.manifest.version, fetched.digest)
        offered.version = version
        offered.digest = digest
        if (version != (assigned?.version ?: version)) throw ProtocolError("$place has version $version of $name")
        val mark = store.highest(name)
        val goesBack = mark != null && version < mark.version && !mark.permits(version, digest)
        if (mark == null || !goesBack || options.allowRollback || assigned?.rollback != true) {
            store.refuse(url, name, version, digest, options.allowRollback)
            return null
        }
        val fetch = { files.find("$place/$ROLLBACK", ROLLBACK_MAX_BYTES.toLong()) }
        val rollback = requireRollback(store, fetch, trust, name, version, digest, mark.version, options.wallClockS())
        store.refuse(url, name, version, digest, allowRollback = true) // its name
        return rollback.fromVersion
    }

    private fun wanted(fetched: FetchedManifest): Manifest {
        val manifest = fetched.manifest.runnablePart(Rendition::runsHere)
        val exits = options.exits(manifest.name, fetched.digest)
        return if (exits == null) manifest else manifest.partWithExits(exits)
    }

    private fun fetchBlobs(wanted: Manifest) {
        val missing = missingBlobs(store, wanted)
        val totalBytes = missing.values.sumOf { it ?: 0L }
        var doneBytes = 0L
        BlobFetcher(place, store, transport, schedule, tally) { count ->
            doneBytes += count
            options.progress(doneBytes, totalBytes)
        }.fetchAll(missing)
    }

    private fun keep(fetched: FetchedManifest): Delivered {
        val name = fetched.manifest.name
        val folder = store.saveBundle(name, fetched.data, fetched.signature, fetched.release)
        val same = store.lastGood(name)?.digest == fetched.digest && tally.blobs == 0
        val bundle = StoredBundle(name, fetched.manifest.version, fetched.digest, folder)
        return delivered(bundle, if (same) DeliverySource.UNCHANGED else DeliverySource.DOWNLOADED)
    }
}

private const val FIRST_PAUSE_S = 0.2
private const val LONGEST_PAUSE_S = 5.0
private const val LONGEST_DOUBLING = 10
private const val MIN_BYTES_PER_S = 1_000.0 // a server below it would hold a device for hours
private const val RATE_WINDOW_S = 15.0
private const val NANOSECONDS_PER_S = 1e9
private const val SERVER_ERROR = 500
private val TRANSIENT = setOf(408, 425, 429) // besides 5xx

/** The server sent less than the minimum rate. Not retried: the bytes received are kept for the next delivery. */
internal class TooSlowError(message: String) :
    DeadlineError(message, hint = "try again: it resumes where it stopped")

/** Limits: [idleS] without a byte, [totalS] from now on [clock], [attempts] consecutive attempts that fail. */
internal class Schedule(
    limits: Deadlines,
    val attempts: Int,
    private val clock: Clock,
    private val sleep: (seconds: Double) -> Unit,
    private val stopped: () -> Boolean,
) {
    private val idleS = limits.idleS
    private val endsAtNs = clock() + (limits.totalS * NANOSECONDS_PER_S).toLong()
    private var windowBeganNs = clock()
    private var windowBytes = 0L

    /**
     * The deadlines of a request that starts now.
     *
     * @throws DeadlineError no time is left. CancellationException: the caller stopped the delivery.
     */
    fun left(): Deadlines {
        if (stopped()) throw CancellationException("the delivery was stopped")
        val leftS = (endsAtNs - clock()) / NANOSECONDS_PER_S
        if (leftS <= 0) {
            throw DeadlineError("the delivery exceeded its deadline", hint = "try again: it resumes where it stopped")
        }
        return Deadlines(idleS, leftS)
    }

    /**
     * Count [count] received bytes.
     *
     * @throws TooSlowError the window that ends now had less than the minimum. DeadlineError: as [left].
     */
    fun received(count: Int) {
        left()
        windowBytes += count
        val passedS = (clock() - windowBeganNs) / NANOSECONDS_PER_S
        if (passedS < RATE_WINDOW_S) return
        val tooSlow = windowBytes < MIN_BYTES_PER_S * passedS
        windowBeganNs = clock()
        windowBytes = 0
        if (tooSlow) {
            val least = MIN_BYTES_PER_S.toLong()
            throw TooSlowError("the server sent less than $least bytes per second for ${passedS.toLong()} s")
        }
    }

    /** Exponential backoff after [failures] consecutive failures, at most until the deadline. */
    fun pause(failures: Int) {
        val pauseS = FIRST_PAUSE_S * (1 shl minOf(failures, LONGEST_DOUBLING))
        sleep(minOf(pauseS, LONGEST_PAUSE_S, left().totalS))
    }

    /** Repeats [call] while it fails with transient errors; the last failure is thrown. */
    fun <T> retry(call: (Deadlines) -> T): T {
        for (failures in 0 until attempts - 1) {
            try {
                return call(left())
            } catch (error: TransferError) {
                if (!transient(error)) throw error
            }
            pause(failures)
        }
        return call(left())
    }
}

/** Whether a retry of the same request may succeed. */
internal fun transient(error: TransferError): Boolean = when (error) {
    is RefusedError -> error.status in TRANSIENT || error.status >= SERVER_ERROR
    is ProtocolError, is TooSlowError -> false
    else -> true
}
