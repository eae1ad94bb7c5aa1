"""Two-stage models: what a backbone at 0.7 of its latency loses in segmentation (CamVid) and detection (BCCD)."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks._two_stage_metrics import Run, map50_percent, miou_percent
from benchmarks._two_stage_models import PREPROCESSING, Kind, build, train
from device_sdk.bundles.bundle import Bundle
from device_sdk.data.preprocessing import prepare
from device_sdk.graph import Subnet
from device_sdk.paths import sample_uniformly
from device_sdk.profiling.profile import profile
from device_sdk.profiling.timing import measure_interleaved
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import LoadedStretch
from packager.job import Job
from packager.model_loader import LoadedModel
from packager.pipeline import package
from packager.recipe import Recipe
from packager.target_data import TargetDataset, load_label_maps, load_voc
from packager.tasks import Detection, LearningTask, Segmentation
from packager.tasks.segmentation import IGNORED
from pathweave.bench import BenchOptions, BenchOutcome, Target

TARGETS = {"miou_drop_points": Target(maximum=2.0), "map50_drop_points": Target(maximum=2.0)}
BACKBONE_RATIO = 0.7  # of the backbone's latency
EPOCHS, QUICK_EPOCHS = 30.0, 0.2
MINUTES = 5.0  # of packaging
QUICK_STEPS = 2
SUBNETS, QUICK_SUBNETS = 120, 3  # looked at, on training images
SEARCHED = 96  # training images
CONFIRMED = 4
ROUNDS = 60
CAMVID = (*("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"),)
BCCD = ("RBC", "WBC", "Platelets")

Judge = Callable[[Run, np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class Case:
    """A task on its data: how the model looks, and what counts at the end."""

    name: str
    task: LearningTask
    kind: Kind
    training: TargetDataset
    validation: TargetDataset
    judge: Judge


def run(options: BenchOptions) -> BenchOutcome:
    """Train each model, package it, choose on training images a subnet whose backbone is quick enough, and judge both.

    The validation images are looked at once, for the full model and the chosen subnet.
    """
    figures: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    for case in (_segmentation(options), _detection(options)):
        row = _measured(case, options)
        metric = "miou" if case.name == "segmentation" else "map50"
        figures |= {f"{metric}_full": row["full"], f"{metric}_drop_points": row["full"] - row["subnet_score"]}
        figures[f"{metric}_backbone_ratio"] = row["backbone_ratio"]
        rows.append({"what": case.name, **row})
    figures["peak_rss_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    data = (
        "trained on the training parts of camvid-240x180 and bccd-voc, chosen there, judged on their validation parts"
    )
    return BenchOutcome(figures, rows, data)


def _segmentation(options: BenchOptions) -> Case:
    archive = options.data_folder / "camvid" / "camvid-240x180.zip"
    training, validation = (
        load_label_maps(
            archive, images=part, labels=f"{part}annot", class_names=CAMVID, size=(180, 240), ignored=IGNORED
        )
        for part in ("train", "val")
    )
    kind = Kind(taps=(0, 1), at=0, outputs=len(CAMVID))
    return Case("segmentation", Segmentation(), kind, training, validation, partial(miou_percent, classes=len(CAMVID)))


def _detection(options: BenchOptions) -> Case:
    archive = options.data_folder / "bccd" / "bccd-voc.zip"
    training, validation = (
        load_voc(archive, part=part, class_names=BCCD, size=(240, 320)) for part in ("train", "val")
    )
    return Case(
        "detection", Detection(), Kind(taps=(1,), at=1, outputs=len(BCCD) + 4), training, validation, map50_percent
    )


def _measured(case: Case, options: BenchOptions) -> dict[str, float]:
    weights = options.data_folder / "pretrained" / "resnet20_cifar10.safetensors"
    model, epochs = build(case.kind, weights), QUICK_EPOCHS if options.quick else EPOCHS
    started_s = time.monotonic()
    train(model, case.training, case.task, epochs=epochs, progress=options.progress, name=f"train {case.name}")
    trained_s = time.monotonic() - started_s
    height, width = case.training.images.shape[1:3]
    loaded = LoadedModel(model, (3, height, width), PREPROCESSING, None, case.name, None, "trained by this bench")
    length = {"steps": QUICK_STEPS} if options.quick else {"budget_minutes": MINUTES}
    recipe = Recipe(**length, batch=8, tune_rate=1e-2, variants=0, crop=0.1, distil_share=0.4)
    job = Job(loaded, case.training, "training", case.validation, "validation", recipe, case.name, task=case.task)
    packaged = package(job, options.work_folder / case.name, progress=options.progress)
    chosen = _Chooser(Bundle.open(packaged.folder), case, options)
    subnet, ratio = chosen.best()
    full, own = (chosen.score(one, case.validation) for one in (chosen.bundle.supernet.original, subnet))
    return {
        "full": full,
        "subnet_score": own,
        "backbone_ratio": ratio,
        "subnets_looked_at": float(chosen.looked_at),
        "training_minutes": trained_s / 60,
        "packaging_minutes": packaged.seconds / 60,
        "packaging_peak_rss_gb": (packaged.peak_rss_bytes or 0) / 1e9,
        **{f"blocks_of_{kind}": float(count) for kind, count in chosen.block_counts().items()},
    }


class _Chooser:
    """Finds the best subnet whose backbone is quick enough."""

    def __init__(self, bundle: Bundle, case: Case, options: BenchOptions) -> None:
        self.bundle, self._case, self._options = bundle, case, options
        self._runtime = OnnxRuntime(threads=1)
        self._costs = profile(bundle, self._runtime, progress=options.progress).cost_model()
        self.looked_at = 0

    def best(self) -> tuple[Subnet, float]:
        """It, and its backbone's share of the whole backbone's latency, measured in turns."""
        supernet, quick = self.bundle.supernet, self._options.quick
        drawn = sample_uniformly(supernet, count=QUICK_SUBNETS if quick else 20 * SUBNETS, random=SplitMix64(0))
        whole_ms = self._backbone_ms(supernet.original)
        limit_ms = (2.0 if quick else BACKBONE_RATIO) * whole_ms
        fitting = [one for one in dict.fromkeys(drawn) if self._backbone_ms(one) <= limit_ms][:SUBNETS]
        self.looked_at = len(fitting)
        with self._options.progress.task(f"look at subnets for {self._case.name}", len(fitting)) as task:
            scored = []
            for subnet in fitting:
                scored.append((self.score(subnet, self._case.training, count=8 if quick else SEARCHED), subnet))
                task.advance()
        ranked = [subnet for _, subnet in sorted(scored, key=lambda one: (-one[0], str(one[1])))][:CONFIRMED]
        ratios = self._ratios(ranked)
        for subnet, ratio in zip(ranked, ratios, strict=True):
            if quick or ratio <= 1.02 * BACKBONE_RATIO:  # 2 % count as equal
                return subnet, ratio
        raise RuntimeError(f"none of the best subnets is quick enough: {ratios}")

    def block_counts(self) -> dict[str, int]:
        kinds = [block.kind for block in self.bundle.supernet.blocks]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def score(self, subnet: Subnet, data: TargetDataset, *, count: int | None = None) -> float:
        """In percent, on the first ``count`` images spread over the data, or on all."""
        chosen = np.linspace(0, len(data) - 1, min(count or len(data), len(data)), dtype=np.int64)
        height, width = data.images.shape[1:3]
        inputs = prepare(data.images[chosen], PREPROCESSING, input_shape=(3, height, width))
        session = self._runtime.load(self.bundle.stretch(subnet.edges))
        try:
            return self._case.judge(lambda batch: session.run([batch])[-1], inputs, data.labels[chosen])
        finally:
            session.close()

    def _backbone_ms(self, subnet: Subnet) -> float:
        return sum(self._costs.edge_latency_ms(edge) for edge in subnet.edges[:-1])

    def _ratios(self, subnets: list[Subnet]) -> list[float]:
        """Latency of the backbones, deployed without their head."""
        supernet = self.bundle.supernet
        sessions: list[LoadedStretch] = [
            self._runtime.load(self.bundle.stretch(one.edges[:-1])) for one in (supernet.original, *subnets)
        ]
        sample = np.zeros((1, *supernet.cut_points[0].tensors[0].shape), dtype=np.float32)
        calls = {str(number): partial(session.run, [sample]) for number, session in enumerate(sessions)}
        found = measure_interleaved(calls, rounds=5 if self._options.quick else ROUNDS, warmup=3)
        for session in sessions:
            session.close()
        return [found[str(number + 1)].median_ms / found["0"].median_ms for number in range(len(subnets))]
