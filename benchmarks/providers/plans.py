"""Plans over two homes at once: how well their latencies are predicted, and whether they beat one home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from statistics import median

from benchmarks.runner.run import BenchOptions
from device_sdk.data.inputs import Inputs
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.confirmation import DEFAULT_PAUSE_S
from device_sdk.policies.exits.placed_exits import paced_in_turns, without_timed_exits
from device_sdk.policies.plan_homes import at_home
from device_sdk.policies.subnet_search import at_best_homes
from device_sdk.profiling.profile import Profile, measure_subnets
from device_sdk.profiling.stretches import Timing
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.providers import plugin_devices
from device_sdk.search.ladder import ladder
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.samples import Labels, Samples
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.paths import sample_uniformly
from device_sdk.supernet.plan import Edge, Plan, Subnet

FIRST = "cpu-1t"
RATIOS, QUICK_RATIOS = (0.8, 0.6, 0.45, 0.3), (0.6,)
_MIXED, _QUICK_MIXED = 24, 4
_LEAVES = 4  # one block in so many begins at a home drawn anew
_ROUNDS, _TIMES = 60, 3  # rounds of a measurement, and times that a comparison is measured, in sessions of its own
_SEED = 20261128  # other subnets than the profile's


@cache
def second_home() -> str:
    """OpenVINO on one thread where its plug-in takes this processor; else a second thread, a home all the same."""
    return "openvino-1t" if plugin_devices("openvino") else "cpu-2t"


@dataclass(frozen=True)
class Predicted:
    """A subnet over both homes, its latency as predicted and as measured."""

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
    """A plan with homes named, and the same plan at each single home; latencies in turns, at the app's pace.

    ``tight``: its latency over that of the faster home when calls follow one another without a pause; None for a
    plan whose samples take several ways, which is timed sample by sample.
    """

    network: str
    what: str
    plan: Plan
    latency_ms: float
    single_ms: dict[str, float]
    tight: float | None = None

    @property
    def over_best_single(self) -> float:
        """Its latency over that of the faster home."""
        return self.latency_ms / min(self.single_ms.values())


def predictions(network: str, model: AdaptiveModel, options: BenchOptions) -> list[Predicted]:
    """Random subnets at random homes, none of which the profile is fitted on.

    They are measured before the profile is made and again after it, so that a steady drift of the machine cancels out.
    """
    workspace = _workspace(model)
    subnets = _mixed(workspace, _QUICK_MIXED if options.quick else _MIXED)
    before = measure_subnets(workspace, subnets, Timing(rounds=_ROUNDS))
    costs = model.profile(progress=options.progress).cost_model()
    after = measure_subnets(workspace, subnets, Timing(rounds=_ROUNDS))
    return [
        Predicted(network, subnet, costs.latency_ms(subnet), (one.median_ms + other.median_ms) / 2)
        for subnet, one, other in zip(subnets, before, after, strict=True)
    ]


def _mixed(workspace: Workspace, count: int) -> list[Subnet]:
    supernet, random = workspace.supernet, SplitMix64(_SEED)
    renditions = sorted({edge.rendition for edge in supernet.edges})
    found = []
    for number, drawn in enumerate(sample_uniformly(supernet, count=count, random=random)):
        subnet = supernet.in_rendition(drawn, renditions[number % len(renditions)])
        home, edges = ("", second_home())[random.below(2)], list[Edge]()
        for edge in subnet.edges:
            if random.below(_LEAVES) == 0:
                home = ("", second_home())[random.below(2)]
            edges.append(edge.on(home))
        found.append(Subnet(tuple(edges)))
    return list(dict.fromkeys(found))


def chosen(
    network: str, model: AdaptiveModel, samples: Samples, labels: Labels, options: BenchOptions
) -> list[Compared]:
    """The choices of ``adapt`` for each budget, against the same blocks at one home."""
    workspace, found = _workspace(model), []
    for ratio in QUICK_RATIOS if options.quick else RATIOS:
        try:
            one = model.adapt(samples, Goal(latency_ratio=ratio), labels=labels, take=False, progress=options.progress)
        except InfeasibleBudgetError:
            continue
        what, plan = f"adapt within {ratio:g}: {one.plan.kind}", without_timed_exits(one.plan)
        if plan.exits or plan.second is not None:
            found.append(_compared_in_turns(network, what, workspace, plan, model._samples.inputs(samples)))
            continue
        paced = _compared(network, what, workspace, plan.subnet, Timing(rounds=_ROUNDS, pause_s=DEFAULT_PAUSE_S))
        tight = _compared(network, what, workspace, plan.subnet, Timing(rounds=_ROUNDS))
        found.append(replace(paced, tight=tight.over_best_single))
    return found


def rungs(network: str, model: AdaptiveModel, options: BenchOptions) -> list[Compared]:
    """The ladder with its homes named by prediction alone, not confirmed, against one home, without pauses."""
    workspace, profile = _workspace(model), model.profile(progress=options.progress)
    free = at_best_homes(workspace, profile.cost_model())
    every = [rung for column in ladder(workspace.supernet) for rung in column]
    some = every[:2] if options.quick else every[::3]
    timing = Timing(rounds=_ROUNDS)
    return [_compared(network, f"rung {rung}"[:60], workspace, free.housed(rung), timing) for rung in some]


def _workspace(model: AdaptiveModel) -> Workspace:
    return model._in_use.lend_workspace()


def _at_single(plan: Plan) -> dict[str, Plan]:
    """The plan with all blocks at each home."""
    return {name: at_home(plan, home) for name, home in ((FIRST, ""), (second_home(), second_home()))}


def _compared(network: str, what: str, workspace: Workspace, subnet: Subnet, timing: Timing) -> Compared:
    """Medians over several sessions of each: two sessions of one model differ by up to 2 %."""
    single = {name: plan.subnet for name, plan in _at_single(Plan(subnet)).items()}
    every = list(dict.fromkeys([subnet, *single.values()]))
    times: dict[Subnet, list[float]] = {one: [] for one in every}
    for _ in range(_TIMES):
        for one, latency in zip(every, measure_subnets(workspace, every, timing), strict=True):
            times[one].append(latency.median_ms)
    own = {one: median(values) for one, values in times.items()}
    return Compared(network, what, Plan(subnet), own[subnet], {name: own[path] for name, path in single.items()})


def _compared_in_turns(network: str, what: str, workspace: Workspace, plan: Plan, inputs: Inputs) -> Compared:
    """Means over samples, which take several ways through the plan."""
    single = _at_single(plan)
    every = list(dict.fromkeys([plan, *single.values()]))
    times = dict(zip(every, paced_in_turns(workspace, every, inputs, pause_s=DEFAULT_PAUSE_S), strict=True))
    return Compared(network, what, plan, times[plan], {name: times[one] for name, one in single.items()})


def crossings(network: str, profile: Profile) -> list[dict[str, object]]:
    """Rows of what crossing costs, as it was measured and fitted."""
    return [
        {
            "network": network,
            "what": "crossing",
            "from": one.before or FIRST,
            "to": one.after or FIRST,
            "fixed_ms": one.fixed_ms,
            "ms_per_mb": one.ms_per_mb,
        }
        for one in profile.crossings
    ]


def figures_of(
    predicted: Sequence[Predicted], adapted: Sequence[Compared], ladders: Sequence[Compared]
) -> dict[str, float]:
    """Median error of the prediction, and the worst plans against the better home."""
    tight = [one.tight for one in adapted if one.tight is not None]
    second = [one.single_ms[second_home()] / one.single_ms[FIRST] for one in (*adapted, *ladders)]
    return {
        "mixed_prediction_error": median(one.error for one in predicted),
        "mixed_subnets": float(len(predicted)),
        "plan_over_best_single": max(one.over_best_single for one in adapted),
        "plans": float(len(adapted)),
        "plans_over_both_homes": float(sum(len({e.home for e in one.plan.subnet.edges}) > 1 for one in adapted)),
        "plan_over_best_single_without_pauses": max(tight, default=1.0),
        "unconfirmed_over_best_single": max(one.over_best_single for one in ladders),
        "second_over_first_least": min(second),
        "second_over_first_most": max(second),
    }
