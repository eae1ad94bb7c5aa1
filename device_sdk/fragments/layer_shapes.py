"""Shape inference for convolutions, pools and matrix products (onnx.ai/onnx/operators)."""

from __future__ import annotations

from collections.abc import Callable

from device_sdk.fragments.known_values import Attributes, Given, Shape, broadcast, given_at, integers_of, shape_of


def convolved(given: Given, attributes: Attributes) -> Shape:
    """Conv and ConvInteger."""
    shape, weight = shape_of(given, 0), shape_of(given, 1)
    return (shape[0], weight[0], *_windows(shape[2:], attributes.get(b"kernel_shape") or weight[2:], attributes))


def pooled(given: Given, attributes: Attributes) -> Shape:
    """AveragePool, LpPool and MaxPool."""
    shape = shape_of(given, 0)
    return (*shape[:2], *_windows(shape[2:], attributes[b"kernel_shape"], attributes))


def _windows(extents: Shape, kernel: Shape, attributes: Attributes) -> Shape:
    rank = len(kernel)
    strides = attributes.get(b"strides") or (1,) * rank
    dilations = attributes.get(b"dilations") or (1,) * rank
    pads = attributes.get(b"pads") or (0,) * 2 * rank
    if str(attributes.get(b"auto_pad", b"NOTSET"), "ascii") not in ("NOTSET", "VALID"):
        return tuple(-(-extent // stride) for extent, stride in zip(extents, strides, strict=True))
    found = []
    for axis, (extent, size) in enumerate(zip(extents, kernel, strict=True)):
        room = extent + pads[axis] + pads[axis + rank] - dilations[axis] * (size - 1) - 1
        steps = -(-room // strides[axis]) if attributes.get(b"ceil_mode") else room // strides[axis]
        found.append(max(steps + 1, 0))
    return tuple(found)


def transposed_convolution(given: Given, attributes: Attributes) -> Shape:
    """ConvTranspose."""
    shape, weight = shape_of(given, 0), shape_of(given, 1)
    channels, kernel = weight[1] * attributes.get(b"group", 1), weight[2:]
    told = attributes.get(b"output_shape")
    if told:
        return (shape[0], channels, *told[-len(kernel) :])
    strides, dilations, more = (
        attributes.get(name) or (default,) * len(kernel)
        for name, default in ((b"strides", 1), (b"dilations", 1), (b"output_padding", 0))
    )
    pads = attributes.get(b"pads") or (0,) * 2 * len(kernel)
    spatial = (
        strides[i] * (shape[2 + i] - 1) + more[i] + (kernel[i] - 1) * dilations[i] + 1 - pads[i] - pads[i + len(kernel)]
        for i in range(len(kernel))
    )
    return (shape[0], channels, *spatial)


def unpooled(given: Given, attributes: Attributes) -> Shape:
    """MaxUnpool."""
    if given_at(given, 2) is not None:
        return integers_of(given, 2)
    shape, kernel = shape_of(given, 0), attributes[b"kernel_shape"]
    strides = attributes.get(b"strides") or (1,) * len(kernel)
    spatial = zip(shape[2:], kernel, strides, strict=True)
    return (*shape[:2], *((extent - 1) * stride + size for extent, size, stride in spatial))


def matrix_product(given: Given, _: Attributes) -> Shape:
    """MatMul."""
    left, right = shape_of(given, 0), shape_of(given, 1)
    if len(left) < 2 or len(right) < 2:
        return left[:-1] + right[:-2] + right[-1:] * (len(right) > 1)
    return (*broadcast([left[:-2], right[:-2]]), left[-2], right[-1])


def gemm(given: Given, attributes: Attributes) -> Shape:
    """Gemm."""
    left, right = shape_of(given, 0), shape_of(given, 1)
    return (left[1 if attributes.get(b"transA") else 0], right[0 if attributes.get(b"transB") else 1])


def rearranged(grow: bool) -> Callable[[Given, Attributes], Shape]:
    """DepthToSpace and SpaceToDepth."""

    def rule(given: Given, attributes: Attributes) -> Shape:
        batch, channels, height, width = shape_of(given, 0)
        side = attributes[b"blocksize"]
        if grow:
            return batch, channels // side**2, height * side, width * side
        return batch, channels * side**2, height // side, width // side

    return rule
