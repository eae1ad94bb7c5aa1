"""Writes homes.json: costs at several homes, which homes paths get, and what is fitted to their latencies (README.md).

Costs are dyadic, so that sums are exact. Fitted numbers agree to 1e-7.
"""

from __future__ import annotations

import json
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.open_homes import OpenHomes
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.home_fitting import fit_homes
from device_sdk.profiling.home_subnets import subnets_at_homes
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from device_sdk.supernet.cost import CostModel, EdgeCost
from device_sdk.supernet.home import Home
from device_sdk.supernet.paths import enumerate_subnets
from device_sdk.supernet.plan import Edge, Subnet

HOMES = tuple(map(Home.parse, ("cpu-1t", "cpu-2t", "qnn-1t")))
NAMES = ("", "cpu-2t", "qnn-1t")
REFUSED = {"qnn-1t": frozenset({"o2", "o0@int8"})}


def main(target: Path) -> None:
    """One document."""
    workspace = Workspace(Bundle.open(Path(__file__).parent / "bundle"), OnnxRuntime(), homes=OpenHomes(HOMES, REFUSED))
    costs, paths = drawn_costs(workspace), own_paths(workspace)
    further = subnets_at_homes(workspace, paths, costs)
    document = {
        "homes": [str(home) for home in HOMES],
        "refused": {home: sorted(blocks) for home, blocks in REFUSED.items()},
        "costs": written(costs),
        "paths": [str(one) for one in paths],
        "housed": [housed(workspace, costs, one, threads) for threads in (None, 1) for one in paths],
        "further": [str(one) for one in further],
        "fit": fitted(workspace, costs, [*paths, *further]),
    }
    target.write_text(json.dumps(document, indent=1) + "\n")


def own_paths(workspace: Workspace) -> list[Subnet]:
    """The subnets at the model's own input size."""
    return [one for one in enumerate_subnets(workspace.supernet, limit=10_000) if not one.input_size]


def drawn_costs(workspace: Workspace) -> CostModel:
    """Of every edge at each of its homes, in 4,096ths of a millisecond."""
    random = SplitMix64(47)

    def draw(least: int, most: int) -> float:
        return (least + random.below(most - least)) / 4096

    edges = [one for one in workspace.supernet.edges if not one.input_size]
    at_homes = [one for edge in edges for one in workspace.homes.of(workspace.supernet, edge)]
    return CostModel(
        {edge: EdgeCost(ms, ms, 10, 10) for edge in at_homes for ms in [draw(1024, 8192)]},
        scale=0.875,
        offset_ms=0.25,
        entry_change_ms={edge: draw(16, 256) for edge in at_homes},
        home_offset_ms={"cpu-2t": 0.375, "qnn-1t": 0.5},
        crossing_ms={
            (before, edge): draw(64, 1024)
            for before, after in permutations(NAMES, 2)
            for edge in at_homes
            if edge.home == after
        },
    )


def written(costs: CostModel) -> dict[str, Any]:
    return {
        "edges_ms": {str(edge): cost.latency_ms for edge, cost in costs.edge_costs.items()},
        "scale": costs.scale,
        "offset_ms": costs.offset_ms,
        "entry_change_ms": {str(edge): ms for edge, ms in costs.entry_change_ms.items()},
        "home_offset_ms": dict(costs.home_offset_ms),
        "crossing_ms": [[before, str(edge), ms] for (before, edge), ms in costs.crossing_ms.items()],
    }


def housed(workspace: Workspace, costs: CostModel, path: Subnet, threads: int | None) -> dict[str, Any]:
    """The homes that ``path`` gets, of at most so many threads, and its latency there."""
    homes = workspace.homes.within(threads)
    free = costs.at_best_homes(homes.of_each(workspace.supernet, path.edges))
    return {
        "path": str(path),
        "threads": threads,
        "housed": str(free.housed(path)),
        "latency_ms": free.latency_ms(path),
        "first": str(homes.first(workspace.supernet, path)),
    }


def fitted(workspace: Workspace, costs: CostModel, subnets: list[Subnet]) -> dict[str, Any]:
    """What is fitted to the latencies of ``costs``, each up to 1 % off."""
    random = SplitMix64(48)
    latencies = [costs.latency_ms(one) * (1 + (random.uniform() - 0.5) / 50) for one in subnets]
    blocks_ms: dict[Edge, float] = {edge: cost.latency_ms for edge, cost in costs.edge_costs.items()}
    fit = fit_homes(workspace.supernet, blocks_ms, subnets, latencies)
    return {
        "latencies_ms": latencies,
        "scale": fit.scale,
        "offset_ms": fit.offset_ms,
        "factors": {str(edge): factor for edge, factor in fit.factors.items()},
        "changes_ms": {str(edge): ms for edge, ms in fit.changes_ms.items()},
        "home_offset_ms": dict(fit.home_offset_ms),
        "crossings": [[one.before, one.after, one.fixed_ms, one.ms_per_mb] for one in fit.crossings],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("homes.json"))
