"""Writes vectors.json: golden vectors that Python and Kotlin both must reproduce (see README.md)."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_sdk import protobuf, signing
from device_sdk.composition import Stretch, compose
from device_sdk.graph import Block, CutPoint, Edge, Golden, Rendition, Subnet, Supernet, TensorSpec
from device_sdk.paths import WindowSampler, architecture_count, k_cheapest, sample_uniformly, subnet_count
from device_sdk.random_source import SplitMix64, uniform_floats
from device_sdk.self_test import golden_inputs, sample_outputs

SEEDS = (0, 1, 42, 1234567, 2**64 - 1)


def main(target: Path) -> None:
    """Write all vectors to ``target``."""
    vectors = {
        "random": [random_vectors(seed) for seed in SEEDS],
        "graph": graph_vectors(),
        "golden": golden_vectors(),
        "composition": composition_vectors(),
        "signature": signature_vectors(),
    }
    target.write_text(json.dumps(vectors, indent=1) + "\n")


def random_vectors(seed: int) -> dict[str, Any]:
    """The stream of one seed, in every form in which it is drawn; each form starts a stream of its own."""

    def draws(bound: int) -> list[str]:
        random = SplitMix64(seed)
        return [str(random.below(bound)) for _ in range(4)]

    random, doubles = SplitMix64(seed), SplitMix64(seed)
    return {
        "seed": str(seed),
        "words": [str(random.next()) for _ in range(6)],
        "below": [{"bound": str(bound), "values": draws(bound)} for bound in (1, 7, 1000, 2**63 + 1, 2**64, 10**30)],
        "uniform": [struct.pack(">d", doubles.uniform()).hex() for _ in range(4)],
        "uniform_floats": float32s(uniform_floats(seed, 6)),
        "shuffled": SplitMix64(seed).shuffled(range(10)),
    }


def float32s(values: Iterable[float]) -> list[str]:
    """The bits of float32 values."""
    return [struct.pack(">f", value).hex() for value in values]


def elastic_supernet(length: int) -> Supernet:
    """Originals o0 …, merged blocks of spans 2 and 3, and an int8 rendition of every second original."""

    def block(name: str, start: int, end: int, renditions: tuple[str, ...] = ("fp32",)) -> Block:
        kind = "original" if end == start + 1 else "merged"
        forms = tuple(Rendition(one, "none", "0" * 64, 1, Golden((), 0.0)) for one in renditions)
        return Block(name, start, end, kind, parameters=0, macs=0, renditions=forms)

    cuts = [CutPoint(index, (TensorSpec(f"cut_{index}", (1,)),)) for index in range(length + 1)]
    blocks = [block(f"o{i}", i, i + 1, ("fp32", "int8")[: 2 - i % 2]) for i in range(length)]
    blocks += [block(f"m{i}-{i + n}", i, i + n) for i in range(length) for n in (2, 3) if i + n <= length]
    return Supernet(cuts, blocks)


def weight_of(supernet: Supernet, edge: Edge) -> float:
    """A weight in eighths, so that sums are exact in any order."""
    block = supernet.block(edge.block)
    return {1: 1.0, 2: 1.25, 3: 1.375}[block.end - block.start] * (0.5 if edge.rendition == "int8" else 1.0)


def graph_vectors() -> dict[str, Any]:
    """A graph, how many paths it has, which are cheapest, and what a seed draws from it."""
    supernet = elastic_supernet(12)

    def weight(edge: Edge) -> float:
        return weight_of(supernet, edge)

    def written(subnets: Iterable[Subnet]) -> list[str]:
        return [str(subnet) for subnet in subnets]

    cheapest = k_cheapest(supernet, weight, k=3)
    sampler = WindowSampler(supernet, weight, low=7.0, high=7.5)
    return {
        "cut_points": len(supernet.cut_points),
        "blocks": [
            {"id": one.id, "start": one.start, "end": one.end, "renditions": [form.name for form in one.renditions]}
            for one in supernet.blocks
        ],
        "weights": {str(edge): weight(edge) for edge in supernet.edges},
        "architecture_count": str(architecture_count(supernet)),
        "subnet_count": str(subnet_count(supernet)),
        "counts_by_length": {str(n): str(subnet_count(elastic_supernet(n))) for n in (1, 2, 3, 27, 60)},
        "cheapest_weights": [total for total, _ in cheapest],
        "samples": {"seed": "5", "subnets": written(sample_uniformly(supernet, count=5, random=SplitMix64(5)))},
        "window_samples": {
            "seed": "5",
            "low": 7.0,
            "high": 7.5,
            "subnets": written(sampler.sample(count=5, random=SplitMix64(5))),
        },
    }


def golden_vectors() -> list[dict[str, Any]]:
    """Golden inputs of a cut point of several tensors, and which elements are samples."""
    specs = (
        TensorSpec("cut_3_0", (2, 3), low=-1.5, high=2.25),
        TensorSpec("cut_3_1", (20,), low=0.1, high=0.3),
        TensorSpec("cut_3_2", (9,), dtype="int8", low=-128.0, high=127.0),
    )
    inputs = golden_inputs(CutPoint(3, specs), seed=11, batch=2)
    return [
        {
            "seed": "11",
            "cut_point": 3,
            "tensor": number,
            "batch": 2,
            "shape": list(spec.shape),
            "dtype": spec.dtype,
            "low": spec.low,
            "high": spec.high,
            "values": float32s(values.ravel().tolist()),
            "samples": float32s(sample_outputs([values])[0]),
        }
        for number, (spec, values) in enumerate(zip(specs, inputs, strict=True))
    ]


def composition_vectors() -> dict[str, Any]:
    """Two fragments, written byte by byte, and the model of both."""

    def node(operator: str, inputs: list[str], output: str) -> bytes:
        body = b"".join(protobuf.text_field(1, name) for name in inputs)
        return protobuf.bytes_field(1, body + protobuf.text_field(2, output) + protobuf.text_field(4, operator))

    def initializer(name: str, values: list[float]) -> bytes:
        body = protobuf.integer_field(1, len(values)) + protobuf.integer_field(2, 1)
        body += protobuf.text_field(8, name) + protobuf.bytes_field(9, struct.pack(f"<{len(values)}f", *values))
        return protobuf.bytes_field(5, body)

    fragments = (
        node("Add", ["cut_0", "o0/w"], "cut_1") + initializer("o0/w", [0.5, -1.0, 2.0]),
        node("Mul", ["cut_1", "o1/w"], "o1/x")
        + node("Relu", ["o1/x"], "cut_2")
        + initializer("o1/w", [3.0, 1.0, -2.0]),
    )
    ends = [(TensorSpec(f"cut_{index}", (3,)),) for index in (0, 2)]
    model = compose(Stretch(fragments, ends[0], ends[1], ir_version=10, opset=20))
    return {
        "ir_version": 10,
        "opset": 20,
        "input": {"name": "cut_0", "shape": [3], "dtype": "float32"},
        "output": {"name": "cut_2", "shape": [3], "dtype": "float32"},
        "fragments": [fragment.hex() for fragment in fragments],
        "model": model.hex(),
        "model_sha256": hashlib.sha256(model).hexdigest(),
        "answer": {"input": [1.0, 1.0, 1.0], "output": [4.5, 0.0, 0.0]},
    }


def signature_vectors() -> dict[str, Any]:
    """A manifest's bytes and their signature by a key that is for these tests only."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    data = b'{"format_version": "1.0", "tolerance": 1e-05, "name": "caf\xc3\xa9"}\n'
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "key"
        path.write_bytes(private)
        signature = signing.sign(data, private_key=path)
    return {"public_key": public.decode(), "manifest": data.hex(), "signature": signature.hex()}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("vectors.json"))
