"""Writes searches.json: with equal evidence and seeds, which subnets are proposed and chosen (see README.md)."""

from __future__ import annotations

import itertools
import json
import sys
import zlib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from search_evidence import BATCH, SAMPLES, MadeUpEvidence

from device_sdk.progress import SilentProgress
from device_sdk.random_source import SplitMix64
from device_sdk.search import STRATEGIES, find_subnets, make_strategy
from device_sdk.search.port import SearchProblem
from device_sdk.supernet.blocks import Block, CutPoint, Golden, InputSize, Rendition, TensorSpec
from device_sdk.supernet.cost import Budget, CostModel, EdgeCost
from device_sdk.supernet.plan import Edge
from device_sdk.supernet.supernet import Supernet

SETTINGS: dict[str, dict[str, int]] = {
    "adaptivenet": {"generations": 6, "population": 16},
    "pathweave": {"generations": 8, "group": 6, "draws": 4, "mutations": 40, "parents": 8},
}
Graph = dict[str, Any]


def main(target: Path) -> None:
    """Write all cases to ``target``."""
    graphs = {
        "small": graph(6, seed=1),
        "large": graph(14, seed=2, int8=True),
        "sized": graph(9, seed=3, int8=True, sizes=((8, 8), (6, 6))),
    }
    budgets: list[tuple[str, dict[str, float]]] = [
        ("small", {"latency": 0.8}),
        ("large", {"latency": 0.7}),
        ("large", {"latency": 0.9, "memory": 0.6}),
        ("sized", {"latency": 0.5}),
    ]
    cases = [
        case(name, graphs[on], on, shares, seed=seed)
        for seed, (name, (on, shares)) in enumerate(itertools.product(sorted(STRATEGIES), budgets))
    ]
    more = (100, 101, 2**64 - 1)
    cases += [case("pathweave", graphs["large"], "large", {"latency": 0.6}, seed=seed) for seed in more]
    cases.append(case("pathweave", graphs["sized"], "sized", {"memory": 0.7}, seed=102))
    vectors = {"samples": SAMPLES, "batch": BATCH, "graphs": graphs, "cases": cases}
    target.write_text(json.dumps(vectors, indent=1) + "\n")


def graph(length: int, *, seed: int, int8: bool = False, sizes: tuple[tuple[int, int], ...] = ()) -> Graph:
    """Originals o0 …, shrunk ones, merged blocks of spans 2 and 3; their costs and losses in 1024ths, as drawn."""
    random = SplitMix64(seed)

    def share(low: int, high: int) -> float:
        return (low + random.below(high - low)) / 1024

    spans = [("o", i, i + 1) for i in range(length)] + [("s", i, i + 1) for i in range(1, length, 2)]
    spans += [("m", i, i + n) for i in range(length) for n in (2, 3) if i + n <= length]
    blocks = [
        {
            "id": f"{kind}{start}" if kind != "m" else f"m{start}-{end}",
            "start": start,
            "end": end,
            "kind": {"o": "original", "s": "shrunk", "m": "merged"}[kind],
            "error": None if kind == "o" or not random.below(5) else share(20, 200),
            "renditions": [["fp32", None]] + ([["int8", share(1, 20)]] if int8 and random.below(3) else []),
        }
        for kind, start, end in spans
    ]
    spec: Graph = {"cut_points": length + 1, "blocks": blocks}
    spec["sizes"] = [{"size": list(size), "error": share(100, 400)} for size in sizes]
    supernet = supernet_of(spec)
    spec["edges"] = [
        {
            "edge": str(edge),
            "latency_ms": share(512, 2048) * _cheaper(supernet, edge),
            "resident_bytes": 1000 * (1 + random.below(900)),
            "working_bytes": 1000 * (1 + random.below(300)),
            "loss": 0.0 if edge in supernet.original.edges else share(0, 48),
        }
        for edge in supernet.edges
    ]
    return spec


def _cheaper(supernet: Supernet, edge: Edge) -> float:
    """What an edge costs beside others, so that there is something to win: all in powers of two."""
    small = 2.0 ** -supernet.sizes.index(edge.input_size)
    return small * (0.5 if edge.rendition == "int8" else 1.0) * (0.5 if edge.block.startswith("s") else 1.0)


def supernet_of(spec: Graph) -> Supernet:
    """The graph that a specification describes. Cut point 0 has an image of 10x10, at other sizes as large as these."""

    def block(one: dict[str, Any]) -> Block:
        forms = [
            Rendition(name, "none", "0" * 64, 1, Golden((), 0.0), error=error, any_size=True)
            for name, error in one["renditions"]
        ]
        ends = one["start"], one["end"]
        return Block(one["id"], *ends, one["kind"], 0, 0, tuple(forms), distillation_error=one["error"])

    def shapes(height: int, width: int) -> list[tuple[tuple[int, ...], ...]]:
        return [((1, height, width),), *[((4,),)] * (spec["cut_points"] - 1)]

    own = shapes(10, 10)
    cuts = [CutPoint(index, (TensorSpec(f"cut_{index}", *shape),)) for index, shape in enumerate(own)]
    sizes = [
        InputSize(tuple(one["size"]), tuple(shapes(*one["size"])), Golden((), 0.0), error=one["error"])
        for one in spec["sizes"]
    ]
    return Supernet(cuts, [block(one) for one in spec["blocks"]], input_sizes=sizes)


def problem_of(spec: Graph, budget: Budget, *, seed: int) -> tuple[SearchProblem, MadeUpEvidence]:
    """A search in this graph without a time limit, and the evidence that it looks at."""
    supernet = supernet_of(spec)
    costs = {
        Edge.parse(one["edge"]): EdgeCost(
            one["latency_ms"], one["latency_ms"], one["resident_bytes"], one["working_bytes"]
        )
        for one in spec["edges"]
    }
    evidence = MadeUpEvidence({one["edge"]: one["loss"] for one in spec["edges"]}, supernet.original)
    model = CostModel(costs, offset_ms=0.25)
    problem = SearchProblem(
        supernet, model, budget, evidence, SplitMix64(seed), clock=lambda: 0.0, progress=SilentProgress()
    )
    return problem, evidence


def case(name: str, spec: Graph, on: str, shares: dict[str, float], *, seed: int) -> dict[str, Any]:
    """A search by the strategy ``name``: what it looked at, group by group (as CRC-32 of the lines), and its choice.

    ``shares``: the budget, relative to what the original costs.
    """
    supernet = supernet_of(spec)
    everything, _ = problem_of(spec, Budget(latency_ms=1e9), seed=0)
    whole = everything.cost_model.cost(supernet.original)
    limits = {
        "latency_ms": shares["latency"] * whole.latency_ms if "latency" in shares else None,
        "memory_mb": shares["memory"] * whole.peak_bytes / 1e6 if "memory" in shares else None,
    }
    problem, evidence = problem_of(spec, Budget(**limits), seed=seed)
    result = find_subnets(make_strategy(name, **SETTINGS[name]), problem)
    assert result.best is not None
    return {
        "strategy": name,
        "settings": SETTINGS[name],
        "graph": on,
        "budget": limits,
        "seed": str(seed),
        "groups": [zlib.crc32("\n".join(group).encode()) for group in evidence.groups],
        "first_group": evidence.groups[0],
        "last_group": evidence.groups[-1],
        "subnets_evaluated": result.subnets_evaluated,
        "generations": result.generations,
        "pool": len(result.pool),
        "best": str(result.best.subnet),
        "accuracy": result.best.accuracy,
        "expected": round(float(np.float64(result.best.expected)), 9),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("searches.json"))
