"""The planner: random requirements on networks and devices against exhaustive search, silos, and real runs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import adapted_bundle
from benchmarks.support.reference_bundles import load_part
from device_sdk.data.datasets import ImageDataset
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.execution.workspace import Workspace
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.policies.costs.answers import Answers, answer_everywhere
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.exits.placed_exits import exit_choices, exit_sets
from device_sdk.policies.gathering import AdaptationSettings, search_positions
from device_sdk.policies.planning.choice import Choice
from device_sdk.policies.planning.planner import Planner
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER
from device_sdk.supernet.cost import UPLINKS, CostModel, PlanCost, Power
from device_sdk.supernet.deciders.port import ease, everything_is_hard, with_limit
from device_sdk.supernet.goal import Goal, Requirement, best_plan
from device_sdk.supernet.plan import (
    Abstain,
    Ask,
    Decider,
    Entropy,
    ExitChoice,
    Margin,
    MaxConfidence,
    Plan,
    RemoteRef,
    Subnet,
)
from device_sdk.supernet.supernet import Supernet
from pathweave.server_process import running_server
from pathweave.throttled_proxy import slow_uplink

TARGETS = {
    "regret_max_points": Target(maximum=0.2),
    "infeasible_wrong": Target(maximum=0),
    "plan_ms_p95": Target(maximum=200.0),
    "predicted_error_p95": Target(maximum=0.10),
    "same_samples_error_p95": Target(maximum=0.10),
    "best_silo_gain": Target(minimum=0.0),
}
REQUIREMENTS, QUICK_REQUIREMENTS = 200, 10
SLOWER = (1.0, 5.0, 20.0)  # devices, by the factor on the measured cost model
SUBNETS, SAMPLES = 10, 340
EVERY = 16  # threshold, of those that the exhaustive search tries
RAN, RAN_SAMPLES, QUICK_RAN = 10, 1000, 2
TIMEOUT_S = 30.0
POWER = Power(active_w=4.0, radio_w=2.7, waiting_w=1.5)
SILOS = ("subnet", "exits", "split", "ask", "remote")
_UNFITTED: tuple[Decider, ...] = (MaxConfidence(0.0), Entropy(0.0), Margin(0.0))
KINDS = frozenset(["subnets", "exits", "abstain", "ask"])  # of the plans that are really run
ADAPT_RATIO = 0.6


@dataclass(frozen=True)
class Problem:
    """Inputs to planning on one device: ResNet-56's bundle, with the full network at the server."""

    supernet: Supernet
    evidence: Evidence
    costs: CostModel
    subnets: tuple[Subnet, ...]
    exit_sets: Mapping[Subnet, Sequence[tuple[ExitChoice, ...]]]
    exits: Mapping[Subnet, Sequence[ExitChoice]]
    asked: RemoteRef
    tails: RemoteRef

    def planner(self) -> Planner:
        return Planner(
            self.supernet,
            self.evidence,
            self.costs,
            self.subnets,
            exit_sets=self.exit_sets,
            exits=self.exits,
            servers=[self.asked],
            tail_server=self.tails,
        )

    def slower(self, factor: float) -> Problem:
        """The same on a device that takes ``factor`` times as long."""
        return replace(self, costs=self.costs.slowed(factor))

    def cost(self, plan: Plan, network: Network) -> PlanCost:
        return expected_cost(self.supernet, plan, self.evidence, self.costs, network, POWER)


def run(options: BenchOptions) -> BenchOutcome:
    """Requirements are drawn from the range of costs that plans have; the server is as fast as this machine.

    Exhaustive: every plan of fixed deciders at every 16th threshold, judged one by one by ``expected_cost``.
    """
    folder = adapted_bundle(options)
    with AdaptiveModel.open(folder, state_folder=options.work_folder / "device") as model:
        search = load_part(options, "search", model)
        model.profile(progress=options.progress)
        goal, labels = Goal(latency_ratio=ADAPT_RATIO), search.labels[:200]
        found = model.adapt(search.images[:200], goal, labels=labels, progress=options.progress)
        subnets = [model.bundle.supernet.original, *(one.subnet for one in found.pool)]
        problem = _problem(model, load_part(options, "calibration", model), list(dict.fromkeys(subnets))[:SUBNETS])
        figures, rows = _against_exhaustive(problem, options)
        ran = _run_for_real(model, options)
    for figure, column in (("predicted_error_p95", "error"), ("same_samples_error_p95", "same_samples_error")):
        figures[figure] = float(np.percentile([abs(float(str(row[column]))) for row in ran], 95))
    figures["accuracy_error_max_points"] = max(abs(float(str(row["accuracy_error_points"]))) for row in ran)
    return BenchOutcome(figures, [*rows, *ran], data="cifar10/test.zip#search and #calibration; real runs on #report")


def _problem(model: AdaptiveModel, data: ImageDataset, subnets: Sequence[Subnet]) -> Problem:
    workspace = Workspace(model.bundle, OnnxRuntime(threads=1))
    inputs, labels = model.prepare(data.images[:SAMPLES]), data.labels[:SAMPLES]
    costs = model.profile().cost_model()
    answers: list[Answers] = [
        answer_everywhere(workspace, subnet, inputs, labels, use_exits=True, batch=64) for subnet in subnets
    ]
    asked = RemoteRef("resnet56_cifar10")
    evidence = Evidence(
        labels,
        ends={one.subnet: one.logits[-1] for one in answers},
        exits={key: logits for one in answers for key, logits in one.evidence.exits.items()},
        servers={asked: answers[0].logits[-1]},
    )
    sets = {one.subnet: exit_sets(one, costs) for one in answers}
    exits = {one.subnet: exit_choices(one, costs) for one in answers}
    tails = RemoteRef("resnet56_cifar10:tail", model.bundle.digest)
    return Problem(model.bundle.supernet, evidence, costs, tuple(subnets), sets, exits, asked, tails)


def _against_exhaustive(problem: Problem, options: BenchOptions) -> tuple[dict[str, float], list[dict[str, object]]]:
    count = QUICK_REQUIREMENTS if options.quick else REQUIREMENTS
    regrets: list[float] = []
    wrong, kept = 0, 0
    first_seconds: list[float] = []
    seconds: list[float] = []
    silo_kept = dict.fromkeys(SILOS, 0)
    rows: list[dict[str, object]] = []
    with options.progress.task("plan", len(SLOWER) * len(UPLINKS)) as task:
        for factor in SLOWER:
            there = problem.slower(factor)
            planner = there.planner()
            for name in UPLINKS:
                network = _network(problem, uplink_name=name)
                judged = [(plan, there.cost(plan, network)) for plan in _plans(there)]
                random = np.random.default_rng(len(rows))
                result = [
                    _one(planner, judged, requirement, network)
                    for requirement in _requirements(random, [cost for _, cost in judged], count)
                ]
                regrets += [one.regret for one in result]
                wrong += sum(one.wrong for one in result)
                kept += sum(one.kept for one in result)
                first_seconds.append(result[0].seconds)  # the next requirements find the plans judged already
                seconds += [one.seconds for one in result[1:]]
                for silo in SILOS:
                    silo_kept[silo] += sum(silo in one.silos for one in result)
                rows.append(
                    {
                        "what": "requirements",
                        "slower": factor,
                        "network": name,
                        "kept": sum(one.kept for one in result),
                        "regret_max_points": 100 * max(one.regret for one in result),
                        "plans": len(judged),
                        **{f"kept_by_{silo}": sum(silo in one.silos for one in result) for silo in SILOS},
                    }
                )
                task.advance()
    total = count * len(SLOWER) * len(UPLINKS)
    figures = {
        "regret_max_points": 100 * max(regrets),
        "infeasible_wrong": float(wrong),
        "plan_ms_p95": 1e3 * float(np.percentile(first_seconds, 95)),
        "further_plan_ms_p95": 1e3 * float(np.percentile(seconds, 95)),
        "requirements_kept": kept / total,
        "best_silo_gain": (kept - max(silo_kept.values())) / total,
    }
    return figures, rows


@dataclass(frozen=True)
class _Result:
    """``regret``: loss against the exhaustive best, in the accuracy, or relative to it in other quantities."""

    regret: float
    wrong: bool
    kept: bool
    seconds: float
    silos: frozenset[str]


def _one(planner: Planner, judged: list[tuple[Plan, PlanCost]], requirement: Requirement, network: Network) -> _Result:
    began = time.perf_counter()
    try:
        choice = planner.best(requirement, network, POWER)
    except InfeasibleBudgetError:
        choice = None
    seconds = time.perf_counter() - began
    try:
        _, best = best_plan(judged, requirement)
    except InfeasibleBudgetError:
        return _Result(
            0.0,
            choice is not None and bool(requirement.misses(choice.cost)),
            choice is not None,
            seconds,
            _silos(choice),
        )
    if choice is None:
        return _Result(math.inf, True, False, seconds, frozenset())
    short = requirement.value(best) - requirement.value(choice.cost)
    regret = short if requirement.optimise == "accuracy" else short / max(abs(requirement.value(best)), 1e-9)
    return _Result(max(0.0, regret), bool(requirement.misses(choice.cost)), True, seconds, _silos(choice))


def _silos(choice) -> frozenset[str]:  # type: ignore[no-untyped-def]
    if choice is None:
        return frozenset()
    return frozenset(silo for silo in SILOS if silo in choice.by_kind and not choice.by_kind[silo].misses)


def _network(problem: Problem, *, uplink_name: str) -> Network:
    answer_ms = problem.costs.latency_ms(problem.supernet.original)
    return Network(
        uplink=UPLINKS[uplink_name],
        server=problem.costs,
        answer_ms={problem.asked: answer_ms},
        input_bytes=32 * 32 * 3 + 400,
        overhead_bytes=400,
    )


def _plans(problem: Problem) -> Iterator[Plan]:
    """Plans of fixed deciders, made without ``threshold_sweep``."""
    for subnet in problem.subnets:
        for exits in ((), *problem.exit_sets.get(subnet, ())):
            plan = Plan(subnet, exits)
            yield plan
            for decider in _UNFITTED:
                eases = np.sort(ease(decider, problem.evidence.ends[subnet]))
                limits = [with_limit(decider, float(limit)) for limit in eases[::EVERY]]
                for one in [*limits, everything_is_hard(decider)]:
                    yield msgspec.structs.replace(plan, hard=Abstain(one))
                    yield msgspec.structs.replace(plan, hard=Ask(one, problem.asked))


def _requirements(random: np.random.Generator, costs: Sequence[PlanCost], count: int) -> Iterator[Requirement]:
    """Limits at random quantiles of the plans' costs, one or two at once."""
    columns = {
        name: np.array([getattr(cost, name) for cost in costs if getattr(cost, name) is not None])
        for name in ("accuracy", "coverage", "latency_ms", "p95_latency_ms", "energy_mj", "bytes_sent")
    }
    for _ in range(count):
        optimise = random.choice(["accuracy", "latency_ms", "energy_mj", "bytes_sent"])
        names = [name for name in columns if name != optimise]
        limited = random.choice(names, size=2, replace=False)
        limits = {}
        for name in limited:
            low, high = (0.3, 0.98) if name in ("accuracy", "coverage") else (0.05, 0.7)
            limits[str(name)] = float(np.quantile(columns[name], random.uniform(low, high)))
        if optimise != "accuracy" and "accuracy" not in limits:
            limits["accuracy"] = float(np.quantile(columns["accuracy"], random.uniform(0.3, 0.9)))
        limits = {name: limit for name, limit in limits.items() if limit > 0 or name == "bytes_sent"}
        if limits:
            yield Requirement(optimise=str(optimise), **limits)  # type: ignore[arg-type]


def _run_for_real(model: AdaptiveModel, options: BenchOptions) -> list[dict[str, object]]:
    """Plans of all kinds over shaped links to a real server: predicted against measured latency and accuracy."""
    private, report = (load_part(options, part, model) for part in ("calibration", "report"))
    images, labels = report.images[:RAN_SAMPLES], report.labels[:RAN_SAMPLES]
    chose, _ = search_positions(private.labels, AdaptationSettings())
    name = model.bundle.manifest.name
    rows: list[dict[str, object]] = []
    with running_server(model.bundle.folder, data=options.work_folder / "server") as url:
        for mbps in (1.0, 3.0, 10.0, 30.0, 100.0)[: QUICK_RAN if options.quick else None]:
            with slow_uplink(url, mbps=mbps) as (address, _):
                remote = RemoteModel(server=address, model=f"{name}:images", privacy="inputs", timeout_s=TIMEOUT_S)
                model.remote.connect(remote)
                for goal in (
                    Goal(accuracy=0.93, optimise="latency_ms", coverage=0.99),
                    Goal(latency_ms=1.5 * model.profile().original_ms, coverage=0.99),
                ):
                    found = model.adapt(private.images, goal, KINDS, private.labels, progress=options.progress)
                    seen = _called(model, private.images[chose], private.labels[chose])
                    rows.append(_ran(found.choice, seen, _called(model, images, labels), mbps))
    return rows[:RAN]


@dataclass(frozen=True)
class _Called:
    """Means over samples that were each answered alone."""

    latency_ms: float
    accuracy: float
    share_asked: float


def _called(model: AdaptiveModel, images: np.ndarray, labels: np.ndarray) -> _Called:
    for image in images[:10]:
        model(image)
    answers = [model(image) for image in images]
    right = [answer.output[0].argmax() == label for answer, label in zip(answers, labels, strict=True)]
    asked = [answer.source[0] == SERVER for answer in answers]
    return _Called(float(np.mean([one.latency_ms for one in answers])), float(np.mean(right)), float(np.mean(asked)))


def _ran(choice: Choice, seen: _Called, new: _Called, mbps: float) -> dict[str, object]:
    """Predictions from samples against calls with these samples and with new ones.

    Calls with the same samples show the error of the costs alone; new samples add that of the shares, which a few
    hundred private samples cannot tell better.
    """
    predicted_ms, accuracy = choice.cost.latency_ms or math.nan, choice.cost.accuracy or math.nan
    return {
        "what": "really run",
        "mbps": mbps,
        "kind": choice.plan.kind,
        "predicted_ms": predicted_ms,
        "same_samples_ms": seen.latency_ms,
        "measured_ms": new.latency_ms,
        "same_samples_error": predicted_ms / seen.latency_ms - 1,
        "error": predicted_ms / new.latency_ms - 1,
        "predicted_asked": choice.cost.share_asked,
        "same_samples_asked": seen.share_asked,
        "asked": new.share_asked,
        "same_samples_accuracy_error_points": 100 * (accuracy - seen.accuracy),
        "accuracy_error_points": 100 * (accuracy - new.accuracy),
    }
