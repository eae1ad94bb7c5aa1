"""Plans over two providers at once: how well their latencies are predicted, and whether they beat one provider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from benchmarks.runner.run import BenchOptions
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.subnet_search import at_best_homes
from device_sdk.profiling.profile import Profile, measure_subnets
from device_sdk.profiling.stretches import Timing
from device_sdk.random_source import SplitMix64
from device_sdk.search.ladder import ladder
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.samples import Labels, Samples
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.paths import sample_uniformly
from device_sdk.supernet.plan import Edge, Subnet

HOMES = ("cpu-1t", "openvino-1t")
RATIOS, QUICK_RATIOS = (0.8, 0.6, 0.45, 0.3), (0.6,)
_MIXED, _QUICK_MIXED = 24, 4
_LEAVES = 4  # one block in so many begins at a home drawn anew
_ROUNDS, _TIMES = 60, 3  # rounds of a measurement, and times that a comparison is measured, in sessions of its own
_SEED = 20261128  # other subnets than the profile's


@dataclass(frozen=True)
class Predicted:
    """A subnet over both providers, its latency as predicted and as measured."""

    network: str
    subnet: Subnet
    predicted_ms: float
    measured_ms: float

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return abs(self.predicted_ms / self.measured_ms - 1)

    @property
    def crossings(self) -> int:
        """Number of times that the subnet goes on at another home."""
        homes = [edge.home for edge in self.subnet.edges]
        return sum(before != after for before, after in pairwise(homes))


@dataclass(frozen=True)
class Compared:
    """A plan with homes named, and the same blocks at each single provider; latencies in turns."""

    network: str
    what: str
    subnet: Subnet
    latency_ms: float
    single_ms: dict[str, float]

    @property
    def over_best_single(self) -> float:
        """Its latency over that of the faster provider."""
        return self.latency_ms / min(self.single_ms.values())


def predictions(network: str, workspace: Workspace, profile: Profile, options: BenchOptions) -> list[Predicted]:
    """Random subnets at random homes, none of which the profile was fitted on."""
    costs, count = profile.cost_model(), _QUICK_MIXED if options.quick else _MIXED
    subnets = _mixed(workspace, count)
    measured = measure_subnets(workspace, [workspace.supernet.original, *subnets], Timing(rounds=_ROUNDS))[1:]
    pairs = zip(subnets, measured, strict=True)
    return [Predicted(network, subnet, costs.latency_ms(subnet), one.median_ms) for subnet, one in pairs]


def _mixed(workspace: Workspace, count: int) -> list[Subnet]:
    supernet, random = workspace.supernet, SplitMix64(_SEED)
    renditions = sorted({edge.rendition for edge in supernet.edges})
    found = []
    for number, drawn in enumerate(sample_uniformly(supernet, count=count, random=random)):
        subnet = supernet.in_rendition(drawn, renditions[number % len(renditions)])
        home, edges = HOMES[random.below(2)], list[Edge]()
        for edge in subnet.edges:
            if random.below(_LEAVES) == 0:
                home = HOMES[random.below(2)]
            edges.append(edge.on("" if home == HOMES[0] else home))
        found.append(Subnet(tuple(edges)))
    return list(dict.fromkeys(found))


def chosen(
    network: str, model: AdaptiveModel, samples: Samples, labels: Labels, options: BenchOptions
) -> list[Compared]:
    """The choices of ``adapt`` for each budget, against the same blocks at one provider."""
    workspace, found = _workspace(model), []
    for ratio in QUICK_RATIOS if options.quick else RATIOS:
        try:
            one = model.adapt(samples, Goal(latency_ratio=ratio), labels=labels, take=False, progress=options.progress)
        except InfeasibleBudgetError:
            continue
        found.append(_compared(network, f"adapt within {ratio:g}", workspace, one.plan.subnet))
    return found


def rungs(network: str, model: AdaptiveModel, options: BenchOptions) -> list[Compared]:
    """The ladder with its homes named by prediction alone, not confirmed, against one provider."""
    workspace, profile = _workspace(model), model.profile(progress=options.progress)
    free = at_best_homes(workspace, profile.cost_model())
    every = [rung for column in ladder(workspace.supernet) for rung in column]
    some = every[:2] if options.quick else every[::3]
    return [_compared(network, f"rung {rung}"[:60], workspace, free.housed(rung)) for rung in some]


def _workspace(model: AdaptiveModel) -> Workspace:
    return model._in_use.lend_workspace()


def _compared(network: str, what: str, workspace: Workspace, subnet: Subnet) -> Compared:
    """Medians over several sessions of each: two sessions of one model differ by up to 2 %."""
    single = {
        name: Subnet(tuple(edge.on(home) for edge in subnet.edges))
        for name, home in zip(HOMES, ("", HOMES[1]), strict=True)
    }
    every = list(dict.fromkeys([subnet, *single.values()]))
    times: dict[Subnet, list[float]] = {one: [] for one in every}
    for _ in range(_TIMES):
        for one, latency in zip(every, measure_subnets(workspace, every, Timing(rounds=_ROUNDS)), strict=True):
            times[one].append(latency.median_ms)
    own = {one: median(values) for one, values in times.items()}
    return Compared(network, what, subnet, own[subnet], {name: own[path] for name, path in single.items()})


def crossings(network: str, profile: Profile) -> list[dict[str, object]]:
    """Rows of what crossing costs, as it was measured and fitted."""
    return [
        {
            "network": network,
            "what": "crossing",
            "from": one.before or HOMES[0],
            "to": one.after or HOMES[0],
            "fixed_ms": one.fixed_ms,
            "ms_per_mb": one.ms_per_mb,
        }
        for one in profile.crossings
    ]


def figures_of(
    predicted: Sequence[Predicted], adapted: Sequence[Compared], ladders: Sequence[Compared]
) -> dict[str, float]:
    """Median error of the prediction, and the worst plans against the better provider."""
    return {
        "mixed_prediction_error": median(one.error for one in predicted),
        "mixed_subnets": float(len(predicted)),
        "plan_over_best_single": max(one.over_best_single for one in adapted),
        "plans": float(len(adapted)),
        "plans_over_both_providers": float(sum(len({e.home for e in one.subnet.edges}) > 1 for one in adapted)),
        "unconfirmed_over_best_single": max(one.over_best_single for one in ladders),
        "openvino_over_cpu_least": min(
            one.single_ms[HOMES[1]] / one.single_ms[HOMES[0]] for one in (*adapted, *ladders)
        ),
        "openvino_over_cpu_most": max(
            one.single_ms[HOMES[1]] / one.single_ms[HOMES[0]] for one in (*adapted, *ladders)
        ),
    }
