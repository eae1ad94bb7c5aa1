"""Activation packets: speed of packing and unpacking, bytes on the wire and peak error, on activations of ResNet-56."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import adapted_bundle
from benchmarks.support.peers import load_samples
from device_sdk.bundles.bundle import Bundle
from device_sdk.offload.packing import Activations, pack, packet_bytes, unpack
from device_sdk.profiling.timing import measure_interleaved
from device_sdk.runtimes import make_runtime

BITS = (2, 4, 8)
TARGETS = {f"mb_s_{bits}": Target(minimum=1000) for bits in BITS}
SAMPLES, QUICK_SAMPLES = 64, 8
ROUNDS, QUICK_ROUNDS = 30, 3
SHARES = (0.1, 0.5, 0.9)  # of the original path, at whose end packets are made


@dataclass(frozen=True)
class _Way:
    """Settings for packing activations."""

    bits: int
    per_channel: bool
    compress: bool

    def pack(self, sent: Activations) -> bytes:
        bits = (self.bits,) * len(sent.tensors)
        return pack(sent, bits=bits, per_channel=self.per_channel, compress=self.compress)


def run(options: BenchOptions) -> BenchOutcome:
    """At three cut points: 2, 4 and 8 bits, one range or one per channel, with and without the lossless stage."""
    bundle = Bundle.open(adapted_bundle(options))
    inputs = load_samples(options, "search").inputs[: QUICK_SAMPLES if options.quick else SAMPLES]
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    rows: list[dict[str, object]] = []
    with options.progress.task("cut points", len(SHARES)) as task:
        for share in SHARES:
            whole = _activations(bundle, share, inputs)
            one = Activations(whole.bundle, whole.position, whole.tail, tuple(tensor[:1] for tensor in whole.tensors))
            for sent in (whole, one):
                rows += _rows(bundle, sent, rounds)
            task.advance()
    plain = [row for row in rows if row["batch"] == len(inputs) and not row["per_channel"] and not row["compress"]]
    speeds = {bits: [float(str(row["mb_s"])) for row in plain if row["bits"] == bits] for bits in BITS}
    figures = {f"mb_s_{bits}": min(found) for bits, found in speeds.items()}
    for bits in BITS:
        for name, compress in (("", False), ("_compressed", True)):
            chosen = [
                float(str(row["bytes_over_8_bit"]))
                for row in rows
                if (row["bits"], row["compress"], row["per_channel"]) == (bits, compress, False) and row["batch"] != 1
            ]
            figures[f"bytes_over_8_bit_{bits}{name}"] = float(np.mean(chosen))
    figures["peak_error_levels"] = max(float(str(row["peak_error_levels"])) for row in rows)
    return BenchOutcome(figures, rows, data="test.zip#search")


def _activations(bundle: Bundle, share: float, inputs: np.ndarray) -> Activations:
    edges = bundle.supernet.original.edges
    head, tail = edges[: round(share * len(edges))], edges[round(share * len(edges)) :]
    tensors = make_runtime("onnxruntime", threads=1).load(bundle.stretch(head)).run([inputs])
    return Activations(bundle.digest, bundle.supernet.block(head[-1].block).end, tail, tuple(tensors))


def _rows(bundle: Bundle, sent: Activations, rounds: int) -> list[dict[str, object]]:
    """All ways of packing ``sent``, timed in turns on one core; MB are 10^6 bytes of float32."""
    ways = [_Way(*choice) for choice in product(BITS, (False, True), (False, True))]
    packets = {way: way.pack(sent) for way in ways}
    calls = {}
    for way, packet in packets.items():
        calls[f"pack {way}"] = lambda way=way: way.pack(sent)
        calls[f"unpack {way}"] = lambda packet=packet: _unpacked(bundle, packet)
    timed = measure_interleaved(calls, rounds=rounds, warmup=2)
    batch, megabytes = len(sent.tensors[0]), sum(tensor.nbytes for tensor in sent.tensors) / 1e6
    padded = packet_bytes(bundle.supernet.cut_points[sent.position], sent.tail, batch=batch)
    rows: list[dict[str, object]] = []
    for way, packet in packets.items():
        pack_ms, unpack_ms = (timed[f"{what} {way}"].median_ms for what in ("pack", "unpack"))
        rows.append(
            {
                "position": sent.position,
                "batch": batch,
                "bits": way.bits,
                "per_channel": way.per_channel,
                "compress": way.compress,
                "pack_ms": pack_ms,
                "unpack_ms": unpack_ms,
                "mb_s": 1e3 * megabytes / (pack_ms + unpack_ms),
                "packet_bytes": len(packet),
                "bytes_over_8_bit": len(packet) / padded,
                "peak_error_levels": _peak_error_levels(sent, _unpacked(bundle, packet), way.bits),
            }
        )
    return rows


def _unpacked(bundle: Bundle, packet: bytes) -> Activations:
    return unpack(packet, supernet=bundle.supernet, bundle=bundle.digest)


def _peak_error_levels(sent: Activations, found: Activations, bits: int) -> float:
    """The largest error of a value, in levels of its sample's range over all channels."""
    peaks = []
    for values, decoded in zip(sent.tensors, found.tensors, strict=True):
        flat = values.reshape(len(values), -1)
        spans = np.maximum(flat.max(axis=1), 0) - np.minimum(flat.min(axis=1), 0)
        errors = np.abs(decoded - values).reshape(flat.shape).max(axis=1)
        peaks.append(float((errors / spans).max()) * (2**bits - 1))
    return max(peaks)
