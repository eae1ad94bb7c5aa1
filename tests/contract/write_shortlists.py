"""Writes shortlists.json: pools of a search, and the subnets that other plans are made of (see README.md)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.policies.chooser import shortlist
from device_sdk.policies.exits.placed_exits import with_further_exits
from device_sdk.random_source import SplitMix64
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import Cost
from device_sdk.supernet.paths import sample_uniformly
from device_sdk.supernet.plan import ExitChoice, Plan
from device_sdk.supernet.supernet import Supernet

HERE = Path(__file__).parent
LIMITS_MS = (0.5, 1.25, 8.0, None)


def main(target: Path) -> None:
    """All cases to ``target``."""
    supernet = Bundle.open(HERE / "bundle").supernet
    found = {
        "shortlist": [case(supernet, SplitMix64(seed), limit_ms) for seed in range(4) for limit_ms in LIMITS_MS],
        "further_exits": further(supernet),
    }
    lines = [f'"{key}": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]" for key, cases in found.items()]
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")  # one case a line


def case(supernet: Supernet, random: SplitMix64, limit_ms: float | None) -> dict[str, Any]:
    """A drawn pool, its numbers in 64ths with many equal ones, and the subnets that are looked at, in order."""
    subnets = dict.fromkeys(sample_uniformly(supernet, count=40, random=random))
    pool = []
    for number, subnet in enumerate(subnets):
        cost = Cost((16 + random.below(240)) / 64, 1000)
        accuracy = (40 + random.below(20)) / 64
        pool.append(Candidate(Plan(subnet), cost, accuracy, None if number % 3 == 2 else accuracy - 1 / 128))
    return {
        "pool": [[str(one.subnet), one.cost.latency_ms, one.accuracy, one.expected] for one in pool],
        "latency_ms": limit_ms,
        "shortlist": list(map(str, shortlist(supernet.original, pool, limit_ms))),
    }


def further(supernet: Supernet) -> list[dict[str, Any]]:
    """The full model without exits and with each one alone, and with those that only deadlines need."""
    along = supernet.exits_along(supernet.original)
    chosen = [(), *((ExitChoice(one.id, 0.75, one.renditions[0].name),) for one in along)]
    return [
        {"exits": _exits(Plan(supernet.original, one)), "further": _exits(with_further_exits(supernet, plan))}
        for one in chosen
        for plan in [Plan(supernet.original, one)]
    ]


def _exits(plan: Plan) -> Any:
    return json.loads(msgspec.json.encode(plan.exits))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "shortlists.json")
