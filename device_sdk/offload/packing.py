"""Packets of activations for a server: a versioned binary layout of quantised tensors (docs/activation_packets.md).

Pure. Little-endian, no padding:

    magic "PWAP" · version u8 · tensors u8 · cut point u16 · sha256 of manifest.json, 32 bytes · batch u32
    · length of the tail u16 · the tail in UTF-8: its edges with spaces between them
    · for each tensor of the cut point: bits u8 · flags u8 · length of its codes u32
    · for each tensor of the cut point: batch × channels × (scale f32 · zero point u8) · its codes

Each sample has ranges of its own, computed from the values sent, so that its result does not depend on the other
samples of the batch (Auto-Split §4 quantises activations by a table of ranges instead). ``quantisation`` does the
arithmetic.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from device_sdk.errors import InputError, ProtocolError, UsageError
from device_sdk.offload.quantisation import MAX_BITS, RANGE, dequantise, packed_bytes, quantise
from device_sdk.runtimes.port import Array
from device_sdk.supernet.blocks import CutPoint, TensorSpec
from device_sdk.supernet.plan import Edge
from device_sdk.supernet.supernet import Supernet

MAGIC, VERSION, BITS = b"PWAP", 3, 8
MAX_BATCH = 65_536
MAX_DECODED_BYTES = 256 * 2**20  # of all tensors as float32
PAYS_BELOW = 7 / 8  # the lossless stage is kept where it leaves at most so much of a tensor's codes

_HEAD = struct.Struct("<4sBBH32sIH")
HEAD_BYTES = _HEAD.size  # of a packet, up to its tail
_ENTRY = struct.Struct("<BBI")
_PER_CHANNEL, _DEFLATED = 1, 2
_VALUES_PER_DEFLATED_BYTE = 32  # at most: bounds what a short packet decodes to


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


@dataclass(frozen=True)
class _Entry:
    """Layout of a tensor in a packet. ``channels``: ranges per sample; ``stored``: bytes of its codes."""

    bits: int
    channels: int
    deflated: bool
    stored: int


def pack(
    activations: Activations, *, bits: Sequence[int] | None = None, per_channel: bool = False, compress: bool = False
) -> bytes:
    """The packet of ``activations``.

    Args:
        bits: 1 to 8 for each tensor; by default 8.
        per_channel: one range for each index of axis 1 instead of one for the sample, where further axes follow.
        compress: deflate the codes of each tensor that shrink to ``PAYS_BELOW`` or less.

    Raises:
        InputError: no samples, more than a packet holds, a tensor that is not float32, or values that have no range:
            NaN, infinity, a span of 2^127 or more.
        UsageError: bits for another number of tensors, or outside 1 to 8.
    """
    tensors = activations.tensors
    bits = _checked_bits(bits, len(tensors))
    batch = _checked_batch(tensors)
    tail = _tail_text(activations.tail)
    digest = bytes.fromhex(activations.bundle)
    head = _HEAD.pack(MAGIC, VERSION, len(tensors), activations.position, digest, batch, len(tail))
    entries, bodies = [], []
    for tensor, width in zip(tensors, bits, strict=True):
        channels = _channels(tensor.shape[1:], per_channel)
        ranges, packed = quantise(np.ascontiguousarray(tensor).reshape(batch, channels, -1), width)
        short = deflated(packed.data, tensor.size) if compress else None
        codes = packed.data if short is None else short
        flags = _PER_CHANNEL * (channels > 1) | _DEFLATED * (short is not None)
        entries.append(_ENTRY.pack(width, flags, packed.nbytes if short is None else len(short)))
        bodies += [ranges.data, codes]
    return b"".join([head, tail, *entries, *bodies])


def unpack(packet: bytes, *, supernet: Supernet, bundle: str) -> Activations:
    """Decode ``packet``, checked against the graph of ``bundle``. All sizes are checked before anything is decoded.

    Raises:
        ProtocolError: not a packet, another layout version, a wrong length, another bundle, or a tail that does not
            lead from the cut point to the output.
    """
    if len(packet) < _HEAD.size:
        raise ProtocolError(f"the packet of activations ends after {len(packet)} bytes")
    magic, version, count, position, digest, batch, tail_bytes = _HEAD.unpack_from(packet)
    if magic != MAGIC:
        raise ProtocolError("this is not a packet of activations")
    if version != VERSION:
        raise ProtocolError(
            f"the packet has layout {version}; known is {VERSION}", hint="use one version of Pathweave on both sides"
        )
    if digest.hex() != bundle:
        raise ProtocolError("the activations belong to another version of the bundle")
    if not 1 <= batch <= MAX_BATCH:
        raise ProtocolError(f"the packet says that it holds {batch} samples")
    at = _HEAD.size + tail_bytes
    tail = _read_tail(packet[_HEAD.size : at], supernet, position)
    cut = supernet.cut_points[position]
    entries = _read_entries(packet, at, count, cut, batch)
    at += _ENTRY.size * count
    expected = at + sum(batch * entry.channels * RANGE.itemsize + entry.stored for entry in entries)
    if len(packet) != expected:
        raise ProtocolError(
            f"the packet has {len(packet)} bytes; {batch} samples at cut point {position} take {expected}"
        )
    return Activations(bundle, position, tail, tuple(_read_tensors(packet, at, cut, entries, batch)))


def bundle_of_packet(packet: bytes) -> str | None:
    """The digest of the bundle that a packet, or its beginning, names; None for what is no packet of this layout."""
    if len(packet) < _HEAD.size:
        return None
    magic, version, _, _, digest, _, _ = _HEAD.unpack_from(packet)
    return str(digest.hex()) if (magic, version) == (MAGIC, VERSION) else None


def packet_bytes(
    cut: CutPoint,
    tail: Sequence[Edge],
    *,
    batch: int,
    bits: Sequence[int] | None = None,
    per_channel: bool = False,
) -> int:
    """Packet size of ``batch`` samples at ``cut``, which does not depend on the values; compressed it is no larger."""
    size = _HEAD.size + len(_tail_text(tail)) + _ENTRY.size * len(cut.tensors)
    for spec, width in zip(cut.tensors, _checked_bits(bits, len(cut.tensors)), strict=True):
        size += batch * (_channels(spec.shape, per_channel) * RANGE.itemsize + packed_bytes(spec.size, width))
    return size


def can_travel(cut: CutPoint) -> bool:
    """True if all tensors of ``cut`` can be packed: they are float32."""
    return all(spec.dtype == "float32" for spec in cut.tensors)


def _checked_bits(bits: Sequence[int] | None, tensors: int) -> Sequence[int]:
    if bits is None:
        return (BITS,) * tensors
    if len(bits) != tensors:
        raise UsageError(f"bits are given for {len(bits)} tensors; the cut point has {tensors}")
    for width in bits:
        if not 1 <= width <= MAX_BITS:
            raise UsageError(f"activations travel in 1 to {MAX_BITS} bits, not in {width}")
    return bits


def _checked_batch(tensors: Sequence[Array]) -> int:
    """The number of samples of ``tensors``, which a packet can hold."""
    for tensor in tensors:
        if tensor.dtype != np.float32:
            raise InputError(f"activations must be float32, not {tensor.dtype}")
    counts = {len(tensor) for tensor in tensors}
    if len(counts) != 1:
        raise InputError("the tensors of a packet must be batches of the same size")
    batch = counts.pop()
    if not 1 <= batch <= MAX_BATCH:
        raise InputError(f"a packet holds 1 to {MAX_BATCH} samples, not {batch}")
    if sum(tensor.nbytes for tensor in tensors) > MAX_DECODED_BYTES:
        raise InputError(f"a packet holds at most {MAX_DECODED_BYTES} bytes of float32", hint="send smaller batches")
    return batch


def _channels(shape: Sequence[int], per_channel: bool) -> int:
    """Ranges of a sample of ``shape``; a single axis has no channels, but values."""
    return shape[0] if per_channel and len(shape) > 1 else 1


def deflated(codes: memoryview, values: int) -> bytes | None:
    """``codes`` as a raw DEFLATE stream, filled up with zeros to the least length; None where it does not pay.

    Only runs of one byte are searched (Z_RLE): on activations twice as fast as level 1's matches, of similar size.
    """
    stream = zlib.compressobj(level=1, wbits=-zlib.MAX_WBITS, strategy=zlib.Z_RLE)
    short = stream.compress(codes) + stream.flush()
    short = short.ljust(_least_deflated(values), b"\0")
    return short if len(short) <= PAYS_BELOW * codes.nbytes else None


def _least_deflated(values: int) -> int:
    return -(-values // _VALUES_PER_DEFLATED_BYTE)


def inflated(stored: bytes, size: int) -> Array:
    """The ``size`` bytes that ``stored`` decompresses to; never produces more than one byte beyond them."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        codes = stream.decompress(stored, size + 1)
    except zlib.error as error:
        raise ProtocolError("compressed codes of the packet are damaged") from error
    if len(codes) != size or not stream.eof or stream.unused_data.strip(b"\0"):
        raise ProtocolError(f"compressed codes of the packet do not hold {size} bytes")
    return np.frombuffer(codes, np.uint8)


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


def _read_entries(packet: bytes, at: int, count: int, cut: CutPoint, batch: int) -> list[_Entry]:
    if count != len(cut.tensors):
        raise ProtocolError(f"the packet holds {count} tensors; cut point {cut.index} has {len(cut.tensors)}")
    if len(packet) < at + _ENTRY.size * count:
        raise ProtocolError(f"the packet of activations ends after {len(packet)} bytes")
    if 4 * batch * sum(spec.size for spec in cut.tensors) > MAX_DECODED_BYTES:
        raise ProtocolError(f"the packet decodes to more than {MAX_DECODED_BYTES} bytes")
    fields = _ENTRY.iter_unpack(packet[at : at + _ENTRY.size * count])
    return [
        _checked_entry(bits, flags, stored, spec, batch)
        for (bits, flags, stored), spec in zip(fields, cut.tensors, strict=True)
    ]


def _checked_entry(bits: int, flags: int, stored: int, spec: TensorSpec, batch: int) -> _Entry:
    if not 1 <= bits <= MAX_BITS:
        raise ProtocolError(f"the packet has values of {bits} bits; 1 to {MAX_BITS} are possible")
    if flags & ~(_PER_CHANNEL | _DEFLATED) or (flags & _PER_CHANNEL and len(spec.shape) < 2):
        raise ProtocolError(f"the packet has flags {flags} that tensor {spec.name} cannot have")
    whole = batch * packed_bytes(spec.size, bits)
    least = _least_deflated(batch * spec.size) if flags & _DEFLATED else whole
    if not least <= stored <= whole:
        raise ProtocolError(
            f"the packet gives {stored} bytes of codes to tensor {spec.name}; {batch} samples take {least} to {whole}"
        )
    return _Entry(bits, _channels(spec.shape, bool(flags & _PER_CHANNEL)), bool(flags & _DEFLATED), stored)


def _read_tensors(packet: bytes, at: int, cut: CutPoint, entries: Sequence[_Entry], batch: int) -> Iterator[Array]:
    for spec, entry in zip(cut.tensors, entries, strict=True):
        ranges = np.frombuffer(packet, RANGE, count=batch * entry.channels, offset=at)
        _check_ranges(ranges, entry.bits)
        at += ranges.nbytes
        whole = batch * packed_bytes(spec.size, entry.bits)
        if entry.deflated:
            packed = inflated(packet[at : at + entry.stored], whole)
        else:
            packed = np.frombuffer(packet, np.uint8, count=whole, offset=at)
        at += entry.stored
        values = dequantise(
            ranges.reshape(batch, entry.channels),
            packed.reshape(batch, -1),
            entry.bits,
            width=math.prod(spec.shape) // entry.channels,
        )
        yield values.reshape(batch, *spec.shape)


def _check_ranges(ranges: Array, bits: int) -> None:
    """A decoded value must be a finite number."""
    levels = 2**bits - 1
    with np.errstate(over="ignore"):
        if not (np.isfinite(ranges["scale"] * np.float32(levels)) & (ranges["scale"] > 0)).all():
            raise ProtocolError("a scale of the packet is not a number above zero")
    if ranges["zero_point"].max() > levels:
        raise ProtocolError(f"a zero point of the packet lies above {levels}")
