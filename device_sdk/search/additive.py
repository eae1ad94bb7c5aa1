"""A model of accuracy that is additive over edges, fitted while the search goes on.

The log odds of a correct answer are a constant, minus what each edge costs, plus what blocks do to each other. As a
Gaussian process this says how sure it is: a draw of the edges' costs is additive, so that exact path algorithms find
the best subnet of the draw (Thompson sampling), and subnets that share blocks share what the sum does not explain. An
edge costs what its block costs, whatever its rendition and input size, and little more for a rendition that computes
almost the same.
What a device does not know yet is filled in by the errors that the packager measured, of blocks and of renditions.
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
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

Floats = npt.NDArray[np.float64]

_CONSTANT_MEAN, _CONSTANT_SPREAD = 2.5, 1.5  # log odds of a model that is worth deploying
_SLOPE_MEAN, _SLOPE_SPREAD = 4.0, 4.0  # log odds that one unit of relative squared feature error costs
_ERROR_PER_SPAN = 0.05  # of an added block, where the packager measured none
_RENDITION_ERROR = 0.01  # of a rendition that is not the original's
_SIZE_ERROR = 0.2  # of an input size, where the packager measured none
_SIZE_WEIGHT = 1.2  # of a size's squared error against a block's: they cost as many log odds then (EfficientNet-Lite0)
_LARGEST_ERROR = 2.0  # nothing is left of a feature; more cannot be told apart
_LEAST_ERROR = 0.02  # a smaller error of a block does not make its cost more certain
_LEAST_RENDITION_ERROR = 0.002  # nor one of a rendition, which computes the same block
_OWN_SPREADS = (1.0, 3.0)  # log odds per error by which blocks and renditions deviate: those that are tried
_JOINT_SPREADS = (0.05, 0.1, 0.2, 0.4)  # log odds that blocks do to each other: those that are tried
_JITTER = 1e-9  # of a covariance, against rounding
_LEAST_NOISE = 0.1  # of the sampling variance
_FEW = 8  # observations below which none are tried


class Observed(Protocol):
    """What is known of one subnet."""

    @property
    def subnet(self) -> Subnet:
        """Which."""

    @property
    def log_odds(self) -> float:
        """Of a correct answer."""

    @property
    def variance(self) -> float:
        """Of the log odds."""


@dataclass(frozen=True)
class Observation:
    """``correct`` answers out of ``samples``.

    ``noise`` is the part of the sampling variance that this subnet does not share with the others on the same
    samples, ``unseen`` the variance of ``correct`` because some of its answers were not computed but guessed.
    """

    subnet: Subnet
    correct: float
    samples: int
    noise: float = 1.0
    unseen: float = 0.0

    @property
    def log_odds(self) -> float:
        """Of a correct answer."""
        return log_odds(self.correct, self.samples)

    @property
    def variance(self) -> float:
        """Of the log odds."""
        share = (self.correct + 0.5) / (self.samples + 1)
        slope = self.samples * share * (1 - share)  # correct answers that one unit of log odds makes
        return self.noise / slope + self.unseen / slope**2


class AdditiveModel:
    """What is believed about the accuracy of a supernet's subnets before anything was observed."""

    def __init__(self, supernet: Supernet) -> None:
        self.edges = supernet.edges
        self._place = {edge: place for place, edge in enumerate(self.edges)}
        of_blocks, of_renditions = block_errors(supernet), rendition_errors(supernet)
        self.errors: Floats = np.array([of_blocks[edge.block] + of_renditions[edge] for edge in self.edges])  # [edges]
        self._blocks = np.unique([edge.block for edge in self.edges], return_inverse=True)[1]  # number of the edge's
        self.same_block: Floats = (self._blocks[:, None] == self._blocks).astype(np.float64)  # [edges, edges]
        # what errors do not say of edges' costs, as deviations [edges]: renditions of a block share what is not known
        # of it; edges without any error cost nothing, which is certain
        blocks = np.array([of_blocks[edge.block] for edge in self.edges])
        renditions = np.array([of_renditions[edge] for edge in self.edges])
        self._of_block = np.where(blocks > 0, blocks + _LEAST_ERROR, 0.0)
        self._of_rendition = np.where(renditions > 0, renditions + _LEAST_RENDITION_ERROR, 0.0)

    def covariance(self, own: float) -> Floats:
        """Of the edges' values before anything was observed, ``own``: the spread of edges: [edges, edges]."""
        unknown: Floats = self.same_block * np.outer(self._of_block, self._of_block) + np.diag(self._of_rendition**2)
        covariance: Floats = _SLOPE_SPREAD**2 * np.outer(self.errors, self.errors) + own**2 * unknown
        return covariance

    def draw(self, own: float, random: SplitMix64) -> Floats:
        """Deviations of the edges' values from what errors say, drawn with this covariance: [edges]."""
        slope = _SLOPE_SPREAD * _normal(random)
        blocks = _normals(int(self._blocks.max()) + 1, random)[self._blocks]
        drawn: Floats = slope * self.errors + own * (self._of_block * blocks)
        drawn += own * self._of_rendition * _normals(len(self.edges), random)
        return drawn

    def design(self, subnets: Sequence[Subnet]) -> Floats:
        """Which edges each subnet has, as 0 and 1: [subnets, edges]."""
        design = np.zeros((len(subnets), len(self.edges)))
        for row, subnet in enumerate(subnets):
            design[row, [self._place[edge] for edge in subnet.edges]] = 1
        return design

    def prior_mean(self, subnets: Sequence[Subnet]) -> Floats:
        """What the log odds are below those of the original path, by errors alone: [subnets]."""
        losses: Floats = _SLOPE_MEAN * (self.design(subnets) @ self.errors)
        return losses

    def fit(self, observations: Sequence[Observed]) -> Belief:
        """The belief after ``observations``; the spreads of highest likelihood are taken once there are enough."""
        if len(observations) < _FEW:
            return Belief(self, observations, _OWN_SPREADS[0], _JOINT_SPREADS[1])
        beliefs = [Belief(self, observations, own, joint) for own in _OWN_SPREADS for joint in _JOINT_SPREADS]
        return max(beliefs, key=lambda belief: belief.log_likelihood)


class Belief:
    """What is believed after observations. ``own`` and ``joint`` are the spreads of edges and of their interaction."""

    def __init__(self, model: AdditiveModel, observations: Sequence[Observed], own: float, joint: float) -> None:
        self._model = model
        self._own, self._joint = own, joint
        self._covariance = model.covariance(own)  # of the edges' values
        self._design = model.design([one.subnet for one in observations])  # [observations, edges]
        kernel = self._kernel(self._design)
        kernel[np.diag_indices_from(kernel)] += [one.variance for one in observations]
        self._kernel_of_observed = kernel
        self._root = np.linalg.cholesky(kernel)
        observed = np.array([one.log_odds for one in observations])
        self._whitened = np.linalg.solve(self._root, observed - self._prior(self._design))

    @property
    def log_likelihood(self) -> float:
        """Of the observations, up to a constant."""
        return float(-0.5 * self._whitened @ self._whitened - np.log(np.diag(self._root)).sum())

    def predict(self, subnets: Sequence[Subnet]) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the log odds of a correct answer: [subnets] each."""
        design = self._model.design(subnets)
        across = np.linalg.solve(self._root, self._kernel(design).T)  # [observations, subnets]
        mean = self._prior(design) + across.T @ self._whitened
        own = ((design @ self._covariance) * design).sum(axis=1) + _CONSTANT_SPREAD**2 + self._joint**2
        return mean, np.sqrt(np.maximum(own - (across**2).sum(axis=0), 0.0))

    def values(self) -> dict[Edge, float]:
        """What each edge adds to the log odds, on average."""
        return dict(zip(self._model.edges, self._mean.tolist(), strict=True))

    def draw(self, random: SplitMix64) -> dict[Edge, float]:
        """What each edge adds to the log odds, drawn from the belief.

        Drawn from what was believed before, then corrected by how far the observations lie from those that the draw
        would have made (Matheron's rule): no root of a matrix over all edges is needed.
        """
        prior = self._model.draw(self._own, random)
        would_be = self._design @ prior + self._unexplained_root @ _normals(len(self._design), random)
        drawn = self._mean + prior - self._across.T @ np.linalg.solve(self._root, would_be)
        return dict(zip(self._model.edges, drawn.tolist(), strict=True))

    @cached_property
    def _across(self) -> Floats:
        """Whitened covariance of the observations with the edges' values: [observations, edges]."""
        across: Floats = np.linalg.solve(self._root, self._design @ self._covariance)
        return across

    @cached_property
    def _mean(self) -> Floats:
        """Of the edges' values: [edges]."""
        mean: Floats = -_SLOPE_MEAN * self._model.errors + self._across.T @ self._whitened
        return mean

    @cached_property
    def _unexplained_root(self) -> Floats:
        """A root of the covariance of what edges' values leave of the observations: [observations, observations]."""
        left = np.array(self._kernel_of_observed - self._design @ self._covariance @ self._design.T)
        left[np.diag_indices_from(left)] += _JITTER
        return np.asarray(np.linalg.cholesky(left), dtype=np.float64)

    def _prior(self, design: Floats) -> Floats:
        prior: Floats = _CONSTANT_MEAN - _SLOPE_MEAN * (design @ self._model.errors)
        return prior

    def _kernel(self, design: Floats) -> Floats:
        """Prior covariance with the observed subnets: [subnets, observations]."""
        other = self._design
        shared = design @ self._model.same_block @ other.T
        together = design.sum(axis=1)[:, None] + other.sum(axis=1) - shared
        kernel: Floats = design @ self._covariance @ other.T + _CONSTANT_SPREAD**2
        return kernel + self._joint**2 * (shared / together) ** 2


def log_odds(correct: float, samples: int) -> float:
    """Of ``correct`` answers out of ``samples``, half an answer added on either side."""
    return math.log((correct + 0.5) / (samples - correct + 0.5))


def unshared_noise(correct: npt.NDArray[np.bool_]) -> float:
    """The part of the sampling variance of accuracies that subnets do not share, 0 to 1: ``correct`` [subnets, samples].

    Subnets are judged on the same samples, and what makes a sample hard for one makes it hard for all. Their
    differences vary only with the samples on which they disagree.
    """
    per_sample = correct.mean(axis=0)
    average = (correct.sum() + 0.5) / (correct.size + 1)
    unshared = float((per_sample * (1 - per_sample)).mean() / (average * (1 - average)))
    return min(max(unshared, _LEAST_NOISE), 1.0)


def block_errors(supernet: Supernet) -> dict[str, float]:
    """How far each block is from what the original ones compute: relative squared errors, 0 of these themselves.

    Unknown ones are taken to be like the known ones of other blocks, per cut point that they go over.
    """
    added = [block for block in supernet.blocks if block.kind != "original"]
    known = [b.distillation_error / (b.end - b.start) for b in added if b.distillation_error is not None]
    per_span = float(np.median(known)) if known else _ERROR_PER_SPAN
    errors = {block.id: 0.0 for block in supernet.blocks}
    for block in added:
        own = block.distillation_error
        errors[block.id] = min(per_span * (block.end - block.start) if own is None else own, _LARGEST_ERROR)
    return errors


def rendition_errors(supernet: Supernet) -> dict[Edge, float]:
    """How far each edge is from what its block computes in its first rendition: relative squared errors.

    What an input size costs counts once: with the first edge of the paths at it.
    """
    errors = {}
    size_errors: dict[tuple[int, ...], float] = {(): 0.0}
    for one in supernet.input_sizes:
        size_errors[one.size] = _SIZE_WEIGHT * (_SIZE_ERROR if one.error is None else min(one.error, 1.0)) ** 2
    for size, of_size in size_errors.items():
        for block in supernet.blocks:
            for place, rendition in enumerate(block.renditions):
                guessed = _RENDITION_ERROR if rendition.error is None else rendition.error
                error = min(guessed, _LARGEST_ERROR) if place else 0.0
                errors[Edge(block.id, rendition.name, size)] = error + (of_size if block.start == 0 else 0.0)
    return errors


def _normals(count: int, random: SplitMix64) -> Floats:
    return np.array([_normal(random) for _ in range(count)], dtype=np.float64)


def _normal(random: SplitMix64) -> float:
    """A standard normal number (Box and Muller, one of the two)."""
    return math.sqrt(-2 * math.log(1 - random.uniform())) * math.cos(2 * math.pi * random.uniform())
