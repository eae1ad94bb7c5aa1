"""Packets of activations for a server: a versioned binary layout of quantised tensors (docs/activation_packets.md).

Pure. Little-endian, no padding:

    magic "PWAP" · version u8 · bits u8 · cut point u16 · sha256 of manifest.json, 32 bytes · batch u32
    · length of the tail u16 · the tail in UTF-8: its edges with spaces between them
    · for each tensor of the cut point: batch × (scale f32 · zero point u8) · batch × size values of one byte each

A value is ``(byte − zero point) · scale``. Each sample has its own scale and zero point, computed from the values sent,
so that its result does not depend on the other samples of the batch (Auto-Split §4 quantises activations by a table of
ranges instead).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from device_sdk.errors import InputError, ProtocolError, UsageError
from device_sdk.runtimes.port import Array
from device_sdk.supernet.blocks import CutPoint, TensorSpec
from device_sdk.supernet.plan import Edge
from device_sdk.supernet.supernet import Supernet

MAGIC, VERSION, BITS = b"PWAP", 2, 8
MAX_BATCH = 65_536

_HEAD = struct.Struct("<4sBBH32sIH")
_RANGE = np.dtype([("scale", "<f4"), ("zero_point", "u1")])
_LEVELS = 255


@dataclass(frozen=True)
class Activations:
    """The live tensors at cut point ``position`` and the rest of the path.

    ``bundle``: sha256 of its manifest.json; ``tail``: the edges from there to the output; ``tensors``: float32
    [batch, *shape] each.
    """

    bundle: str
    position: int
    tail: tuple[Edge, ...]
    tensors: tuple[Array, ...]


def pack(activations: Activations) -> bytes:
    """The packet of ``activations``.

    Raises:
        InputError: a tensor is not float32, or holds NaN or infinity.
    """
    tail = _tail_text(activations.tail)
    batch = len(activations.tensors[0])
    digest = bytes.fromhex(activations.bundle)
    parts = [_HEAD.pack(MAGIC, VERSION, BITS, activations.position, digest, batch, len(tail)), tail]
    for tensor in activations.tensors:
        ranges = _ranges_of(tensor)
        broadcast = (batch, *[1] * (tensor.ndim - 1))
        scales, zero_points = ranges["scale"].reshape(broadcast), ranges["zero_point"].reshape(broadcast)
        levels = np.rint(tensor / scales) + zero_points.astype(np.float32)
        parts += [ranges.tobytes(), np.clip(levels, 0, _LEVELS).astype(np.uint8).tobytes()]
    return b"".join(parts)


def unpack(packet: bytes, *, supernet: Supernet, bundle: str) -> Activations:
    """Decode ``packet``, checked against the graph of ``bundle``.

    Raises:
        ProtocolError: not a packet, another layout version, a wrong length, another bundle, or a tail that does not
            lead from the cut point to the output.
    """
    if len(packet) < _HEAD.size:
        raise ProtocolError(f"the packet of activations ends after {len(packet)} bytes")
    magic, version, bits, position, digest, batch, tail_bytes = _HEAD.unpack_from(packet)
    if magic != MAGIC:
        raise ProtocolError("this is not a packet of activations")
    if (version, bits) != (VERSION, BITS):
        raise ProtocolError(f"the packet has layout {version} with {bits} bits; known is {VERSION} with {BITS}")
    if digest.hex() != bundle:
        raise ProtocolError("the activations belong to another version of the bundle")
    if not 1 <= batch <= MAX_BATCH:
        raise ProtocolError(f"the packet says that it holds {batch} samples")
    tail = _read_tail(packet[_HEAD.size : _HEAD.size + tail_bytes], supernet, position)
    cut = supernet.cut_points[position]
    expected = packet_bytes(cut, tail, batch=batch)
    if len(packet) != expected:
        raise ProtocolError(
            f"the packet has {len(packet)} bytes; {batch} samples at cut point {position} take {expected}"
        )
    tensors, at = [], _HEAD.size + tail_bytes
    for spec in cut.tensors:
        tensors.append(_read_tensor(packet, at, spec, batch))
        at += batch * (_RANGE.itemsize + spec.size)
    return Activations(bundle, position, tail, tuple(tensors))


def packet_bytes(cut: CutPoint, tail: Sequence[Edge], *, batch: int) -> int:
    """Packet size of ``batch`` samples at ``cut``, which does not depend on the values."""
    return _HEAD.size + len(_tail_text(tail)) + batch * sum(_RANGE.itemsize + spec.size for spec in cut.tensors)


def can_travel(cut: CutPoint) -> bool:
    """Whether all tensors of ``cut`` can be packed: they are float32."""
    return all(spec.dtype == "float32" for spec in cut.tensors)


def _tail_text(tail: Sequence[Edge]) -> bytes:
    return " ".join(map(str, tail)).encode()


def _read_tail(text: bytes, supernet: Supernet, position: int) -> tuple[Edge, ...]:
    try:
        tail = tuple(Edge.parse(word) for word in text.decode("ascii").split(" "))
        supernet.check_stretch(tail, start=position, end=supernet.output_index)
    except (UsageError, ValueError) as error:  # not ASCII, or no size after a colon
        raise ProtocolError(f"the packet's tail does not fit the bundle: {error}") from error
    if tail[0].input_size:
        raise ProtocolError("the packet's tail runs at another input size than the model's own")
    if not can_travel(supernet.cut_points[position]):
        raise ProtocolError(f"the tensors at cut point {position} cannot be sent in packets")
    return tail


def _ranges_of(tensor: Array) -> Array:
    """Scale and zero point of each sample; zero is exactly representable, so that ReLU zeros stay zero."""
    if tensor.dtype != np.float32:
        raise InputError(f"activations must be float32, not {tensor.dtype}")
    flat = tensor.reshape(len(tensor), -1)
    low, high = np.minimum(flat.min(axis=1), 0), np.maximum(flat.max(axis=1), 0)
    if not np.isfinite(low.astype(np.float64) + high).all():
        raise InputError("the activations hold NaN or infinity")
    ranges = np.empty(len(tensor), dtype=_RANGE)
    scales = ((high.astype(np.float64) - low) / _LEVELS).astype(np.float32)
    ranges["scale"] = np.where(scales > 0, scales, 1)
    ranges["zero_point"] = np.rint(-low / ranges["scale"])
    return ranges


def _read_tensor(packet: bytes, at: int, spec: TensorSpec, batch: int) -> Array:
    ranges = np.frombuffer(packet, _RANGE, count=batch, offset=at)
    scales, zero_points = (ranges[name].astype(np.float32)[:, None] for name in ("scale", "zero_point"))
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise ProtocolError("a scale of the packet is not a number above zero")
    levels = np.frombuffer(packet, np.uint8, count=batch * spec.size, offset=at + batch * _RANGE.itemsize)
    values = (levels.reshape(batch, spec.size).astype(np.float32) - zero_points) * scales
    return values.reshape(batch, *spec.shape)
