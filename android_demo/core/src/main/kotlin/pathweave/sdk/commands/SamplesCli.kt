/**
 * What a bundle answers here to images, texts, sounds or values, as JSON: so that it can be compared with Python's answers.
 *
 * ```
 * java -cp … pathweave.sdk.commands.SamplesCliKt BUNDLE SAMPLES STATE LATENCY_RATIO [SERVER MODEL]
 * ```
 *
 * SAMPLES: a JSON object with `texts`, `sounds` (lists of numbers), `values` (lists of numbers, channels first) or `images`
 * (lists of 8-bit pixels, of the model's own size), and, of classifiers, perhaps `labels`. Answers come from the full
 * model at every input size, then from the plan that adapting finds within LATENCY_RATIO of its latency. With SERVER and
 * MODEL, all samples are asked about there as well.
 */
package pathweave.sdk.commands

import java.io.File
import kotlin.system.exitProcess
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.float
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.PathweaveError
import pathweave.sdk.UsageError
import pathweave.sdk.data.Image
import pathweave.sdk.data.Inputs
import pathweave.sdk.files.jsonOf
import pathweave.sdk.files.parsed
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.offload.Privacy
import pathweave.sdk.offload.RemoteModel
import pathweave.sdk.session.Answer
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.RemoteRef

private const val ARGUMENTS = 4
private const val TIMEOUT_S = 20.0

/** Prints one JSON object; exits 1 (failed, one line why). */
public fun main(arguments: Array<String>) {
    try {
        if (arguments.size != ARGUMENTS && arguments.size != ARGUMENTS + 2) {
            throw UsageError("needs BUNDLE SAMPLES STATE LATENCY_RATIO [SERVER MODEL]")
        }
        val given = parsed(File(arguments[1]).readBytes()).jsonObject
        AdaptiveModel.open(File(arguments[0]), stateFolder = File(arguments[2])).use { model ->
            println(answers(model, given, arguments[ARGUMENTS - 1].toDouble(), arguments.drop(ARGUMENTS)))
        }
    } catch (error: PathweaveError) {
        System.err.println(error.message)
        exitProcess(1)
    }
}

private fun answers(model: AdaptiveModel, given: JsonObject, ratio: Double, server: List<String>): JsonObject {
    val supernet = model.bundle.supernet
    val bySize = supernet.sizes.map { size ->
        model.use(Plan(if (size == null) supernet.original else supernet.anySizeOriginal.at(size)))
        (size?.toString() ?: "") to logits(answered(model, given))
    }
    val labels = given["labels"]?.jsonArray?.map { it.jsonPrimitive.int }?.toIntArray()
    val found = model.adaptBlocking(inputs(model, given), Goal(latencyRatio = ratio), labels = labels)
    val adapted = answered(model, given)
    val asked = server.chunked(2).map { (url, name) -> "asked" to asked(model, given, url, name) }
    return jsonOf(
        "by_size" to JsonObject(bySize.toMap()),
        "plan" to JsonPrimitive(found.plan.subnet.toString()),
        "expected" to JsonPrimitive(found.expected.accuracy),
        "adapted" to logits(adapted),
        *asked.toTypedArray(),
    )
}

/** Every sample is hard: the server's answers. */
private fun asked(model: AdaptiveModel, given: JsonObject, url: String, name: String): JsonElement {
    model.remote.connect(RemoteModel(url, name, privacy = Privacy.INPUTS, timeoutS = TIMEOUT_S))
    val never = Decider.MaxConfidence(Math.nextUp(1.0))
    model.use(Plan(model.plan.subnet, hard = Hard.Ask(never, RemoteRef(name))))
    val answer = answered(model, given)
    return jsonOf("source" to JsonArray(answer.source.map(::JsonPrimitive)), "logits" to logits(answer))
}

private fun answered(model: AdaptiveModel, given: JsonObject): Answer = when {
    "texts" in given -> model.answerTexts(texts(given))
    "sounds" in given -> model.answerSounds(rows(given, "sounds"))
    "images" in given -> model(*images(model, given).toTypedArray())
    else -> model.answerValues(values(model, given))
}

private fun inputs(model: AdaptiveModel, given: JsonObject): Inputs = when {
    "texts" in given -> model.textInputs(texts(given))
    "sounds" in given -> model.soundInputs(rows(given, "sounds"))
    "images" in given -> model.inputs(images(model, given))
    else -> model.valueInputs(values(model, given))
}

private fun texts(given: JsonObject) = given.getValue("texts").jsonArray.map { it.jsonPrimitive.content }

private fun rows(given: JsonObject, name: String) = given.getValue(name).jsonArray.map { row ->
    row.jsonArray.map { it.jsonPrimitive.float }.toFloatArray()
}

private fun images(model: AdaptiveModel, given: JsonObject): List<Image> {
    val pixels = rows(given, "images").flatMap { row -> row.map { it.toInt().toByte() } }.toByteArray()
    return imagesOf(pixels, model.bundle.supernet.cutPoints[0].tensors[0].shape)
}

private fun values(model: AdaptiveModel, given: JsonObject): Tensor {
    val all = rows(given, "values")
    val shape = model.bundle.supernet.cutPoints[0].tensors[0].shape
    return Tensor.of(all.flatMap { it.toList() }.toFloatArray(), listOf(all.size) + shape)
}

/** Of each sample all values, flattened. */
private fun logits(answer: Answer): JsonArray {
    val (count, size) = answer.output.batch to answer.output.size / answer.output.batch
    return JsonArray(List(count) { row -> JsonArray(List(size) { JsonPrimitive(answer.output[row * size + it]) }) })
}
