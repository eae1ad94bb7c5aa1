/**
 * Shape inference for convolutions, pools and matrix products (onnx.ai/onnx/operators). Mirrors
 * device_sdk/bundles/layer_shapes.py.
 */
package pathweave.sdk.bundles

import java.lang.Math.floorDiv

private fun ceilDiv(a: Long, b: Long): Long = -floorDiv(-a, b)

private fun ones(rank: Int) = List(rank) { 1L }

/** Conv and ConvInteger. */
internal fun convolved(given: Given, attributes: Attributes): List<Long> {
    val (shape, weight) = shapeOf(given, 0) to shapeOf(given, 1)
    val kernel = attributes.list("kernel_shape") ?: weight.drop(2)
    return listOf(shape[0], weight[0]) + windows(shape.drop(2), kernel, attributes)
}

/** AveragePool, LpPool and MaxPool. */
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

/** ConvTranspose. */
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

/** MaxUnpool. */
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

/** Gemm. */
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
