"""The hybrids (r), (rb) and (rbg) of ResNet-8 and ResNet-56, trained and packaged in this run."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.hybrid.paired import Right
from benchmarks.runner.run import BenchOptions
from benchmarks.support.reference_bundles import load_part
from benchmarks.support.sources import Logits, logits_from
from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.hybrid_pairs import hybrid_plan
from device_sdk.offload.remote_model import LogarithmicPool, RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import FALLBACK, SERVER, SUBNET
from device_sdk.supernet.deciders.port import ease, hard
from device_sdk.supernet.plan import Ask, Decider, Plan
from packager.hybrid.job import HybridJob, HybridRecipe, ModelChoice, Pair, load_hybrid_job, load_hybrid_recipe
from packager.hybrid.pipeline import REPORT, PackagedHybrid, package_hybrid
from pathweave.server_process import running_server

COVERAGE = 0.7
HYBRIDS = ("r", "rb", "rbg")
BASE, GLOBAL = "resnet8_mlperf_tiny", "resnet56_cifar10"
STEPS, QUICK_STEPS = 400, 10  # minutes of one core; of (rbg) a quarter is the global's
BATCH, TIMEOUT_S = 64, 30.0
QUICK_EVERY = 8  # image of #report


@dataclass(frozen=True)
class Answered:
    """A hybrid on #report: logits [count, classes] of both parts, labels [count], the router, and the pool."""

    base: Logits
    global_: Logits
    labels: npt.NDArray[np.int64]
    decider: Decider
    pool: LogarithmicPool | None

    @property
    def global_right(self) -> Right:
        return np.asarray(self.global_.argmax(axis=1) == self.labels)

    @property
    def base_right(self) -> Right:
        return np.asarray(self.base.argmax(axis=1) == self.labels)

    @property
    def asked_right(self) -> Right:
        """Mask of the images to which the pooled answers are right."""
        if self.pool is None:
            return self.global_right
        return np.asarray(self.pool.pooled(self.base, self.global_).argmax(axis=1) == self.labels)

    def right_at(self, coverage: float, decider: Decider | None = None, *, pooled: bool = False) -> Right:
        """Mask of correct answers if the hardest ``1 − coverage`` of the images are sent."""
        order = np.argsort(ease(decider or self.decider, self.base), kind="stable")
        sent = order[: round((1 - coverage) * len(order))]
        right = self.base_right.copy()
        right[sent] = (self.asked_right if pooled else self.global_right)[sent]
        return right

    @property
    def sent(self) -> Right:
        """Mask of the images that the plan itself sends."""
        return hard(self.decider, self.base)


def loaded(options: BenchOptions) -> HybridJob:
    """Both networks and their images, with the recipe of (rbg)."""
    cifar, pretrained = options.data_folder / "cifar10", options.data_folder / "pretrained"
    base, global_ = (ModelChoice(f"zoo:{name}", pretrained / f"{name}.safetensors") for name in (BASE, GLOBAL))
    return load_hybrid_job(
        Pair(base, global_, str(cifar / "test.zip#search"), _recipe("rbg", options)),
        training=str(cifar / ("test.zip#calibration" if options.quick else "train.zip")),
        validation=str(cifar / "test.zip#calibration"),
        progress=options.progress,
    )


def made(options: BenchOptions, job: HybridJob, trained: str) -> PackagedHybrid:
    """Train and package one hybrid."""
    job = replace(job, recipe=_recipe(trained, options))
    return package_hybrid(job, options.work_folder / f"hybrid-{trained}", progress=options.progress)


def _recipe(trained: str, options: BenchOptions) -> HybridRecipe:
    return load_hybrid_recipe(
        None,
        train=trained,
        coverage=COVERAGE,
        steps=QUICK_STEPS if options.quick else STEPS,
        rounds=1,
        global_share=0.25,
        base_rate=2e-3,
        global_rate=3e-3,
        label_weight=1.0,
        variants=1,
        recalibrate_batches=3 if options.quick else 100,
        seed=1,
    )


def kept_turns(hybrid: PackagedHybrid, learner: str) -> float:
    """Turns of the base's or the global's weights that made the hybrid better, and so were kept."""
    turns = json.loads((hybrid.base.parent / REPORT).read_bytes())["turns"]
    return float(sum(turn["kept"] and turn["learner"] == learner for turn in turns))


def answered(options: BenchOptions, hybrid: PackagedHybrid) -> Answered:
    """Both parts on #report, each on this machine."""
    plan = hybrid_plan(Bundle.open(hybrid.base))
    assert isinstance(plan.hard, Ask)
    global_path = Bundle.open(hybrid.global_).manifest.hybrid
    assert global_path is not None
    found, labels = [], np.empty(0, np.int64)
    for folder, path in ((hybrid.base, plan.subnet), (hybrid.global_, global_path.subnet)):
        with AdaptiveModel.open(folder, state_folder=options.work_folder / "states" / _name(folder)) as model:
            data = load_part(options, "report", model)
            images, labels = data.images[:: every(options)], data.labels[:: every(options)]
            found.append(logits_from(model, Plan(path), images, source=SUBNET, batch=BATCH))
    return Answered(found[0], found[1], labels, plan.hard.decider, hybrid.pool)


def over_http(options: BenchOptions, hybrid: PackagedHybrid) -> dict[str, float]:
    """The bundles' own plan with a real server, answers pooled: accuracy, share sent, and calls without an answer."""
    right, sent, failed = 0, 0, 0
    with (
        running_server(hybrid.global_, data=options.work_folder / "server") as url,
        AdaptiveModel.open(hybrid.base, state_folder=options.work_folder / "states" / "http") as model,
    ):
        server = RemoteModel(server=url, model=GLOBAL, privacy="inputs", timeout_s=TIMEOUT_S, pool=hybrid.pool)
        model.remote.use_hybrid(server)
        data = load_part(options, "report", model)
        images, labels = data.images[:: every(options)], data.labels[:: every(options)]
        for at in range(0, len(images), BATCH):
            answer = model(images[at : at + BATCH])
            right += int((answer.output.argmax(axis=1) == labels[at : at + BATCH]).sum())
            sent += answer.source.count(SERVER)
            failed += answer.source.count(FALLBACK)
    return {"accuracy": 100 * right / len(images), "sent": 100 * sent / len(images), "fallbacks": float(failed)}


def every(options: BenchOptions) -> int:
    """Step between the images of #report that are answered."""
    return QUICK_EVERY if options.quick else 1


def _name(folder: Path) -> str:
    return f"{folder.parent.name}-{folder.name}"
