"""Writes adaptations.json: adapting on the reference bundle with 500 images, up to the measuring (see README.md)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.inputs import PreparedInputs
from device_sdk.data.preprocessing import Interpolation, Preprocessing, fit_image, prepare
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.execution.workspace import Workspace
from device_sdk.live.plan_pool import pool_of
from device_sdk.live.pool_search import PoolSearch
from device_sdk.policies.costs.answers import answer_everywhere
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.exits.placed_exits import exit_sets, with_further_exits
from device_sdk.policies.found import Found, Measured
from device_sdk.policies.gathering import AdaptationSettings, search_positions
from device_sdk.policies.planning.choice import Choice
from device_sdk.policies.subnet_search import make_evaluator
from device_sdk.profiling.fitting import fit_latency, fit_memory
from device_sdk.profiling.profile import MeasuredEdge, MeasuredExit, MeasuredSubnet, Profile
from device_sdk.progress import SilentProgress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from device_sdk.search import find_subnets, make_strategy
from device_sdk.search.port import Candidate, SearchProblem
from device_sdk.supernet.cost import Budget, Cost, EdgeCost, PlanCost
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.paths import enumerate_subnets, sample_uniformly
from device_sdk.supernet.plan import Edge, Plan, Subnet

IMAGES, IMAGE_SEED, LABEL_SEED = 500, 11, 12
WRONG = 8  # one label in this many is drawn at random: the full model is then wrong too
CACHE_BYTES = 200_000  # less than all features take
LEAST_MARGIN = 1e-3  # of logits: images where any subnet is nearer to a tie are left out
CASES = [
    ("pathweave", {"latency_ms": 3.0}, 0),
    ("pathweave", {"latency_ms": 2.0}, 1),
    ("pathweave", {"latency_ms": 4.0, "memory_mb": 0.014}, 2),
    ("adaptivenet", {"latency_ms": 3.0}, 3),
]
EXIT_SETS = [  # of a subnet, with labels or not, for an accuracy that exits may cost
    ("o0 o1 o2 o3", True, 0.2),
    ("o0 o1 o2 o3", True, 0.05),
    ("o0@int8 o1 o2 o3", False, 0.3),
    ("o0 o1 o2 o3", True, 0.0),
    ("o0@int8 o1 s2 o3", False, 0.2),
]
POOL_BUDGETS = [{"latency_ms": 1.5}, {"latency_ms": 2.25, "memory_mb": 0.014}, {"latency_ms": 0.125}]
HOUR_S = 3600.0  # a time limit that is none
Size = tuple[int, int]  # height, width
SIZES = (((7, 5), (3, 8)), ((2, 2), (4, 4)), ((4, 6), (4, 3)), ((9, 3), (2, 3)), ((5, 5), (1, 1)), ((16, 9), (7, 7)))
CROPPED = (((12, 8), (4, 4), 0.875), ((8, 13), (5, 3), 1.0), ((21, 6), (4, 5), 0.6))
# Own size, size of the model, size wanted, interpolation, crop.
RESIZED: tuple[tuple[Size, Size, Size, Interpolation, float | None], ...] = (
    *((own, to, to, "bilinear", None) for own, to in SIZES),
    *((own, to, to, "bicubic", None) for own, to in SIZES),
    *((own, to, to, "bilinear", crop) for own, to, crop in CROPPED),
    *((own, to, to, "bicubic", crop) for own, to, crop in CROPPED),
    ((8, 8), (8, 8), (4, 4), "bicubic", 0.5),  # of the model's size already: not cropped
    ((11, 8), (6, 6), (4, 4), "bicubic", 0.9),  # at another input size than the model's own
)


def main(target: Path) -> None:
    """Write all cases to ``target``."""
    bundle = Bundle.open(HERE / "bundle")
    workspace = Workspace(bundle, OnnxRuntime(threads=1))
    profile = made_up_profile(bundle)
    images, skipped = drawn_images(bundle, workspace, profile)
    labels = drawn_labels(bundle, workspace, images)
    vectors = {
        "images": {"count": IMAGES, "seed": str(IMAGE_SEED), "skipped": skipped},
        "labels": labels.tolist(),
        "profile": json.loads(msgspec.json.encode(profile)),
        "predicted_ms": {str(one): profile.cost_model().latency_ms(one) for one in some_subnets(bundle)},
        "cache_bytes": CACHE_BYTES,
        "cases": [case(workspace, profile, images, labels, *one) for one in CASES],
        "exit_sets": [chosen_exits(workspace, profile, images, labels, *one) for one in EXIT_SETS],
        "answers": answers(workspace, images),
        "pool": pool_vectors(bundle),
        "pool_searches": pool_searches(workspace, profile, images, labels),
        "resizing": [resized(*one, seed=seed) for seed, one in enumerate(RESIZED)],
    }
    target.write_text(json.dumps(vectors, indent=1) + "\n")


HERE = Path(__file__).parent
Images = list[npt.NDArray[np.uint8]]


def pixels(random: SplitMix64, *shape: int) -> npt.NDArray[np.uint8]:
    """8-bit values, each the lowest byte of a word."""
    return np.array([random.next() & 255 for _ in range(int(np.prod(shape)))], dtype=np.uint8).reshape(shape)


def some_subnets(bundle: Bundle) -> list[Subnet]:
    """A dozen, seeded."""
    return list(dict.fromkeys(sample_uniformly(bundle.supernet, count=12, random=SplitMix64(5))))


def drawn_images(bundle: Bundle, workspace: Workspace, profile: Profile) -> tuple[Images, list[int]]:
    """Images of which no subnet's answer hangs on rounding, and the numbers of those that were left out."""
    random = SplitMix64(IMAGE_SEED)
    images = [pixels(random, 2, 2, 3) for _ in range(IMAGES + IMAGES // 2)]
    subnets = list(enumerate_subnets(bundle.supernet, limit=1000))
    zeros = np.zeros(len(images), dtype=np.int64)
    evaluator = make_evaluator(workspace, profile.cost_model(), AdaptationSettings(), inputs_of(bundle, images), zeros)
    ordered = np.sort(np.stack(evaluator.logits(subnets)).astype(np.float64), axis=-1)
    evaluator.close()
    narrow = (ordered[..., -1] - ordered[..., -2]).min(axis=0) < LEAST_MARGIN
    kept = np.flatnonzero(~narrow)[:IMAGES].tolist()
    assert len(kept) == IMAGES
    return [images[number] for number in kept], [number for number in range(kept[-1]) if narrow[number]]


def inputs_of(bundle: Bundle, images: Images) -> PreparedInputs:
    """The images as a search takes them: prepared, and resized for other input sizes."""
    return PreparedInputs(prepare(np.stack(images), bundle.manifest.preprocessing, input_shape=(3, 2, 2)))


def drawn_labels(bundle: Bundle, workspace: Workspace, images: Images) -> npt.NDArray[np.int64]:
    """The full model's answers, one in ``WRONG`` drawn again."""
    loaded = workspace.load_stretch(bundle.supernet.original.edges, batch=64)
    answers = loaded.run([inputs_of(bundle, images).take(np.arange(len(images)))])[-1].argmax(axis=1)
    loaded.close()
    random = SplitMix64(LABEL_SEED)
    drawn = [random.below(3) if not random.below(WRONG) else int(answer) for answer in answers]
    return np.array(drawn, dtype=np.int64)


def made_up_profile(bundle: Bundle) -> Profile:
    """A profile fitted to costs that were drawn: blocks in 64ths of ms, subnets 3 % around 0.8 of the sum plus 0.3."""
    random, supernet = SplitMix64(21), bundle.supernet
    edges = {}
    for edge in supernet.edges:
        ms = (16 + random.below(64)) / 64 * {(): 1.0, (1, 1): 0.5, (4, 4): 2.0}[edge.input_size]
        edges[edge] = EdgeCost(ms, 1.25 * ms, 500 + random.below(2000), 500 + random.below(1000))
    subnets = list(dict.fromkeys([supernet.original, *sample_uniformly(supernet, count=40, random=random)]))[:24]
    sums = [sum(edges[edge].latency_ms for edge in subnet.edges) for subnet in subnets]
    measured = [(0.3 + 0.8 * one) * (0.97 + 0.06 * random.uniform()) for one in sums]
    measured[5] *= 1.5  # somebody interfered
    exits = []
    for one in supernet.exits:
        for rendition in one.renditions:
            for size in supernet.sizes if rendition.any_size else ((),):
                ms = (2 + random.below(8)) / 64
                exits.append(MeasuredExit(one.id, rendition.name, EdgeCost(ms, ms, 500 + random.below(200), 300), size))
    peaks = [2 * sum(edges[edge].resident_bytes for edge in one.edges) + 3000 + random.below(300) for one in subnets]
    latency = fit_latency(supernet, {edge: cost.latency_ms for edge, cost in edges.items()}, subnets, measured)
    memory = fit_memory(edges, subnets, peaks)
    fitted = [MeasuredSubnet(*one) for one in zip(subnets, sums, measured, peaks, strict=True)]
    return Profile(
        bundle=bundle.digest,
        device="made up",
        runtime="none",
        batch=1,
        created="2026-01-01T00:00:00+00:00",
        edges=tuple(MeasuredEdge(e, c, latency.factors[e], latency.changes_ms.get(e, 0.0)) for e, c in edges.items()),
        scale=latency.scale,
        offset_ms=latency.offset_ms,
        fitted=tuple(fitted),
        original_ms=measured[0],
        exits=tuple(exits),
        memory_scale=memory.scale,
        memory_offset_bytes=memory.offset_bytes,
    )


def case(
    workspace: Workspace,
    profile: Profile,
    images: Images,
    labels: npt.NDArray[np.int64],
    strategy: str,
    limits: dict[str, float],
    seed: int,
) -> dict[str, Any]:
    """What a search finds and how it is judged on held-back images; nothing is measured."""
    settings = AdaptationSettings(strategy=strategy, seed=seed, cache_bytes=CACHE_BYTES)
    costs, inputs = profile.cost_model(), inputs_of(workspace.bundle, images)
    kept, held = search_positions(labels, settings)
    evaluate = partial(make_evaluator, workspace, costs, settings)
    evaluator = evaluate(inputs.subset(kept), labels[kept])
    problem = SearchProblem(
        workspace.supernet,
        costs,
        Budget(**limits),
        evaluator,
        SplitMix64(seed),
        clock=lambda: 0.0,
        progress=SilentProgress(),
    )
    found = find_subnets(make_strategy(strategy), problem)
    evaluator.close()
    assert found.best is not None
    judge = evaluate(inputs.subset(held), labels[held])
    judged = judge.accuracies([found.best.subnet, workspace.supernet.original])
    judge.close()
    return {
        "strategy": strategy,
        "budget": {name: limits.get(name) for name in ("latency_ms", "memory_mb")},
        "seed": str(seed),
        "kept": kept[:20].tolist(),
        "held": held[:20].tolist(),
        "chosen": str(found.best.subnet),
        "accuracy_holdout": judged[0],
        "full_accuracy_holdout": judged[1],
        "subnets_evaluated": found.subnets_evaluated,
        "pool": {str(one.subnet): [one.accuracy, rounded(one.expected)] for one in found.pool},
    }


def chosen_exits(
    workspace: Workspace,
    profile: Profile,
    images: Images,
    labels: npt.NDArray[np.int64],
    subnet: str,
    labelled: bool,
    accuracy_drop: float,
) -> dict[str, Any]:
    """The exits and thresholds of a subnet by 500 images, and those that only deadlines need, in order."""
    path, costs = Subnet(tuple(map(Edge.parse, subnet.split()))), profile.cost_model()
    prepared = prepare(np.stack(images), workspace.bundle.manifest.preprocessing, input_shape=(3, 2, 2))
    targets = labels if labelled else None
    answers = answer_everywhere(workspace, path, prepared, targets, use_exits=True, batch=64)
    plan = Plan(path, next(iter(exit_sets(answers, costs, [accuracy_drop])), ()))
    cost = expected_cost(workspace.supernet, plan, answers.evidence, costs)
    assert cost.accuracy is not None
    return {
        "subnet": subnet,
        "labelled": labelled,
        "accuracy_drop": accuracy_drop,
        "exits": {one.exit: rounded(one.threshold) for one in plan.exits},
        "further": [one.exit for one in with_further_exits(workspace.supernet, plan).exits],
        "accuracy": rounded(cost.accuracy),
        "accuracy_without_exits": rounded(float(answers.right(-1).mean())),
        "share_early": rounded(cost.share_early),
    }


def answers(workspace: Workspace, images: Images) -> dict[str, str]:
    """The class that each subnet, deployed, answers to each image: a digit."""
    inputs, found = inputs_of(workspace.bundle, images), {}
    for subnet in enumerate_subnets(workspace.supernet, limit=1000):
        loaded = workspace.load_stretch(subnet.edges, batch=len(images))
        logits = loaded.run([inputs.take(np.arange(len(images)), subnet.input_size)])[-1]
        loaded.close()
        found[str(subnet)] = "".join(map(str, logits.argmax(axis=1)))
    return found


def pool_vectors(bundle: Bundle) -> dict[str, Any]:
    """What an adaptation found, in drawn numbers, and the plan pool that it leaves as state files have it."""
    random = SplitMix64(31)
    candidates = []
    for number, subnet in enumerate(some_subnets(bundle)):
        cost = Cost((64 + random.below(192)) / 64, 1000 * (5 + random.below(20)))
        accuracy = (128 + random.below(128)) / 256
        candidates.append(Candidate(Plan(subnet), cost, accuracy, None if number % 4 == 3 else accuracy - 1 / 128))
    budget = Budget(latency_ms=2.5, memory_mb=0.02)
    chosen = sorted((one for one in candidates if budget.fits(one.cost)), key=lambda one: -one.expected_accuracy)[1]
    measured_ms, none = (
        1.25 * chosen.cost.latency_ms,
        PlanCost(accuracy=None, latency_ms=None, p95_latency_ms=None, bytes_sent=0.0, peak_bytes=0),
    )
    measured = Measured(
        latency_ms=measured_ms,
        interval_ms=(measured_ms, measured_ms),
        median_ms=measured_ms,
        within_budget_probability=1.0,
        full_ms=4.0,
    )
    goal = Goal(latency_ms=2.5, memory_mb=0.02)
    found = Found(choice=Choice(chosen.plan, none, {}, 0), goal=goal, measured=measured, pool=tuple(candidates))
    pool = json.loads(msgspec.json.encode(pool_of(found)))
    assert 2 < len(pool["candidates"]) < len(candidates)
    return {"found": [json.loads(msgspec.json.encode(one)) for one in candidates], "pool": pool}


def pool_searches(
    workspace: Workspace, profile: Profile, images: Images, labels: npt.NDArray[np.int64]
) -> dict[str, Any]:
    """What is found at other budgets than an adaptation's, None where nothing fits, and what fills a pool."""
    settings = AdaptationSettings(seed=7, cache_bytes=CACHE_BYTES)
    inputs = inputs_of(workspace.bundle, images)
    search = PoolSearch(workspace, profile.cost_model(), inputs, labels, settings)
    filled = search.fill(Budget(latency_ms=2.0, memory_mb=0.014), time_limit_s=16 * HOUR_S, progress=SilentProgress())
    return {
        "seed": "7",
        "cases": [{"budget": limits, "found": found_within(search, Budget(**limits))} for limits in POOL_BUDGETS],
        "fill": {"budget": {"latency_ms": 2.0, "memory_mb": 0.014}, "found": listed(filled)},
    }


def found_within(search: PoolSearch, budget: Budget) -> dict[str, Any] | None:
    """What a search finds at one budget; None: no subnet fits."""
    try:
        found = search.search(budget, time_limit_s=HOUR_S, cancelled=lambda: False, progress=SilentProgress())
    except InfeasibleBudgetError:
        return None
    return listed(found)


def listed(found: Iterable[Candidate]) -> dict[str, Any]:
    """Accuracy and expected accuracy by subnet, in order."""
    return {str(one.subnet): [one.accuracy, rounded(one.expected)] for one in found}


def rounded(value: float | None) -> float:
    """To 7 digits: what runtimes compute differs in the last bits."""
    assert value is not None
    return round(float(value), 7)


def resized(own: Size, resize: Size, to: Size, interpolation: Interpolation, crop: float | None, *, seed: int) -> Any:
    """An image of one size at another: 8-bit values row by row."""
    image = pixels(SplitMix64(seed), *own, 3)
    preprocessing = Preprocessing(1.0, (0.0,) * 3, (1.0,) * 3, resize, interpolation=interpolation, crop=crop)
    fitted = flat(fit_image(image, preprocessing, size=to))
    settings = {"resize": resize, "interpolation": interpolation, "crop": crop}
    return {"size": own, "pixels": flat(image), **settings, "to": to, "resized": fitted}


def flat(image: Iterable[Any]) -> list[int]:
    """All values of an array."""
    return [int(value) for value in np.asarray(image).ravel()]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "adaptations.json")
