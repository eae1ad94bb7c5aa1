"""Settings and samples of a choice: checked, some held back, the mix of their classes estimated."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from device_sdk.data.datasets import split_positions
from device_sdk.data.inputs import Inputs, as_inputs
from device_sdk.errors import InputError, UsageError
from device_sdk.execution.loaded_segments import corrected
from device_sdk.execution.plan_segments import PlanSegment
from device_sdk.execution.workspace import Workspace
from device_sdk.offload.remote_model import Privacy
from device_sdk.policies.hybrid.joint_search import JointSettings
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Fallback, Prior
from device_sdk.tasks import answer_task
from device_sdk.tasks.port import Targets

Floats = npt.NDArray[np.float64]

LEAST_SAMPLES = 20
PSEUDO_SAMPLES = 4.0  # spread as in training: a class that was not seen keeps a share
_ITERATIONS, _TOLERANCE = 200, 1e-6
_FOLDS = 4
_CERTAINTY = 2.0  # standard errors by which the prior must raise the likelihood of samples it was not estimated on
_LESS_CERTAIN = 0.1  # mean probability of the answers below the usual accuracy at which samples are of another kind
_LEAST_DIVERGENCE = 0.2  # nats of a mix that is estimated without labels from the uniform one
_TEMPERATURES = (0.25, 8.0)
_GOLDEN = (math.sqrt(5) - 1) / 2
_SEARCH_STEPS = 40


def find_prior(
    logits: npt.NDArray[np.floating],
    labels: npt.NDArray[np.int64] | None,
    *,
    temperature: float | None = None,
    usual_accuracy: float = 0.0,
) -> Prior | None:
    """The prior of the samples with ``logits`` [count, classes] of the full model; None where none is certain to help.

    ``labels`` [count], or None: then the mix is estimated from the logits. ``temperature``: of the logits; None: fitted
    to the labels, or 1 without any. Shares are estimated on three quarters of the samples and judged on the fourth, in
    turns: the prior is kept only if it makes those samples more likely by two standard errors.

    Without labels another mix of classes and samples of another kind look alike. Samples of which the model is less
    certain than ``usual_accuracy``, its accuracy where the temperature was fitted, are taken to be of another kind, and
    get no prior. Nor does a mix that is near the uniform one: two classes that are confused on samples of another kind
    move it as far, and a true one gains little.
    """
    count, classes = logits.shape
    if count < LEAST_SAMPLES or classes < 2 or not np.isfinite(logits).all():
        return None
    wide = logits.astype(np.float64)
    if temperature is None:
        temperature = 1.0 if labels is None else fit_temperature(wide, labels)
    likely = probabilities(wide / temperature)
    if labels is None and likely.max(axis=1).mean() < usual_accuracy - _LESS_CERTAIN:
        return None
    gains = np.zeros(count)
    folds = np.arange(count) % _FOLDS
    for fold in range(_FOLDS):
        rest, own = folds != fold, folds == fold
        ratios = np.exp(_log_ratios(likely[rest], None if labels is None else labels[rest]))
        gains[own] = np.log(_evidence(likely[own], ratios, None if labels is None else labels[own]))
    if gains.mean() <= _CERTAINTY * gains.std() / math.sqrt(count):
        return None
    found = _log_ratios(likely, labels)
    if labels is None and np.exp(found) @ found / classes < _LEAST_DIVERGENCE:
        return None
    return Prior(tuple(found.tolist()), temperature)


def fit_temperature(logits: npt.NDArray[np.floating], labels: npt.NDArray[np.int64]) -> float:
    """The temperature at which ``logits`` [count, classes] over it make ``labels`` [count] likeliest, 0.25 to 8.

    Under the mix of the labels themselves, so that another mix does not count as overconfidence. Golden-section search
    over its logarithm (temperature scaling, Guo et al. 2017).
    """
    rows, wide = np.arange(len(labels)), logits.astype(np.float64)

    def loss(log_temperature: float) -> float:
        scaled = wide / math.exp(log_temperature)
        scaled = scaled + _shares_to_log_ratios(_label_shares(labels, wide.shape[1]))
        return float(-np.log(np.maximum(probabilities(scaled)[rows, labels], 1e-300)).mean())

    low, high = map(math.log, _TEMPERATURES)
    for _ in range(_SEARCH_STEPS):
        first, second = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, second) if loss(first) < loss(second) else (first, high)
    return math.exp((low + high) / 2)


def _log_ratios(likely: Floats, labels: npt.NDArray[np.int64] | None) -> Floats:
    """[classes], from calibrated probabilities [count, classes] or from labels."""
    shares = _estimated_shares(likely) if labels is None else _label_shares(labels, likely.shape[1])
    return _shares_to_log_ratios(shares)


def _shares_to_log_ratios(shares: Floats) -> Floats:
    return np.log(shares * len(shares))


def _label_shares(labels: npt.NDArray[np.int64], classes: int) -> Floats:
    counts = np.bincount(labels, minlength=classes).astype(np.float64)
    shares: Floats = (counts + PSEUDO_SAMPLES / classes) / (counts.sum() + PSEUDO_SAMPLES)
    return shares


def _estimated_shares(likely: Floats) -> Floats:
    """Shares of the classes [classes] by expectation maximisation, with pseudo-samples of the uniform mix."""
    count, classes = likely.shape
    shares = np.full(classes, 1.0 / classes)
    for _ in range(_ITERATIONS):
        weighted = likely * shares
        responsible = weighted / weighted.sum(axis=1, keepdims=True)
        new = (responsible.sum(axis=0) + PSEUDO_SAMPLES / classes) / (count + PSEUDO_SAMPLES)
        moved, shares = float(np.abs(new - shares).sum()), new
        if moved < _TOLERANCE:
            break
    return shares


def _evidence(likely: Floats, ratios: Floats, labels: npt.NDArray[np.int64] | None) -> Floats:
    """Likelihood ratio of each sample, new mix over uniform: [count]; with ``labels``, that of its label instead."""
    totals: Floats = likely @ ratios
    return totals if labels is None else ratios[labels] / totals


def probabilities(logits: Floats) -> Floats:
    """Of ``logits`` [count, classes]: each row sums to 1."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Floats = powers / powers.sum(axis=1, keepdims=True)
    return probabilities


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
    ``batch_bytes``. ``cache_bytes``: of features that are kept to be used again. ``workers``: batches that are
    evaluated at once, in threads; None: as many as there are cores for, at most four. Latencies are measured with
    nothing beside.
    ``fill_pool``: look for subnets of other latencies too, about as long again, for live update. ``keep_samples``: in
    memory, until the next adaptation or ``close``, for live update to search again.
    ``fallback``: what answers when the server of a split does not: the rest of the ``subnet``, the last ``exit`` before
    the cut, or nothing (``abstain``); None: as the memory allows. ``privacy``: what a split that is estimated without a
    server may send. ``device_factor``: k to estimate a split for a device
    k times slower than this one. ``joint``: of the search for hybrids.

    Raises:
        UsageError: the batch or the number of workers is not above zero.
    """

    strategy: str = "pathweave"
    holdout_share: float = 0.3
    seed: int = 0
    batch: int = 64
    batch_bytes: int = 16_000_000
    cache_bytes: int = 64_000_000
    workers: int | None = None
    time_limit_s: float | None = SEARCH_S
    use_prior: bool = True
    fill_pool: bool = False
    keep_samples: bool = False
    fallback: Fallback | None = None
    privacy: Privacy = "inputs"
    device_factor: float = 1.0
    joint: JointSettings = field(default_factory=JointSettings)
    cancelled: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"batch is {self.batch}; it must be at least 1")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers is {self.workers}; it must be at least 1")


@dataclass(frozen=True)
class Samples:
    """Private samples with ``labels``, those that choose (``kept``) and those that judge (``held``).

    ``labels``: targets [count, …] of the bundle's task. ``prior``: of the classes, where the labels are the full
    model's answers corrected by it.
    """

    inputs: Inputs
    labels: Targets
    kept: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]
    prior: Prior | None = None


def gather(
    workspace: Workspace,
    inputs: Inputs | Array,
    labels: Targets | None,
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
    inputs, task = as_inputs(inputs), answer_task(workspace.bundle.manifest.task)
    if len(labels) != len(inputs):
        raise InputError(f"there are {len(inputs)} samples and labels of shape {np.shape(labels)}")
    labels = task.checked(labels, len(inputs))
    kept, held = np.arange(len(labels)), np.arange(0)
    if searches or len(labels) >= _FEW_SAMPLES:
        kept, held = search_positions(labels, settings)
    return Samples(inputs, labels, kept, held, prior)


def search_positions(
    labels: Targets, settings: AdaptationSettings
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Positions in ``labels`` [count, …] to search on, in random order, and to hold back; of each class alike.

    Raises:
        UsageError: the share to hold back does not lie between 0 and 1.
    """
    alike = labels if labels.ndim == 1 else np.zeros(len(labels), dtype=np.int64)
    kept, held = split_positions(alike, holdout_share=settings.holdout_share, seed=settings.seed)
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


def stand_in_labels(
    workspace: Workspace, inputs: Inputs | Array, *, batch: int, use_prior: bool
) -> tuple[Targets, Prior | None]:
    """The full model's answers to ``inputs``, in place of labels, and the prior that corrected them, if any."""
    task = answer_task(workspace.bundle.manifest.task)
    if not task.classifies:
        found = [task.stand_in(answers) for answers in _full_model_answers(workspace, inputs, batch=batch)]
        return np.concatenate(found), None
    logits = np.concatenate(list(_full_model_answers(workspace, inputs, batch=batch)))
    metrics = workspace.bundle.manifest.metrics
    usual = 0.0 if metrics.temperature is None else metrics.original_accuracy
    prior = find_prior(logits, None, temperature=metrics.temperature, usual_accuracy=usual) if use_prior else None
    return task.stand_in(corrected(logits, prior)), prior


def _full_model_answers(workspace: Workspace, inputs: Inputs | Array, *, batch: int) -> Iterator[Array]:
    """[samples, *output] of each batch; under a memory cap in pages if it has to, in batches that fit."""
    whole = workspace.supernet.original.edges
    batch = workspace.largest_batch([PlanSegment(whole, None)], wanted=batch)
    loaded = workspace.load_stretch(whole, batch=batch)
    try:
        positions = np.arange(len(inputs))
        batches = (positions[at : at + batch] for at in range(0, len(inputs), batch))
        for some in batches:
            yield loaded.run([as_inputs(inputs).take(some)])[-1]
    finally:
        loaded.close()


def prepare_ms(inputs: Inputs, input_size: tuple[int, ...]) -> float:
    """Median time of preparing one image at an input size; near 0 for prepared tensors."""
    taken_s = []
    for position in range(min(_PREPARED, len(inputs))):
        image, started = inputs.subset(np.array([position])), time.perf_counter()
        image.take(np.array([0]), input_size)
        taken_s.append(time.perf_counter() - started)
    return float(np.median(taken_s)) * 1e3


def accuracy_interval(accuracy: float, samples: int) -> tuple[float, float]:
    """Wilson's 95 % interval of an accuracy on ``samples``."""
    z2 = 1.96**2
    centre = (accuracy + z2 / (2 * samples)) / (1 + z2 / samples)
    half = 1.96 * math.sqrt(accuracy * (1 - accuracy) / samples + z2 / (4 * samples**2)) / (1 + z2 / samples)
    return max(0.0, centre - half), min(1.0, centre + half)
