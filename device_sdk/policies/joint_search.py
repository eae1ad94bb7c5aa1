"""Joint search for a base and a global network (Hybrid §2.2, Alg. 4), on logits of networks that ran once. Pure.

Every pair of the networks that have answered the samples is judged, so the best of the pool is exact; evolution extends
the pool: networks of the best pairs are mutated and answer the samples too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from device_sdk.errors import InputError, UsageError
from device_sdk.execution.deciders import ease
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Decider, Entropy

Key = TypeVar("Key", bound=Hashable)
Values = npt.NDArray[np.float64]
Fitness = Literal["agreement", "either", "routed"]
"""How a pair is judged.

``agreement``: the paper's agreement oracle sends the samples about which the two disagree; the pair's cost is that of
these. ``either``: the share of samples that at least one answers rightly, an upper bound, at a given coverage.
``routed``: the base's own entropy sends as many samples as the cost allows: what a device can do.
"""


@dataclass(frozen=True)
class Candidate(Generic[Key]):
    """A network that can be base or global: its logits [count, classes] and its cost per sample in that role."""

    key: Key
    logits: Array
    cost: float


@dataclass(frozen=True)
class Pair(Generic[Key]):
    """A base and a global network: what they are expected to reach together.

    ``cost``: of the base, plus that of the global network for the share that is sent (Eq. 2).
    """

    base: Key
    global_: Key
    accuracy: float
    sent: float
    cost: float


@dataclass(frozen=True, kw_only=True)
class JointSettings:
    """Evolution: ``generations`` with up to ``children`` new networks each, from the ``parents`` best pairs.

    ``coverage``: of the fitness ``either``; ``least_coverage``: of ``routed``, which sends at most the rest.
    """

    fitness: Fitness = "routed"
    coverage: float = 0.7
    least_coverage: float = 0.0
    generations: int = 4
    children: int = 8
    parents: int = 25
    seed: int = 0


@dataclass
class Pool(Generic[Key]):
    """The networks that have answered the samples with these labels [count]: as bases and as global networks."""

    labels: npt.NDArray[np.int64]
    bases: dict[Key, Candidate[Key]] = field(default_factory=dict)
    globals_: dict[Key, Candidate[Key]] = field(default_factory=dict)

    def add(self, *, bases: Sequence[Candidate[Key]] = (), globals_: Sequence[Candidate[Key]] = ()) -> None:
        """Add networks.

        Raises:
            InputError: logits for another number of samples, or not finite.
        """
        for one in (*bases, *globals_):
            if len(one.logits) != len(self.labels) or not np.isfinite(one.logits).all():
                raise InputError(f"the answers of {one.key} are not those to the {len(self.labels)} samples")
        self.bases |= {one.key: one for one in bases}
        self.globals_ |= {one.key: one for one in globals_}


def ranked_pairs(
    pool: Pool[Key], limit: float, settings: JointSettings, decider: Decider | None = None
) -> list[Pair[Key]]:
    """All pairs whose hybrid cost keeps ``limit``, the most accurate first, among equals the cheapest."""
    judge = _JUDGES[settings.fitness]
    found = [
        pair
        for base in pool.bases.values()
        if base.cost <= limit
        for pair in judge(base, tuple(pool.globals_.values()), pool.labels, limit, settings, decider or Entropy(0.0))
        if pair.cost <= limit * (1 + 1e-12)
    ]
    return sorted(found, key=lambda pair: (-pair.accuracy, pair.cost))


def best_pair(
    pool: Pool[Key], limit: float, settings: JointSettings, decider: Decider | None = None
) -> Pair[Key] | None:
    """The best of all pairs within ``limit``; None if there is none."""
    return next(iter(ranked_pairs(pool, limit, settings, decider)), None)


def separate_pair(pool: Pool[Key], limit: float, settings: JointSettings) -> Pair[Key] | None:
    """Base and global network picked one by one: the most accurate global, then the most accurate base that fits.

    The base leaves enough of ``limit`` to send ``1 − coverage`` of the samples. None if no base does.
    """

    def accuracy(one: Candidate[Key]) -> tuple[float, float]:
        return float((one.logits.argmax(axis=1) == pool.labels).mean()), -one.cost

    global_ = max(pool.globals_.values(), key=accuracy)
    left = limit - (1 - settings.coverage) * global_.cost
    bases = [one for one in pool.bases.values() if one.cost <= left]
    if not bases:
        return None
    alone = Pool(pool.labels, {}, {global_.key: global_})
    base = max(bases, key=accuracy)
    alone.add(bases=[base])
    return best_pair(alone, limit, settings)


def joint_search(
    pool: Pool[Key],
    limit: float,
    settings: JointSettings,
    *,
    mutate: Callable[[Key, SplitMix64], Key | None],
    answer: Callable[[Sequence[Key]], Mapping[Key, tuple[Candidate[Key] | None, Candidate[Key] | None]]],
) -> Pair[Key] | None:
    """The best pair within ``limit`` after extending ``pool`` by evolution; None if no pair keeps it.

    Args:
        mutate: another network near this one, None if there is none: a key that cannot be mutated, such as a server's
            own model, stays as it is.
        answer: has networks answer the samples; each as base and as global, None where it cannot be one.

    Raises:
        UsageError: a setting is out of range.
    """
    if settings.parents < 1 or settings.children < 0 or settings.generations < 0:
        raise UsageError("a joint search needs parents, and numbers of generations and children that are not negative")
    random = SplitMix64(settings.seed)
    for _ in range(settings.generations):
        parents = ranked_pairs(pool, limit, settings)[: settings.parents] or _cheapest(pool)
        children = _children(pool, parents, settings.children, mutate, random)
        if not children:
            break
        answered = answer(children).values()
        pool.add(
            bases=[base for base, _ in answered if base is not None],
            globals_=[global_ for _, global_ in answered if global_ is not None],
        )
    return best_pair(pool, limit, settings)


def _children(
    pool: Pool[Key],
    parents: Sequence[Pair[Key]],
    count: int,
    mutate: Callable[[Key, SplitMix64], Key | None],
    random: SplitMix64,
) -> list[Key]:
    """Up to ``count`` new networks, near the bases and global networks of ``parents``; tried four times as often."""
    found: dict[Key, None] = {}
    for _ in range(4 * count if parents else 0):
        parent = random.choice(parents)
        child = mutate(parent.global_ if random.below(2) else parent.base, random)
        if child is not None and child not in pool.bases and child not in pool.globals_:
            found[child] = None
        if len(found) == count:
            break
    return list(found)


def _cheapest(pool: Pool[Key]) -> list[Pair[Key]]:
    """Where no pair keeps the limit: the cheapest base with each global network."""
    base = min(pool.bases.values(), key=lambda one: one.cost)
    return [Pair(base.key, key, 0.0, 0.0, base.cost) for key in pool.globals_]


def _right(one: Candidate[Key], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return np.asarray(one.logits.argmax(axis=1) == labels)


def _by_agreement(
    base: Candidate[Key],
    globals_: Sequence[Candidate[Key]],
    labels: npt.NDArray[np.int64],
    limit: float,
    settings: JointSettings,
    decider: Decider,
) -> list[Pair[Key]]:
    own = base.logits.argmax(axis=1)
    pairs = []
    for one in globals_:
        sent = float((one.logits.argmax(axis=1) != own).mean())
        accuracy = float(_right(one, labels).mean())  # where they agree, the base's answer is the global's
        pairs.append(Pair(base.key, one.key, accuracy, sent, base.cost + sent * one.cost))
    return pairs


def _by_either(
    base: Candidate[Key],
    globals_: Sequence[Candidate[Key]],
    labels: npt.NDArray[np.int64],
    limit: float,
    settings: JointSettings,
    decider: Decider,
) -> list[Pair[Key]]:
    own, sent = _right(base, labels), 1 - settings.coverage
    return [
        Pair(base.key, one.key, float((own | _right(one, labels)).mean()), sent, base.cost + sent * one.cost)
        for one in globals_
    ]


def _by_routing(
    base: Candidate[Key],
    globals_: Sequence[Candidate[Key]],
    labels: npt.NDArray[np.int64],
    limit: float,
    settings: JointSettings,
    decider: Decider,
) -> list[Pair[Key]]:
    own, count = _right(base, labels), len(labels)
    order = np.argsort(ease(decider, base.logits), kind="stable")
    most = 1 - settings.least_coverage
    pairs = []
    for one in globals_:
        share = most if one.cost <= 0 else min(most, max(0.0, (limit - base.cost) / one.cost))
        sent = int(share * count + 1e-9)
        right = own.copy()
        right[order[:sent]] = _right(one, labels)[order[:sent]]
        pairs.append(Pair(base.key, one.key, float(right.mean()), sent / count, base.cost + sent / count * one.cost))
    return pairs


_JUDGES: dict[Fitness, Callable[..., list[Pair]]] = {  # type: ignore[type-arg]
    "agreement": _by_agreement,
    "either": _by_either,
    "routed": _by_routing,
}
