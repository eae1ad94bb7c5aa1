/**
 * A device's round against a server, as JSON: opens the bundle at URL, adapts, sends its log.
 *
 * ```
 * java -cp … pathweave.sdk.DeviceCliKt URL STATE KEY IMAGES LABELS LATENCY_MS
 * ```
 *
 * KEY: a public key or key list; IMAGES and LABELS as for BenchCli. `PATHWEAVE_TOKEN` holds the server's token, if it
 * needs one.
 */
package pathweave.sdk

import java.io.File
import kotlin.system.exitProcess
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive

private const val ARGUMENTS = 6

/** Prints one JSON object; exits 1 (failed, one line why). */
public fun main(arguments: Array<String>) {
    try {
        if (arguments.size != ARGUMENTS) throw UsageError("needs URL STATE KEY IMAGES LABELS LATENCY_MS")
        println(round(arguments.toList(), System.getenv("PATHWEAVE_TOKEN")))
    } catch (error: PathweaveError) {
        System.err.println(error.message)
        exitProcess(1)
    }
}

private fun round(arguments: List<String>, token: String?): JsonObject {
    val (url, state, key, images, labels) = arguments
    val budget = Budget(latencyMs = arguments.last().toDoubleOrNull() ?: throw UsageError("LATENCY_MS is no number"))
    val stateFolder = File(state)
    val opened = openAt(url, stateFolder, loadTrust(File(key)), token)
    return AdaptiveModel.open(opened, stateFolder = stateFolder).use { model ->
        val shape = model.bundle.supernet.cutPoints[0].tensors[0].shape
        val pixels = imagesOf(File(images).readBytes(), shape)
        val samples = model.inputs(prepare(pixels, model.bundle.manifest.preprocessing, shape))
        val found = model.adaptBlocking(samples, labelsOf(File(labels).readBytes()), budget)
        val (server, _) = serverAndName(url)
        val (device, log) = deviceId(stateFolder) to logPath(stateFolder, model.bundle)
        val stored = uploadLog(log, server, device, token)
        jsonOf(
            "device" to JsonPrimitive(device),
            "log" to JsonPrimitive(log.path),
            "subnet" to JsonPrimitive(found.subnet.toString()),
            "accepted" to JsonPrimitive(stored.accepted),
            "duplicates" to JsonPrimitive(stored.duplicates),
        )
    }
}
