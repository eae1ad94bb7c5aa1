/**
 * Which exits a device holds: fetched on demand, tested, and exchanged under running calls. Mirrors
 * device_sdk/session/exit_sets.py.
 */
package pathweave.sdk.session

import java.io.Closeable
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.BlobError
import pathweave.sdk.LOG
import pathweave.sdk.PathweaveError
import pathweave.sdk.ProtocolError
import pathweave.sdk.StorageError
import pathweave.sdk.TransferError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.verify
import pathweave.sdk.delivery.BundleStore
import pathweave.sdk.delivery.RequestedExits
import pathweave.sdk.delivery.fetchExits
import pathweave.sdk.delivery.requestPlacement
import pathweave.sdk.execution.Active
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.execution.testExits
import pathweave.sdk.files.ifPossible
import pathweave.sdk.logs.event
import pathweave.sdk.policies.placement.candidatesByMacs
import pathweave.sdk.policies.placement.placeExactly
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.transports.HttpTransport

/** Who chose the exits that are held. */
public enum class ExitsChosenBy(internal val text: String) {
    SERVER("server"),
    DEVICE("device"),
    CALLER("caller"),
}

/**
 * The exits that are held now, by position, and who chose them.
 *
 * [expectation]: expected accuracy of an inference that is interrupted at a random moment before its end;
 * [memoryBytes]: of the branches' float32 parameters. [failure]: why the server did not choose.
 */
public data class PlacedExits(
    val exits: List<String>,
    val expectation: Double,
    val memoryBytes: Long,
    val chosenBy: ExitsChosenBy,
    val failure: String? = null,
)

/** The server that a bundle came from, and what it is used for once the bundle is open. */
internal interface Origin {
    /** Gives [use] [bundle] with [exits], whose missing blobs were fetched, and the bytes that came: [fetchExits]. */
    fun <T> fetched(bundle: Bundle, exits: Collection<String>, use: (Bundle, Long) -> T): T

    /** The exits that the server chooses; see [requestPlacement]. */
    fun chosen(bundle: Bundle, memoryBytes: Long?): RequestedExits
}

/** [url]: of the bundle; [store]: where what it sends is kept. */
internal class ServerOrigin(
    private val url: String,
    private val store: BundleStore,
    private val token: String?,
) : Origin {
    override fun <T> fetched(bundle: Bundle, exits: Collection<String>, use: (Bundle, Long) -> T): T =
        ifPossible(store::installing).use { _: Closeable -> // until the new set is stored, no process deletes what was fetched
            val tally = fetchExits(url, bundle, exits, store, HttpTransport(token))
            use(bundle.withExits(exits), tally.bytes)
        }

    override fun chosen(bundle: Bundle, memoryBytes: Long?): RequestedExits =
        requestPlacement(url, bundle, HttpTransport(token), memoryBytes)
}

/** Exchanges the set of exits. If a step fails, the old set stays. [origin]: null for a bundle that has all blobs. */
internal class ExitSets(
    private val inUse: PlanInUse,
    private val state: DeviceState?,
    private val origin: Origin?,
    private val exchanged: (held: Set<String>) -> Unit,
) {
    /**
     * Hold exactly these exits from now on: fetch, verify and test the new ones; plans lose the others.
     *
     * @throws UsageError the bundle has no such exit.
     * @throws TransferError, BlobError, StorageError, SelfTestError: a new exit cannot be had, or does not work here.
     */
    fun exchange(exits: Collection<String>, chosenBy: ExitsChosenBy) {
        val old = inUse.workspace.bundle
        val (new, fetchedBytes) = withExits(old, exits) { new, fetchedBytes ->
            val added = new.exits - old.exits.toSet()
            new.verify(added)
            val untested = state?.untestedExits(new) ?: added
            if (untested.isNotEmpty()) testExits(new, inUse.workspace.runtime, untested)
            moveTo(new)
            new to fetchedBytes
        }
        state?.log?.write(exitsExchanged(old.exits, new.exits, fetchedBytes, chosenBy))
    }

    /**
     * Hold the exits that the server chooses for so much memory; without a usable answer the device chooses.
     *
     * The device alone chooses among exits whose blobs are here, since others could not be fetched.
     *
     * @throws UsageError a negative memory. [SelfTestError] a new exit does not work here; the old set stays.
     */
    fun place(memoryBytes: Long?): PlacedExits {
        val bundle = inUse.workspace.bundle
        var failure: String? = null
        if (origin != null) {
            try {
                return byServer(origin, bundle, memoryBytes).also { exchange(it.exits, ExitsChosenBy.SERVER) }
            } catch (error: PathweaveError) {
                if (error !is TransferError && error !is BlobError) throw error
                failure = error.message
                LOG.warning("the device chooses its exits itself: ${error.message}")
            }
        }
        val placed = byDevice(withBlobsHere(bundle).supernet, memoryBytes, failure)
        exchange(placed.exits, ExitsChosenBy.DEVICE)
        return placed
    }

    private fun byServer(origin: Origin, bundle: Bundle, memoryBytes: Long?): PlacedExits {
        val requested = origin.chosen(bundle, memoryBytes)
        val (candidates, _) = candidatesByMacs(bundle.offered.supernet())
        val needed = candidates.filter { it.exit in requested.exits }.sumOf { it.memoryBytes }
        if (memoryBytes != null && needed > memoryBytes) {
            throw ProtocolError("the server chose exits of $needed bytes, and $memoryBytes are allowed")
        }
        return PlacedExits(requested.exits, requested.expectation, needed, ExitsChosenBy.SERVER)
    }

    private fun <T> withExits(old: Bundle, exits: Collection<String>, use: (Bundle, Long) -> T): T =
        if (origin == null) use(old.withExits(exits), 0L) else origin.fetched(old, exits, use)

    /** Load the plan in use without what is no longer held, store what is held, exchange both. */
    private fun moveTo(new: Bundle) {
        val plan = inUse.running().plan.withExitsOf(new.exits)
        val workspace = inUse.workspace.copy(bundle = new)
        inUse.lendWorkspace()
        val loaded = inUse.load(plan, workspace)
        try {
            state?.savePlan(plan) // before the set: a plan whose exits are gone would not open again
            state?.holdExits(new)
        } catch (error: StorageError) {
            loaded.close()
            throw error
        }
        inUse.exchange(Active(plan, loaded), workspace = workspace)
        exchanged(new.exits.toSet())
    }
}

/** The bundle with all exits that were fetched before, whether held now or not. */
private fun withBlobsHere(bundle: Bundle): Bundle {
    val here = bundle.offered.exits.map { it.id }.filter { exit ->
        try {
            bundle.withExits(listOf(exit))
            true
        } catch (_: BlobError) {
            false
        }
    }
    return bundle.withExits(here)
}

private fun byDevice(supernet: Supernet, memoryBytes: Long?, failure: String?): PlacedExits {
    val (candidates, fullMacs) = candidatesByMacs(supernet)
    val placed = placeExactly(candidates, fullMacs, memoryBytes)
    return PlacedExits(placed.exits, placed.expectation, placed.memoryBytes, ExitsChosenBy.DEVICE, failure)
}

private fun exitsExchanged(old: List<String>, new: List<String>, fetchedBytes: Long, chosenBy: ExitsChosenBy) = event(
    "exits_exchanged",
    "exits" to texts(new),
    "added" to texts(new - old.toSet()),
    "dropped" to texts(old - new.toSet()),
    "bytes_fetched" to JsonPrimitive(fetchedBytes),
    "chosen_by" to JsonPrimitive(chosenBy.text),
)

private fun texts(values: List<String>) = JsonArray(values.map(::JsonPrimitive))
