"""Auto-Split against its baselines on the paper's hardware: Eyeriss, TPU and 3 Mbit/s. Simulated, not timed.

Latencies are computed (``benchmarks/auto_split/hardware``). Without ImageNet's data and the weights of the six
networks, their errors are **taken from two networks that are here with weights and images**: errors of weights and
activations are the medians of theirs by kind of layer, and the limit of their sum is the largest at which both lose at
most five points. YOLOv3's shapes stand for the detectors that the paper's means include.

Three inputs: ``16`` bits per value is what the paper's server alone is sent (Fig. 7 and Table 2 agree with no
other), ``8`` bits is the image as it is, ``JPEG`` its compressed size, measured on photographs.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np
import torch
from PIL import Image

from benchmarks.auto_split.auto_split import choose, feasible_solutions
from benchmarks.auto_split.baselines import device_alone, neurosurgeon, server_with_jpeg
from benchmarks.auto_split.hardware import EYERISS, TPU, Hardware, server_latencies_ms
from benchmarks.auto_split.label_search import least_latency
from benchmarks.auto_split.problem import Link, SplitProblem, SplitSolution, keeps_limits, server_alone
from benchmarks.real_size.photographs import load_photographs
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.split_paper.detector import YOLO_INPUT, yolov3
from benchmarks.split_paper.networks import INPUT, NETWORKS, TracedLayers, torchvision_network, trace_layers
from benchmarks.split_paper.real_networks import Kind, RealNetwork, efficientnet_lite0, resnet56, typical_errors
from benchmarks.support.minimum_cut import division, minimum_cut
from device_sdk.supernet.cost import MB, Uplink

TARGETS = {
    "vs_u8": Target(minimum=0.25),
    "vs_qdmp": Target(minimum=0.40),
    "vs_neurosurgeon": Target(minimum=0.47),
    "vs_cloud": Target(minimum=0.70),
    "worse_than_best_baseline": Target(minimum=0, maximum=0),
}
UPLINK_MBPS = 3.0
WIDTH = 1024  # partial choices per layer of the label search
MAX_DROP = 0.05  # Auto-Split §5.3, classification
PAPER_KINDS = {  # §5.3
    "resnet18": "device",
    "resnet50": "split",
    "googlenet": "split",
    "mobilenet_v2": "device",
    "mnasnet1_0": "device",
    "resnext50_32x4d": "server",
    "yolov3": "split",
}
BOTH, DENSE = "both", "ResNet-56"  # whose error limits are kept
SOURCES: Mapping[str, tuple[Hardware, Hardware]] = {
    "systolic": (EYERISS, TPU),
    "roofline": (replace(EYERISS, array=None), replace(TPU, array=None)),
    "34 GMAC/s": (replace(EYERISS, array=None, macs_per_s=34e9, slower_by=1.0), replace(TPU, array=None)),
}
JPEG_QUALITY = 80
JPEG_CODING_MS = 28.0  # Auto-Split appendix B, on a Raspberry Pi 3
MEASURED, QUICK_MEASURED = 8, 3  # allocations per real network whose accuracy is measured
_ERRORS = (0.02, 5.0)  # between which these lie


@dataclass(frozen=True)
class _Case:
    """A network under a source of latencies, a form of its input, and an error limit taken from real networks."""

    name: str
    source: str
    problem: SplitProblem
    limit_of: str = BOTH

    @property
    def input_bits(self) -> int:
        return self.problem.graph.input_bits


def run(options: BenchOptions) -> BenchOutcome:
    """Errors from real networks, then every method on every network."""
    torch.set_num_threads(1)
    real = [resnet56(options), efficientnet_lite0(options)]
    rows, limits = [], []
    for network in real:
        measured = list(_drops(network, QUICK_MEASURED if options.quick else MEASURED))
        limits.append(_largest_error(measured))
        rows += measured
    max_error, errors = min(limits), typical_errors(real)
    ratio = _jpeg_ratio(options)
    compared: list[dict[str, object]] = []
    cases = list(_cases(errors, max_error, limits[0], quick=options.quick))
    with options.progress.task("split the networks", len(cases)) as task:
        for case in cases:
            compared += _methods(case, ratio)
            task.advance()
    rows += compared
    rows += [_chosen_by_accuracy(network, max_error) for network in real]
    figures = _figures(compared) | {"max_error": max_error, "max_error_resnet56": limits[0], "jpeg_ratio": ratio}
    data = "imagenette val.zip#search, #calibration; cifar10 test.zip#search, #calibration; shapes of torchvision"
    return BenchOutcome(figures, rows, data=data)


def _problem(layers: TracedLayers, source: str, **changes: object) -> SplitProblem:
    device, server = SOURCES[source]
    graph = layers.graph
    problem = SplitProblem(
        graph=graph,
        device=device,
        server_ms=server_latencies_ms(server, graph),
        link=Link(Uplink(UPLINK_MBPS)),
        weight_errors=({},) * graph.count,
        activation_errors=({},) * (graph.count + 1),
        memory_bytes=device.memory_bytes,
    )
    return replace(problem, **changes)  # type: ignore[arg-type]


def _cases(
    errors: Mapping[Kind, Mapping[int, float]], max_error: float, dense_error: float, *, quick: bool
) -> Iterator[_Case]:
    """Every network under both limits; those without depthwise layers also under that of ResNet-56, which has none."""
    for name in (*NETWORKS[: 2 if quick else None], "yolov3"):
        shape = YOLO_INPUT if name == "yolov3" else INPUT
        network = yolov3() if name == "yolov3" else torchvision_network(name)
        layers = trace_layers(network, torch.zeros(1, *shape, device="meta"))
        ways = [(source, 16, BOTH) for source in SOURCES] + [("systolic", 8, BOTH)]
        ways += [("systolic", 16, DENSE)] if "depthwise" not in layers.kinds else []
        for source, bits, limit_of in ways:
            problem = _problem(
                layers,
                source,
                graph=replace(layers.graph, input_bits=bits),
                weight_errors=tuple(errors.get(("weights", kind), {}) for kind in layers.kinds),
                activation_errors=({}, *(errors.get(("activations", kind), {}) for kind in layers.kinds)),
                max_error=max_error if limit_of == BOTH else dense_error,
            )
            yield _Case(name, source, problem, limit_of)


def _methods(case: _Case, ratio: float) -> Iterator[dict[str, object]]:
    """A row for every method; latencies are also given relative to the server alone."""
    problem = case.problem
    listed = feasible_solutions(problem)
    found = least_latency(problem, known=listed[:1], width=WIDTH)
    baselines = {
        "server": server_alone(problem),
        **{f"U{bits}": device_alone(problem, bits) for bits in (16, 8, 4, 2)},
        "Neurosurgeon": neurosurgeon(problem),
    }
    methods = {"Auto-Split": found.solution, "Algorithm 1": listed[0], **baselines}
    if case.input_bits == 8:
        methods["server, JPEG"] = server_with_jpeg(problem, ratio=ratio, coding_ms=JPEG_CODING_MS)
    cloud_ms = baselines["server"].latency_ms
    for method, solution in methods.items():
        row = _row(case, method, solution, cloud_ms)
        if method == "Auto-Split":
            row |= {"optimal": found.optimal, "paper": PAPER_KINDS[case.name]}
        yield row
    cut = minimum_cut(problem)
    weights = sum(layer.weights for layer in problem.graph.layers)
    quarter = division(problem, cut.on_device, 4)
    for method, one, values, bits in (
        ("QDMP", cut, weights, 16),
        ("QDMP_E", cut, cut.weight_values, 16),
        ("QDMP_E+U4", quarter, cut.weight_values, 4),
    ):
        yield {
            **_head(case, method),
            "latency_ms": one.latency_ms,
            "normalised": one.latency_ms / cloud_ms,
            "kind": "server" if not cut.on_device else "device" if not cut.bytes_sent else "split",
            "layers_on_device": len(cut.on_device),
            "bytes_sent": one.bytes_sent,
            "weights_mb": values * bits / 8 / MB,
        }


def _head(case: _Case, method: str) -> dict[str, object]:
    return {
        "network": case.name,
        "latencies": case.source,
        "input_bits": case.input_bits,
        "limit_of": case.limit_of,
        "method": method,
    }


def _row(case: _Case, method: str, solution: SplitSolution, cloud_ms: float) -> dict[str, object]:
    graph = case.problem.graph
    cut = graph.layer(solution.position).name if solution.position else "input"
    return {
        **_head(case, method),
        "latency_ms": solution.latency_ms,
        "normalised": solution.latency_ms / cloud_ms,
        "kind": solution.kind,
        "layers_on_device": solution.position,
        "cut_after": cut,
        "device_ms": solution.device_ms,
        "transfer_ms": solution.transfer_ms,
        "server_ms": solution.server_ms,
        "bytes_sent": solution.bytes_sent,
        "weights_mb": solution.weight_bytes / MB,
        "mean_weight_bits": _mean_bits(solution.weight_bits, [layer.weights for layer in graph.layers]),
        "mean_activation_bits": _mean_bits(solution.activation_bits, [layer.outputs for layer in graph.layers]),
        "sent_bits": list(solution.sent_bits),
        "error": solution.error,
        "within_limits": keeps_limits(case.problem, solution),
    }


def _mean_bits(bits: Sequence[int], sizes: Sequence[int]) -> float | None:
    total = sum(size for _, size in zip(bits, sizes, strict=False))
    return sum(width * size for width, size in zip(bits, sizes, strict=False)) / total if total else None


def _figures(rows: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """Mean reductions against each baseline, in the paper's form, and by other sources and inputs."""

    def latency(name: str, source: str, bits: int, method: str, limit_of: str = BOTH) -> float:
        wanted = (name, source, bits, method, limit_of)
        keys = ("network", "latencies", "input_bits", "method", "limit_of")
        found = [row for row in rows if tuple(row[key] for key in keys) == wanted]
        if not found and limit_of == DENSE:
            return latency(name, source, bits, method)
        return float(str(found[0]["latency_ms"]))

    names = list(dict.fromkeys(str(row["network"]) for row in rows))
    classifiers = [name for name in names if name != "yolov3"]

    def reduction(
        method: str, over: Sequence[str] = names, source: str = "systolic", bits: int = 16, limit_of: str = BOTH
    ) -> float:
        own = [latency(name, source, bits, "Auto-Split", limit_of) for name in over]
        return mean(1 - ms / latency(name, source, bits, method) for name, ms in zip(over, own, strict=True))

    baselines = {"u8": "U8", "qdmp": "QDMP", "neurosurgeon": "Neurosurgeon", "cloud": "server"}
    figures = {f"vs_{short}": reduction(method) for short, method in baselines.items()}
    figures |= {f"vs_{short}_classifiers": reduction(method, classifiers) for short, method in baselines.items()}
    figures |= {f"vs_{short}_roofline": reduction(method, source="roofline") for short, method in baselines.items()}
    figures |= {f"vs_{short}_34_gmacs": reduction(method, source="34 GMAC/s") for short, method in baselines.items()}
    figures |= {f"vs_{short}_limit_by_kind": reduction(method, limit_of=DENSE) for short, method in baselines.items()}
    figures |= {f"vs_{short}_8_bit_input": reduction(method, bits=8) for short, method in baselines.items()}
    figures["vs_jpeg_8_bit_input"] = reduction("server, JPEG", bits=8)
    figures["vs_qdmp_u4"] = reduction("QDMP_E+U4")
    own_rows = [row for row in rows if row["method"] == "Auto-Split"]
    figures["kinds_as_in_paper"] = mean(
        float(row["kind"] == row["paper"])
        for row in own_rows
        if (row["latencies"], row["input_bits"], row["limit_of"]) == ("systolic", 16, BOTH)
    )
    figures["solved_to_optimality"] = mean(float(bool(row["optimal"])) for row in own_rows)
    figures["worse_than_best_baseline"] = float(sum(_is_worse(row, rows) for row in own_rows))
    return figures


def _is_worse(own: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> bool:
    """True if a method that keeps the limits, at the same input, is faster."""
    same = [
        row for row in rows if all(row[key] == own[key] for key in ("network", "latencies", "input_bits", "limit_of"))
    ]
    keeps = [row for row in same if row.get("within_limits", row["method"] == "QDMP")]
    allowed = [row for row in keeps if row["method"] != "server, JPEG"]
    return float(str(own["latency_ms"])) > min(float(str(row["latency_ms"])) for row in allowed) * (1 + 1e-9)


def _drops(network: RealNetwork, count: int) -> Iterator[dict[str, object]]:
    """The accuracy of ``count`` allocations of the whole network, spread over their errors."""
    problem = _problem(
        network.layers,
        "systolic",
        weight_errors=network.weight_errors,
        activation_errors=network.activation_errors,
    )
    whole = [one for one in feasible_solutions(problem) if one.kind == "device"]
    wanted = np.geomspace(*_ERRORS, count)
    chosen = dict.fromkeys(min(whole, key=lambda one: abs(math.log(max(one.error, 1e-9) / at))) for at in wanted)
    full = network.accuracy()
    for solution in sorted(chosen, key=lambda one: one.error):
        accuracy = network.accuracy(solution)
        yield {
            "network": network.name,
            "method": "quantised on the device",
            "error": solution.error,
            "accuracy": accuracy,
            "full_accuracy": full,
            "drop": full - accuracy,
            "samples": len(network.labels),
            "mean_weight_bits": _mean_bits(solution.weight_bits, [one.weights for one in problem.graph.layers]),
            "mean_activation_bits": _mean_bits(solution.activation_bits, [one.outputs for one in problem.graph.layers]),
        }


def _largest_error(measured: Sequence[Mapping[str, object]]) -> float:
    """The largest error up to which every allocation that was measured loses at most ``MAX_DROP``."""
    allowed = 0.0
    for row in measured:
        if float(str(row["drop"])) > MAX_DROP:
            break
        allowed = float(str(row["error"]))
    return allowed


def _chosen_by_accuracy(network: RealNetwork, max_error: float) -> dict[str, object]:
    """Auto-Split on a real network: the fastest solution of Algorithm 1 that loses at most five points, measured."""
    problem = _problem(
        network.layers,
        "systolic",
        graph=replace(network.layers.graph, input_bits=8),
        weight_errors=network.weight_errors,
        activation_errors=network.activation_errors,
        max_error=2 * max_error,
    )
    full = network.accuracy()
    choice = choose(
        feasible_solutions(problem),
        max_drop=MAX_DROP,
        drop_of=lambda one: full - network.accuracy(one) if one.position else 0.0,
    )
    row = _row(
        _Case(network.name, "systolic", problem),
        "Algorithm 1, measured",
        choice.solution,
        server_alone(problem).latency_ms,
    )
    return row | {"full_accuracy": full, "drop": choice.drop, "tried": choice.tried, "samples": len(network.labels)}


def _jpeg_ratio(options: BenchOptions) -> float:
    """Ratio of the raw bytes of photographs of 224² to their mean size as JPEG."""
    found = load_photographs(options.data_folder, ("search",), limit=100)
    sizes = []
    for pixels in found.images:
        file = io.BytesIO()
        Image.fromarray(pixels).resize(INPUT[1:], Image.Resampling.BICUBIC).save(file, "JPEG", quality=JPEG_QUALITY)
        sizes.append(file.tell())
    return math.prod(INPUT) / mean(sizes)
