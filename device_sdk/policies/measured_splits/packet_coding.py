"""Costs of packets on private samples: bytes, times and errors of tensors at the cut points of a subnet."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from device_sdk.offload.packing import BITS, deflated, inflated
from device_sdk.offload.quantisation import MAX_BITS, dequantise, quantise
from device_sdk.policies.splitting.path_splits import PacketCoding
from device_sdk.runtimes.port import Array

CODED_VALUES = 400_000  # about, of all samples that are coded at a cut point
_FEWEST, _MOST = 2, 16  # samples

Codings = dict[tuple[int, bool], PacketCoding]


class _Coded(NamedTuple):
    """One tensor of one sample, coded as it would be sent and decoded again."""

    noise: float
    signal: float
    packing_ms: float
    unpacking_ms: float
    packed_bytes: int
    deflated_bytes: int
    deflating_ms: float
    inflating_ms: float


Samples = Sequence[Sequence[_Coded]]  # by tensor


def packet_codings(tensors: Sequence[Array]) -> Codings:
    """Costs in 1 to 8 bits, with one range per sample and with ranges per channel, of ``tensors`` [count, ...] each.

    Samples are coded one by one, as in use: at least a few, more where they are small. Tensors of other types than
    float32 do not travel.
    """
    travelling = [tensor for tensor in tensors if tensor.dtype == np.float32]
    if not travelling:
        return {}
    values = sum(tensor[0].size for tensor in travelling)
    count = min(max(_FEWEST, min(_MOST, CODED_VALUES // values)), len(travelling[0]))
    kinds = [(bits, per_channel) for bits in range(1, MAX_BITS + 1) for per_channel in (False, True)]
    found = {(bits, each): _samples([tensor[:count] for tensor in travelling], bits, each) for bits, each in kinds}
    usual = found[BITS, False]
    return {kind: _coding(samples, usual) for kind, samples in found.items()}


def _samples(tensors: Sequence[Array], bits: int, per_channel: bool) -> Samples:
    return [[_coded(sample, bits, per_channel) for sample in tensor] for tensor in tensors]


def _coding(found: Samples, usual: Samples) -> PacketCoding:
    return PacketCoding(
        error=sum(_noise_to_signal(of_tensor) for of_tensor in found),
        packing_factor=_sum_of(median, "packing_ms", found) / _sum_of(median, "packing_ms", usual),
        unpacking_factor=_sum_of(median, "unpacking_ms", found) / _sum_of(median, "unpacking_ms", usual),
        packed_bytes=_sum_of(mean, "packed_bytes", found),
        deflated_bytes=_sum_of(mean, "deflated_bytes", found),
        deflating_ms=_sum_of(median, "deflating_ms", found),
        inflating_ms=_sum_of(median, "inflating_ms", found),
    )


def _sum_of(middle: Callable[[Sequence[float]], float], field: str, found: Samples) -> float:
    """The sum over tensors of the ``middle`` of their samples."""
    return sum(middle([float(getattr(one, field)) for one in of_tensor]) for of_tensor in found)


def _noise_to_signal(found: Sequence[_Coded]) -> float:
    signal = sum(one.signal for one in found)
    return sum(one.noise for one in found) / signal if signal else 0.0


def _coded(sample: Array, bits: int, per_channel: bool) -> _Coded:
    began = time.perf_counter()
    flat = rows(sample[None], per_channel)
    ranges, packed = quantise(flat, bits)
    quantised = time.perf_counter()
    stream = deflated(packed.data, sample.size)
    small = time.perf_counter()
    if stream is not None:
        inflated(stream, packed.nbytes)
    large = time.perf_counter()
    values = dequantise(ranges, packed, bits, width=flat.shape[2])
    decoded = time.perf_counter()
    return _Coded(
        float(np.square(values - flat, dtype=np.float64).sum()),
        float(np.square(flat, dtype=np.float64).sum()),
        (quantised - began) * 1e3,
        (decoded - large) * 1e3,
        packed.nbytes,
        packed.nbytes if stream is None else len(stream),
        (small - quantised) * 1e3,
        (large - small) * 1e3,
    )


def rows(tensor: Array, per_channel: bool) -> npt.NDArray[np.float32]:
    """``tensor`` [batch, ...] as [batch, ranges, values of a range], as packets have it."""
    ranges = tensor.shape[1] if per_channel and tensor.ndim > 2 else 1
    return np.ascontiguousarray(tensor).reshape(len(tensor), ranges, -1)


def as_received(tensor: Array, bits: int, per_channel: bool = False) -> Array:
    """``tensor`` [batch, ...] as the server gets it in ``bits`` per value, with ranges of each sample or channel."""
    flat = rows(tensor, per_channel)
    ranges, packed = quantise(flat, bits)
    return dequantise(ranges, packed, bits, width=flat.shape[2]).reshape(tensor.shape)
