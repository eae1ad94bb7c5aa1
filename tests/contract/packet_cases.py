"""Activation packets that every implementation must write, read or refuse, byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from device_sdk.offload.packing import Activations, pack, unpack
from device_sdk.random_source import uniform_floats
from device_sdk.supernet.blocks import Block, CutPoint, Golden, Rendition, TensorSpec
from device_sdk.supernet.plan import Edge
from device_sdk.supernet.supernet import Supernet

BUNDLE = "0123456789abcdef" * 4
SHAPES = [[(3,)], [(2, 3, 3), (5,), (4, 2, 1)], [(40,)], [(2,)]]  # of the tensors at each cut point
TAILS = {1: "o1 o2@int8", 2: "o2"}
RUNS = "6365a02e0000"  # DEFLATE of the codes 5, 0, 0, … (80); written down, as encoders differ
HEAD_BYTES, ENTRY_BYTES, RANGE_BYTES = 46, 6, 5


def packet_supernet() -> Supernet:
    """Originals o0 … o2, the last with an int8 rendition, between cut points of one and of several tensors."""

    def block(number: int) -> Block:
        names = ("fp32", "int8") if number == 2 else ("fp32",)
        forms = tuple(Rendition(name, "none", "0" * 64, 1, Golden((), 0.0)) for name in names)
        return Block(f"o{number}", number, number + 1, "original", parameters=0, macs=0, renditions=forms)

    cuts = [
        CutPoint(index, tuple(TensorSpec(f"cut_{index}_{number}", shape) for number, shape in enumerate(shapes)))
        for index, shapes in enumerate(SHAPES)
    ]
    return Supernet(cuts, [block(number) for number in range(3)])


def packet_vectors() -> dict[str, Any]:
    """The supernet's shapes, and packets: written from values, only read, and refused."""
    written = [_written(1, 3, [(1, 2, 3), (4, 5, 6), (7, 8, 8)][seed % 3], seed, seed > 2) for seed in range(6)]
    written += [_written(2, 1, (bits,), bits, False, scale=0.0 if bits == 4 else 1e-3) for bits in (1, 4, 8)]
    return {
        "bundle": BUNDLE,
        "shapes": SHAPES,
        "written": written,
        "read": [_read(_compressed())],
        "refused": [{"name": name, "packet": packet.hex()} for name, packet in _refused()],
    }


def _written(
    position: int, batch: int, bits: tuple[int, ...], seed: int, per_channel: bool, *, scale: float = 8.0
) -> dict[str, Any]:
    tensors = []
    for number, shape in enumerate(SHAPES[position]):
        drawn = uniform_floats(10 * seed + number, batch * int(np.prod(shape))) - np.float32(0.25 * number)
        tensors.append((drawn * np.float32(scale)).reshape(batch, *shape))
    packet = pack(Activations(BUNDLE, position, _tail(position), tuple(tensors)), bits=bits, per_channel=per_channel)
    return {
        **_read(packet),
        "bits": bits,
        "per_channel": per_channel,
        "tensors": [_float32s(tensor.ravel()) for tensor in tensors],
    }


def _read(packet: bytes) -> dict[str, Any]:
    found = unpack(packet, supernet=packet_supernet(), bundle=BUNDLE)
    return {
        "position": found.position,
        "batch": len(found.tensors[0]),
        "tail": list(map(str, found.tail)),
        "packet": packet.hex(),
        "decoded": [_float32s(tensor.ravel()) for tensor in found.tensors],
    }


def _compressed() -> bytes:
    """Two samples at cut point 2 in 8 bits: 80 codes, compressed."""
    tail = TAILS[2].encode()
    head = struct.pack("<4sBBH32sIH", b"PWAP", 3, 1, 2, bytes.fromhex(BUNDLE), 2, len(tail))
    ranges = struct.pack("<fBfB", 0.5, 0, 0.25, 3)
    return head + tail + struct.pack("<BBI", 8, 2, len(RUNS) // 2) + ranges + bytes.fromhex(RUNS)


def _refused() -> Iterable[tuple[str, bytes]]:
    values = uniform_floats(0, 80).reshape(2, 40)
    good = pack(Activations(BUNDLE, 2, _tail(2), (values,)), bits=(4,))
    entry = HEAD_BYTES + len(TAILS[2])
    ranges = entry + ENTRY_BYTES
    changes = {
        "another magic": (0, b"PWAQ"),
        "layout 2": (4, b"\x02"),
        "layout 4": (4, b"\x04"),
        "two tensors": (5, b"\x02"),
        "no such cut point": (6, b"\x09\x00"),
        "another bundle": (8, bytes(32)),
        "no samples": (40, struct.pack("<I", 0)),
        "too many samples": (40, struct.pack("<I", 2**32 - 1)),
        "one sample more": (40, struct.pack("<I", 3)),
        "a longer tail": (44, struct.pack("<H", 2**16 - 1)),
        "an unknown tail": (HEAD_BYTES, b"x2"),
        "0 bits": (entry, b"\x00"),
        "9 bits": (entry, b"\x09"),
        "an unknown flag": (entry + 1, b"\x04"),
        "channels of a tensor with one axis": (entry + 1, b"\x01"),
        "codes that are not compressed": (entry + 1, b"\x02"),
        "no codes": (entry + 2, struct.pack("<I", 0)),
        "more codes": (entry + 2, struct.pack("<I", 2**32 - 1)),
        "a scale of 0": (ranges, struct.pack("<f", 0.0)),
        "a negative scale": (ranges, struct.pack("<f", -1.0)),
        "a scale that is not a number": (ranges, struct.pack("<f", np.nan)),
        "a scale that is too large": (ranges, struct.pack("<f", 1e38)),
        "a zero point above the largest code": (ranges + 4, b"\x10"),
    }
    for name, (at, data) in changes.items():
        yield name, good[:at] + data + good[at + len(data) :]
    yield "cut short", good[:-1]
    yield "too long", good + b"\0"
    compressed = _compressed()
    stream = entry + ENTRY_BYTES + 2 * RANGE_BYTES
    yield "a damaged stream", compressed[:stream] + b"\xff" * (len(compressed) - stream)
    yield (
        "a stream of fewer codes",
        compressed[: entry + 2] + struct.pack("<I", 4) + compressed[entry + 6 : stream] + (bytes.fromhex("63000000")),
    )


def _tail(position: int) -> tuple[Edge, ...]:
    return tuple(map(Edge.parse, TAILS[position].split()))


def _float32s(values: Iterable[float]) -> list[str]:
    return [struct.pack(">f", value).hex() for value in values]
