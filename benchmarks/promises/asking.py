"""Limits on samples that are sent: the fewest for an accuracy, and as many as a hybrid's cost allows."""

from __future__ import annotations

import numpy as np

from benchmarks.promises.kinds import CERTAINTY, REFUSED, Kind, Places, Tried
from benchmarks.promises.world import FULL_MS, World
from device_sdk.policies.deciding.thresholds import fewest_asked
from device_sdk.policies.hybrid.choice import sending
from device_sdk.policies.hybrid.joint_search import HybridMember, HybridPool, JointSettings, best_pair
from device_sdk.supernet.deciders.port import confidence, ease, hard
from device_sdk.supernet.plan import Entropy

ACCURACY = 0.92
HYBRID_LIMIT = 0.6  # of the last network's work


def asking_kind(world: World) -> Kind:
    """The fewest samples of the quickest network that the slowest one has to answer; saved are those not asked."""
    small, *_, large = world.networks.values()
    eases, here, server = confidence(small), small.argmax(axis=1) == world.labels, large.argmax(axis=1) == world.labels

    def tried(chosen: Places, judged: Places) -> Tried:
        limit = fewest_asked(eases[chosen], here[chosen], server[chosen], accuracy=ACCURACY, certainty=CERTAINTY)
        if limit is None:
            return REFUSED
        asked = eases[judged] < limit
        right = np.where(asked, server[judged], here[judged])
        return Tried(bool(right.mean() >= ACCURACY), 1 - float(asked.mean()))

    return Kind("asking", tried)


def hybrid_kind(world: World) -> Kind:
    """The best base and global network within a mean cost; saved is accuracy over the best network alone within it."""
    costs = {name: FULL_MS * share for name, share in world.shares.items()}
    limit = HYBRID_LIMIT * FULL_MS

    def tried(chosen: Places, judged: Places) -> Tried:
        pool: HybridPool[str] = HybridPool(world.labels[chosen])
        members = [HybridMember(name, logits[chosen], costs[name]) for name, logits in world.networks.items()]
        pool.add(bases=members, globals_=members)
        pair = best_pair(pool, limit, JointSettings(certainty=CERTAINTY))
        assert pair is not None
        base, other = world.networks[pair.base], world.networks[pair.global_]
        decider = sending(ease(Entropy(0.0), base[chosen]), pair.sent, base.shape[1])
        sent = hard(decider, base[judged])
        right = np.where(sent, other[judged].argmax(axis=1), base[judged].argmax(axis=1)) == world.labels[judged]
        fitting = [name for name, cost in costs.items() if cost <= limit]
        alone = max(
            float((world.networks[name][judged].argmax(axis=1) == world.labels[judged]).mean()) for name in fitting
        )
        cost = costs[pair.base] + float(sent.mean()) * costs[pair.global_]
        return Tried(cost <= limit, float(right.mean()) - alone)

    return Kind("hybrid", tried)
