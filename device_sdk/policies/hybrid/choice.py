"""Choosing a base and a global network that work best together, by their costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import Inputs
from device_sdk.errors import InfeasibleBudgetError, InputError, UsageError
from device_sdk.execution.workspace import Workspace
from device_sdk.offload.remote_model import path_model
from device_sdk.policies.costs.answers import answer_everywhere
from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.hybrid.joint_search import (
    HybridMember,
    HybridPair,
    HybridPool,
    JointSettings,
    joint_search,
    separate_pair,
)
from device_sdk.progress import Progress, SilentProgress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Array
from device_sdk.search.nearby import Neighbourhood, latency_range_ms, mutate, within_budget
from device_sdk.supernet.cost import Budget, CostModel, Power, Uplink
from device_sdk.supernet.deciders.port import ease, everything_is_hard, hard, with_limit
from device_sdk.supernet.plan import Ask, Entropy, Plan, RemoteRef, Subnet
from device_sdk.supernet.supernet import Supernet

Resource = Literal["macs", "latency_ms", "energy_mj"]


@dataclass(frozen=True)
class HybridCosts:
    """``base``: of a path on the device, for every sample; ``global_``: of one at the server, for each sample sent."""

    resource: Resource
    base: Callable[[Subnet], float]
    global_: Callable[[Subnet], float]


def macs_costs(supernet: Supernet) -> HybridCosts:
    """Multiply-accumulate operations, wherever they run."""

    def macs(path: Subnet) -> float:
        return float(sum(block.macs for _, block in supernet.walk(path)))

    return HybridCosts("macs", macs, macs)


def latency_costs(device: CostModel, server: CostModel, uplink: Uplink, *, input_bytes: int) -> HybridCosts:
    """Milliseconds until the answer: the device's network, then the transfer and the server's network (HI Eq. 3)."""
    transfer_ms = uplink.transfer_ms(input_bytes)
    return HybridCosts("latency_ms", device.latency_ms, lambda path: transfer_ms + server.latency_ms(path))


def energy_costs(
    device: CostModel, server: CostModel, uplink: Uplink, power: Power | None, *, input_bytes: int
) -> HybridCosts:
    """Millijoules of the device: computing, sending, waiting (HI Eq. 4).

    Raises:
        UsageError: the device's power is unknown.
    """
    if power is None:
        raise UsageError("energies are unknown without the device's power")
    sending_mj = power.radio_w * uplink.transfer_ms(input_bytes)
    return HybridCosts(
        "energy_mj",
        lambda path: power.active_w * device.latency_ms(path),
        lambda path: sending_mj + power.waiting_w * server.latency_ms(path),
    )


def asked_cost(resource: Resource, network: Network, server: RemoteRef, power: Power | None) -> float:
    """Cost of sending a sample to a server's model of unknown structure, from the times that ``network`` states.

    Raises:
        UsageError: MACs are limited, which a server does not state of its model; or the device's power is unknown.
    """
    transfer_ms, answer_ms = (
        network.uplink.transfer_ms(network.request_bytes.get(server, network.input_bytes)),
        network.answer_ms[server],
    )
    if resource == "latency_ms":
        return transfer_ms + answer_ms
    if resource == "macs":
        raise UsageError(f"the MACs of {server} are unknown", hint="limit the latency or the energy instead")
    if power is None:
        raise UsageError("energies are unknown without the device's power")
    return power.radio_w * transfer_ms + power.waiting_w * answer_ms


_BATCH = 64
_HELD_OUT = 3  # every third sample judges the choice

GlobalNetwork = Subnet | RemoteRef
"""A global network: a subnet of the bundle, or a server's own model."""

Both = tuple[HybridMember[Subnet] | None, HybridMember[Subnet] | None]
"""A subnet as base and as global network; None where it cannot be that."""


Member = HybridMember[GlobalNetwork] | None


@dataclass(frozen=True)
class HybridChoice:
    """The plan of the best pair, and what it is expected to reach.

    ``held_out``: its accuracy on samples that did not choose; ``separate``: the pair of networks picked one by one,
    None where none keeps the limit; ``answered``: how many subnets have answered the samples.
    """

    plan: Plan
    pair: HybridPair[GlobalNetwork]
    held_out: float
    separate: HybridPair[GlobalNetwork] | None
    answered: int

    @property
    def base(self) -> Subnet:
        """The subnet for the device."""
        assert isinstance(self.pair.base, Subnet)
        return self.pair.base


class SubnetAnswers:
    """Answers of subnets on the device, each computed once: everything that the joint search knows.

    ``inputs``: samples, or an array [count, *input] of prepared ones; ``labels`` [count]. Exits and other input sizes
    are not tried.
    """

    def __init__(
        self,
        workspace: Workspace,
        inputs: Inputs | Array,
        labels: npt.NDArray[np.int64],
        costs: HybridCosts,
        progress: Progress,
    ) -> None:
        if not len(inputs) or len(inputs) != len(labels):
            raise InputError(f"there are {len(inputs)} samples and {len(labels)} labels")
        self._workspace, self._inputs, self._labels, self._costs = workspace, inputs, labels, costs
        self._progress = progress
        self.logits: dict[Subnet, Array] = {}

    def __call__(self, subnets: Sequence[Subnet]) -> Mapping[Subnet, Both]:
        """Each subnet as a base and as a global network."""
        new = [one for one in dict.fromkeys(subnets) if one not in self.logits]
        with self._progress.task("answer with subnets", len(new)) as task:
            for subnet in new:
                answers = answer_everywhere(
                    self._workspace, subnet, self._inputs, self._labels, use_exits=False, batch=_BATCH
                )
                self.logits[subnet] = answers.logits[-1]
                task.advance()
        return {one: self._both(one) for one in subnets}

    def _both(self, subnet: Subnet) -> Both:
        logits, costs = self.logits[subnet], self._costs
        return (
            HybridMember(subnet, logits, costs.base(subnet)),
            HybridMember(subnet, logits, costs.global_(subnet)),
        )


def choose_hybrid(
    workspace: Workspace,
    bundle: tuple[str, str],
    profile: CostModel,
    subnets: Sequence[Subnet],
    inputs: Inputs | Array,
    labels: npt.NDArray[np.int64],
    limit: float,
    costs: HybridCosts,
    settings: JointSettings,
    *,
    others: Sequence[HybridMember[GlobalNetwork]] = (),
    progress: Progress | None = None,
) -> HybridChoice:
    """The best base for the device and global network for the server within ``limit`` per sample.

    Two thirds of the samples choose, the rest judge.

    Args:
        bundle: name and digest, by which the server is asked.
        profile: of the device; subnets are mutated within its range.
        subnets: to begin with; the full model among them.
        others: servers' own models that may be the global one, with their logits on all samples.

    Raises:
        InfeasibleBudgetError: no pair keeps the limit; names the cheapest base.
        InputError: there are no samples, or labels and samples differ in number.
    """
    answers = SubnetAnswers(workspace, inputs, labels, costs, progress or SilentProgress())
    judging = np.arange(0, len(labels), _HELD_OUT)
    choosing = np.setdiff1d(np.arange(len(labels)), judging)
    nearby = any_subnet(workspace.supernet, profile)

    def mutated(network: GlobalNetwork, random: SplitMix64) -> GlobalNetwork | None:
        found = mutate(nearby, network, random=random) if isinstance(network, Subnet) else None
        return None if found is None or found.input_size else found

    def answer(wanted: Sequence[GlobalNetwork]) -> dict[GlobalNetwork, tuple[Member, Member]]:
        found = answers([one for one in wanted if isinstance(one, Subnet)])
        return {key: (_part(base, choosing), _part(global_, choosing)) for key, (base, global_) in found.items()}

    pool: HybridPool[GlobalNetwork] = HybridPool(labels[choosing])
    known = answer([one for one in dict.fromkeys(subnets) if not one.input_size]).values()
    pool.add(
        bases=[one for one, _ in known if one],
        globals_=[*(one for _, one in known if one), *(_sampled(one, choosing) for one in others)],
    )
    pair = joint_search(pool, limit, settings, mutate=mutated, answer=answer)
    if pair is None:
        raise _infeasible(pool, limit, costs, profile)
    assert isinstance(pair.base, Subnet)
    logits = answers.logits[pair.base]
    decider = sending(ease(Entropy(0.0), logits[choosing]), pair.sent, logits.shape[1])
    plan = Plan(pair.base, hard=Ask(decider, _server_of(pair.global_, bundle)))
    everything = {one.key: one for one in others} | {
        key: both[1] for key, both in answers(list(answers.logits)).items()
    }
    base, global_ = answers([pair.base])[pair.base][0], everything[pair.global_]
    assert base is not None
    assert global_ is not None
    own, other = base.logits[judging], global_.logits[judging]
    answers_held = np.where(hard(decider, own), other.argmax(axis=1), own.argmax(axis=1))
    held_out = float((answers_held == labels[judging]).mean()) if len(judging) else 0.0
    separate = separate_pair(pool, limit, settings)
    return HybridChoice(plan, pair, held_out, separate, len(answers.logits))


def _server_of(network: GlobalNetwork, bundle: tuple[str, str]) -> RemoteRef:
    name, digest = bundle
    return network if isinstance(network, RemoteRef) else RemoteRef(path_model(name, network, images=True), digest)


def _infeasible(
    pool: HybridPool[GlobalNetwork], limit: float, costs: HybridCosts, profile: CostModel
) -> InfeasibleBudgetError:
    cheapest = min(pool.bases.values(), key=lambda one: one.cost)
    assert isinstance(cheapest.key, Subnet)
    return InfeasibleBudgetError(
        f"no pair costs at most {limit:g} {costs.resource}; the cheapest base takes {cheapest.cost:g}",
        nearest=cheapest.key.block_ids,
        nearest_latency_ms=profile.latency_ms(cheapest.key),
        nearest_peak_bytes=profile.peak_bytes(cheapest.key),
        hint="raise the limit",
    )


def any_subnet(supernet: Supernet, costs: CostModel) -> Neighbourhood:
    """All subnets, to draw and mutate without a limit."""
    _, slowest_ms = latency_range_ms(supernet, costs)
    return within_budget(supernet, costs, Budget(latency_ms=(1 + 1e-9) * slowest_ms))


def _part(one: HybridMember[Subnet] | None, positions: npt.NDArray[np.int64]) -> Member:
    return None if one is None else _sampled(one, positions)


def _sampled(one: HybridMember[GlobalNetwork], positions: npt.NDArray[np.int64]) -> HybridMember[GlobalNetwork]:
    return HybridMember(one.key, one.logits[positions], one.cost)


def sending(eases: npt.NDArray[np.float64], share: float, classes: int) -> Entropy:
    """The decider that calls ``share`` of the samples hard; of none, also no new sample among ``classes``."""
    count = round(share * len(eases))
    if count == len(eases):
        found = everything_is_hard(Entropy(0.0))
    elif not count:
        found = with_limit(Entropy(0.0), -math.log(classes))
    else:
        found = with_limit(Entropy(0.0), float(np.sort(eases)[count]))
    assert isinstance(found, Entropy)
    return found
