"""Subnets composed from fragments beside the same subnets exported from torch in one piece."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.runner.run import BenchOptions
from device_sdk.fragments.composition import Stretch
from device_sdk.profiling.timing import Latency, measure_interleaved
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.paths import k_cheapest, sample_uniformly
from device_sdk.supernet.plan import Subnet
from packager.exporting.export import export_blocks
from packager.exporting.onnx_exporter import export_whole
from packager.inputs.model_loader import load_model
from packager.supernet.expansion import Expansion, expand
from packager.tracing.traced_model import trace

ROUNDS, QUICK_ROUNDS = 300, 60
MAX_SPAN = 3
SEED = 7
_COPIES = ("a", "b")  # two sessions of each, since equal sessions differ by a percent


@dataclass(frozen=True)
class WholeSubnet:
    """One subnet both ways: the latencies of each copy, and the largest difference of their outputs."""

    subnet: Subnet
    latencies: dict[str, Latency]
    max_abs_diff: float

    def mean_ms(self, kind: str) -> float:
        return float(np.mean([self.latencies[f"{kind} {copy}"].median_ms for copy in _COPIES]))

    @property
    def ratio(self) -> float:
        return self.mean_ms("composed") / self.mean_ms("whole")

    def row(self) -> dict[str, object]:
        spread = {f"{name.replace(' ', '_')}_p75_ms": latency.p75_ms for name, latency in self.latencies.items()}
        return {
            "what": "composed against whole",
            "subnet": str(self.subnet),
            "composed_ms": self.mean_ms("composed"),
            "whole_ms": self.mean_ms("whole"),
            "ratio": self.ratio,
            "max_abs_diff": self.max_abs_diff,
            **spread,
        }


def composed_over_whole(options: BenchOptions) -> list[WholeSubnet]:
    """The original path, that of fewest multiplications and two random ones of ResNet-56; ResNet-20 for ``--quick``."""
    name = "resnet20_cifar10" if options.quick else "resnet56_cifar10"
    weights = options.data_folder / "pretrained" / f"{name}.safetensors"
    module = load_model(f"zoo:{name}", weights=weights).module
    expansion = expand(trace(module, torch.zeros(1, 3, 32, 32)), max_span=MAX_SPAN)
    supernet = expansion.supernet()
    subnets = [supernet.original, k_cheapest(supernet, lambda edge: float(supernet.block(edge.block).macs), k=1)[0][1]]
    subnets += sample_uniformly(supernet, count=2, random=SplitMix64(SEED))
    with options.progress.task("composed against whole", len(subnets) + 1) as task:
        used = {block for subnet in subnets for block in subnet.block_ids}
        only = dataclasses.replace(expansion, blocks=tuple(one for one in expansion.blocks if one.id in used))
        exported = export_blocks(only)
        task.advance()
        found = []
        for subnet in subnets:
            models: dict[str, Stretch | bytes] = {
                "composed": exported.stretch(subnet.block_ids),
                "whole": _whole(only, subnet),
            }
            found.append(_compare(subnet, models, rounds=QUICK_ROUNDS if options.quick else ROUNDS))
            task.advance()
    return found


def _whole(expansion: Expansion, subnet: Subnet) -> bytes:
    modules = {block.id: block.module for block in expansion.blocks}
    chain = nn.Sequential(*(modules[block] for block in subnet.block_ids)).eval()
    return export_whole(chain, expansion.traced.tensors[0])


def _compare(subnet: Subnet, models: dict[str, Stretch | bytes], *, rounds: int) -> WholeSubnet:
    runtime = OnnxRuntime(threads=1)
    sample = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)
    sessions = {
        f"{kind} {copy}": runtime.load_model(model) if isinstance(model, bytes) else runtime.load(model)
        for copy in _COPIES
        for kind, model in models.items()
    }
    answers = [session.run([sample])[0] for session in sessions.values()]
    calls = {name: partial(session.run, [sample]) for name, session in sessions.items()}
    latencies = measure_interleaved(calls, rounds=rounds, warmup=20)
    for session in sessions.values():
        session.close()
    return WholeSubnet(subnet, latencies, max(float(np.abs(one - answers[0]).max()) for one in answers))
