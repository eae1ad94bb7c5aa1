/**
 * Composing a runnable ONNX model of any stretch of blocks by concatenating fragments.
 *
 * A fragment is a serialized `GraphProto` that has only nodes and initializers. Protobuf merges repeated occurrences
 * of a message field, so a model is: header, one `graph` field per fragment, one more with name, inputs and outputs
 * (docs/bundle_format.md).
 */
package pathweave.sdk.bundles

import java.io.File
import java.nio.ByteBuffer
import pathweave.sdk.CompositionError
import pathweave.sdk.files.deleteOrphan
import pathweave.sdk.files.newOwnFile
import pathweave.sdk.files.storageErrors
import pathweave.sdk.files.writeFully
import pathweave.sdk.supernet.TensorSpec

// field numbers of onnx.proto
private const val MODEL_IR_VERSION = 1
private const val MODEL_GRAPH = 7
private const val MODEL_OPSET_IMPORT = 8
private const val OPSET_VERSION = 2
private const val GRAPH_NAME = 2
private const val GRAPH_INPUT = 11
private const val GRAPH_OUTPUT = 12
private const val VALUE_NAME = 1
private const val VALUE_TYPE = 2
private const val TYPE_TENSOR = 1
private const val TENSOR_TYPE_ELEMENT = 1
private const val TENSOR_TYPE_SHAPE = 2
private const val SHAPE_DIMENSION = 1
private const val DIMENSION_VALUE = 1
private const val DIMENSION_SYMBOL = 2

private val MODEL_FILE = Regex("pathweave-model\\.[0-9a-f]+\\.onnx")
private const val MODEL_MAX_BYTES = 2_000_000_000L // protobuf's own limit is 2 GiB

/**
 * Consecutive blocks that run as one model: their fragments, what goes in and what comes out.
 *
 * [freeAxes]: by tensor, the axes (0 is the batch) whose extents the composed model leaves open, so that one session
 * runs at several input sizes. [owners]: the block or exit of each fragment, for errors; empty where unknown.
 */
public class Stretch(
    public val fragments: List<BlobBytes>,
    public val inputs: List<TensorSpec>,
    public val outputs: List<TensorSpec>,
    public val irVersion: Long,
    public val opset: Long,
    public val freeAxes: Map<String, Set<Int>> = emptyMap(),
    public val owners: List<String> = emptyList(),
)

/**
 * The serialized ONNX model of [stretch], its batch axis symbolic.
 *
 * @throws CompositionError a fragment is not one or holds what it may not hold (Fragment.kt, Sizes.kt), or two define
 *   the same name.
 */
public fun compose(stretch: Stretch): ByteArray {
    val parts = composedParts(stretch)
    val model = ByteBuffer.allocate(parts.sumOf { it.remaining() })
    parts.forEach(model::put)
    return model.array()
}

/** [compose] without a copy: the model is these parts, one behind the other. */
internal fun composedParts(stretch: Stretch): List<ByteBuffer> {
    val graphs = readFragments(stretch)
    refuseDuplicates(graphs)
    checkSizes(graphs, stretch.inputs, stretch.outputs, stretch.owners)
    val size = stretch.fragments.sumOf { it.size.toLong() }
    if (size > MODEL_MAX_BYTES) throw CompositionError("the fragments together are larger than a model may be")
    val head = ProtobufWriter().integer(MODEL_IR_VERSION, stretch.irVersion)
        .message(MODEL_OPSET_IMPORT) { integer(OPSET_VERSION, stretch.opset) }
    val boundary = ProtobufWriter().message(MODEL_GRAPH) {
        text(GRAPH_NAME, "pathweave")
        for (spec in stretch.inputs) message(GRAPH_INPUT) { valueInfo(spec, stretch.freeAxes[spec.name]) }
        for (spec in stretch.outputs) message(GRAPH_OUTPUT) { valueInfo(spec, stretch.freeAxes[spec.name]) }
    }
    val fragments = stretch.fragments.flatMap { fragment ->
        listOf(wrapped(ProtobufWriter().head(MODEL_GRAPH, fragment.size)), fragment.view())
    }
    return listOf(wrapped(head)) + fragments + wrapped(boundary)
}

/**
 * Gives [use] a temporary file that has [parts], and deletes it; those that killed processes left go too.
 *
 * @throws StorageError there is no room for it.
 */
internal fun <T> withModelFile(parts: List<ByteBuffer>, use: (File) -> T): T {
    val folder = File(System.getProperty("java.io.tmpdir"))
    folder.listFiles().orEmpty().filter { MODEL_FILE.matches(it.name) }.forEach(::deleteOrphan)
    val (file, lock) = storageErrors(folder) { newOwnFile(folder, "pathweave-model.", ".onnx") }
    return lock.use {
        try {
            storageErrors(file) { parts.forEach { part -> writeFully(lock.channel, part.duplicate()) } }
            use(file)
        } finally {
            file.delete()
        }
    }
}

private fun wrapped(message: ProtobufWriter): ByteBuffer = ByteBuffer.wrap(message.toByteArray())

/** All fragments, read and checked; an error names the owner of the fragment, or its number. */
internal fun readFragments(stretch: Stretch): List<Fragment> = stretch.fragments.mapIndexed { number, data ->
    try {
        readFragment(data)
    } catch (error: CompositionError) {
        val owner = stretch.owners.getOrNull(number) ?: "number $number"
        throw CompositionError("the fragment of $owner is refused: ${error.message}", error)
    }
}

/** Refuses two initializers or node outputs of one name: the runtime would only warn, and take the last. */
private fun refuseDuplicates(fragments: List<Fragment>) {
    val seen = HashSet<String>()
    for (name in fragments.flatMap { it.definedNames() }) {
        if (!seen.add(name)) throw CompositionError("two fragments define '$name'")
    }
}

private fun ProtobufWriter.valueInfo(spec: TensorSpec, freeAxes: Set<Int>?) {
    text(VALUE_NAME, spec.name)
    message(VALUE_TYPE) {
        message(TYPE_TENSOR) {
            integer(TENSOR_TYPE_ELEMENT, spec.dtype.onnx)
            message(TENSOR_TYPE_SHAPE) {
                message(SHAPE_DIMENSION) { text(DIMENSION_SYMBOL, "batch") }
                for ((index, extent) in spec.shape.withIndex()) {
                    val free = freeAxes != null && index + 1 in freeAxes
                    message(SHAPE_DIMENSION) { if (!free) integer(DIMENSION_VALUE, extent.toLong()) }
                }
            }
        }
    }
}
