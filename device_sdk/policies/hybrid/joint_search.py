"""Joint search for a base and a global network (Hybrid §2.2, Alg. 4), on logits of networks that ran once. Pure.

Every pair of the networks that have answered the samples is judged, so the best of the pool is exact; evolution extends
the pool: networks of the best pairs are mutated and answer the samples too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from device_sdk.errors import InputError, UsageError
from device_sdk.policies.deciding.promises import most_shares
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Array
from device_sdk.supernet.deciders.port import ease
from device_sdk.supernet.plan import Decider, Entropy

Key = TypeVar("Key", bound=Hashable)
AnyKey = TypeVar("AnyKey", bound=Hashable, covariant=True)
Values = npt.NDArray[np.float64]
_ROUNDING = 1e-9

Fitness = Literal["agreement", "either", "routed", "softened"]
"""How a pair is judged.

``agreement``: the paper's agreement oracle sends the samples about which the two disagree; the pair's cost is that of
these. ``either``: the share of samples that at least one answers rightly, an upper bound, at a given coverage.
``routed``: the base's own entropy sends as many samples as the cost allows: what a device can do. ``softened``: as
``routed``, but an answer counts by the probability of the right class at ``temperature``: less of a pair's lead over
others is then luck with a few samples. Pairs that are less accurate than the best one by more than two standard errors
come last.
"""


@dataclass(frozen=True)
class HybridMember(Generic[AnyKey]):
    """A network that can be base or global: its logits [count, classes] and its cost per sample in that role."""

    key: AnyKey
    logits: Array
    cost: float


@dataclass(frozen=True)
class HybridPair(Generic[AnyKey]):
    """A base and a global network, with their expected joint accuracy and cost.

    ``cost``: of the base, plus that of the global network for the share that is sent (Eq. 2). ``score``: what pairs are
    ranked by.
    """

    base: AnyKey
    global_: AnyKey
    accuracy: float
    sent: float
    cost: float
    score: float


@dataclass(frozen=True, kw_only=True)
class JointSettings:
    """Evolution: ``generations`` with up to ``children`` new networks each, from the ``parents`` best pairs.

    ``coverage``: of the fitness ``either``; ``least_coverage``: of ``routed`` and ``softened``, which send at most the
    rest. ``certainty``, of the same two: probability with which the share of new samples that are sent keeps the limit;
    None: the share of those seen does.
    """

    fitness: Fitness = "softened"
    temperature: float = 4.0
    coverage: float = 0.7
    least_coverage: float = 0.0
    certainty: float | None = None
    generations: int = 4
    children: int = 8
    parents: int = 25
    seed: int = 0


@dataclass
class HybridPool(Generic[Key]):
    """The networks that have answered the samples with these labels [count]: as bases and as global networks."""

    labels: npt.NDArray[np.int64]
    bases: dict[Key, HybridMember[Key]] = field(default_factory=dict)
    globals_: dict[Key, HybridMember[Key]] = field(default_factory=dict)

    def add(self, *, bases: Sequence[HybridMember[Key]] = (), globals_: Sequence[HybridMember[Key]] = ()) -> None:
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
    pool: HybridPool[Key], limit: float, settings: JointSettings, decider: Decider | None = None
) -> list[HybridPair[Key]]:
    """All pairs whose hybrid cost keeps ``limit``, the best first, among equals the cheapest."""
    judge = _JUDGES[settings.fitness]
    found = [
        pair
        for base in pool.bases.values()
        if base.cost <= limit
        for pair in judge(base, tuple(pool.globals_.values()), pool.labels, limit, settings, decider or Entropy(0.0))
        if pair.cost <= limit * (1 + 1e-12)
    ]
    least = _not_worse(found, len(pool.labels)) if settings.fitness == "softened" else 0.0
    return sorted(found, key=lambda pair: (pair.accuracy < least, -pair.score, pair.cost))


def _not_worse(pairs: Sequence[HybridPair[Key]], samples: int) -> float:
    """The accuracy that lies two standard errors below the best pair's."""
    best = max((pair.accuracy for pair in pairs), default=0.0)
    return best - 2 * (best * (1 - best) / samples) ** 0.5


def best_pair(
    pool: HybridPool[Key], limit: float, settings: JointSettings, decider: Decider | None = None
) -> HybridPair[Key] | None:
    """The best of all pairs within ``limit``; None if there is none."""
    return next(iter(ranked_pairs(pool, limit, settings, decider)), None)


def separate_pair(pool: HybridPool[Key], limit: float, settings: JointSettings) -> HybridPair[Key] | None:
    """Base and global network picked one by one: the most accurate global, then the most accurate base that fits.

    The base leaves enough of ``limit`` to send ``1 − coverage`` of the samples; where none does, it is the cheapest. As
    much is sent as the limit then allows. None if the cheapest base alone costs more.
    """

    def accuracy(one: HybridMember[Key]) -> tuple[float, float]:
        return float((one.logits.argmax(axis=1) == pool.labels).mean()), -one.cost

    global_ = max(pool.globals_.values(), key=accuracy)
    left = limit - (1 - settings.coverage) * global_.cost
    bases = [one for one in pool.bases.values() if one.cost <= left * (1 + 1e-9)]
    base = max(bases, key=accuracy) if bases else min(pool.bases.values(), key=lambda one: one.cost)
    alone = HybridPool(pool.labels, {base.key: base}, {global_.key: global_})
    return best_pair(alone, limit, dataclasses.replace(settings, fitness="routed"))


def joint_search(
    pool: HybridPool[Key],
    limit: float,
    settings: JointSettings,
    *,
    mutate: Callable[[Key, SplitMix64], Key | None],
    answer: Callable[[Sequence[Key]], Mapping[Key, tuple[HybridMember[Key] | None, HybridMember[Key] | None]]],
) -> HybridPair[Key] | None:
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
    pool: HybridPool[Key],
    parents: Sequence[HybridPair[Key]],
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


def _cheapest(pool: HybridPool[Key]) -> list[HybridPair[Key]]:
    """The cheapest base paired with each global network, for limits that no pair keeps."""
    base = min(pool.bases.values(), key=lambda one: one.cost)
    return [HybridPair(base.key, key, 0.0, 0.0, base.cost, 0.0) for key in pool.globals_]


def _right(one: HybridMember[Key], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return np.asarray(one.logits.argmax(axis=1) == labels)


def _by_answers(
    base: HybridMember[Key],
    globals_: Sequence[HybridMember[Key]],
    labels: npt.NDArray[np.int64],
    limit: float,
    settings: JointSettings,
    decider: Decider,
) -> list[HybridPair[Key]]:
    """By the answers of both, whatever decides which samples are sent."""
    own, own_right = base.logits.argmax(axis=1), _right(base, labels)
    pairs = []
    for one in globals_:
        if settings.fitness == "agreement":  # sent where they differ: else the base's answer is the global's
            right, sent = _right(one, labels), float((one.logits.argmax(axis=1) != own).mean())
        else:
            right, sent = own_right | _right(one, labels), 1 - settings.coverage
        accuracy = float(right.mean())
        pairs.append(HybridPair(base.key, one.key, accuracy, sent, base.cost + sent * one.cost, accuracy))
    return pairs


def _by_routing(
    base: HybridMember[Key],
    globals_: Sequence[HybridMember[Key]],
    labels: npt.NDArray[np.int64],
    limit: float,
    settings: JointSettings,
    decider: Decider,
) -> list[HybridPair[Key]]:
    def values(one: HybridMember[Key]) -> Values:
        if settings.fitness == "softened":
            return _softened(one, labels, settings.temperature)
        return _right(one, labels).astype(float)

    own, own_values, count = _right(base, labels), values(base), len(labels)
    order = np.argsort(ease(decider, base.logits), kind="stable")
    most = 1 - settings.least_coverage
    pairs = []
    for one in globals_:
        share = most if one.cost <= 0 else min(most, max(0.0, (limit - base.cost) / one.cost))
        sent = order[: _most_sent(share, count, settings.certainty)]
        right, judged = own.copy(), own_values.copy()
        right[sent], judged[sent] = _right(one, labels)[sent], values(one)[sent]
        share = len(sent) / count
        cost = base.cost + share * one.cost
        pairs.append(HybridPair(base.key, one.key, float(right.mean()), share, cost, float(judged.mean())))
    return pairs


def _most_sent(share: float, count: int, certainty: float | None) -> int:
    """The number of ``count`` samples that may be sent so that at most ``share`` of new ones are."""
    if certainty is None or share >= 1:
        return int(share * count + _ROUNDING)
    return max(0, int(np.searchsorted(most_shares(count, certainty), share + _ROUNDING, side="right")) - 1)


def _softened(one: HybridMember[Key], labels: npt.NDArray[np.int64], temperature: float) -> Values:
    """The probability of the right class of each sample at a temperature: [count]."""
    wide = one.logits.astype(np.float64) / temperature
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    return np.asarray(powers[np.arange(len(labels)), labels] / powers.sum(axis=1))


_JUDGES: dict[Fitness, Callable[..., list[HybridPair]]] = {  # type: ignore[type-arg]
    "agreement": _by_answers,
    "either": _by_answers,
    "routed": _by_routing,
    "softened": _by_routing,
}
