"""Parsers of bytes from outside, with a few good inputs each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from device_sdk.bundles.bundle import BLOBS, MANIFEST, Bundle
from device_sdk.bundles.manifest_reading import decode_manifest
from device_sdk.delivery.marks import Mark, decode_mark, encode_mark
from device_sdk.errors import PathweaveError
from device_sdk.fragments.composition import Stretch, compose
from device_sdk.logs.adaptation_log import SCHEMA_VERSION, Adapted, LogLine, Opened
from device_sdk.offload.open_inference import (
    InferRequest,
    InferResponse,
    NamedTensor,
    RequestedOutput,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from device_sdk.offload.packing import Activations, pack, unpack
from device_sdk.supernet.blocks import TensorSpec
from device_sdk.supernet.plan import Ask, ExitChoice, MaxConfidence, Plan, RemoteRef, Split, decode_plan, encode_plan
from server.state.log_store import check_lines

NAMES = ("manifest", "packet", "request", "response", "log lines", "fragment", "plan", "mark")
_LINE_BYTES = 64_000
_HEAD = 2  # the first bytes of a request or a response: what its header says is the length of the JSON


@dataclass(frozen=True)
class Parser:
    """``read`` takes any bytes: it returns, or raises what is ``documented``."""

    name: str
    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    documented: tuple[type[Exception], ...] = (PathweaveError,)


def parsers(folder: Path) -> dict[str, Parser]:
    """All parsers, by ``NAMES``; ``folder``: of a small bundle."""
    bundle = Bundle.open(folder)
    found = (
        Parser("manifest", decode_manifest, ((folder / MANIFEST).read_bytes(),)),
        Parser("packet", partial(unpack, supernet=bundle.supernet, bundle=bundle.digest), _packets(bundle)),
        Parser("request", lambda data: decode_request(data[_HEAD:], header_length=_length(data)), _requests()),
        Parser("response", lambda data: decode_response(data[_HEAD:], header_length=_length(data)), _responses()),
        Parser("log lines", partial(check_lines, max_line_bytes=_LINE_BYTES), (_log_lines(),)),
        Parser("fragment", lambda data: compose(_stretch(data)), _fragments(folder)),
        Parser("plan", decode_plan, _plans(bundle)),
        Parser("mark", decode_mark, (encode_mark(Mark("a", 3, "0" * 64, ("1" * 64,))),), (ValueError,)),
    )
    return {parser.name: parser for parser in found}


def _length(data: bytes) -> int | None:
    """0 for a missing header."""
    return int.from_bytes(data[:_HEAD], "big") or None


def _packets(bundle: Bundle) -> tuple[bytes, ...]:
    random = np.random.default_rng(0)
    packets = []
    for position in (1, 2, 3):
        tensors = tuple(
            random.normal(size=(2, *spec.shape)).astype(np.float32)
            for spec in bundle.supernet.cut_points[position].tensors
        )
        tail = bundle.supernet.original.edges[position:]
        activations = Activations(bundle.digest, position, tail, tensors)
        packets += [pack(activations), pack(activations, bits=[3] * len(tensors), per_channel=True, compress=True)]
    return tuple(packets)


def _requests() -> tuple[bytes, ...]:
    tensor = NamedTensor("image", np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3))
    asked = InferRequest((tensor,), (RequestedOutput("out", True),), "id", True)
    return tuple(_headed(*encode_request(asked, binary=binary)) for binary in (True, False))


def _responses() -> tuple[bytes, ...]:
    tensor = NamedTensor("out", np.array([[0.5, -1.0, 2.0]], np.float32))
    reply = InferResponse("model", (tensor,), "1", "id")
    return tuple(_headed(*encode_response(reply, binary=binary)) for binary in (["out"], []))


def _headed(body: bytes, headers: dict[str, str]) -> bytes:
    length = next((int(value) for name, value in headers.items() if "Length" in name), 0)
    return length.to_bytes(_HEAD, "big") + body


def _log_lines() -> bytes:
    events = (
        Opened("o0 o1", False, ("x",)),
        Adapted(2.0, None, "o0 m1-3", 1.4, 1.5, 1000, 0.9, None, 40, 5, 1.5, "exhausted"),
    )
    lines = [LogLine(SCHEMA_VERSION, "2026-05-01T00:00:00.000+00:00", "0" * 64, "none", event) for event in events]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _stretch(data: bytes) -> Stretch:
    ends = (TensorSpec("cut_3", (4, 2, 2)),), (TensorSpec("cut_4", (3,)),)
    return Stretch((data,), *ends, ir_version=10, opset=20)


def _fragments(folder: Path) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted((folder / BLOBS).iterdir()))


def _plans(bundle: Bundle) -> tuple[bytes, ...]:
    original = bundle.supernet.original
    server = RemoteRef("a:tail", "0" * 64)
    plans = (
        Plan(original, exits=(ExitChoice("x1-pooled", 0.5, ask_below=0.25),), hard=Ask(MaxConfidence(0.5), server)),
        Plan(original, split=Split(3, (8,), original.edges[3:], server)),
    )
    return tuple(map(encode_plan, plans))
