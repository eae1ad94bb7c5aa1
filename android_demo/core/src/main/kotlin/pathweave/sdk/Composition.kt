/**
 * Composing a runnable ONNX model of any stretch of blocks by concatenating fragments.
 *
 * A fragment is a serialized `GraphProto` that has only nodes and initializers. Protobuf merges repeated occurrences
 * of a message field, so a model is: header, one `graph` field per fragment, one more with name, inputs and outputs
 * (docs/bundle_format.md).
 */
package pathweave.sdk

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

private const val MODEL_MAX_BYTES = 2_000_000_000L // protobuf's own limit is 2 GiB
private const val MODEL_MAX_BYTES_AROUND = 4096 // of what is not a fragment; more only costs a copy

/**
 * Consecutive blocks that run as one model: their fragments, what goes in and what comes out.
 *
 * [freeAxes]: by tensor, the axes (0 is the batch) whose extents the composed model leaves open, so that one session
 * runs at several input sizes.
 */
public class Stretch(
    public val fragments: List<ByteArray>,
    public val inputs: List<TensorSpec>,
    public val outputs: List<TensorSpec>,
    public val irVersion: Long,
    public val opset: Long,
    public val freeAxes: Map<String, Set<Int>> = emptyMap(),
)

/**
 * The serialized ONNX model of [stretch], its batch axis symbolic.
 *
 * @throws CompositionError a fragment is not one or holds what it may not hold, or two define the same name.
 */
public fun compose(stretch: Stretch): ByteArray {
    refuseDuplicates(stretch.fragments)
    val size = stretch.fragments.sumOf { it.size.toLong() }
    if (size > MODEL_MAX_BYTES) throw CompositionError("the fragments together are larger than a model may be")
    return ProtobufWriter(capacity = (size + MODEL_MAX_BYTES_AROUND).toInt()).apply {
        integer(MODEL_IR_VERSION, stretch.irVersion)
        message(MODEL_OPSET_IMPORT) { integer(OPSET_VERSION, stretch.opset) }
        for (fragment in stretch.fragments) bytes(MODEL_GRAPH, fragment)
        message(MODEL_GRAPH) {
            text(GRAPH_NAME, "pathweave")
            for (spec in stretch.inputs) message(GRAPH_INPUT) { valueInfo(spec, stretch.freeAxes[spec.name]) }
            for (spec in stretch.outputs) message(GRAPH_OUTPUT) { valueInfo(spec, stretch.freeAxes[spec.name]) }
        }
    }.toByteArray()
}

/** Refuses two initializers or node outputs of one name: the runtime would only warn, and take the last. */
private fun refuseDuplicates(fragments: List<ByteArray>) {
    val seen = HashSet<String>()
    for (name in fragments.flatMapIndexed(::namesIn)) {
        if (!seen.add(name)) throw CompositionError("two fragments define '$name'")
    }
}

/** The names that fragment [number] of a stretch defines; an error says which fragment it is. */
private fun namesIn(number: Int, fragment: ByteArray): List<String> = try {
    definedNames(fragment)
} catch (error: CompositionError) {
    throw CompositionError("the fragment number $number is refused: ${error.message}", error)
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
