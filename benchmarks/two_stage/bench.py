"""Two-stage models: accuracy lost at 0.7 of the backbone's latency, in segmentation (CamVid) and detection (BCCD)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from msgspec import structs

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import packaging_cost
from benchmarks.two_stage.choice import Chooser, Judge
from benchmarks.two_stage.metrics import map50_percent, miou_percent
from benchmarks.two_stage.models import PREPROCESSING, Kind, build, train
from device_sdk.data.targets import TargetDataset, load_boxes, load_maps
from device_sdk.machine import peak_resident_bytes
from packager.inputs.job import Job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.recipe import Recipe
from packager.pipeline import package
from packager.tasks import Detection, LearningTask, Segmentation

TARGETS = {"miou_drop_points": Target(maximum=2.0), "map50_drop_points": Target(maximum=2.0)}
BACKBONE_RATIO, QUICK_RATIO = 0.7, 2.0  # of the backbone's latency
EPOCHS, QUICK_EPOCHS = 30.0, 0.2
RECIPE = Recipe(
    budget_minutes=20.0,
    batch=8,
    tiled=True,
    shrink_rates=(0.75, 0.5),
    variants=0,
    crop=0.1,
    distil_share=0.5,
)
QUICK_RECIPE = structs.replace(RECIPE, budget_minutes=None, steps=2)
CAMVID = (*("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"),)
BCCD = ("RBC", "WBC", "Platelets")


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

    The validation images decide nothing: they judge the full model and the chosen subnet at the end.
    """
    figures: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    for case in (segmentation(options), detection(options)):
        row = _measured(case, options)
        metric = "miou" if case.name == "segmentation" else "map50"
        figures |= {f"{metric}_full": row["full"], f"{metric}_drop_points": row["full"] - row["subnet_score"]}
        figures[f"{metric}_backbone_ratio"] = row["backbone_ratio"]
        rows.append({"what": case.name, **row})
    figures["peak_rss_gb"] = (peak_resident_bytes() or 0) / 1e9
    data = (
        "trained on the training parts of camvid-240x180 and bccd-voc, chosen there, judged on their validation parts"
    )
    return BenchOutcome(figures, rows, data)


def segmentation(options: BenchOptions) -> Case:
    """Street images of CamVid at 240 × 180."""
    archive = options.data_folder / "camvid" / "camvid-240x180.zip"
    training, validation = (load_maps(f"{archive}#{part}", CAMVID, (180, 240)) for part in ("train", "val"))
    kind = Kind(taps=(0, 1), at=0, outputs=len(CAMVID))
    return Case("segmentation", Segmentation(), kind, training, validation, partial(miou_percent, classes=len(CAMVID)))


def detection(options: BenchOptions) -> Case:
    """Blood cells of BCCD at 320 × 240."""
    archive = options.data_folder / "bccd" / "bccd-voc.zip"
    training, validation = (load_boxes(f"{archive}#{part}", BCCD, (240, 320)) for part in ("train", "val"))
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
    recipe = QUICK_RECIPE if options.quick else RECIPE
    job = Job(loaded, case.training, "training", case.validation, "validation", recipe, case.name, task=case.task)
    packaged = package(job, options.work_folder / case.name, progress=options.progress)
    chooser = Chooser(packaged.folder, case.training, case.judge, options)
    subnet, ratio = chooser.best(QUICK_RATIO if options.quick else BACKBONE_RATIO)
    full, own = (chooser.score(one, case.validation) for one in (chooser.original, subnet))
    return {
        "full": full,
        "subnet_score": own,
        "backbone_ratio": ratio,
        "subnets_looked_at": float(chooser.looked_at),
        "training_minutes": trained_s / 60,
        **packaging_cost(packaged.folder),
        **{f"blocks_of_{kind}": float(count) for kind, count in chooser.block_counts().items()},
    }
