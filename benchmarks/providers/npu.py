"""NPUs: the share of 35 networks' MACs that the HTP's compiler takes block by block, and accuracy in its emulator.

``python -m benchmarks.providers.npu --data FOLDER --out FILE`` measures this part alone. Each network has a process of
its own, two at a time. Latencies are not measured: the emulator's mean nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.generality.models import MODELS
from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import CHECKOUT
from benchmarks.support.lite import lite_job
from device_sdk.bundles.bundle import Bundle
from device_sdk.data.datasets import load_dataset
from device_sdk.data.preprocessing import prepare
from device_sdk.files.atomic import write_atomically
from device_sdk.fragments.composition import compose
from device_sdk.progress import SilentProgress
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.plan import Edge
from packager.doctor.npu import npu_blocks
from packager.inputs.job import Job, load_job
from packager.npu.chips import CHIPS, DEFAULT_CHIPS
from packager.npu.compiler import Compiler
from packager.npu.emulation import emulated
from packager.npu.records import grouped
from packager.pipeline import package
from packager.renditions.htp import NAME as HTP
from packager.renditions.int8 import NAME as INT8
from packager.tracing.traced_model import trace

Row = dict[str, object]
CHIP = CHIPS[DEFAULT_CHIPS[0]]
PROCESSES = 2
QUICK_NETWORKS = ("tokens:transformer_encoder",)
_NOT_MEASURED = (  # what generality has examined besides since: unusual graphs, and networks at their real size
    *("timm:twins_svt_small", "timm:efficientvit_b0", "timm:coat_tiny", "timm:nest_tiny", "timm:crossvit_tiny_240"),
    *("timm:convmixer_768_32", "timm:hiera_tiny_224"),
)
NETWORKS = tuple(name for name in MODELS if name not in _NOT_MEASURED and " at " not in name)
_TRACED, _CALIBRATED = 4, 8
_LIMIT_S = 900.0  # of one network's process
_PLAIN: Mapping[str, object] = {
    **{"max_span": 1, "identity": False, "exit_positions": 0, "steps": 0, "input_sizes": []},
    "renditions": ["fp32", INT8, HTP],
}


@dataclass(frozen=True)
class NpuFigures:
    """Figures, and the rows behind them."""

    figures: dict[str, float]
    rows: list[Row]


def npu_figures(
    data_folder: Path,
    *,
    quick: bool = False,
    processes: int = PROCESSES,
    done: Callable[[str], None] = lambda _: None,
) -> NpuFigures:
    """Measure all networks, so many at a time. ``done`` is called with the name of each.

    ``quick``: one network, no accuracy.
    """
    accuracies = () if quick else tuple(ACCURACIES)
    names = [*accuracies, *(QUICK_NETWORKS if quick else NETWORKS)]

    def measured(name: str) -> Row:
        row = _in_process(name, data_folder)
        done(name)
        return row

    with ThreadPoolExecutor(processes) as pool:
        rows = list(pool.map(measured, names))
    judged = dict(zip(accuracies, rows, strict=False))
    return NpuFigures(figures_of(rows[len(accuracies) :], judged), rows)


def figures_of(networks: Sequence[Row], judged: Mapping[str, Row]) -> dict[str, float]:
    """The figures of the rows of ``networks``, and of those ``judged`` by accuracy.

    Of a failed network nothing counts as taken; one that was to be judged has no figure then.
    """
    shares = [_number(row, "macs_assigned") for row in networks]
    figures = {"htp_macs_assigned": float(np.mean(shares)), "htp_networks": float(len(shares))}
    for name, row in judged.items():
        if "accuracy_drop_points" in row:
            figures[f"htp_accuracy_drop_points_{name}"] = _number(row, "accuracy_drop_points")
            figures[f"htp_images_{name}"] = _number(row, "images")
    return figures


def _number(row: Row, name: str) -> float:
    """A number of a row; 0 for a network that failed."""
    return float(str(row.get(name, 0.0)))


def _in_process(name: str, data_folder: Path) -> Row:
    """The row of one network; of a failed one the reason, with nothing taken."""
    command = [sys.executable, "-m", "benchmarks.providers.npu", "--data", str(data_folder), "--network", name]
    started = time.monotonic()
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"network": name, "failure": f"took more than {_LIMIT_S:.0f} s"}
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()] or ["it died"]
        return {"network": name, "failure": last[-1][:300]}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row | {"seconds": round(time.monotonic() - started, 1)}


def assigned(name: str) -> Row:
    """The share of a network's MACs that the chip takes, block by block, with each refusal and its reason.

    A block counts by its share of nodes; one whose answers are too far off in the emulator counts as refused.
    """
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    traced = trace(model, inputs[:_TRACED], streams=False)
    with Compiler() as compiler:
        blocks = list(npu_blocks(traced, inputs[:_CALIBRATED], [CHIP], compiler))
    macs = max(1, sum(block.macs for block in blocks))
    refused = [(block.id, one) for block in blocks for record in block.compiled for one in record.refused]
    forms = [block.form for block in blocks]
    return {
        "network": name,
        "chip": CHIP.name,
        "blocks": len(blocks),
        "macs_assigned": round(sum(block.macs * block.share(CHIP.name) for block in blocks) / macs, 4),
        "forms": {form: forms.count(form) for form in dict.fromkeys(forms)},
        "refusals": [line.strip() for line in grouped(refused)],
        "without": {block.id: block.reason for block in blocks if block.reason},
    }


@dataclass(frozen=True)
class _Accuracy:
    """A network of known accuracy: how it is packaged, the images that judge it, and how many of them."""

    job: Callable[[BenchOptions], Job]
    images: str
    count: int


def _resnet56(options: BenchOptions) -> Job:
    cifar = options.data_folder / "cifar10"
    return load_job(
        "zoo:resnet56_cifar10",
        weights=options.data_folder / "pretrained" / "resnet56_cifar10.safetensors",
        training=str(cifar / "test.zip#calibration"),
        validation=str(cifar / "test.zip#search"),
        overrides=dict(_PLAIN),
        progress=options.progress,
    )


def _lite0(options: BenchOptions) -> Job:
    return lite_job(options, 0, overrides=_PLAIN)


ACCURACIES = {
    "resnet56": _Accuracy(_resnet56, "cifar10/test.zip#report", 200),
    "lite0": _Accuracy(_lite0, "imagenette/val.zip#report", 200),
}


def accuracy(name: str, data_folder: Path) -> Row:
    """Accuracy of the original path in int8 on the processor, less that of its htp renditions in the emulator."""
    wanted = ACCURACIES[name]
    with tempfile.TemporaryDirectory() as work:
        options = BenchOptions(False, data_folder, Path(work), SilentProgress())
        job = wanted.job(options)
        folder = package(job, Path(work) / "bundle").folder
        bundle = Bundle.open(folder)
        images, labels = _judging(data_folder / wanted.images, job, wanted.count)
        originals = [block.id for block in bundle.manifest.blocks if block.is_original]
        has = {block.id: {one.name for one in block.renditions} for block in bundle.manifest.blocks}
        on_cpu = _answers_on_cpu(bundle, originals, has, images)
        with Compiler() as compiler:
            path = [Edge(block, HTP if HTP in has[block] else "fp32") for block in originals]
            in_emulator = emulated(compiler, compose(bundle.stretch(path)), images, chip=CHIP)
    right_cpu, right_npu = (answers.argmax(1) == labels for answers in (on_cpu, in_emulator))
    return {
        "network": name,
        "chip": CHIP.name,
        "images": len(labels),
        "blocks": len(originals),
        "without": [block for block in originals if HTP not in has[block]],
        "accuracy_int8_cpu": round(100 * float(right_cpu.mean()), 2),
        "accuracy_emulator": round(100 * float(right_npu.mean()), 2),
        "accuracy_drop_points": round(100 * float(right_cpu.mean() - right_npu.mean()), 2),
        "changed_answers": int((on_cpu.argmax(1) != in_emulator.argmax(1)).sum()),
        "opset": bundle.manifest.onnx.opset,
    }


def _answers_on_cpu(
    bundle: Bundle, originals: Sequence[str], has: Mapping[str, set[str]], images: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    path = [Edge(block, INT8 if INT8 in has[block] else "fp32") for block in originals]
    loaded = OnnxRuntime(threads=1).load(bundle.stretch(path))
    return np.concatenate([loaded.run([images[at : at + 1]])[-1] for at in range(len(images))])


def _judging(reference: Path, job: Job, count: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """``count`` images of all classes, prepared, and their labels as the job numbers the classes."""
    pixels = job.model.preprocessing.of_images()
    data = load_dataset(str(reference), limit=count, preprocessing=pixels)
    data = data.relabelled(job.training.class_names, job.model.class_ids)
    return prepare(data.images, pixels, input_shape=job.model.image_shape), data.labels.astype(np.int64)


def main() -> None:
    """Measure all, or in a process of its own one network."""
    parser = argparse.ArgumentParser(description="NPUs: what they take, and how accurate they answer")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--network")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    if chosen.network is not None:
        torch.set_num_threads(1)
        known = chosen.network in ACCURACIES
        print(json.dumps(accuracy(chosen.network, chosen.data) if known else assigned(chosen.network)))
        return
    found = npu_figures(chosen.data, quick=chosen.quick, done=lambda name: print(name, file=sys.stderr))
    text = json.dumps({"figures": found.figures, "table": found.rows}, indent=1, ensure_ascii=False)
    print(text) if chosen.out is None else write_atomically(chosen.out, text.encode() + b"\n")


if __name__ == "__main__":
    main()
