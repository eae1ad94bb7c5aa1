/**
 * Shape inference for the operators that bound the tensors inside a model; others give unknown shapes.
 *
 * Rules follow onnx.ai/onnx/operators. Where a rule does not apply, the result is unknown, except for shape-driven
 * operators, which must be determined.
 */
package pathweave.sdk.bundles

import java.lang.Math.floorDiv
import java.lang.Math.floorMod
import kotlin.math.ceil

private fun names(text: String): Set<String> = text.trim().split(Regex("\\s+")).toSet()

private val OF_THE_FIRST = names(
    """
    Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh CumProd
    CumSum DequantizeLinear Dropout DynamicQuantizeLinear Elu Erf Exp Floor Gelu GroupNormalization HardSigmoid
    HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Log LogSoftmax
    LpNormalization MeanVarianceNormalization Mish Neg Not QuantizeLinear RMSNormalization Reciprocal Relu
    ReverseSequence Round Scatter ScatterElements ScatterND Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign
    Sqrt Swish Tan Tanh TensorScatter ThresholdedRelu Trilu
    """,
)
private val BROADCASTING = names(
    """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod
    Mul Or PRelu Pow Sub Sum Where Xor
    """,
)

/** Their size is told by an input. */
internal val SHAPE_DRIVEN: Set<String> = names(
    """
    AffineGrid BlackmanWindow CenterCropPad Col2Im ConstantOfShape Expand EyeLike HammingWindow HannWindow MaxUnpool
    MelWeightMatrix OneHot Pad Range Resize Tile Upsample
    """,
)

/**
 * The outputs of one node.
 *
 * @throws UndeterminedError the operator is shape-driven and its size is unknown.
 */
internal fun infer(operator: String, given: Given, attributes: Attributes, outputs: Int): List<Inferred> {
    val unknown = List(outputs) { Inferred(null) }
    try {
        knownValues(operator, given, attributes)?.let { values ->
            return listOf(Inferred(values.shape.map(Int::toLong), values))
        }
        if (operator == "Split") return split(given, attributes, outputs)
        if (operator in BROADCASTING) return listOf(Inferred(broadcast(given.indices.map { shapeOf(given, it) })))
        val shape = when (operator) {
            in OF_THE_FIRST -> shapeOf(given, 0)
            else -> (RULES[operator] ?: return unknown)(given, attributes)
        }
        return listOf(Inferred(shape)) + unknown.drop(1)
    } catch (error: RuntimeException) { // unknown shapes; inputs and attributes that its operator cannot have
        if (operator in SHAPE_DRIVEN) throw UndeterminedError(error.message.orEmpty())
    }
    return unknown
}

private fun split(given: Given, attributes: Attributes, outputs: Int): List<Inferred> {
    val shape = shapeOf(given, 0)
    val axis = floorMod(attributes.integer("axis", 0), shape.size.toLong()).toInt()
    val share = -floorDiv(-shape[axis], outputs.toLong())
    val even = List(outputs) { minOf(share, shape[axis] - share * it) }
    val parts = if (givenAt(given, 1) != null) integersOf(given, 1) else attributes.list("split") ?: even
    return parts.map { part -> Inferred(shape.take(axis) + part + shape.drop(axis + 1)) }
}

private fun tiled(given: Given): List<Long> {
    val (shape, counts) = shapeOf(given, 0) to integersOf(given, 1)
    if (shape.size != counts.size) undetermined()
    return shape.zip(counts) { extent, count -> product(listOf(extent, count)) }
}

private fun range(given: Given): List<Long> {
    val values = given.mapNotNull { it?.values }
    if (values.size != 3) undetermined()
    val (start, limit, delta) = values.map { it.double(0) }
    val count = ceil((limit - start) / (if (delta == 0.0) Double.NaN else delta))
    if (!count.isFinite()) undetermined()
    return listOf(count.coerceIn(0.0, MAX_EXTENT.toDouble()).toLong())
}

private fun resized(given: Given): List<Long> {
    val (shape, sizes) = shapeOf(given, 0) to givenAt(given, 3)
    if (sizes != null && sizes.shape != listOf(0L)) {
        val told = integersOf(given, 3)
        val kept = shape.size - told.size // below zero it makes no sense, and counts from the end as in Python
        return (if (kept < 0) shape.dropLast(-kept) else shape.take(kept)) + told
    }
    val scales = givenAt(given, if (given.size == 2) 1 else 2)?.values ?: undetermined()
    val kept = shape.size - scales.size
    if (kept < 0) undetermined()
    return shape.take(kept) + shape.drop(kept).mapIndexed { number, extent ->
        val grown = ceil(extent * scales.double(number))
        if (grown.isFinite()) grown.coerceIn(-MOST.toDouble(), MOST.toDouble()).toLong() else undetermined()
    }
}

private fun padded(given: Given, attributes: Attributes): List<Long> {
    val found = shapeOf(given, 0).toMutableList()
    val pads = if (given.size > 1) integersOf(given, 1) else attributes.list("pads").orEmpty()
    val half = pads.size / 2
    val axes = if (givenAt(given, 3) != null) integersOf(given, 3) else (0L until half).toList()
    for ((number, told) in axes.withIndex()) {
        val axis = (if (told < 0) told + found.size else told).toInt()
        found[axis] += maxOf(pads[number], 0) + maxOf(pads[number + half], 0)
    }
    return found
}

private fun cropped(given: Given, attributes: Attributes): List<Long> {
    val (told, found) = integersOf(given, 1) to shapeOf(given, 0).toMutableList()
    val axes = attributes.list("axes") ?: found.indices.map(Int::toLong)
    if (axes.size != told.size) undetermined()
    for ((axis, extent) in axes.zip(told)) found[(if (axis < 0) axis + found.size else axis).toInt()] = extent
    return found
}

private fun reshaped(given: Given, attributes: Attributes): List<Long> {
    val shape = shapeOf(given, 0)
    var told = integersOf(given, 1)
    if (!attributes.flag("allowzero")) {
        told = told.mapIndexed { axis, extent -> if (extent == 0L) shape[axis] else extent }
    }
    val open = told.indexOf(-1L)
    if (open < 0) return told
    val rest = floorDiv(product(shape), maxOf(-product(told), 1))
    return told.mapIndexed { axis, extent -> if (axis == open) rest else extent }
}

private fun flattened(given: Given, attributes: Attributes): List<Long> {
    val (shape, told) = shapeOf(given, 0) to attributes.integer("axis", 1)
    val axis = (if (told < 0) told + shape.size else told).coerceIn(0, shape.size.toLong()).toInt()
    return listOf(product(shape.take(axis)), product(shape.drop(axis)))
}

private fun axes(given: Given, attributes: Attributes, rank: Int): Set<Int> {
    val told = if (givenAt(given, 1) != null) integersOf(given, 1) else attributes.list("axes").orEmpty()
    return told.map { floorMod(it, rank.toLong()).toInt() }.toSet()
}

private fun squeezed(given: Given, attributes: Attributes): List<Long> {
    val shape = shapeOf(given, 0)
    val axes = axes(given, attributes, shape.size).ifEmpty { shape.indices.filter { shape[it] == 1L }.toSet() }
    return shape.filterIndexed { axis, _ -> axis !in axes }
}

private fun unsqueezed(given: Given, attributes: Attributes): List<Long> {
    val told = if (givenAt(given, 1) != null) integersOf(given, 1) else attributes["axes"].let { axes ->
        (axes as? List<*> ?: listOf(axes)).map { it as Long }
    }
    val shape = shapeOf(given, 0)
    if (shape.any { it < 0 }) undetermined()
    return withAxes(shape, told)
}

private fun reduced(given: Given, attributes: Attributes): List<Long> {
    val shape = shapeOf(given, 0)
    var axes = axes(given, attributes, shape.size)
    if (axes.isEmpty() && !attributes.flag("noop_with_empty_axes")) axes = shape.indices.toSet()
    if (attributes.flag("keepdims", true)) return shape.mapIndexed { axis, extent -> if (axis in axes) 1L else extent }
    return shape.filterIndexed { axis, _ -> axis !in axes }
}

private fun concatenated(given: Given, attributes: Attributes): List<Long> {
    val shapes = given.indices.map { shapeOf(given, it) }
    val told = attributes["axis"] as? Long ?: undetermined()
    fun at(shape: List<Long>) = shape[(if (told < 0) told + shape.size else told).toInt()]
    val sum = shapes.sumOf(::at)
    val axis = (if (told < 0) told + shapes[0].size else told).toInt()
    return shapes[0].mapIndexed { number, extent -> if (number == axis) sum else extent }
}

/** Slice, whose bounds are inputs. */
private fun cutOut(given: Given): List<Long> {
    val found = shapeOf(given, 0).toMutableList()
    val (starts, ends) = integersOf(given, 1) to integersOf(given, 2)
    val axes = if (givenAt(given, 3) != null) integersOf(given, 3) else starts.indices.map(Int::toLong)
    val steps = if (givenAt(given, 4) != null) integersOf(given, 4) else starts.map { 1L }
    if (setOf(starts.size, ends.size, axes.size, steps.size).size > 1) undetermined()
    for ((number, told) in axes.withIndex()) {
        val axis = (if (told < 0) told + found.size else told).toInt()
        val (start, end, step) = Triple(starts[number], ends[number], steps[number])
        found[axis] = placesIn(start, end, step, found[axis])
    }
    return found
}

private fun placesIn(start: Long, end: Long, step: Long, extent: Long): Long {
    val places = slicePlaces(start, end, step, extent)
    if (places.isEmpty()) return 0
    return (places.last - places.first) / step + 1
}

private fun gathered(given: Given, attributes: Attributes): List<Long> {
    val shape = shapeOf(given, 0)
    val axis = floorMod(attributes.integer("axis", 0), shape.size.toLong()).toInt()
    return shape.take(axis) + shapeOf(given, 1) + shape.drop(axis + 1)
}

private fun gatheredRows(given: Given, attributes: Attributes): List<Long> {
    val (shape, places) = shapeOf(given, 0) to shapeOf(given, 1)
    val taken = attributes.integer("batch_dims", 0) + (places.lastOrNull() ?: -1L)
    if (taken !in 0..shape.size) undetermined()
    return places.dropLast(1) + shape.drop(taken.toInt())
}

private fun globallyPooled(given: Given): List<Long> =
    shapeOf(given, 0).let { shape -> shape.take(2) + shape.drop(2).map { 1L } }

private fun transposed(given: Given, attributes: Attributes): List<Long> {
    val shape = shapeOf(given, 0)
    val order = attributes.list("perm") ?: return shape.reversed()
    return order.map { axis -> shape[(if (axis < 0) axis + shape.size else axis).toInt()] }
}

private val REDUCTIONS = names("L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare").map { "Reduce$it" }

private val RULES: Map<String, (Given, Attributes) -> List<Long>> = mapOf<String, (Given, Attributes) -> List<Long>>(
    "AffineGrid" to { given, _ -> integersOf(given, 1) + 3L },
    "AveragePool" to ::pooled,
    "BlackmanWindow" to { given, _ -> integersOf(given, 0) },
    "CenterCropPad" to ::cropped,
    "Col2Im" to { given, _ -> shapeOf(given, 0).take(2) + integersOf(given, 1) },
    "Concat" to ::concatenated,
    "Constant" to { _, attributes -> (attributes["value"] as? Inferred)?.shape ?: undetermined() },
    "ConstantOfShape" to { given, _ -> integersOf(given, 0) },
    "Conv" to ::convolved,
    "ConvInteger" to ::convolved,
    "ConvTranspose" to ::transposedConvolution,
    "DepthToSpace" to { given, attributes -> rearranged(given, attributes, grow = true) },
    "Expand" to { given, _ -> broadcast(listOf(shapeOf(given, 0), integersOf(given, 1))) },
    "EyeLike" to { given, _ -> shapeOf(given, 0) },
    "Flatten" to ::flattened,
    "Gather" to ::gathered,
    "GatherElements" to { given, _ -> shapeOf(given, 1) },
    "GatherND" to ::gatheredRows,
    "Gemm" to ::gemm,
    "GlobalAveragePool" to { given, _ -> globallyPooled(given) },
    "GlobalMaxPool" to { given, _ -> globallyPooled(given) },
    "GridSample" to { given, _ -> shapeOf(given, 0).take(2) + shapeOf(given, 1).drop(1).dropLast(1) },
    "HammingWindow" to { given, _ -> integersOf(given, 0) },
    "HannWindow" to { given, _ -> integersOf(given, 0) },
    "LpPool" to ::pooled,
    "MatMul" to { given, _ -> matrixProduct(given) },
    "MatMulInteger" to { given, _ -> matrixProduct(given) },
    "MaxPool" to ::pooled,
    "MaxUnpool" to ::unpooled,
    "MelWeightMatrix" to { given, _ -> integersOf(given, 1) + integersOf(given, 0) },
    "OneHot" to { given, _ -> shapeOf(given, 0) + integersOf(given, 1) },
    "Pad" to ::padded,
    "Range" to { given, _ -> range(given) },
    "Reshape" to ::reshaped,
    "Resize" to { given, _ -> resized(given) },
    "RoiAlign" to { given, attributes ->
        val (height, width) = attributes.integer("output_height", 1) to attributes.integer("output_width", 1)
        listOf(shapeOf(given, 1)[0], shapeOf(given, 0)[1], height, width)
    },
    "Slice" to { given, _ -> cutOut(given) },
    "SpaceToDepth" to { given, attributes -> rearranged(given, attributes, grow = false) },
    "Squeeze" to ::squeezed,
    "Tile" to { given, _ -> tiled(given) },
    "Transpose" to ::transposed,
    "Unsqueeze" to ::unsqueezed,
    "Upsample" to { given, _ -> resized(given) },
) + REDUCTIONS.associateWith { ::reduced }

private fun ceilDiv(a: Long, b: Long): Long = -floorDiv(-a, b)

private fun ones(rank: Int) = List(rank) { 1L }

internal fun convolved(given: Given, attributes: Attributes): List<Long> {
    val (shape, weight) = shapeOf(given, 0) to shapeOf(given, 1)
    val kernel = attributes.list("kernel_shape") ?: weight.drop(2)
    return listOf(shape[0], weight[0]) + windows(shape.drop(2), kernel, attributes)
}

internal fun pooled(given: Given, attributes: Attributes): List<Long> {
    val shape = shapeOf(given, 0)
    return shape.take(2) + windows(shape.drop(2), attributes.list("kernel_shape") ?: undetermined(), attributes)
}

private fun windows(extents: List<Long>, kernel: List<Long>, attributes: Attributes): List<Long> {
    val rank = kernel.size
    val strides = attributes.list("strides") ?: ones(rank)
    val dilations = attributes.list("dilations") ?: ones(rank)
    val pads = attributes.list("pads") ?: List(2 * rank) { 0L }
    val automatic = attributes["auto_pad"] ?: "NOTSET"
    if (automatic != "NOTSET" && automatic != "VALID") {
        if (extents.size != strides.size) undetermined()
        return extents.zip(strides) { extent, stride -> ceilDiv(extent, stride) }
    }
    if (extents.size != rank) undetermined()
    return kernel.indices.map { axis ->
        val room = extents[axis] + pads[axis] + pads[axis + rank] - dilations[axis] * (kernel[axis] - 1) - 1
        val steps = if (attributes.flag("ceil_mode")) ceilDiv(room, strides[axis]) else floorDiv(room, strides[axis])
        maxOf(steps + 1, 0)
    }
}

internal fun transposedConvolution(given: Given, attributes: Attributes): List<Long> {
    val (shape, weight) = shapeOf(given, 0) to shapeOf(given, 1)
    val channels = weight[1] * attributes.integer("group", 1)
    val kernel = weight.drop(2)
    val rank = kernel.size
    attributes.list("output_shape")?.let { return listOf(shape[0], channels) + if (rank == 0) it else it.takeLast(rank) }
    val strides = attributes.list("strides") ?: ones(rank)
    val dilations = attributes.list("dilations") ?: ones(rank)
    val more = attributes.list("output_padding") ?: List(rank) { 0L }
    val pads = attributes.list("pads") ?: List(2 * rank) { 0L }
    return listOf(shape[0], channels) + kernel.indices.map { i ->
        strides[i] * (shape[2 + i] - 1) + more[i] + (kernel[i] - 1) * dilations[i] + 1 - pads[i] - pads[i + rank]
    }
}

internal fun unpooled(given: Given, attributes: Attributes): List<Long> {
    if (givenAt(given, 2) != null) return integersOf(given, 2)
    val (shape, kernel) = shapeOf(given, 0) to (attributes.list("kernel_shape") ?: undetermined())
    val strides = attributes.list("strides") ?: ones(kernel.size)
    if (shape.size - 2 != kernel.size || strides.size != kernel.size) undetermined()
    return shape.take(2) + kernel.indices.map { (shape[2 + it] - 1) * strides[it] + kernel[it] }
}

/** MatMul. */
internal fun matrixProduct(given: Given): List<Long> {
    val (left, right) = shapeOf(given, 0) to shapeOf(given, 1)
    if (left.size < 2 || right.size < 2) {
        return left.dropLast(1) + right.dropLast(2) + if (right.size > 1) right.takeLast(1) else emptyList()
    }
    return broadcast(listOf(left.dropLast(2), right.dropLast(2))) + left[left.size - 2] + right.last()
}

internal fun gemm(given: Given, attributes: Attributes): List<Long> {
    val (left, right) = shapeOf(given, 0) to shapeOf(given, 1)
    return listOf(left[if (attributes.flag("transA")) 1 else 0], right[if (attributes.flag("transB")) 0 else 1])
}

/** DepthToSpace and SpaceToDepth. */
internal fun rearranged(given: Given, attributes: Attributes, grow: Boolean): List<Long> {
    val shape = shapeOf(given, 0)
    val side = attributes["blocksize"] as? Long ?: undetermined()
    if (shape.size != 4) undetermined()
    val (batch, channels, height, width) = shape
    if (grow) return listOf(batch, floorDiv(channels, side * side), height * side, width * side)
    return listOf(batch, channels * side * side, floorDiv(height, side), floorDiv(width, side))
}
