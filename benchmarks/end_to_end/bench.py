"""End to end: fidelity of bundles to their models, latency saved by exits, accuracy gained by escalation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from safetensors import safe_open

from benchmarks.end_to_end.escalation import ESCALATION_TARGETS, escalate
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.exit_latency import EXIT_TARGETS, exit_early
from benchmarks.support.reference_bundles import BATCH, Made, accuracy, load_part, package_pretrained
from device_sdk.bundles.bundle import Bundle
from device_sdk.data.datasets import ImageDataset, load_dataset
from device_sdk.profiling.timing import measure_interleaved
from device_sdk.progress import Progress
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal
from packager.exporting.onnx_exporter import export_whole
from packager.inputs.model_loader import load_model
from packager.tracing.traced_model import trace

TARGETS = {
    "accuracy_resnet20": Target(minimum=91.43, maximum=91.53),
    "accuracy_resnet8": Target(minimum=87.23, maximum=87.33),
    "max_abs_diff": Target(maximum=1e-4),
    "bundle_over_original": Target(maximum=3.0),
    "composed_over_monolithic": Target(maximum=1.02),
    "adapted_over_budget": Target(maximum=1.05),
    **ESCALATION_TARGETS,
    **EXIT_TARGETS,
}
LATENCY_RATIO = 0.6  # budget of the adaptation, of the full model's latency
ROUNDS, QUICK_ROUNDS = 600, 100


def run(options: BenchOptions) -> BenchOutcome:
    """Package ResNet-20 (with training) and ResNet-8 (without), then compare the bundles with the models in torch."""
    resnet20 = package_pretrained(options, "resnet20_cifar10", train=True)
    resnet8 = package_pretrained(options, "resnet8_mlperf_tiny", train=False)
    test = load_dataset(str(options.data_folder / "cifar10" / "test.zip"), progress=options.progress)
    compared = {made.model.name: _compare(made, test, options.progress) for made in (resnet20, resnet8)}
    latency = _composed_against_whole(resnet20, rounds=QUICK_ROUNDS if options.quick else ROUNDS)
    adapted = _adapt(resnet20, options)
    escalated = escalate(resnet8, package_pretrained(options, "resnet56_cifar10", train=False, max_span=1), options)
    early = exit_early(resnet20, options)
    sizes = _sizes(resnet20)
    figures = {
        "accuracy_resnet20": compared["resnet20_cifar10"]["accuracy"],
        "accuracy_resnet8": compared["resnet8_mlperf_tiny"]["accuracy"],
        "max_abs_diff": max(one["max_abs_diff"] for one in compared.values()),
        "bundle_over_original": sizes["block_weight_bytes"] / sizes["original_weight_bytes"],
        "package_minutes": resnet20.minutes,
        "composed_over_monolithic": latency["composed_ms"] / latency["monolithic_ms"],
        "adapted_over_budget": adapted["measured_ratio"] / LATENCY_RATIO,
        "adapted_accuracy_report": adapted["accuracy_report"],
        **escalated.figures,
        **early.figures,
    }
    table: list[dict[str, object]] = [{"what": name, **row} for name, row in compared.items()]
    table += [{"what": "resnet20 bundle", **sizes}, {"what": "resnet20 latency", **latency}]
    table += [{"what": f"resnet20 adapted to {LATENCY_RATIO:.0%} of the latency", **adapted}]
    table += [*_range_rows(resnet20), *escalated.rows, *early.rows]
    return BenchOutcome(figures, table, data="cifar10/test.zip (5,000 images); packaged on train.zip, test.zip#search")


def _compare(made: Made, test: ImageDataset, progress: Progress) -> dict[str, float]:
    """Accuracy in percent of the bundle's original path and of torch, and their largest difference."""
    module = load_model(f"zoo:{made.model.name}", weights=made.weights).module
    right = torch_right = 0
    difference = 0.0
    state = made.folder.with_name(f"{made.folder.name}.state")
    with (
        AdaptiveModel.open(made.folder, state_folder=state) as model,
        progress.task(f"compare {made.model.name}", len(test)) as task,
        torch.no_grad(),
    ):
        labels = test.relabelled(model.bundle.manifest.task.class_names).labels
        for at in range(0, len(test), BATCH):
            images, wanted = test.images[at : at + BATCH], labels[at : at + BATCH]
            answer = model(images).output
            expected = module(torch.from_numpy(model.prepare(images))).numpy()
            right += int((answer.argmax(axis=1) == wanted).sum())
            torch_right += int((expected.argmax(axis=1) == wanted).sum())
            difference = max(difference, float(np.abs(answer - expected).max()))
            task.advance(len(images))
    return {
        "accuracy": 100 * right / len(test),
        "accuracy_torch": 100 * torch_right / len(test),
        "max_abs_diff": difference,
    }


def _adapt(made: Made, options: BenchOptions) -> dict[str, float]:
    """A subnet is chosen and confirmed on test.zip#search, then evaluated once on #report, beside the full model."""
    state = made.folder.with_name(f"{made.folder.name}.adapted")
    with AdaptiveModel.open(made.folder, state_folder=state) as model:
        private, report = (load_part(options, part, model) for part in ("search", "report"))
        full = accuracy(model, report)
        goal = Goal(latency_ratio=LATENCY_RATIO)
        found = model.adapt(private.images, goal, labels=private.labels, progress=options.progress)
        assert found.measured is not None
        return {
            "measured_ratio": found.measured.ratio,
            "predicted_ms": found.expected.latency_ms or 0.0,
            "measured_ms": found.measured.latency_ms,
            "budget_ms": found.goal.latency_ms or 0.0,
            "subnets_evaluated": found.considered,
            "seconds": found.seconds,
            "accuracy_holdout": 100 * (found.held_out.accuracy or 0.0 if found.held_out else 0.0),
            "accuracy_report": accuracy(model, report),
            "full_accuracy_report": full,
        }


def _composed_against_whole(made: Made, *, rounds: int) -> dict[str, float]:
    """Batch 1, one thread: the composed original path and the model exported in one piece, in turns."""
    bundle, runtime = Bundle.open(made.folder), OnnxRuntime(threads=1)
    spec = bundle.supernet.cut_points[0].tensors[0]
    traced = trace(made.model.module, torch.zeros(1, *spec.shape))
    sample = np.random.default_rng(0).normal(size=(1, *spec.shape)).astype(np.float32)
    # two sessions of each, since equal sessions differ by a percent
    sessions = {
        f"{kind} {copy}": load()
        for copy in ("a", "b")
        for kind, load in (
            ("composed", lambda: runtime.load(bundle.stretch(bundle.supernet.original.edges))),
            ("monolithic", lambda: runtime.load_model(export_whole(traced.whole, spec))),
        )
    }
    calls = {name: (lambda session=session: session.run([sample])) for name, session in sessions.items()}
    timed = measure_interleaved(calls, rounds=rounds, warmup=20)
    return {
        f"{kind}_ms": float(np.mean([timed[f"{kind} {copy}"].median_ms for copy in ("a", "b")]))
        for kind in ("composed", "monolithic")
    } | {f"{name.replace(' ', '_')}_p95_ms": latency.p95_ms for name, latency in timed.items()}


def _sizes(made: Made) -> dict[str, float]:
    """Bytes of the fp32 weights of all blocks and of the original model, and of everything else in the bundle."""
    bundle = Bundle.open(made.folder)
    weights = sum(_initializer_bytes(bundle.read_blob(name)) for name in bundle.manifest.blobs())
    blobs = sum(bundle.blob_sizes().values())
    return {
        "original_weight_bytes": sum(_float_bytes(made.weights).values()),
        "block_weight_bytes": weights,
        "other_blob_bytes": blobs - weights,
        "manifest_bytes": bundle.manifest_bytes,
        "bundle_bytes": blobs + bundle.manifest_bytes,
        "original_file_bytes": made.weights.stat().st_size,
    }


def _initializer_bytes(fragment: bytes) -> int:
    graph = onnx.GraphProto.FromString(fragment)
    return sum(len(t.raw_data) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT)


def _float_bytes(path: Path) -> Mapping[str, int]:
    """Bytes of each floating-point tensor, counters of batch-norm left out."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    return {name: t.numel() * t.element_size() for name, t in tensors.items() if t.is_floating_point()}


def _range_rows(made: Made) -> list[dict[str, object]]:
    """The packager's own validation, to see what the subnets are worth."""
    metrics = Bundle.open(made.folder).manifest.metrics
    return [
        {
            "what": f"subnets at {one.macs_ratio_low:.2f} to {one.macs_ratio_high:.2f} of the MACs ({metrics.data})",
            "accuracy": 100 * one.accuracy,
            "subnets": one.subnets,
        }
        for one in metrics.range_accuracy
    ]
