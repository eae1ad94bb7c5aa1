/**
 * Exits on demand: fetches those of a bundle that is here already, and has the server choose which to keep. Mirrors
 * device_sdk/delivery/blobs.py.
 */
package pathweave.sdk.delivery

import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.buildJsonObject
import pathweave.sdk.Clock
import pathweave.sdk.ProtocolError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.partWithExits
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.pauseMs
import pathweave.sdk.transports.Deadlines
import pathweave.sdk.transports.Transport
import pathweave.sdk.transports.base
import pathweave.sdk.transports.readAll
import pathweave.sdk.transports.requireSuccess
import pathweave.sdk.transports.serverAndName

private const val REPLY_MAX_BYTES = 64_000L
private const val EXITS_MAX = 10_000
private const val MS_PER_S = 1_000

/** Of [fetchExits]. */
internal val EXIT_DEADLINES: Deadlines = Deadlines(idleS = 5.0, totalS = 60.0)

/** Of [requestPlacement]. */
public val PLACEMENT_DEADLINES: Deadlines = Deadlines(idleS = 5.0, totalS = 10.0)

/**
 * Fetch what is missing of [exits], each blob verified before it is stored; returns what was transferred.
 *
 * The manifest of [bundle] was verified when it was installed, so the digests of these blobs are trusted. A server that
 * has replaced the bundle may no longer have them: then nothing changes here. Hold `store.installing()` until the new
 * set is stored, or another process may delete the blobs.
 *
 * @throws UsageError the bundle has no such exit.
 * @throws TransferError, BlobError, StorageError: a blob could not be fetched, verified or written.
 */
internal fun fetchExits(
    url: String,
    bundle: Bundle,
    exits: Collection<String>,
    store: BundleStore,
    transport: Transport,
    deadlines: Deadlines = EXIT_DEADLINES,
    progress: (doneBytes: Long, ofBytes: Long) -> Unit = { _, _ -> },
    stopped: () -> Boolean = { false },
    clock: Clock = System::nanoTime,
    sleep: (seconds: Double) -> Unit = { pauseMs((it * MS_PER_S).toLong()) },
): Tally {
    val missing = missingBlobs(store, bundle.offered.partWithExits(exits))
    val tally = Tally()
    if (missing.isEmpty()) return tally
    val schedule = Schedule(deadlines, ATTEMPTS, clock, sleep, stopped)
    val totalBytes = missing.values.sumOf { it ?: 0L }
    var doneBytes = 0L
    BlobFetcher(base(url), store, transport, schedule, tally) { count ->
        doneBytes += count
        progress(doneBytes, totalBytes)
    }.fetchAll(missing)
    return tally
}

/** The exits that the server chose, by position, and the accuracy it expects of an inference that is interrupted. */
public data class RequestedExits(val exits: List<String>, val expectation: Double)

/**
 * Have the server of [url] choose the exits of [bundle] worth keeping in [memoryBytes] (null: no limit).
 *
 * Costs are MACs. The choice must be for this very bundle, of its exits, and at most one at a cut point; whether it fits
 * the memory is for the caller to check.
 *
 * @throws UsageError [url] is not the address of a bundle at a server.
 * @throws TransferError no answer. [ProtocolError] one that does not hold.
 */
internal fun requestPlacement(
    url: String,
    bundle: Bundle,
    transport: Transport,
    memoryBytes: Long?,
    deadlines: Deadlines = PLACEMENT_DEADLINES,
): RequestedExits {
    val (server, name) = serverAndName(url)
    val body = buildJsonObject {
        put("bundle", JsonPrimitive(name))
        put("memory_bytes", JsonPrimitive(memoryBytes))
    }.toString().toByteArray()
    val placements = "$server/v1/placements"
    val headers = mapOf("Content-Type" to "application/json")
    val data = transport.send("POST", placements, headers, body, deadlines, REPLY_MAX_BYTES) { reply ->
        requireSuccess(reply, placements)
        readAll(reply)
    }
    return try {
        checked(decodeJson(data), bundle)
    } catch (error: JsonError) {
        throw ProtocolError("$placements: the placement cannot be used: ${error.message}", cause = error)
    }
}

private fun checked(reply: JsonPlace, bundle: Bundle): RequestedExits {
    val digest = reply["digest"].text()
    val exits = reply["exits"].items()
    val expectation = reply["expectation"].number()
    if (exits.size > EXITS_MAX) throw JsonError("it has more than $EXITS_MAX exits")
    if (expectation !in 0.0..1.0) throw JsonError("its expectation is no share")
    if (digest != bundle.digest) {
        throw JsonError("it is for bundle ${digest.take(12)}…, and ${bundle.digest.take(12)}… is open here")
    }
    val offered = bundle.offered.exits.associateBy { it.id }
    val chosen = exits.map { it.text() }.distinct().map { name ->
        offered[name] ?: throw JsonError("the bundle has no exit ${name.take(80)}")
    }
    if (chosen.distinctBy { it.position }.size < chosen.size) throw JsonError("it has several exits at one cut point")
    return RequestedExits(chosen.map { it.id }, expectation)
}
