"""Joint search over subnets of ResNet-56's bundle against picking base and global separately, at three limits of MACs.

All choices are made on #search and #calibration; the chosen networks answer #report once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.hybrid.paired import Right, change_points
from benchmarks.hybrid.trained import every
from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import adapted_bundle
from benchmarks.support.reference_bundles import load_part
from device_sdk.data.datasets import ImageDataset
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.hybrid.choice import HybridCosts, SubnetAnswers, any_subnet, macs_costs
from device_sdk.policies.hybrid.joint_search import (
    HybridMember,
    HybridPair,
    HybridPool,
    JointSettings,
    joint_search,
    separate_pair,
)
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.search.nearby import mutate
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.cost import CostModel, EdgeCost
from device_sdk.supernet.deciders.port import ease
from device_sdk.supernet.paths import k_cheapest
from device_sdk.supernet.plan import Entropy, Subnet
from device_sdk.supernet.supernet import Supernet

COVERAGE = 0.7  # at least, of the pair that is compared with the full model alone
LIMITS = (0.5, 0.6, 0.75)  # of the full model's MACs
STARTS, QUICK_STARTS = 24, 4
CHEAPEST = 6  # subnets that are tried besides the random ones
SETTINGS = JointSettings(coverage=0.7, generations=3, children=8)
QUICK_SETTINGS = JointSettings(coverage=0.7, generations=1, children=2)


def joint_rows(options: BenchOptions) -> tuple[dict[str, float], list[dict[str, object]]]:
    """Figures ``joint_gain_points`` and its interval at each limit, the least of them, and a row for each pair.

    ``joint_minus_cloud_points``: of a pair that keeps 70 % of the samples at the base and costs at most as much as the
    full model does, against the full model alone.
    """
    settings = QUICK_SETTINGS if options.quick else SETTINGS
    folder = adapted_bundle(options)
    with AdaptiveModel.open(folder, state_folder=options.work_folder / "states" / "joint") as model:
        supernet = model.bundle.supernet
        tuning = [load_part(options, part, model) for part in ("search", "calibration")]
        images = np.concatenate([one.images for one in tuning])[:: 4 if options.quick else 1]
        labels = np.concatenate([one.labels for one in tuning])[:: 4 if options.quick else 1]
        costs = macs_costs(supernet)
        workspace = Workspace(model.bundle, OnnxRuntime(threads=1))
        answers = SubnetAnswers(workspace, model.prepare(images), labels, costs, options.progress)
        nearby = any_subnet(supernet, _as_latency(supernet))
        starts = nearby.draw(count=QUICK_STARTS if options.quick else STARTS, random=SplitMix64(0))
        starts += [path for _, path in k_cheapest(supernet, lambda edge: supernet.block(edge.block).macs, k=CHEAPEST)]
        whole = costs.base(supernet.original)
        rows: list[dict[str, object]] = []
        chosen: list[tuple[float, HybridPair[Subnet], HybridPair[Subnet]]] = []
        for share in LIMITS:
            pool: HybridPool[Subnet] = HybridPool(labels)
            _add(pool, answers([supernet.original, *starts]).values())
            joint = joint_search(
                pool,
                share * whole,
                settings,
                mutate=lambda subnet, random: mutate(nearby, subnet, random=random),
                answer=answers,
            )
            # what both may pick from is the same: the networks that the joint search has found count for both
            separate = separate_pair(pool, share * whole, settings)
            assert joint is not None
            assert separate is not None
            chosen.append((share, joint, separate))
        above = joint_search(
            pool,
            whole,
            dataclasses.replace(settings, least_coverage=COVERAGE),
            mutate=lambda subnet, random: mutate(nearby, subnet, random=random),
            answer=answers,
        )
        assert above is not None
        report = load_part(options, "report", model)
        figures = _judged(model, report, chosen, above, rows, options)
    figures["joint_networks_answered"] = float(len(answers.logits))
    return figures, rows


def _judged(
    model: AdaptiveModel,
    report: ImageDataset,
    chosen: Sequence[tuple[float, HybridPair[Subnet], HybridPair[Subnet]]],
    above: HybridPair[Subnet],
    rows: list[dict[str, object]],
    options: BenchOptions,
) -> dict[str, float]:
    images, labels = report.images[:: every(options)], report.labels[:: every(options)]
    workspace = Workspace(model.bundle, OnnxRuntime(threads=1))
    costs = macs_costs(model.bundle.supernet)
    answers = SubnetAnswers(workspace, model.prepare(images), labels, costs, options.progress)
    pairs = [above, *(pair for _, *both in chosen for pair in both)]
    answers([model.bundle.supernet.original, *(network for pair in pairs for network in (pair.base, pair.global_))])
    figures: dict[str, float] = {}
    for share, joint, separate in chosen:
        rights = [_right(answers, pair, labels) for pair in (joint, separate)]
        name = f"{100 * share:.0f}"
        figures[f"joint_gain_points_{name}"], figures[f"joint_interval_{name}"] = change_points(*rights)
        for what, pair, right in zip(("joint", "separate"), (joint, separate), rights, strict=True):
            rows.append(_row(f"{what} at {name} % of the MACs", pair, right, costs))
    gains = {share: figures[f"joint_gain_points_{100 * share:.0f}"] for share in LIMITS}
    figures["joint_gain_points"] = min(gains.values())
    figures["joint_gain_low_points"] = min(
        gain - figures[f"joint_interval_{100 * share:.0f}"] for share, gain in gains.items()
    )
    right = _right(answers, above, labels)
    cloud = np.asarray(answers.logits[model.bundle.supernet.original].argmax(axis=1) == labels)
    figures["joint_minus_cloud_points"], figures["joint_cloud_interval"] = change_points(right, cloud)
    figures["joint_cloud_coverage"] = 100 * (1 - above.sent)
    rows.append(_row(f"joint at {100 * COVERAGE:.0f} % coverage or more", above, right, costs))
    return figures


def _row(what: str, pair: HybridPair[Subnet], right: Right, costs: HybridCosts) -> dict[str, object]:
    return {
        "what": what,
        "accuracy": 100 * float(right.mean()),
        "accuracy_tuning": 100 * pair.accuracy,
        "sent": 100 * pair.sent,
        "hybrid_macs": pair.cost / 1e6,
        "base_macs": costs.base(pair.base) / 1e6,
        "global_macs": costs.global_(pair.global_) / 1e6,
        "base": str(pair.base),
        "global": str(pair.global_),
    }


def _right(answers: SubnetAnswers, pair: HybridPair[Subnet], labels: np.ndarray) -> Right:
    """Mask of the pair's correct answers if it sends the share of these samples that it was chosen with."""
    base, global_ = answers.logits[pair.base], answers.logits[pair.global_]
    sent = np.argsort(ease(Entropy(0.0), base), kind="stable")[: round(pair.sent * len(labels))]
    found = base.argmax(axis=1)
    found[sent] = global_.argmax(axis=1)[sent]
    return np.asarray(found == labels)


def _add(
    pool: HybridPool[Subnet], both: Iterable[tuple[HybridMember[Subnet] | None, HybridMember[Subnet] | None]]
) -> None:
    for base, global_ in both:
        pool.add(bases=[base] if base else [], globals_=[global_] if global_ else [])


def _as_latency(supernet: Supernet) -> CostModel:
    """MACs as if they were milliseconds: drawing and mutating subnets takes a cost model."""
    return CostModel(
        {
            edge: EdgeCost(supernet.block(edge.block).macs / 1e6, 0.0, 0, 0)
            for edges in supernet.edges_from
            for edge, _ in edges
        }
    )
