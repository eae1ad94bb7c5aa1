/**
 * Bounds on the tensors inside a composed model, found before a session exists.
 *
 * A few bytes can demand gigabytes: `Expand` to a shape that is stored beside it, `ConstantOfShape`, `Tile`. Shapes are
 * inferred at batch 1 from the stretch's inputs (ShapeRules.kt). Each inferred tensor, and all outputs of shape-driven
 * operators together, must stay below a limit. The size that a shape-driven operator is told must be a constant or
 * follow from shapes. Not bounded: tensors whose shape these rules do not infer, and growth that is not linear in the
 * batch.
 */
package pathweave.sdk.bundles

import java.nio.ByteBuffer
import java.nio.ByteOrder
import pathweave.sdk.CompositionError
import pathweave.sdk.supernet.TensorSpec

private const val MIN_LIMIT_ELEMENTS = 64L shl 20 // 256 MB of float32
private const val GROWTH = 64L // times the largest tensor at the ends
private const val WEIGHT_GROWTH = 2L // times the largest initializer, which DequantizeLinear widens
private const val SHOWN_NAME = 80
private const val INT64 = 7L

/**
 * Throws [CompositionError] if a tensor inside the model may exceed the limit, or a shape cannot be determined.
 *
 * The limit in elements: 64 times the largest tensor at the ends, twice the largest initializer, or 2²⁶, whichever is
 * most. [owners]: of the fragments, for the error.
 */
internal fun checkSizes(
    fragments: List<Fragment>,
    inputs: List<TensorSpec>,
    outputs: List<TensorSpec>,
    owners: List<String> = emptyList(),
) {
    val largest = (inputs + outputs).maxOfOrNull { spec -> product(spec.shape.map(Int::toLong)) } ?: 0L
    val values = HashMap<String, Inferred>()
    var weights = 0L
    for (tensor in fragments.flatMap { it.initializers }) {
        values[tensor.name] = constant(tensor)
        weights = maxOf(weights, product(tensor.shape))
    }
    for (spec in inputs) {
        val name = spec.name.toByteArray().toString(Charsets.ISO_8859_1) // as fragments' names are read
        values[name] = Inferred(listOf(1L) + spec.shape.map(Int::toLong))
    }
    val limit = maxOf(MIN_LIMIT_ELEMENTS, GROWTH * largest, WEIGHT_GROWTH * weights)
    var driven = 0L
    for ((number, fragment) in fragments.withIndex()) {
        try {
            driven = checkNodes(fragment, values, limit, driven)
        } catch (error: CompositionError) {
            val owner = owners.getOrNull(number) ?: "fragment $number"
            throw CompositionError("$owner is refused: ${error.message}", error)
        }
    }
}

/**
 * Adds the outputs of a fragment to [values]; returns the elements of all outputs of shape-driven operators, of which
 * there were [before] ahead of it.
 */
private fun checkNodes(fragment: Fragment, values: HashMap<String, Inferred>, limit: Long, before: Long): Long {
    var driven = before
    for (node in fragment.nodes) {
        for ((name, found) in node.outputs.zip(inferred(node, values))) {
            val size = product(found.shape.orEmpty())
            if (node.operator in SHAPE_DRIVEN) driven += maxOf(size, 0)
            val most = maxOf(size, driven)
            if (most > limit) throw refused(node, "needs $most elements of one sample; $limit are allowed")
            values[name] = found
        }
    }
    return driven
}

private fun inferred(node: FragmentNode, values: Map<String, Inferred>): List<Inferred> {
    val attributes = node.attributes.mapValues { (_, found) -> if (found is FragmentTensor) constant(found) else found }
    val given = node.inputs.map { name -> if (name.isEmpty()) null else values[name] ?: Inferred(null) }
    try {
        return infer(node.operator, given, Attributes(attributes), node.outputs.size)
    } catch (_: UndeterminedError) {
        throw refused(node, "makes a tensor whose size is neither a constant nor derived from a shape")
    }
}

private fun refused(node: FragmentNode, why: String): CompositionError {
    val name = node.outputs.firstOrNull().orEmpty().take(SHOWN_NAME)
    return CompositionError("operator ${node.operator}, which computes '$name', $why")
}

private val FLOATS = mapOf(1L to Float.SIZE_BYTES, 11L to Double.SIZE_BYTES) // by their numbers in onnx.proto
private val INTEGERS = mapOf(2L to 1, 3L to 1, 6L to Int.SIZE_BYTES, INT64 to Long.SIZE_BYTES, 9L to 1)

/** A constant, with its values if it may be a shape, a list of axes or scales. */
internal fun constant(tensor: FragmentTensor): Inferred {
    val bytes = (FLOATS + INTEGERS)[tensor.elementType]
    val count = product(tensor.shape)
    if (bytes == null || count > MAX_VALUES) return Inferred(tensor.shape)
    val shape = tensor.shape.map { it.toInt() }
    if (tensor.int64s.isNotEmpty() && tensor.int64s.size.toLong() == count) {
        return Inferred(tensor.shape, Values(shape, tensor.int64s.toLongArray()))
    }
    val raw = tensor.raw ?: ByteBuffer.allocate(0)
    if (raw.capacity().toLong() != count * bytes) return Inferred(tensor.shape)
    val values = raw.duplicate().order(ByteOrder.LITTLE_ENDIAN)
    val size = count.toInt()
    if (tensor.elementType in FLOATS) {
        val single = bytes == Float.SIZE_BYTES
        val doubles = DoubleArray(size) {
            if (single) values.getFloat(it * bytes).toDouble() else values.getDouble(it * bytes)
        }
        return Inferred(tensor.shape, Values(shape, null, doubles))
    }
    return Inferred(tensor.shape, Values(shape, LongArray(size) { integer(values, tensor.elementType, it) }))
}

private fun integer(values: ByteBuffer, type: Long, index: Int): Long = when (type) {
    INT64 -> values.getLong(index * Long.SIZE_BYTES)
    6L -> values.getInt(index * Int.SIZE_BYTES).toLong()
    3L -> values.get(index).toLong()
    else -> values.get(index).toLong() and 0xff
}

internal val DOMAINS: Set<String> = setOf("", "ai.onnx") // two names of the standard domain

private const val ELEMENTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil
    Celu Clip Cos Cosh Div Dropout Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity
    IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu
    Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
"""
private const val QUANTISATION = """
    ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul QuantizeLinear
"""
private const val LAYERS = """
    Attention AveragePool BatchNormalization Conv ConvTranspose DeformConv Det Einsum GRU Gemm GlobalAveragePool
    GlobalLpPool GlobalMaxPool GroupNormalization Hardmax InstanceNormalization LRN LSTM LayerNormalization LogSoftmax
    LpNormalization LpPool MatMul MaxPool MaxRoiPool MaxUnpool MeanVarianceNormalization RMSNormalization RNN RoiAlign
    RotaryEmbedding Softmax
"""
private const val REDUCTIONS = """
    ArgMax ArgMin CumProd CumSum NonMaxSuppression ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare TopK Unique
"""
private const val MOVEMENT = """
    AffineGrid CenterCropPad Col2Im Compress Concat Constant ConstantOfShape DepthToSpace Expand EyeLike Flatten Gather
    GatherElements GatherND GridSample NonZero OneHot Pad Range Reshape Resize ReverseSequence Scatter ScatterElements
    ScatterND SequenceAt Shape Size Slice SpaceToDepth Split SplitToSequence Squeeze TensorScatter Tile Transpose Trilu
    Unsqueeze Upsample
"""
private const val SIGNALS = "BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT"

internal val OPERATORS: Set<String> =
    listOf(ELEMENTWISE, QUANTISATION, LAYERS, REDUCTIONS, MOVEMENT, SIGNALS)
        .flatMap { it.trim().split(Regex("\\s+")) }.toSet()

/** By their numbers in onnx.proto. Strings, complex numbers and those below 8 bits are left out. */
internal val ELEMENT_TYPES: Set<Long> = setOf(1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16)
