"""Writes elastic.json: pages under memory caps, what remains of plans, and how the cap follows (see README.md)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import BudgetError
from device_sdk.execution.pager import Piece, all_stay, footprint, least_cap_bytes, leaves_first, pages
from device_sdk.execution.paging import least_memory_cap_bytes
from device_sdk.live.elastic import CapState, ElasticSettings, next_cap
from device_sdk.memory_pressure import MemoryReading
from device_sdk.policies.exits.elastic_plan import least_plan_bytes, plan_within, whole_plan_bytes
from device_sdk.random_source import SplitMix64
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Edge, ExitChoice, Plan, Subnet

BUNDLE = Path(__file__).with_name("bundle")
PATHS = ("o0 o1 o2 o3", "m0-2 s2 o3", "o0 m1-3 o3")
THRESHOLDS = (0.0, 0.5, UNREACHABLE_CONFIDENCE)
SETTINGS = ElasticSettings(reserve_bytes=1000, grow_after_s=1.0)


def main(target: Path) -> None:
    """One case a line."""
    random = SplitMix64(0)
    parts = {
        "pages": [paged(random) for _ in range(60)],
        "leaves": [leaves(random) for _ in range(12)],
        "plans": [one for path in PATHS for one in plans(random, path)],
        "caps": [followed(random) for _ in range(40)],
    }
    texts = [f'"{name}": [\n' + ",\n".join(json.dumps(one) for one in cases) + "\n]" for name, cases in parts.items()]
    target.write_text("{\n" + ",\n".join(texts) + "\n}\n")


def paged(random: SplitMix64) -> dict[str, Any]:
    """Some weights are shared by several pieces; caps lie around the least that works and around everything."""
    stretches = [
        [piece(random, number, at) for at in range(1 + random.below(5))] for number in range(1 + random.below(3))
    ]
    every = [one for stretch in stretches for one in stretch]
    least = least_cap_bytes(every)
    cap_bytes = random.choice([least - 1, least, least + 200_000, 2 * least, 4 * least, 20 * least])
    case: dict[str, Any] = {
        "stretches": [[{"weights": one.weights, "working_bytes": one.working_bytes} for one in s] for s in stretches],
        "cap_bytes": cap_bytes,
        "least_bytes": least,
    }
    try:
        divided = pages(stretches, cap_bytes)
    except BudgetError as error:
        return {**case, "refused": str(error), "hint": error.hint}
    prints = [footprint(page) for stretch in divided for page in stretch]
    flat = [[one.loading_bytes, one.resident_bytes, one.working_bytes] for one in prints]
    return {
        **case,
        "sizes": [[len(page) for page in stretch] for stretch in divided],
        "footprints": flat,
        "all_stay": all_stay(prints, cap_bytes),
    }


def piece(random: SplitMix64, stretch: int, at: int) -> Piece:
    """A block of up to a megabyte."""
    own = {f"{stretch}-{at}": 1 + random.below(1_000_000)}
    shared = {"shared": 250_005} if random.below(3) == 0 else {}
    return Piece(Edge(f"b{stretch}-{at}"), None, own | shared, random.below(400_000))


def leaves(random: SplitMix64) -> dict[str, Any]:
    """Some of ten pages."""
    resident = [page for page in range(10) if random.below(2)]
    at = random.below(10)
    return {"resident": resident, "at": at, "order": leaves_first(resident, at=at)}


def plans(random: SplitMix64, path: str) -> list[dict[str, Any]]:
    """What remains of a plan on the reference bundle, under caps around those at which something changes."""
    bundle = Bundle.open(BUNDLE)
    subnet = Subnet(tuple(Edge(name) for name in path.split()))
    cases = []
    for _ in range(6):
        along = bundle.supernet.exits_along(subnet)
        exits = tuple(ExitChoice(one.id, random.choice(THRESHOLDS)) for one in along if random.below(3))
        plan = Plan(subnet, exits)
        least, whole = least_plan_bytes(bundle, plan), whole_plan_bytes(bundle, plan)
        caps = {least - 1, least, least_memory_cap_bytes(bundle, plan), 2 * least, 3 * least, whole - 1, whole}
        for cap_bytes in sorted(caps):
            case = {"subnet": path, "exits": _exits(exits), "cap_bytes": cap_bytes}
            case |= {"least_bytes": least, "whole_bytes": whole}
            try:
                kept: Any = _exits(plan_within(bundle, plan, cap_bytes).exits)
            except BudgetError:
                kept = None
            cases.append({**case, "kept": kept})
    return cases


def _exits(exits: tuple[ExitChoice, ...]) -> list[dict[str, Any]]:
    return [{"exit": one.exit, "threshold": one.threshold} for one in exits]


def followed(random: SplitMix64) -> dict[str, Any]:
    """Readings one after the other, with the cap that follows each of them."""
    most = 10_000 + random.below(90_000)
    ceiling = random.choice([None, most // 2, 2 * most])
    state, now_s = CapState(ceiling), 0.0
    readings = []
    for _ in range(24):
        now_s += random.below(12) / 16
        taken = random.below(most)
        stalled = random.choice([None, 0.0, 0.2, 1.0]) if random.below(4) == 0 else None
        reading = MemoryReading(random.below(2 * most), stalled)
        state = next_cap(
            state, reading, taken_bytes=taken, most_bytes=most, ceiling_bytes=ceiling, now_s=now_s, settings=SETTINGS
        )
        since_s = None if state.roomy_since_s == float("inf") else state.roomy_since_s
        readings.append(
            {
                "now_s": now_s,
                "available_bytes": reading.available_bytes,
                "stalled_share": stalled,
                "taken_bytes": taken,
                "cap_bytes": state.cap_bytes,
                "roomy_since_s": since_s,
            }
        )
    return {"most_bytes": most, "ceiling_bytes": ceiling, "readings": readings}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("elastic.json"))
