"""Splits over a shaped link against device, server and other methods: measured latency, bytes and accuracy.

Requests are real, to a real server process through a link of 1 to 20 Mbit/s. For slower devices the *measured* time of
the device's part (head and packing, or JPEG coding) is scaled; nothing else is. Ways are chosen on private images
and judged on others.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.split.exhaustive import exhaustive_rows
from benchmarks.split.judging import Judging
from benchmarks.split.measuring import TIMEOUT_S, Measured, Turns, measure
from benchmarks.split.narrow import narrow_rows
from benchmarks.split.networks import SplitNetwork, networks
from benchmarks.split.region import Cell, write_region
from benchmarks.split.ways import (
    BEST_HERE,
    BEST_SPLIT,
    CERTAINTY,
    MAX_DROP,
    OURS,
    Known,
    Way,
    along,
    plan_of,
    subnet_of,
    way_of,
    whole_device,
)
from device_sdk.execution.workspace import Workspace
from device_sdk.offload.packing import Activations, pack, packet_bytes
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.offload.tail import TAIL, server_profile
from device_sdk.policies.measured_splits.device_alone import DeviceAlone
from device_sdk.policies.measured_splits.region import Kind
from device_sdk.policies.splitting.path_splits import JpegCoding, SplitCost
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.choosing_splits import ratios_in_turns
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Plan
from device_sdk.transports import make_transport
from pathweave.server_process import running_server
from pathweave.throttled_proxy import ThrottledProxy, slow_uplink

TARGETS = {
    "predicted_error_p95": Target(maximum=0.10),
    "worse_than_best_baseline": Target(minimum=0, maximum=0),
    "over_the_drop": Target(minimum=0, maximum=1 - CERTAINTY),
    "split_gain_activations": Target(minimum=0.25),
    "chosen_over_exhaustive": Target(maximum=1.02),
    "bottleneck_bytes_over_best_cut": Target(maximum=0.5),
    "split_agreement": Target(minimum=0.99),
    "split_packet_bytes_error": Target(minimum=0, maximum=0),
}
UPLINKS_MBPS, QUICK_UPLINKS_MBPS = (1.0, 3.0, 10.0, 20.0), (3.0, 20.0)
FACTORS = (1.0, 3.0, 5.0, 10.0, 14.0, 20.0, 40.0)
QUICK_FACTORS = (1.0, 10.0, 40.0)
PRIVACIES = ("inputs", "activations")
MEASURED_S = 40.0  # of measuring drops, for all cells of an uplink
GAIN_FROM = (10.0, 10.0)  # Mbit/s, and how many times slower the device is: cells of ``split_gain_activations``
PREDICTED_AT_MBPS = 3.0  # the uplink at which every position is measured
TURNS, QUICK_TURNS = Turns(8, 1.5), Turns(3, 0.5)
POSITION_TURNS = Turns(10, 1.0)
IMAGES = 16
EQUAL = 0.05  # latencies closer than this are equal, or closer than two standard errors
PARTS = ("device", "packing", "transfer", "handling", "unpacking", "server")
REGION = Path(__file__).parents[1] / "results" / "split-region.svg"


def run(options: BenchOptions) -> BenchOutcome:
    """Every network at every uplink; the device's ways once, the others at each uplink."""
    rows: list[dict[str, object]] = []
    for network in networks(options):
        rows += _network_rows(network, options)
    cells = list(_fastest(rows))
    write_region(options.work_folder / REGION.name if options.quick else REGION, cells)
    errors = [abs(float(str(row["error"]))) for row in rows if row["what"] == "position"]
    ours = [row for row in rows if row.get("method") == OURS]
    figures = {
        "predicted_error_p95": float(np.percentile(errors, 95)),
        "predicted_error_worst": max(errors),
        "worse_than_best_baseline": float(sum(bool(row["worse"]) for row in ours)),
        "over_the_drop": _over_the_drop(ours),
        "chosen_over_exhaustive": max(float(str(row["ratio"])) for row in rows if row["what"] == "exhaustive"),
        "split_gain_activations": _split_gain(rows),
        "bottleneck_bytes_over_best_cut": _narrowest(rows),
        "split_wins": float(sum(cell.kind == "split" for cell in cells)),
        "server_wins": float(sum(cell.kind == "server" for cell in cells)),
        "device_wins": float(sum(cell.kind == "device" for cell in cells)),
        "cells": float(len(cells)),
        "split_agreement": min(float(str(row["agreement"])) for row in rows if row["what"] == "agreement"),
        "split_packet_bytes_error": max(float(str(row["bytes_error"])) for row in rows if row["what"] == "agreement"),
    }
    data = "cifar10 test.zip#search, #report; imagenette val.zip#search, #report; camvid train, val"
    return BenchOutcome(figures, rows, data)


def _narrowest(rows: Sequence[Mapping[str, object]]) -> float:
    """The least bytes at a bottleneck, over those at the best cut before it; 1 where none loses at most a point."""
    kept = [row for row in rows if row["what"] == "narrow" and float(str(row["points_lost"])) <= 100 * MAX_DROP]
    return min((float(str(row["ratio"])) for row in kept), default=1.0)


def _network_rows(network: SplitNetwork, options: BenchOptions) -> list[dict[str, object]]:
    state, images = options.work_folder / f"{network.name}-device", network.report.images[:IMAGES]
    turns = QUICK_TURNS if options.quick else TURNS
    rows: list[dict[str, object]] = []
    with (
        running_server(network.folder, data=options.work_folder / f"{network.name}-server") as server,
        AdaptiveModel.open(network.folder, state_folder=state) as model,
        slow_uplink(server, mbps=PREDICTED_AT_MBPS) as (address, link),
    ):
        workspace = Workspace(model.bundle, OnnxRuntime(threads=1))
        private = Judging(workspace, network.private, certainty=CERTAINTY)
        report = Judging(workspace, network.report)
        jpeg = private.jpegs.coding()
        alone = [whole_device(model.bundle, rendition) for rendition in network.renditions]
        measured = measure(model, workspace, alone, images, link, PREDICTED_AT_MBPS, address, turns)
        uplinks = QUICK_UPLINKS_MBPS if options.quick else UPLINKS_MBPS
        with options.progress.task(network.name, len(uplinks)) as task:
            for mbps in uplinks:
                link.limit(mbps)
                known = _known(model, workspace, server, address, jpeg, private, network)
                if mbps == PREDICTED_AT_MBPS:
                    rows += _positions(known, model, workspace, images, link, address, network, options)
                cells = [
                    (privacy, factor, known.methods(factor, sends_input=privacy == "inputs"))
                    for privacy in PRIVACIES
                    for factor in (QUICK_FACTORS if options.quick else FACTORS)
                ]
                ways = dict.fromkeys(way for *_, chosen in cells for way in chosen.values())
                missing = [way for way in ways if way not in measured]
                if any(way.kind == "device" for way in missing):  # whole paths are always timed in turns with others
                    missing += [way for way in measured if way not in missing]
                here = measured | measure(model, workspace, missing, images, link, mbps, address, turns)
                measured |= {way: here[way] for way in missing if way.kind == "device"}
                for privacy, factor, chosen in cells:
                    rows += _cell_rows(network, mbps, factor, privacy, chosen, here, report, known)
                task.advance()
        rows += narrow_rows(known, report, network.name)
        if network.name.startswith("resnet"):
            rows += exhaustive_rows(known, Judging(workspace, network.private.every(4)), network.name)
    return rows


def _known(
    model: AdaptiveModel,
    workspace: Workspace,
    server: str,
    address: str,
    jpeg: JpegCoding,
    private: Judging,
    network: SplitNetwork,
) -> Known:
    """Both sides and the link as the device measures them now."""
    name = model.bundle.manifest.name
    model.use(Plan(model.bundle.supernet.original))
    remote = RemoteModel(server=address, model=name + TAIL, privacy="inputs", timeout_s=TIMEOUT_S)
    model.remote.connect(remote)
    decision = model.adapt(None, Goal(optimise="latency_ms"), {"split"}, take=False).split
    assert decision is not None
    with contextlib.closing(make_transport(server)) as transport:
        theirs = server_profile(transport, server, name).cost_model()
    profile = model.profile()
    ends_s = time.monotonic() + MEASURED_S
    return Known(
        model.bundle,
        profile.cost_model(),
        theirs,
        decision,
        jpeg,
        private,
        network.renditions,
        DeviceAlone(along(model.bundle, "fp32"), ratios_in_turns(workspace), profile.latency_error),
        lambda: ends_s - time.monotonic(),
    )


def _positions(
    known: Known,
    model: AdaptiveModel,
    workspace: Workspace,
    images: Sequence[np.ndarray],
    link: ThrottledProxy,
    address: str,
    network: SplitNetwork,
    options: BenchOptions,
) -> Iterator[dict[str, object]]:
    """Predicted and measured latency at every inner cut point, and whether the answers stay the same."""
    costs = [cost for cost in known.costs_of("fp32", 1.0) if cost.tail and cost.position]
    timed = {way_of(cost): cost for cost in (costs[::3] if options.quick else costs)}
    turns = QUICK_TURNS if options.quick else POSITION_TURNS
    found = measure(model, workspace, list(timed), images, link, PREDICTED_AT_MBPS, address, turns)
    for way, cost in timed.items():
        measured_ms = found[way].latency_ms(1.0)
        yield {
            "what": "position",
            "network": network.name,
            "position": cost.position,
            "uplink_mbps": PREDICTED_AT_MBPS,
            "predicted_ms": cost.latency_ms,
            "measured_ms": measured_ms,
            "error": cost.latency_ms / measured_ms - 1,
            **{f"{part}_ms": getattr(cost, f"{part}_ms") for part in PARTS},
            "predicted_bytes": cost.bytes_sent,
            "bytes_on_the_line": found[way].bytes_sent,
        }
    yield _agreement(known, model, workspace, network, costs)


def _agreement(
    known: Known, model: AdaptiveModel, workspace: Workspace, network: SplitNetwork, costs: Sequence[SplitCost]
) -> dict[str, object]:
    """The share of answers (pixels of a segmenter) that a split in 8 bits does not change, and packet lengths."""
    best = min(costs, key=lambda cost: cost.latency_ms)
    images = network.report.images[:IMAGES]
    plans = (Plan(model.bundle.supernet.original), plan_of(model.bundle, way_of(best)))
    outputs = []
    for plan in plans:
        model.use(plan)
        outputs.append(np.concatenate([model(image).output.argmax(axis=1).ravel() for image in images]))
    random, errors = np.random.default_rng(0), []
    for cost in costs:
        cut = model.bundle.supernet.cut_points[cost.position]
        tensors = tuple(random.normal(size=(3, *spec.shape)).astype(np.float32) for spec in cut.tensors)
        packet = pack(Activations(model.bundle.digest, cost.position, cost.tail, tensors))
        errors.append(abs(len(packet) - packet_bytes(cut, cost.tail, batch=3)))
    agreement = float((outputs[0] == outputs[1]).mean())
    return {"what": "agreement", "network": network.name, "agreement": agreement, "bytes_error": max(errors)}


def _cell_rows(
    network: SplitNetwork,
    mbps: float,
    factor: float,
    privacy: str,
    chosen: Mapping[str, Way],
    measured: Mapping[Way, Measured],
    report: Judging,
    known: Known,
) -> list[dict[str, object]]:
    """A row for each method in a cell; ours is worse if it loses more than a point, or if a baseline was faster.

    A baseline counts if the private images can tell that it keeps the drop: what they rule out, no device can choose.
    """
    allowed = {way for way in chosen.values() if report.lost(way) <= MAX_DROP + 1e-9}
    rows = []
    for method, way in chosen.items():
        rows.append(
            {
                "what": "cell",
                "network": network.name,
                "uplink_mbps": mbps,
                "device_factor": factor,
                "privacy": privacy,
                "method": method,
                "way": way.title,
                "kind": way.kind,
                "latency_ms": measured[way].latency_ms(factor),
                "error_ms": measured[way].error_ms(factor),
                "requests": len(measured[way].latencies_ms),
                "bytes_on_the_line": measured[way].bytes_sent,
                network.metric: 100 * report.score(way),
                "points_lost": 100 * report.lost(way),
                "private_points_lost": 100 * known.judge.lost(way),
                "surely_kept": known.judge.keeps(way, MAX_DROP),
                "allowed": way in allowed,
                "device_mb": _device_mb(known, way, whole=method == "DADS, QDMP"),
            }
        )
    own = rows[-1]
    baselines = [row for row in rows[:-1] if row["method"] not in (BEST_HERE, BEST_SPLIT)]
    keeps = [row for row in baselines if row["allowed"] and row["surely_kept"]]
    rivals = [row for row in keeps if row["way"] != own["way"]]
    best = min(rivals, key=lambda row: float(str(row["latency_ms"])), default=None)
    own["worse"] = _is_worse(own, best)
    own["best_baseline"] = None if best is None else best["method"]
    return rows


def _is_worse(own: Mapping[str, object], best: Mapping[str, object] | None) -> bool:
    """``own`` loses more accuracy than allowed, or is slower than ``best`` by more than the noise of both."""
    if not own["allowed"]:
        return True
    if best is None:
        return False
    own_ms, best_ms = (float(str(row["latency_ms"])) for row in (own, best))
    noise_ms = math.hypot(float(str(own["error_ms"])), float(str(best["error_ms"])))
    return own_ms - best_ms > max(EQUAL * best_ms, noise_ms)


def _over_the_drop(ours: Sequence[Mapping[str, object]]) -> float:
    """The share of ours, each way of a network once, that lose more on the report images than is allowed."""
    found = {(row["network"], row["way"]): bool(row["allowed"]) for row in ours}
    return sum(not allowed for allowed in found.values()) / len(found)


def _split_gain(rows: Sequence[Mapping[str, object]]) -> float:
    """The mean share of the best latency on the device that the best split saves, where only activations may be sent.

    Over fast links and slow devices; 0 where no split keeps the drop, or none is faster.
    """
    cells: dict[object, dict[str, float]] = {}
    for row in rows:
        if row["what"] != "cell" or row["privacy"] != "activations" or not row["allowed"]:
            continue
        mbps, factor = float(str(row["uplink_mbps"])), float(str(row["device_factor"]))
        if mbps >= GAIN_FROM[0] and factor >= GAIN_FROM[1] and row["surely_kept"]:
            best, kind = cells.setdefault((row["network"], mbps, factor), {}), str(row["kind"])
            best[kind] = min(best.get(kind, math.inf), float(str(row["latency_ms"])))
    gains = [max(0.0, 1 - best.get("split", math.inf) / best["device"]) for best in cells.values() if "device" in best]
    return sum(gains) / len(gains) if gains else 0.0


def _device_mb(known: Known, way: Way, *, whole: bool) -> float:
    """Stored weights on the device; QDMP keeps all of the model there."""
    supernet = known.bundle.supernet
    walk = supernet.walk(subnet_of(known.bundle, way))
    kept = [(edge, block) for edge, block in walk if whole or block.end <= way.position]
    sizes = (next(one.size_bytes for one in block.renditions if one.name == edge.rendition) for edge, block in kept)
    return sum(sizes) / 1e6


def _fastest(rows: Sequence[Mapping[str, object]]) -> Iterator[Cell]:
    """The fastest way of each cell that loses at most a point; it is noted in the cell's rows."""
    cells: dict[tuple[str, float, float], list[dict[str, object]]] = {}
    for row in rows:
        if row["what"] == "cell" and row["privacy"] == "inputs":
            key = (str(row["network"]), float(str(row["uplink_mbps"])), float(str(row["device_factor"])))
            cells.setdefault(key, []).append(row)  # type: ignore[arg-type]
    for (name, mbps, factor), found in cells.items():
        best = min((row for row in found if row["allowed"]), key=lambda row: float(str(row["latency_ms"])))
        for row in found:
            row["fastest"] = f"{best['kind']}: {best['way']}"
        yield Cell(name, mbps, factor, cast(Kind, best["kind"]), float(str(best["latency_ms"])), str(best["way"]))
