"""Weights in 2 to 8 bits: accuracy rounded to the nearest, rounded for real inputs, and mixed at equal bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.reference_bundles import BATCH, load_part, package_pretrained
from device_sdk.bundles.bundle import Bundle
from device_sdk.data.datasets import ImageDataset
from device_sdk.fragments.composition import Stretch, compose
from device_sdk.policies.splitting.head_renditions import allocation
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.plan import Edge
from packager.renditions.low_bit import BITS, pack_weights

TARGETS = {
    "w2_gain_points": Target(minimum=20.0),
    "w2_drop_points": Target(maximum=5.0),
    "w4_drop_points": Target(maximum=0.5),
    "w8_drop_points": Target(maximum=0.2),
    "w2_mixed_gain_points": Target(minimum=0.0),
}
FP32 = "fp32"
NEAREST, FOR_INPUTS = "to the nearest", "for inputs"
MIXED, IN_ORDER = "for inputs, mixed", "for inputs, more bits first"  # renditions of blocks at equal bytes
HALFWAY = "halfway from w2 to w4"


@dataclass(frozen=True)
class _Network:
    """The original path of a bundle and the images that it is judged on."""

    bundle: Bundle
    inputs: np.ndarray
    labels: np.ndarray

    @property
    def original(self) -> tuple[Edge, ...]:
        return self.bundle.supernet.original.edges

    def options(self, edge: Edge) -> list[Edge]:
        """The block in few bits, the fewest bytes first; in float32 where it has no such rendition."""
        names = {one.name for one in self.bundle.supernet.block(edge.block).renditions}
        low = [Edge(edge.block, name) for name in BITS if name in names]
        return sorted(low or [edge], key=self.stored)

    def stored(self, edge: Edge) -> int:
        return sum(map(self.bundle.blob_size, self.bundle.blob_names([edge])))

    def error(self, edge: Edge) -> float:
        return self.bundle.supernet.rendition(edge).error or 0.0

    def uniform(self, name: str) -> tuple[Edge, ...]:
        """All blocks in one rendition; in the next larger width, or in float32, where a block lacks it."""
        wider = list(BITS)[list(BITS).index(name) :]
        edges = self.bundle.supernet.edges
        found = []
        for own in self.original:
            ways = (Edge(own.block, one) for one in wider)
            found.append(next((edge for edge in ways if edge in edges), own))
        return tuple(found)

    def bytes_of(self, edges: Sequence[Edge]) -> int:
        return sum(map(self.stored, edges))

    def mixed(self, budget_bytes: float) -> tuple[Edge, ...] | None:
        """The renditions that Auto-Split's allocation takes for so many bytes."""
        options = [self.options(edge) for edge in self.original]
        costs = [[(self.stored(one), self.error(one)) for one in own] for own in options]
        places = allocation(costs, budget_bytes=budget_bytes)
        return None if places is None else tuple(own[at] for own, at in zip(options, places, strict=True))

    def in_order(self, budget_bytes: float) -> tuple[Edge, ...]:
        """4 bits for the blocks from the input on while they fit the budget, 2 for the others."""
        found, fewer = list(self.uniform("w2")), self.uniform("w4")
        for place, edge in enumerate(fewer):
            if self.bytes_of([*found[:place], edge, *found[place + 1 :]]) <= budget_bytes:
                found[place] = edge
        return tuple(found)

    def accuracy(self, stretch: Stretch) -> float:
        """In percent."""
        with contextlib.closing(OnnxRuntime(threads=1).load(stretch)) as loaded:
            parts = range(0, len(self.inputs), BATCH)
            answers = np.concatenate([loaded.run([self.inputs[at : at + BATCH]])[0] for at in parts])
        return 100 * float((answers.argmax(axis=1) == self.labels).mean())

    def nearest(self, bits: int) -> Stretch:
        """The original path with weights rounded to the nearest."""
        whole = self.bundle.stretch(self.original)
        graph = onnx.ModelProto.FromString(compose(whole)).graph
        pack_weights(graph, bits)
        return replace(
            whole, fragments=(onnx.GraphProto(node=graph.node, initializer=graph.initializer).SerializeToString(),)
        )


def run(options: BenchOptions) -> BenchOutcome:
    """ResNet-56, calibrated on #calibration, judged on #report; nothing is chosen by accuracy."""
    name = "resnet20_cifar10" if options.quick else "resnet56_cifar10"
    made = package_pretrained(options, name, train=False, max_span=1, renditions=(FP32, *BITS))
    with AdaptiveModel.open(made.folder, state_folder=options.work_folder / "device") as model:
        data = load_part(options, "report", model)
    network = _network(Bundle.open(made.folder), data)
    rows = list(_rows(network))
    figures = {**_figures(rows), "packaging_minutes": made.minutes}
    return BenchOutcome(figures, rows, data="test.zip#report; calibrated on test.zip#calibration")


def _figures(rows: Sequence[Mapping[str, object]]) -> dict[str, float]:
    found = {(str(row["weights"]), str(row["rounded"])): float(str(row["accuracy"])) for row in rows}
    whole = found[FP32, ""]
    figures = {"accuracy": whole}
    for width in BITS:
        figures[f"{width}_nearest_drop_points"] = whole - found[width, NEAREST]
        figures[f"{width}_drop_points"] = whole - found[width, FOR_INPUTS]
        figures[f"{width}_mixed_gain_points"] = found[width, MIXED] - found[width, FOR_INPUTS]
    figures["w2_gain_points"] = found["w2", FOR_INPUTS] - found["w2", NEAREST]
    figures["halfway_mixed_gain_points"] = found[HALFWAY, MIXED] - found[HALFWAY, IN_ORDER]
    return figures


def _network(bundle: Bundle, data: ImageDataset) -> _Network:
    return _Network(bundle, SampleChecker(bundle.manifest).prepare(data.images), data.labels)


def _rows(network: _Network) -> Iterator[dict[str, object]]:
    bundle, stored = network.bundle, {name: network.bytes_of(network.uniform(name)) for name in BITS}
    yield _row(network, FP32, "", bundle.stretch(network.original), network.original)
    for name, bits in BITS.items():
        yield _row(network, name, NEAREST, network.nearest(bits), None)
        yield _row(network, name, FOR_INPUTS, bundle.stretch(network.uniform(name)), network.uniform(name))
    budgets = {name: float(size) for name, size in stored.items()}
    budgets[HALFWAY] = (stored["w2"] + stored["w4"]) / 2
    for name, budget in budgets.items():
        mixed = network.mixed(budget)
        if mixed is not None:
            yield _row(network, name, MIXED, bundle.stretch(mixed), mixed)
    in_order = network.in_order(budgets[HALFWAY])
    yield _row(network, HALFWAY, IN_ORDER, bundle.stretch(in_order), in_order)


def _row(
    network: _Network, name: str, rounded: str, stretch: Stretch, edges: Sequence[Edge] | None
) -> dict[str, object]:
    row: dict[str, object] = {"weights": name, "rounded": rounded, "accuracy": network.accuracy(stretch)}
    if edges is not None:
        row |= {"stored_bytes": network.bytes_of(edges), "error": sum(map(network.error, edges))}
        row |= {f"blocks_{one}": sum(edge.rendition == one for edge in edges) for one in (FP32, *BITS)}
    return row
