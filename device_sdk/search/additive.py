"""A Gaussian process over subnet accuracy whose mean is additive over edges, refitted during the search.

The log odds of a correct answer are a constant, minus a cost per edge, plus an interaction of blocks. A sample of the
edge costs is additive, so an exact path algorithm finds its best subnet (Thompson sampling). The interaction kernel
correlates subnets that share blocks. An edge's cost is that of its block, plus a small term for its rendition and input
size. The prior means come from the block and rendition errors that the packager measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from device_sdk.random_source import SplitMix64
from device_sdk.search.port import Evaluator
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet
from device_sdk.tasks.margins import by_margin

Floats = npt.NDArray[np.float64]

_CONSTANT_MEAN, _CONSTANT_SPREAD = 2.5, 1.5  # log odds of a typical deployed model
_SLOPE_MEAN, _SLOPE_SPREAD = 4.0, 4.0  # log odds lost per unit of relative squared feature error
_ERROR_PER_SPAN = 0.05  # default for an added block without a measured error, per replaced block
_RENDITION_ERROR = 0.01  # default for a rendition other than the first, without a measured error
_SIZE_ERROR = 0.2  # default for an input size without a measured error
_SIZE_WEIGHT = 1.2  # converts a size's squared error to block error of equal log-odds loss (EfficientNet-Lite0)
_LARGEST_ERROR = 2.0  # the feature carries no information; larger errors are equivalent
_LEAST_ERROR = 0.02  # floor of a block's error in the prior standard deviation
_LEAST_RENDITION_ERROR = 0.002  # the same for a rendition
_OWN_SPREADS = (1.0, 3.0)  # grid: prior log-odds deviation of blocks and renditions, per unit of error
_JOINT_SPREADS = (0.05, 0.1, 0.2, 0.4)  # grid: prior log-odds deviation of the interaction
_JITTER = 1e-9  # added to a covariance's diagonal for numerical stability
_LEAST_NOISE = 0.1  # of the sampling variance
_FEW = 8  # with fewer observations the hyperparameters stay at their defaults


class Observed(Protocol):
    """A noisy observation of one subnet's log odds."""

    @property
    def subnet(self) -> Subnet:
        """The observed subnet."""

    @property
    def log_odds(self) -> float:
        """Log odds of a correct answer."""

    @property
    def variance(self) -> float:
        """Observation noise: variance of the log odds."""


@dataclass(frozen=True)
class Observation:
    """``correct`` answers out of ``samples``.

    ``noise`` is the part of the sampling variance that this subnet does not share with the others on the same
    samples, ``unseen`` the variance of ``correct`` from answers that were extrapolated instead of computed.
    """

    subnet: Subnet
    correct: float
    samples: int
    noise: float = 1.0
    unseen: float = 0.0

    @property
    def log_odds(self) -> float:
        """Log odds of a correct answer."""
        return log_odds(self.correct, self.samples)

    @property
    def variance(self) -> float:
        """Variance of the log odds."""
        share = (self.correct + 0.5) / (self.samples + 1)
        slope = self.samples * share * (1 - share)  # correct answers per unit of log odds
        return self.noise / slope + self.unseen / slope**2


class AdditiveModel:
    """The prior over the accuracy of a supernet's subnets."""

    def __init__(self, supernet: Supernet) -> None:
        self.edges = supernet.edges
        self._place = {edge: place for place, edge in enumerate(self.edges)}
        of_blocks, of_renditions = block_errors(supernet), rendition_errors(supernet)
        self.errors: Floats = np.array([of_blocks[edge.block] + of_renditions[edge] for edge in self.edges])  # [edges]
        self._blocks = np.unique([edge.block for edge in self.edges], return_inverse=True)[1]  # block index per edge
        self._membership = np.eye(int(self._blocks.max()) + 1)[self._blocks]  # [edges, blocks]
        # prior standard deviations of edge costs around the value that the error predicts [edges]; renditions of a
        # block share the block's part, and edges without error have cost 0 with no uncertainty
        blocks = np.array([of_blocks[edge.block] for edge in self.edges])
        renditions = np.array([of_renditions[edge] for edge in self.edges])
        self._of_block = np.where(blocks > 0, blocks + _LEAST_ERROR, 0.0)
        self._of_rendition = np.where(renditions > 0, renditions + _LEAST_RENDITION_ERROR, 0.0)

    def by_block(self, per_edge: Floats) -> Floats:
        """Sums over the edges of each block: [rows, edges] → [rows, blocks]."""
        sums: Floats = per_edge @ self._membership
        return sums

    def root(self, design: Floats, own: float) -> Floats:
        """``r`` with ``r @ r.T`` the prior covariance of the log odds that ``design`` [subnets, edges] adds up.

        ``own``: log-odds deviation per unit of error. The covariance of the edges themselves, a matrix as large as
        their number squared, is nowhere made.
        """
        slope = _SLOPE_SPREAD * (design @ self.errors)[:, None]
        return np.hstack([slope, own * self.by_block(design * self._of_block), own * design * self._of_rendition])

    def across(self, design: Floats, own: float) -> Floats:
        """Prior covariance of what ``design`` [subnets, edges] adds up and each edge's value: [subnets, edges]."""
        shared = self.by_block(design * self._of_block)[:, self._blocks] * self._of_block
        slope = _SLOPE_SPREAD**2 * np.outer(design @ self.errors, self.errors)
        covariance: Floats = slope + own**2 * (shared + design * self._of_rendition**2)
        return covariance

    def draw(self, own: float, random: SplitMix64) -> Floats:
        """Sample the edge values' deviations from the prior mean, with this covariance: [edges]."""
        slope = _SLOPE_SPREAD * _normal(random)
        blocks = _normals(int(self._blocks.max()) + 1, random)[self._blocks]
        drawn: Floats = slope * self.errors + own * (self._of_block * blocks)
        drawn += own * self._of_rendition * _normals(len(self.edges), random)
        return drawn

    def design(self, subnets: Sequence[Subnet]) -> Floats:
        """Design matrix: 1 where the subnet has the edge, else 0: [subnets, edges]."""
        design = np.zeros((len(subnets), len(self.edges)))
        for row, subnet in enumerate(subnets):
            design[row, [self._place[edge] for edge in subnet.edges]] = 1
        return design

    def prior_mean(self, subnets: Sequence[Subnet]) -> Floats:
        """Log odds lost against the original path, by the prior mean of the slope: [subnets]."""
        losses: Floats = _SLOPE_MEAN * (self.design(subnets) @ self.errors)
        return losses

    def fit(self, observations: Sequence[Observed]) -> Belief:
        """The posterior given ``observations``; with enough of them the spreads maximise the marginal likelihood."""
        if len(observations) < _FEW:
            return Belief(self, observations, _OWN_SPREADS[0], _JOINT_SPREADS[1])
        beliefs = [Belief(self, observations, own, joint) for own in _OWN_SPREADS for joint in _JOINT_SPREADS]
        return max(beliefs, key=lambda belief: belief.log_likelihood)


class Belief:
    """The posterior given observations. ``own``, ``joint``: prior deviations of edge values and of the interaction."""

    def __init__(self, model: AdditiveModel, observations: Sequence[Observed], own: float, joint: float) -> None:
        self._model = model
        self._own, self._joint = own, joint
        self._design = model.design([one.subnet for one in observations])  # [observations, edges]
        self._prior_root = model.root(self._design, own)
        self._in_blocks = model.by_block(self._design)  # [observations, blocks]
        self._variances = np.array([one.variance for one in observations])
        self._kernel_root = np.linalg.cholesky(self._kernel_of_observed)
        observed = np.array([one.log_odds for one in observations])
        self._whitened = np.linalg.solve(self._kernel_root, observed - self._prior(self._design))

    @property
    def log_likelihood(self) -> float:
        """Log marginal likelihood of the observations, up to a constant."""
        return float(-0.5 * self._whitened @ self._whitened - np.log(np.diag(self._kernel_root)).sum())

    def predict(self, subnets: Sequence[Subnet]) -> tuple[Floats, Floats]:
        """Posterior mean and standard deviation of the log odds of a correct answer: [subnets] each."""
        design = self._model.design(subnets)
        root = self._model.root(design, self._own)
        kernel = self._kernel(root, self._model.by_block(design))
        across = np.linalg.solve(self._kernel_root, kernel.T)  # [observations, subnets]
        mean = self._prior(design) + across.T @ self._whitened
        own = (root**2).sum(axis=1) + _CONSTANT_SPREAD**2 + self._joint**2
        return mean, np.sqrt(np.maximum(own - (across**2).sum(axis=0), 0.0))

    def values(self) -> dict[Edge, float]:
        """Posterior mean of what each edge adds to the log odds."""
        return dict(zip(self._model.edges, self._mean.tolist(), strict=True))

    def draw(self, random: SplitMix64) -> dict[Edge, float]:
        """Sample what each edge adds to the log odds from the posterior.

        Matheron's rule: a prior sample, corrected by the residual between the observations and those that the sample
        implies. It needs no Cholesky factor over all edges.
        """
        prior = self._model.draw(self._own, random)
        would_be = self._design @ prior + self._unexplained_root @ _normals(len(self._design), random)
        drawn = self._mean + prior - self._across.T @ np.linalg.solve(self._kernel_root, would_be)
        return dict(zip(self._model.edges, drawn.tolist(), strict=True))

    @cached_property
    def _across(self) -> Floats:
        """Whitened covariance of observations and edge values: [observations, edges]."""
        across: Floats = np.linalg.solve(self._kernel_root, self._model.across(self._design, self._own))
        return across

    @cached_property
    def _mean(self) -> Floats:
        """Posterior mean of the edge values: [edges]."""
        mean: Floats = -_SLOPE_MEAN * self._model.errors + self._across.T @ self._whitened
        return mean

    @cached_property
    def _kernel_of_observed(self) -> Floats:
        """Covariance of the observations, their noise included: [observations, observations]."""
        kernel = self._kernel(self._prior_root, self._in_blocks)
        kernel[np.diag_indices_from(kernel)] += self._variances
        return kernel

    @cached_property
    def _unexplained_root(self) -> Floats:
        """Cholesky factor of the observations' covariance without the edges' part: [observations, observations]."""
        left = np.array(self._kernel_of_observed - self._prior_root @ self._prior_root.T)
        left[np.diag_indices_from(left)] += _JITTER
        return np.asarray(np.linalg.cholesky(left), dtype=np.float64)

    def _prior(self, design: Floats) -> Floats:
        prior: Floats = _CONSTANT_MEAN - _SLOPE_MEAN * (design @ self._model.errors)
        return prior

    def _kernel(self, root: Floats, in_blocks: Floats) -> Floats:
        """Prior covariance with the observed subnets: [subnets, observations].

        ``root``, ``in_blocks``: of the subnets, as ``AdditiveModel.root``, and their number of edges by block.
        """
        shared = in_blocks @ self._in_blocks.T
        together = in_blocks.sum(axis=1)[:, None] + self._in_blocks.sum(axis=1) - shared
        kernel: Floats = root @ self._prior_root.T + _CONSTANT_SPREAD**2
        return kernel + self._joint**2 * (shared / together) ** 2


def log_odds(correct: float, samples: int) -> float:
    """Log odds of ``correct`` out of ``samples`` answers, with half an answer added to both counts."""
    return math.log((correct + 0.5) / (samples - correct + 0.5))


def smoothed(evaluator: Evaluator, subnets: Sequence[Subnet], samples: slice) -> Floats:
    """Expected score of a sample like each of ``samples``: [subnets, samples].

    A logistic function of the margin, on the scale of the task (``tasks.margins.margin_scale``). The subnets have been
    evaluated on ``samples``.
    """
    return by_margin(evaluator.margins(subnets, samples), evaluator.margin_scale())


def unshared_noise(chances: Floats) -> float:
    """Fraction of the sampling variance of accuracies that subnets do not share, 0 to 1.

    ``chances``: of correct answers [subnets, samples], 0 or 1 where they are known. All subnets are evaluated on the
    same samples, whose difficulty they share; only samples on which they disagree add variance to their differences.
    """
    average = (chances.sum() + 0.5) / (chances.size + 1)
    unshared = float(chances.var(axis=0).mean() / (average * (1 - average)))
    return min(max(unshared, _LEAST_NOISE), 1.0)


def block_errors(supernet: Supernet) -> dict[str, float]:
    """Relative squared feature error of each block against the original blocks that it replaces.

    Of an original block 0, or in a family what its member loses there against the largest. A missing error is the
    median error per replaced block of the other added blocks, times the number of those that this one replaces.
    """
    added = [block for block in supernet.blocks if not block.is_original]
    spans = {block.id: supernet.replaced(block) or 1 for block in added}
    known = [b.distillation_error / spans[b.id] for b in added if b.distillation_error is not None]
    per_span = float(np.median(known)) if known else _ERROR_PER_SPAN
    errors = {block.id: min(block.distillation_error or 0.0, _LARGEST_ERROR) for block in supernet.blocks}
    for block in added:
        own = block.distillation_error
        errors[block.id] = min(per_span * spans[block.id] if own is None else own, _LARGEST_ERROR)
    return errors


def rendition_errors(supernet: Supernet) -> dict[Edge, float]:
    """Relative squared feature error of each edge against its block's first rendition.

    The error of an input size is added once per path: to the edges that start at the input.
    """
    errors = {}
    size_errors: dict[tuple[int, ...], float] = {(): 0.0}
    for one in supernet.input_sizes:
        size_errors[one.size] = _SIZE_WEIGHT * (_SIZE_ERROR if one.error is None else min(one.error, 1.0)) ** 2
    for size, of_size in size_errors.items():
        for block in supernet.blocks:
            for place, rendition in enumerate(block.renditions):
                own = _RENDITION_ERROR if rendition.error is None else rendition.error
                error = min(own, _LARGEST_ERROR) if place else 0.0
                errors[Edge(block.id, rendition.name, size)] = error + (of_size if block.start == 0 else 0.0)
    return errors


def _normals(count: int, random: SplitMix64) -> Floats:
    return np.array([_normal(random) for _ in range(count)], dtype=np.float64)


def _normal(random: SplitMix64) -> float:
    """A standard normal number (Box-Muller, the first of the pair)."""
    return math.sqrt(-2 * math.log(1 - random.uniform())) * math.cos(2 * math.pi * random.uniform())
