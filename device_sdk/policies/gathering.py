"""What a choice starts from: settings, checked samples with labels, and those that are held back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.datasets import split_positions
from device_sdk.data.inputs import Inputs, as_inputs
from device_sdk.errors import InputError, UsageError
from device_sdk.execution.class_prior import corrected
from device_sdk.execution.plan_segments import PlanSegment
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.class_mix import find_prior
from device_sdk.policies.hybrid.joint_search import JointSettings
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Fallback, Prior, Subnet

SEARCH_S = 20.0
_PREPARED = 5  # images that preparing is timed on
_FEW_SAMPLES = 30  # below, none are held back unless subnets are searched


@dataclass(frozen=True, kw_only=True)
class AdaptationSettings:
    """Rarely changed settings of ``adapt``. The defaults suit a few hundred private samples.

    ``strategy``, ``seed``, ``time_limit_s``: of the search for subnets; after the limit the best so far is taken; None
    to let it end by itself. ``holdout_share``: of the samples that judge and do not choose. ``use_prior``: estimate the
    mix of classes of the samples, and correct all answers by it if that is certain to help.
    ``batch``: samples evaluated together at most; fewer where the tensors between two blocks would take more than
    ``batch_bytes``. ``cache_bytes``: of features that are kept to be used again.
    ``fill_pool``: look for subnets of other latencies too, about as long again, for live update. ``keep_samples``: in
    memory, until the next adaptation or ``close``, for live update to search again.
    ``fallback``: what answers when the server of a split does not: the rest of the ``subnet``, the last ``exit`` before
    the cut, or nothing (``abstain``); None: as the memory allows. ``device_factor``: k to estimate a split for a device
    k times slower than this one. ``joint``: of the search for hybrids.

    Raises:
        UsageError: the batch is not above zero.
    """

    strategy: str = "pathweave"
    holdout_share: float = 0.3
    seed: int = 0
    batch: int = 64
    batch_bytes: int = 32_000_000
    cache_bytes: int = 64_000_000
    time_limit_s: float | None = SEARCH_S
    use_prior: bool = True
    fill_pool: bool = False
    keep_samples: bool = False
    fallback: Fallback | None = None
    device_factor: float = 1.0
    joint: JointSettings = field(default_factory=JointSettings)
    cancelled: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"batch is {self.batch}; it must be at least 1")


@dataclass(frozen=True)
class Samples:
    """Private samples with ``labels`` [count], those that choose (``kept``) and those that judge (``held``).

    ``prior``: of the classes, where the labels are the full model's answers corrected by it.
    """

    inputs: Inputs
    labels: npt.NDArray[np.int64]
    kept: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]
    prior: Prior | None = None


def gather(
    workspace: Workspace,
    inputs: Inputs | Array,
    labels: npt.NDArray[np.int64] | None,
    settings: AdaptationSettings,
    *,
    searches: bool,
) -> Samples:
    """Check the samples, and hold some back. Without labels the full model's answers stand in.

    ``searches``: subnets are searched on the samples, so that some have to be held back however few there are.

    Raises:
        InputError: there are no inputs, some are not finite, or labels do not match them or the classes.
        UsageError: the share to hold back does not lie between 0 and 1.
    """
    _check_inputs(inputs)
    prior: Prior | None = None
    if labels is None:
        labels, prior = stand_in_labels(workspace, inputs, batch=settings.batch, use_prior=settings.use_prior)
    inputs = as_inputs(inputs)
    _check_labels(labels, inputs, workspace.bundle)
    kept, held = np.arange(len(labels)), np.arange(0)
    if searches or len(labels) >= _FEW_SAMPLES:
        kept, held = search_positions(labels, settings)
    return Samples(inputs, labels, kept, held, prior)


def search_positions(
    labels: npt.NDArray[np.int64], settings: AdaptationSettings
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Positions in ``labels`` [count] to search on, in random order, and to hold back.

    Raises:
        UsageError: the share to hold back does not lie between 0 and 1.
    """
    kept, held = split_positions(labels, holdout_share=settings.holdout_share, seed=settings.seed)
    return np.array(SplitMix64(settings.seed).shuffled(kept.tolist()), dtype=np.int64), held


def _check_inputs(inputs: Inputs | Array) -> None:
    if not len(inputs):
        raise InputError("there are no samples to adapt on")
    if not isinstance(inputs, np.ndarray):
        return
    broken = [at for at, sample in enumerate(inputs) if not np.isfinite(sample).all()]
    if broken:
        raise InputError(
            f"{len(broken)} of {len(inputs)} samples have values that are no numbers, number {broken[0]} first",
            hint="leave them out",
        )


def _check_labels(labels: npt.NDArray[np.int64], inputs: Inputs, bundle: Bundle) -> None:
    if labels.shape != (len(inputs),):
        raise InputError(f"there are {len(inputs)} samples and labels of shape {labels.shape}")
    classes = len(bundle.manifest.task.class_names)
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(f"labels must lie between 0 and {classes - 1}, got {labels.min()} to {labels.max()}")


def stand_in_labels(
    workspace: Workspace, inputs: Inputs | Array, *, batch: int, use_prior: bool
) -> tuple[npt.NDArray[np.int64], Prior | None]:
    """The full model's answers to ``inputs``, in place of labels [count], and the prior that corrected them, if any."""
    logits = _full_model_logits(workspace, inputs, batch=batch)
    prior = find_prior(logits, None) if use_prior else None
    return corrected(logits, prior).argmax(axis=-1), prior


def _full_model_logits(workspace: Workspace, inputs: Inputs | Array, *, batch: int) -> Array:
    """[count, classes]; under a memory cap in pages if it has to, in batches that fit."""
    whole = workspace.supernet.original.edges
    batch = workspace.largest_batch([PlanSegment(whole, None)], wanted=batch)
    loaded = workspace.load_stretch(whole, batch=batch)
    try:
        positions = np.arange(len(inputs))
        batches = (positions[at : at + batch] for at in range(0, len(inputs), batch))
        outputs = [loaded.run([as_inputs(inputs).take(some)])[-1] for some in batches]
    finally:
        loaded.close()
    return np.concatenate(outputs)


def prepare_ms(inputs: Inputs, subnet: Subnet) -> float:
    """Median time of preparing one image for ``subnet``; near 0 for prepared tensors."""
    taken_s = []
    for position in range(min(_PREPARED, len(inputs))):
        image, started = inputs.subset(np.array([position])), time.perf_counter()
        image.take(np.array([0]), subnet.input_size)
        taken_s.append(time.perf_counter() - started)
    return float(np.median(taken_s)) * 1e3


def accuracy_interval(accuracy: float, samples: int) -> tuple[float, float]:
    """Wilson's 95 % interval of an accuracy on ``samples``."""
    z2 = 1.96**2
    centre = (accuracy + z2 / (2 * samples)) / (1 + z2 / samples)
    half = 1.96 * math.sqrt(accuracy * (1 - accuracy) / samples + z2 / (4 * samples**2)) / (1 + z2 / samples)
    return max(0.0, centre - half), min(1.0, centre + half)
