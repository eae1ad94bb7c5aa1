/**
 * Which exits a device holds: fetched on demand, tested, and exchanged under running calls.
 */
package pathweave.sdk.session

import java.io.Closeable
import kotlin.math.roundToLong
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.BlobError
import pathweave.sdk.StorageError
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.verify
import pathweave.sdk.delivery.BundleStore
import pathweave.sdk.delivery.fetchExits
import pathweave.sdk.execution.Active
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.execution.testExits
import pathweave.sdk.files.ifPossible
import pathweave.sdk.logs.event
import pathweave.sdk.policies.placement.candidatesByMacs
import pathweave.sdk.policies.placement.placeExactly
import pathweave.sdk.supernet.MB
import pathweave.sdk.transports.HttpTransport

/**
 * The exits that are held now, by position.
 *
 * [expectation]: expected accuracy of an inference that is interrupted at a random moment before its end;
 * [memoryBytes]: of the branches' float32 parameters.
 */
public data class PlacedExits(val exits: List<String>, val expectation: Double, val memoryBytes: Long)

/**
 * The server that a bundle came from, once the bundle is open: gives `use` [bundle] with exits, whose missing blobs were
 * fetched, and the bytes that came, as [fetchExits].
 */
internal interface Origin {
    fun <T> fetched(bundle: Bundle, exits: Collection<String>, use: (Bundle, Long) -> T): T
}

/** [url]: of the bundle; [store]: where what it sends is kept. */
internal class ServerOrigin(
    private val url: String,
    private val store: BundleStore,
    private val token: String?,
) : Origin {
    override fun <T> fetched(bundle: Bundle, exits: Collection<String>, use: (Bundle, Long) -> T): T =
        ifPossible(store::installing).use { _: Closeable -> // until the new set is stored, no process deletes what was fetched
            val tally = fetchExits(url, bundle, exits, store, HttpTransport(token, url))
            use(bundle.withExits(exits), tally.bytes)
        }
}

/** The set of exits of an open model. [origin]: null for a bundle that has all blobs. */
public class Exits internal constructor(
    private val inUse: PlanInUse,
    private val state: DeviceState?,
    private val origin: Origin?,
    private val live: Live,
    private val change: Any,
) {
    /** The exits that are held here. */
    public val held: List<String> get() = inUse.workspace.bundle.exits

    /** All that there are. */
    public val offered: List<String> get() = inUse.workspace.bundle.offered.exits.map { it.id }

    /**
     * Hold exactly the exits of these [names] from now on, also when the bundle is opened again.
     *
     * Blobs that are missing are fetched from the server that the bundle came from; new exits run their self-test.
     * Calls in progress end with the plan that they began with; then plans are without the exits that went. New ones
     * answer once a plan has them. The network is no longer followed. If a step fails, the old set stays.
     *
     * @throws UsageError the bundle has no such exit.
     * @throws TransferError, BlobError, StorageError, SelfTestError: a new exit cannot be had, or does not work here.
     */
    public fun holdBlocking(names: Collection<String>): Unit = synchronized(change) { exchange(names, "caller") }

    /**
     * Hold the exits worth their memory (MEEdge §3.3), computed here.
     *
     * [memoryMb]: for all branches, in megabytes; null for no limit. Without a server only exits whose blobs are here count.
     *
     * @throws UsageError a negative memory.
     * @throws TransferError, BlobError, StorageError, SelfTestError: as [holdBlocking].
     */
    public fun placeBlocking(memoryMb: Double? = null): PlacedExits = synchronized(change) {
        inUse.running()
        if (memoryMb != null && !(memoryMb >= 0)) {
            throw UsageError("the memory for exits is $memoryMb MB; it cannot be negative")
        }
        val bundle = inUse.workspace.bundle
        val supernet = if (origin == null) withBlobsHere(bundle).supernet else bundle.offered.supernet()
        val (candidates, fullMacs) = candidatesByMacs(supernet)
        val placed = placeExactly(candidates, fullMacs, memoryMb?.let { (it * MB).roundToLong() })
        exchange(placed.exits, "device")
        PlacedExits(placed.exits, placed.expectation, placed.memoryBytes)
    }

    private fun exchange(exits: Collection<String>, chosenBy: String) {
        inUse.running()
        live.closeNetwork() // it would take plans with exits that go
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
        live.latency.keepExits(new.exits.toSet())
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

private fun exitsExchanged(old: List<String>, new: List<String>, fetchedBytes: Long, chosenBy: String) = event(
    "exits_exchanged",
    "exits" to texts(new),
    "added" to texts(new - old.toSet()),
    "dropped" to texts(old - new.toSet()),
    "bytes_fetched" to JsonPrimitive(fetchedBytes),
    "chosen_by" to JsonPrimitive(chosenBy),
)

private fun texts(values: List<String>) = JsonArray(values.map(::JsonPrimitive))
