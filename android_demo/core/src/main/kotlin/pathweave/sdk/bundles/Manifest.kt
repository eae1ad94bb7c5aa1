/**
 * manifest.json: its types, and reading it from untrusted bytes.
 *
 * Unknown fields are ignored, missing ones refused. Fields for people only (provenance, metrics' details) are checked
 * like the others, but not kept.
 */
package pathweave.sdk.bundles

import pathweave.sdk.ManifestError
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.UnsupportedFormatError
import pathweave.sdk.UsageError
import pathweave.sdk.data.AnyPreprocessing
import pathweave.sdk.data.Interpolation
import pathweave.sdk.data.Preprocessing
import pathweave.sdk.data.kinds.SoundPreprocessing
import pathweave.sdk.data.kinds.TensorPreprocessing
import pathweave.sdk.data.kinds.TextPreprocessing
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.decodeJson
import pathweave.sdk.numerics.DType
import pathweave.sdk.supernet.Block
import pathweave.sdk.supernet.BlockKind
import pathweave.sdk.supernet.CutPoint
import pathweave.sdk.supernet.Exit
import pathweave.sdk.supernet.Golden
import pathweave.sdk.supernet.InputSize
import pathweave.sdk.supernet.Member
import pathweave.sdk.supernet.Rendition
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.TensorSpec
import pathweave.sdk.supernet.extents
import pathweave.sdk.supernet.sides

/** Its major version is the one that is understood. */
public const val FORMAT_VERSION: String = "1.9"

private const val SHARED_SIZED_SINCE = 3 // minor version from which every shared blob has a size
private const val BLOB_MAX_BYTES_STATED = 1L shl 31

private const val GOLDEN_MAX_BATCH = 1024L
private val MINOR = Regex("[0-9]{1,9}")
private val BLOB_NAME = Regex("[0-9a-f]{64}")
private const val CLASSIFICATION = "classification"
internal val IDENTIFIER = Regex("[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")

private val TASK_OUTPUTS = mapOf(
    CLASSIFICATION to "logits",
    "segmentation" to "logits",
    "detection" to "cells",
    "multilabel" to "logits",
    "regression" to "values",
    "embedding" to "vector",
    "token_classification" to "logits",
)
private val OUTPUT_AXES = mapOf("segmentation" to 3, "detection" to 3, "token_classification" to 2) // of others 1
private const val BOX_SIDES = 4

/**
 * What the model does and what its output means.
 *
 * classification, `logits`: [batch, classes]. segmentation, `logits`: [batch, classes, height, width]. detection, `cells`:
 * [batch, classes + 4, rows, columns]: logits of each class, then logarithms of the distances from the cell's centre to the
 * left, top, right and bottom side of its box, in shares of the image. multilabel, `logits`: [batch, classes], of labels
 * that are there above 0. regression, `values`: [batch, classes], of which [classNames] are the names. embedding,
 * `vector`: [batch, values], without classes. token_classification, `logits`: [batch, classes, tokens], all equal at a token
 * that a text does not have.
 */
public data class Task(val kind: String, val classNames: List<String>, val output: String = "logits") {
    /** Whether one class is right for each sample, so that exits, deciders and adapting apply here. */
    public val classifies: Boolean get() = kind == CLASSIFICATION
}

/** What all ONNX fragments of the bundle share. */
public data class Onnx(val irVersion: Long, val opset: Long)

/** How golden inputs are made, and what the original path answers to the one of cut point 0. */
public data class SelfTest(val seed: Long, val batch: Int, val original: Golden)

/** What callers call the tensors of the first and of the last cut point. */
public data class PublicNames(
    val inputs: List<String> = listOf("input"),
    val outputs: List<String> = listOf("logits"),
)

/** The full model's [accuracy] on the packager's samples, and the temperature by which its logits are right there. */
public data class Certainty(val temperature: Double, val accuracy: Double)

/** Everything that a device needs to know about a bundle but the blobs themselves. */
public data class Manifest(
    val formatVersion: String,
    val name: String,
    val version: Long,
    val task: Task,
    val preprocessing: AnyPreprocessing,
    val cutPoints: List<CutPoint>,
    val blocks: List<Block>,
    val exits: List<Exit>,
    /** Besides the model's own. */
    val inputSizes: List<InputSize>,
    val onnx: Onnx,
    val selfTest: SelfTest,
    val publicNames: PublicNames,
    /** Bytes of every shared blob; not in manifests before 1.3. */
    val sharedSizes: Map<String, Long> = emptyMap(),
    /** Of the base of a hybrid (1.4): its plan as JSON text, for [decodePlan]. */
    val hybridPlan: String? = null,
    /** Of a family, the largest first; none for one network. Since 1.6. */
    val members: List<Member> = emptyList(),
    /** What is known of the full model's certainty, where the packager fitted a temperature. */
    val certainty: Certainty? = null,
) {
    /** The graph of this bundle. */
    public fun supernet(): Supernet = Supernet(cutPoints, blocks, exits, inputSizes, members)

    /** Every blob that the manifest names, with its size where it is stated. */
    public fun blobs(): Map<String, Long?> {
        val sizes = LinkedHashMap<String, Long?>()
        for (rendition in blocks.flatMap { it.renditions } + exits.flatMap { it.renditions }) {
            for (shared in rendition.shared) sizes[shared] = sharedSizes[shared]
            sizes[rendition.blob] = rendition.sizeBytes
        }
        sizes += preprocessing.blobs
        return sizes
    }

    /** Bytes in memory of the blobs whose weights are stored in fewer. */
    public fun loadedBytes(): Map<String, Long> = (blocks.flatMap { it.renditions } + exits.flatMap { it.renditions })
        .mapNotNull { one -> one.loadedBytes?.let { one.blob to it } }.toMap()

    /** The minor format version; 0 where it is no number. */
    public val minorVersion: Int
        get() = formatVersion.substringAfter('.', "").takeIf { MINOR.matches(it) }?.toInt() ?: 0
}

/**
 * The manifest without the renditions that [runs] refuses, and without the blocks and exits that then have none: a
 * device needs neither their blobs nor their edges. The input sizes stay only if every original block runs at them.
 *
 * @throws RuntimeFailedError an original block is among them, so that the bundle cannot be run at all.
 */
public fun Manifest.runnablePart(runs: (Rendition) -> Boolean): Manifest {
    val kept = blocks.map { it.copy(renditions = it.renditions.filter(runs)) }
    kept.find { it.kind == BlockKind.ORIGINAL && it.renditions.isEmpty() }?.let { block ->
        throw RuntimeFailedError("bundle $name has nothing that runs here for block ${block.id}")
    }
    val resizable = kept.filter { it.kind == BlockKind.ORIGINAL }.all { block -> block.renditions.any { it.anySize } }
    return copy(
        blocks = kept.filter { it.renditions.isNotEmpty() },
        exits = exits.map { it.copy(renditions = it.renditions.filter(runs)) }.filter { it.renditions.isNotEmpty() },
        inputSizes = if (resizable) inputSizes else emptyList(),
    )
}

/**
 * The manifest with only these of its [exits].
 *
 * @throws UsageError it has no such exit; names those that it has.
 */
public fun Manifest.partWithExits(exits: Collection<String>): Manifest {
    val names = this.exits.map { it.id }
    (exits - names.toSet()).minOrNull()?.let { unknown ->
        val hint = "its exits: " + names.joinToString().ifEmpty { "none" }
        throw UsageError("bundle $name has no exit ${unknown.take(80)}", hint)
    }
    val wanted = exits.toSet()
    return copy(exits = this.exits.filter { it.id in wanted })
}

/**
 * Read a manifest.
 *
 * @throws UnsupportedFormatError written in a format whose major version this SDK does not know.
 * @throws ManifestError not JSON, a field missing or of the wrong type, more of something than a bundle may have
 *   (ManifestLimits.kt), a graph that is none, a name with a path trick, another number of outputs than of classes, or
 *   more than fits into memory.
 */
public fun decodeManifest(data: ByteArray): Manifest {
    val root = rootOf(data)
    val manifest = try {
        manifest(root)
    } catch (error: JsonError) {
        throw ManifestError("manifest.json breaks the schema: ${error.message}", error)
    }
    checkLimits(manifest)
    checkNames(manifest)
    checkSharedSizes(manifest)
    checkOutput(manifest)
    checkInput(manifest)
    return manifest
}

private fun rootOf(data: ByteArray): JsonPlace {
    val (root, version) = try {
        decodeJson(data).let { it to it["format_version"].text() }
    } catch (error: JsonError) {
        throw ManifestError("manifest.json is not a manifest: ${error.message}", error)
    } catch (error: OutOfMemoryError) {
        throw ManifestError("manifest.json has ${data.size} bytes, more than this device can read", error)
    }
    if (version.substringBefore('.') != FORMAT_VERSION.substringBefore('.')) {
        throw UnsupportedFormatError(
            "the bundle has format version $version; this SDK reads ${FORMAT_VERSION.substringBefore('.')}.x",
            hint = "update Pathweave on the device or package the model again",
        )
    }
    return root
}

private fun checkNames(manifest: Manifest) {
    manifest.blobs().keys.find { !BLOB_NAME.matches(it) }?.let { blob ->
        throw ManifestError("blob name '${blob.take(80)}' is not 64 hexadecimal digits")
    }
    val names = listOf(manifest.name) + manifest.blocks.map { it.id } + manifest.exits.map { it.id }
    (names + manifest.blocks.map { it.kind.text }).find { !IDENTIFIER.matches(it) }?.let { name ->
        throw ManifestError("name '${name.take(80)}' has characters that names must not have")
    }
}

private fun checkSharedSizes(manifest: Manifest) {
    if (manifest.minorVersion < SHARED_SIZED_SINCE) return
    manifest.blobs().entries.find { it.value == null }?.let { (name, _) ->
        throw ManifestError("the manifest states no size for the shared blob ${name.take(12)}…")
    }
}

private fun checkInput(manifest: Manifest) {
    val (first, prepared) = manifest.cutPoints[0].tensors to manifest.preprocessing
    if (!prepared.accepts(first[0].shape, first[0].dtype) || (prepared.blobs.isNotEmpty() && first.size > 1)) {
        val shown = first.joinToString { "${it.dtype} ${it.shape}" }
        throw ManifestError("the model's input is $shown, which its preprocessing does not prepare")
    }
}

private fun checkOutput(manifest: Manifest) {
    val outputs = manifest.supernet().cutPoints.last().tensors.last().shape
    val (kind, names, output) = manifest.task
    val channels = when {
        kind == "detection" -> names.size + BOX_SIDES
        kind == "embedding" && names.isEmpty() -> outputs.firstOrNull() ?: 0
        else -> names.size
    }
    val axes = OUTPUT_AXES[kind] ?: 1
    if (outputs.size != axes || outputs[0] != channels) {
        throw ManifestError("the model's output has shape $outputs for $kind of ${names.size} classes")
    }
    if (output != TASK_OUTPUTS[kind]) throw ManifestError("$kind cannot have $output as output")
}

private fun manifest(root: JsonPlace): Manifest {
    checkForPeople(root)
    return Manifest(
        formatVersion = root["format_version"].text(),
        name = root["name"].text(),
        version = root["version"].whole(),
        task = task(root["task"]),
        preprocessing = preprocessing(root["preprocessing"]),
        cutPoints = root["cut_points"].items().map(::cutPoint),
        blocks = root["blocks"].items().map(::block),
        exits = root.optional("exits")?.items().orEmpty().map(::exit),
        inputSizes = root.optional("input_sizes")?.items().orEmpty().map(::inputSize),
        onnx = root["onnx"].let { Onnx(it["ir_version"].whole(least = 1), it["opset"].whole(least = 1)) },
        selfTest = selfTest(root["self_test"]),
        publicNames = root.optional("public_names")?.let(::publicNames) ?: PublicNames(),
        sharedSizes = root.optional("shared_sizes")?.entries().orEmpty()
            .mapValues { (_, size) -> size.whole(least = 0, most = BLOB_MAX_BYTES_STATED) },
        hybridPlan = root.nullable("hybrid")?.let(::hybridPlan),
        members = root.optional("members")?.items().orEmpty().map(::member),
        certainty = root["metrics"].let { metrics ->
            metrics.nullable("temperature")?.let { Certainty(it.number(), metrics["original_accuracy"].number()) }
        },
    )
}

/** The other fields say which bundle a server needs; what asks it is the plan. */
private fun hybridPlan(place: JsonPlace): String? {
    place["role"].oneOf { text -> text.takeIf { it == "base" || it == "global" } }
    place["path"].texts()
    place["partner"].text()
    place["partner_path"].text()
    return place.nullable("plan")?.text()
}

private fun task(place: JsonPlace): Task {
    place.optional("class_ids")?.items().orEmpty().forEach { ids -> ids.texts().forEach(::checkText) }
    return Task(
        kind = place["kind"].oneOf { kind -> kind.takeIf { it in TASK_OUTPUTS } },
        classNames = place["class_names"].texts(),
        output = place.optional("output")?.oneOf { output -> output.takeIf { it in TASK_OUTPUTS.values } } ?: "logits",
    )
}

private fun preprocessing(place: JsonPlace): AnyPreprocessing {
    try {
        return when (val kind = place.optional("kind")?.text() ?: "image") {
            "image" -> ofImages(place)
            "text" -> TextPreprocessing(
                tokenizer = place["tokenizer"].text(),
                tokenizerBytes = place["tokenizer_bytes"].whole(),
                maxTokens = place["max_tokens"].size(),
                padId = place.optional("pad_id")?.size() ?: 0,
                typeIds = place.optional("type_ids")?.flag() ?: false,
            )
            "sound" -> SoundPreprocessing(place["sample_rate_hz"].size(), place["window_samples"].size())
            "tensor" -> TensorPreprocessing(
                place.optional("mean")?.numbers().orEmpty(),
                place.optional("std")?.numbers().orEmpty(),
            )
            else -> throw UnsupportedFormatError(
                "the model takes samples of the kind '${kind.take(80)}'; this SDK knows image, text, sound, tensor",
                hint = "update Pathweave on the device",
            )
        }
    } catch (error: IllegalArgumentException) {
        throw JsonError("${error.message} - at `$.preprocessing`", error)
    }
}

private fun ofImages(place: JsonPlace): Preprocessing {
    val resize = place.nullable("resize")?.items()?.map { it.size() }
    if (resize != null && resize.size != 2) throw JsonError("Expected two sides - at `$.preprocessing.resize`")
    return Preprocessing(
        scale = place["scale"].number(),
        mean = place["mean"].numbers(),
        std = place["std"].numbers(),
        resize = resize?.let { (height, width) -> SampleSize(height, width) },
        channels = place.optional("channels")?.size() ?: 3,
        interpolation = place.optional("interpolation")?.oneOf { name ->
            Interpolation.entries.find { it.toString() == name }
        } ?: Interpolation.BILINEAR,
        crop = place.nullable("crop")?.number(),
    )
}

private fun cutPoint(place: JsonPlace) = CutPoint(
    index = place["index"].size(),
    tensors = place["tensors"].items().map(::tensorSpec),
    mandatory = place.optional("mandatory")?.flag() ?: false,
)

private fun tensorSpec(place: JsonPlace) = TensorSpec(
    name = place["name"].text(),
    shape = place["shape"].extents(),
    dtype = place.optional("dtype")?.oneOf(DType::named) ?: DType.FLOAT32,
    low = place.optional("low")?.number() ?: 0.0,
    high = place.optional("high")?.number() ?: 1.0,
)

private fun inputSize(place: JsonPlace): InputSize {
    return InputSize(
        size = place["size"].sides(),
        shapes = place["shapes"].items().map { cut -> cut.items().map { it.extents() } },
        golden = golden(place["golden"]),
        error = place.nullable("error")?.number(),
    )
}

private fun block(place: JsonPlace): Block {
    place.nullable("copied_from")?.text()
    return Block(
        id = place["id"].text(),
        start = place["start"].size(),
        end = place["end"].size(),
        kind = BlockKind(place["kind"].text()),
        parameters = place["parameters"].whole(),
        macs = place["macs"].whole(),
        renditions = place["renditions"].items().map(::rendition),
        distillationError = place.nullable("distillation_error")?.number(),
    )
}

private fun member(place: JsonPlace) = Member(
    name = place["name"].text(),
    blocks = place["blocks"].texts(),
    accuracy = place.nullable("accuracy")?.number(),
)

private fun exit(place: JsonPlace): Exit {
    place.nullable("weight_group")?.text()
    return Exit(
        id = place["id"].text(),
        position = place["position"].size(),
        branch = place["branch"].text(),
        parameters = place["parameters"].whole(),
        macs = place["macs"].whole(),
        renditions = place["renditions"].items().map(::rendition),
        accuracy = place.nullable("accuracy")?.number(),
    )
}

private fun rendition(place: JsonPlace): Rendition {
    place.nullable("entry_point")?.text()?.also(::checkText)
    return Rendition(
        name = place["name"].text(),
        runtime = place["runtime"].text(),
        blob = place["blob"].text(),
        sizeBytes = place["size_bytes"].whole(),
        golden = golden(place["golden"]),
        shared = place.optional("shared")?.texts().orEmpty(),
        providers = place.optional("providers")?.texts().orEmpty(),
        anySize = place.optional("any_size")?.flag() ?: false,
        error = place.nullable("error")?.number(),
        loadedBytes = place.nullable("loaded_bytes")?.whole(0, MOST_LOADED_BYTES),
        opset = place.nullable("opset")?.whole(),
    )
}

private const val MOST_LOADED_BYTES = (1L shl 40) - 1

private fun golden(place: JsonPlace) = Golden(
    samples = place["samples"].items().map { it.numbers() },
    tolerance = place["tolerance"].number(),
)

private fun selfTest(place: JsonPlace) = SelfTest(
    seed = place["seed"].integer().toLong(), // its lowest 64 bits are all that a stream takes
    batch = place["batch"].whole(least = 1, most = GOLDEN_MAX_BATCH).toInt(),
    original = golden(place["original"]),
)

private fun publicNames(place: JsonPlace) = PublicNames(
    inputs = place.optional("inputs")?.texts() ?: PublicNames().inputs,
    outputs = place.optional("outputs")?.texts() ?: PublicNames().outputs,
)

/** What is for people still has to be there and of the right kind: both languages take the same manifests. */
private fun checkForPeople(root: JsonPlace) {
    root["metrics"].run {
        this["data"].text()
        for (name in listOf("samples", "distil_steps", "tune_steps")) this[name].integer()
        for (name in listOf("original_accuracy", "max_abs_diff")) this[name].number()
        optional("exit_steps")?.integer()
        for (range in this["range_accuracy"].items()) {
            for (name in listOf("macs_ratio_low", "macs_ratio_high", "accuracy")) range[name].number()
            range["subnets"].integer()
        }
    }
    root["provenance"].run {
        for (name in listOf("model", "source", "training_data")) this[name].text()
        for (name in listOf("licence", "weights_sha256")) if (!this[name].isNull) this[name].text()
        this["recipe"].members().forEach { it.scalar() }
        this["tools"].members().forEach { it.text() }
    }
    root.optional("notes")?.texts()
}

private fun JsonPlace.texts(): List<String> = items().map { it.text() }

private fun JsonPlace.numbers(): List<Double> = items().map { it.number() }

/** An integer that counts something here; what does not fit is out of every range that is checked later. */
private fun JsonPlace.size(): Int = whole().coerceIn(-1L, Int.MAX_VALUE.toLong()).toInt()
