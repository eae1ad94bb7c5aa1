/**
 * A device's round against a server, as JSON: opens the bundle at URL, adapts, sends its log.
 *
 * ```
 * java -cp … pathweave.sdk.commands.DeviceCliKt URL STATE KEY IMAGES LABELS LATENCY_MS [ASKS]
 * ```
 *
 * KEY: a public key or key list; IMAGES: 8-bit pixels of the model's own size, [count, h, w, c]; LABELS: a byte each.
 * `PATHWEAVE_TOKEN` holds the server's token, if it needs one, `PATHWEAVE_TAGS` the device's tags
 * (`board=pixel,region=eu`). With ASKS the bundle is fetched without exits, which follow on demand, and the server
 * answers hard samples and the rest of a split path; then the images are asked about again and again, until so many
 * answers came from the server and after them as many from the device in its place (at most a minute): a second line
 * says which came from where.
 */
package pathweave.sdk.commands

import java.io.File
import kotlin.system.exitProcess
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.PathweaveError
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.loadTrust
import pathweave.sdk.data.Image
import pathweave.sdk.data.prepare
import pathweave.sdk.delivery.DeliveryOptions
import pathweave.sdk.delivery.uploadLog
import pathweave.sdk.files.json
import pathweave.sdk.files.jsonOf
import pathweave.sdk.files.parsed
import pathweave.sdk.numerics.DType
import pathweave.sdk.offload.Privacy
import pathweave.sdk.offload.RemoteModel
import pathweave.sdk.offload.TAIL
import pathweave.sdk.session.FALLBACK
import pathweave.sdk.session.SERVER
import pathweave.sdk.session.SUBNET
import pathweave.sdk.session.deviceId
import pathweave.sdk.session.logPath
import pathweave.sdk.session.openAt
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Split
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.encodePlan
import pathweave.sdk.transports.serverAndName

private const val ARGUMENTS = 6
private const val COMPARED = 20 // images whose answers are printed
private const val PATIENCE_NS = 60_000_000_000L
private const val TIMEOUT_S = 2.0
private const val BITS = 8

/** Prints one JSON object a line; exits 1 (failed, one line why). */
public fun main(arguments: Array<String>) {
    try {
        if (arguments.size !in ARGUMENTS..ARGUMENTS + 1) {
            throw UsageError("needs URL STATE KEY IMAGES LABELS LATENCY_MS [ASKS]")
        }
        val asks = arguments.getOrNull(ARGUMENTS)?.let { it.toIntOrNull() ?: throw UsageError("ASKS is no number") }
        Round(arguments.toList(), System.getenv("PATHWEAVE_TOKEN"), tagsIn(System.getenv("PATHWEAVE_TAGS"))).run(asks)
    } catch (error: PathweaveError) {
        System.err.println(error.message)
        exitProcess(1)
    }
}

/** The tags in `NAME=VALUE,…`; null: those of before. */
private fun tagsIn(text: String?): Map<String, String>? =
    text?.split(',')?.associate { it.substringBefore('=') to it.substringAfter('=', "") }

private class Round(
    private val arguments: List<String>,
    private val token: String?,
    private val tags: Map<String, String>?,
) {
    private val url = arguments[0]
    private val stateFolder = File(arguments[1])
    private val goal =
        Goal(latencyMs = arguments[ARGUMENTS - 1].toDoubleOrNull() ?: throw UsageError("LATENCY_MS is no number"))

    fun run(asks: Int?) {
        val options = DeliveryOptions(exits = { _, _ -> if (asks == null) null else emptyList() }, tags = tags)
        val opened = openAt(url, stateFolder, loadTrust(File(arguments[2])), token, options = options)
        AdaptiveModel.open(opened, stateFolder = stateFolder).use { model ->
            val shape = model.bundle.supernet.cutPoints[0].tensors[0].shape
            val images = imagesOf(File(arguments[3]).readBytes(), shape)
            val samples = model.inputs(prepare(images, model.bundle.manifest.preprocessing.ofImages(), shape))
            val labels = labelsOf(File(arguments[4]).readBytes())
            val found = model.adaptBlocking(samples, goal, labels = labels)
            val asking = asks?.let { Asking(model, serverAndName(url), token, images) }
            val answered = asking?.run { firstAnswers() + planned(labels, goal) }.orEmpty()
            val version = "version" to JsonPrimitive(opened.delivered.version)
            println(jsonOf(version, *answered.toTypedArray(), *sent(model, found.plan.subnet).toTypedArray()))
            if (asking != null) println(asking.untilUnanswered(asks))
        }
    }

    /** Send the log; what the server has of it. */
    private fun sent(model: AdaptiveModel, subnet: Subnet): List<Pair<String, JsonElement>> {
        val (device, log) = deviceId(stateFolder) to logPath(stateFolder, model.bundle)
        val stored = uploadLog(log, serverAndName(url).first, device, token)
        return listOf(
            "device" to JsonPrimitive(device),
            "log" to JsonPrimitive(log.path),
            "subnet" to JsonPrimitive(subnet.toString()),
            "accepted" to JsonPrimitive(stored.accepted),
            "duplicates" to JsonPrimitive(stored.duplicates),
        )
    }
}

/** Hard samples and the rest of a split path are answered by the server of the bundle. */
private class Asking(
    private val model: AdaptiveModel,
    place: Pair<String, String>,
    token: String?,
    private val images: List<Image>,
) {
    private val name = place.second
    private val plans: List<Plan>

    init {
        model.exits.holdBlocking(model.exits.offered)
        for (kind in listOf(":images", TAIL)) {
            model.remote.connect(RemoteModel(place.first, name + kind, token, Privacy.INPUTS, TIMEOUT_S))
        }
        plans = listOf(asking(), split(), askingEarly())
    }

    /** The full model, which asks about the half of the images that it is least sure of. */
    private fun asking(): Plan {
        model.use(Plan(model.bundle.supernet.original))
        val sure = images.map { model(it).confidence[0] }.sorted()
        val decider = Decider.MaxConfidence(sure[sure.size / 2])
        return model.plan.copy(hard = Hard.Ask(decider, RemoteRef("$name:images", model.bundle.digest)))
    }

    /** The full model, split at the last cut point whose tensors can travel. */
    private fun split(): Plan {
        val supernet = model.bundle.supernet
        val inner = supernet.walk(supernet.original).dropLast(1).map { (_, block) -> supernet.cutPoints[block.end] }
        val cut = inner.last { point -> point.tensors.all { it.dtype == DType.FLOAT32 } }
        val tail = supernet.originalsFrom(cut.index)
        val server = RemoteRef(name + TAIL, model.bundle.digest)
        return Plan(supernet.original, split = Split(cut.index, List(cut.tensors.size) { BITS }, tail, server))
    }

    /** The full model, whose first exit answers the surest third of the images and asks about the least sure. */
    private fun askingEarly(): Plan {
        val supernet = model.bundle.supernet
        val exit = supernet.exitsAlong(supernet.original).first().let { ExitChoice(it.id, 0.0, it.renditions[0].name) }
        model.use(Plan(supernet.original, listOf(exit)))
        val sure = images.map { model(it).confidence[0] }.sorted()
        fun between(at: Int) = (sure[at - 1] + sure[at]) / 2
        val choice = exit.copy(threshold = between(2 * sure.size / 3), askBelow = between(sure.size / 3))
        val ask = Hard.Ask(Decider.MaxConfidence(0.0), RemoteRef("$name:images", model.bundle.digest))
        return Plan(supernet.original, listOf(choice), hard = ask)
    }

    fun firstAnswers(): List<Pair<String, JsonElement>> = listOf("asked", "split", "early").zip(plans) { kind, plan ->
        model.use(plan)
        val answers = images.take(COMPARED).map { model(it) }
        kind to jsonOf(
            "plan" to parsed(encodePlan(plan)),
            "source" to JsonArray(answers.map { JsonPrimitive(it.source[0]) }),
            "labels" to JsonArray(answers.map { JsonPrimitive(it.labels[0]) }),
        )
    }

    /** The best plan for [goal] with the server. */
    fun planned(labels: IntArray, goal: Goal): Pair<String, JsonElement> {
        val found = model.adaptBlocking(model.inputs(images), goal, labels = labels)
        return "planned" to jsonOf("plan" to parsed(encodePlan(model.plan)), "accuracy" to json(found.expected.accuracy))
    }

    /** Ask until [wanted] answers came from the server, and after them as many in its place. */
    fun untilUnanswered(wanted: Int): JsonObject {
        val counts = sortedMapOf(SUBNET to 0, SERVER to 0, FALLBACK to 0)
        var unanswered = 0
        val untilNs = System.nanoTime() + PATIENCE_NS
        for (round in generateSequence(0) { it + 1 }) {
            if (counts.getValue(FALLBACK) >= wanted || System.nanoTime() > untilNs) break
            model.use(plans[round % plans.size])
            for (image in images) {
                try {
                    val source = model(image).source[0]
                    counts[source] = counts.getOrDefault(source, 0) + 1
                } catch (error: PathweaveError) {
                    System.err.println(error.message)
                    unanswered++
                }
            }
            if (counts.getValue(SERVER) >= wanted && round > 0) System.err.println("the server answers")
        }
        return jsonOf(
            "sources" to JsonObject(counts.mapValues { JsonPrimitive(it.value) }),
            "unanswered" to JsonPrimitive(unanswered),
        )
    }
}

/** Images of [shape], channels first, from 8-bit pixels [count, h, w, c]. */
internal fun imagesOf(pixels: ByteArray, shape: List<Int>): List<Image> {
    val (channels, height, width) = shape
    val bytes = channels * height * width
    return List(pixels.size / bytes) {
        Image(pixels.copyOfRange(it * bytes, (it + 1) * bytes), SampleSize(height, width), channels)
    }
}

/** A class index per byte. */
internal fun labelsOf(bytes: ByteArray): IntArray = bytes.map { it.toInt() and 0xff }.toIntArray()
