"""Quantised tensors in 1 to 8 bits per value, packed without gaps: the arithmetic of activation packets. Pure.

Source: Auto-Split (KDD 2021) appendix A packs sub-8-bit activations before they are sent; here with one affine range
for each sample, or for each channel of a sample, measured on the values themselves. Integer and float32 operations are
fixed one by one (docs/activation_packets.md), so that Kotlin's codec writes the same bytes.

Arrays are worked through in blocks of whole samples that stay in the cache; nothing loops over values.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from device_sdk.errors import InputError
from device_sdk.runtimes.port import Array

Bytes = npt.NDArray[np.uint8]
MAX_BITS = 8
RANGE = np.dtype([("scale", "<f4"), ("zero_point", "u1")])
GROUP = 8  # values that are packed together: into as many bytes as a value has bits

_BLOCK_VALUES = 1 << 15  # 128 KiB of float32: input, products and codes of a block fit a second-level cache
_MARGIN = 2.0**-10  # of a level: rounding errors of float32 never reach a code above the largest
_SMALLEST_SCALE = 2.0**-126  # the least normal float32: its inverse is finite
_SPAN_LIMIT = 2.0**127  # no decoded value overflows float32
_HALF = np.float32(0.5)


def packed_bytes(size: int, bits: int) -> int:
    """Bytes of one sample of ``size`` values: whole groups of eight."""
    return -(-size // GROUP) * bits


def quantise(values: Array, bits: int) -> tuple[Array, Bytes]:
    """Ranges [batch, channels] and packed codes [batch, bytes] of ``values``, float32 [batch, channels, width].

    A code is ``trunc(value · (1 / scale) + zero point + ½)``. Zero decodes to exactly zero.

    Raises:
        InputError: NaN, infinity, or values too far apart.
    """
    batch, channels, width = values.shape
    size = channels * width
    ranges = np.empty((batch, channels), dtype=RANGE)
    packed = np.empty((batch, packed_bytes(size, bits)), dtype=np.uint8)
    rows = min(batch, _block_rows(size))
    products = np.empty((rows, channels, width), dtype=np.float32)
    codes = np.zeros((rows, packed_bytes(size, MAX_BITS)), dtype=np.uint8)  # the fill of the last group stays zero
    for start, end in _blocks(batch, size):
        block, product, code = values[start:end], products[: end - start], codes[: end - start]
        inverses, offsets = _measure(block, bits, ranges[start:end])
        np.multiply(block, inverses, out=product)
        np.add(product, offsets, out=product)
        np.copyto(code[:, :size].reshape(product.shape), product, casting="unsafe")
        _pack(code, bits, packed[start:end])
    return ranges, packed


def dequantise(ranges: Array, packed: Bytes, bits: int, *, width: int) -> Array:
    """The values float32 [batch, channels, width] of ``ranges`` [batch, channels] and ``packed`` [batch, bytes].

    A value is ``(code − zero point) · scale``.
    """
    batch, channels = ranges.shape
    size = channels * width
    scales, zero_points = (ranges[name].astype(np.float32)[..., None] for name in ("scale", "zero_point"))
    values = np.empty((batch, channels, width), dtype=np.float32)
    codes = np.empty((min(batch, _block_rows(size)), packed_bytes(size, MAX_BITS)), dtype=np.uint8)
    for start, end in _blocks(batch, size):
        block = values[start:end]
        code = _unpacked(packed[start:end], bits, codes[: end - start])
        np.copyto(block, code[:, :size].reshape(block.shape))
        np.subtract(block, zero_points[start:end], out=block)
        np.multiply(block, scales[start:end], out=block)
    return values


def _block_rows(size: int) -> int:
    return max(1, _BLOCK_VALUES // size)


def _blocks(batch: int, size: int) -> Iterator[tuple[int, int]]:
    rows = _block_rows(size)
    return ((start, min(start + rows, batch)) for start in range(0, batch, rows))


def _measure(block: Array, bits: int, ranges: Array) -> tuple[Array, Array]:
    """Fill in the ranges of ``block``; the factor and the summand [samples, channels, 1] that turn values into codes.

    Ranges include zero. The largest code is reached by no more than 1 − ``_MARGIN``, so codes need no clipping.
    """
    low, high = np.minimum(block.min(axis=2), 0), np.maximum(block.max(axis=2), 0)
    with np.errstate(invalid="ignore"):
        span = high.astype(np.float64) - low
    if not np.isfinite(span).all():
        raise InputError("the activations hold NaN or infinity")
    if not (span < _SPAN_LIMIT).all():
        raise InputError(f"activations of one range must lie closer together than {_SPAN_LIMIT:.1e}")
    scales = np.maximum(span / (2**bits - 1 - _MARGIN), _SMALLEST_SCALE).astype(np.float32)
    inverses = np.float32(1) / scales
    zero_points = np.trunc(-low * inverses + _HALF)
    ranges["scale"], ranges["zero_point"] = scales, zero_points
    return inverses[..., None], (zero_points + _HALF)[..., None]


def _pack(codes: Bytes, bits: int, packed: Bytes) -> None:
    """Join the codes [samples, 8 · groups] to ``packed`` [samples, bits · groups]; overwrites ``codes``.

    The bits of a sample are one little-endian number: code i is its bits ``i · bits`` onwards. Neighbours are joined
    step by step: to pairs in 16 bits, to fours in 32 and to eights in 64, as far as a word reaches.
    """
    if bits == MAX_BITS:
        packed[:] = codes
        return
    words = codes.view(_word(bits))
    upper = np.empty_like(words)
    for shift, first, joined, _ in _steps(bits):
        np.right_shift(words, shift, out=upper)
        np.bitwise_and(upper, joined, out=upper)
        np.bitwise_and(words, first, out=words)
        np.bitwise_or(words, upper, out=words)
    if words.itemsize < GROUP:
        np.copyto(packed, words, casting="unsafe")
    else:
        _copy_groups(codes, packed, bits, step_from=GROUP, step_to=bits)


def _unpacked(packed: Bytes, bits: int, codes: Bytes) -> Bytes:
    """The codes [samples, 8 · groups] of ``packed`` [samples, bits · groups]; in ``codes``, or ``packed`` itself."""
    if bits == MAX_BITS:
        return packed
    words = codes.view(_word(bits))
    if words.itemsize < GROUP:
        np.copyto(words, packed)
    else:
        words[:] = 0
        _copy_groups(packed, codes, bits, step_from=bits, step_to=GROUP)
    upper = np.empty_like(words)
    for shift, first, _, second in reversed(_steps(bits)):
        np.left_shift(words, shift, out=upper)
        np.bitwise_and(upper, second, out=upper)
        np.bitwise_and(words, first, out=words)
        np.bitwise_or(words, upper, out=words)
    return codes


def _copy_groups(source: Bytes, target: Bytes, bits: int, *, step_from: int, step_to: int) -> None:
    """Copy the first ``bits`` bytes of each group, byte by byte: numpy copies short rows slowly."""
    for byte in range(bits):
        target[:, byte::step_to] = source[:, byte::step_from]


def _word(bits: int) -> np.dtype[Any]:
    """The word in which codes are joined: as many bytes as codes fit one byte, or eight."""
    return np.dtype(f"<u{8 // bits if 8 % bits == 0 else 8}")


@functools.cache
def _steps(bits: int) -> list[tuple[np.generic, ...]]:
    """The steps that join codes: a shift, and the masks of the first of two neighbours, of the second beside it, and of
    the second in its own lane."""
    word = _word(bits)
    steps = []
    for lane in (8, 16, 32):
        if lane < 8 * word.itemsize:
            held = lane * bits // 8
            first = sum(((1 << held) - 1) << at for at in range(0, 8 * word.itemsize, 2 * lane))
            steps.append(tuple(map(word.type, (lane - held, first, first << held, first << lane))))
    return steps
