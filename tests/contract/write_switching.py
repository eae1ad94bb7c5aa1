"""Writes switching.json: exchanged subnets, searches, networks that call for a plan, and causes of a slower device.

All numbers are dyadic, so that means and sums are exact in every language.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec

from device_sdk.errors import InfeasibleBudgetError
from device_sdk.live.network_follower import DriftSettings, NetworkDrift
from device_sdk.live.plan_pool import rungs_ms
from device_sdk.live.pool_search import BackgroundSearch
from device_sdk.live.switching import LastSwitch, LiveSettings, beside, bounds_ms, decide, is_over, likely_next
from device_sdk.profiling.slow_cause import Cause, lasting_cause, slow_cause
from device_sdk.profiling.speed_reading import SpeedReading
from device_sdk.random_source import SplitMix64
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import Budget, Cost, Uplink
from device_sdk.supernet.plan import Edge, Plan, Subnet

SETTINGS = LiveSettings(tolerance=1 / 64, margin=1 / 64)
DRIFT = DriftSettings(factor=1.5, patience_s=0.75, cooldown_s=1.5)
CALLS = (0, 4, 5, 8, 20, 64)
CAUSES: tuple[Cause, ...] = ("throttled", "load", "power_mode", "unknown")


def main(target: Path) -> None:
    """One case a line."""
    random = SplitMix64(0)
    parts = {
        "switches": [switching(random, calls) for calls in CALLS for _ in range(24)],
        "followed": [followed(random) for _ in range(12)],
        "drifts": [drifting(random) for _ in range(20)],
        "searches": [searching(random) for _ in range(16)],
        "rungs": [rungs(random) for _ in range(12)],
        "caused": [switching(random, calls, CAUSES) for calls in (5, 20, 64) for _ in range(24)],
        "causes": [causes(random) for _ in range(96)],
    }
    texts = [f'"{name}": [\n' + ",\n".join(json.dumps(one) for one in cases) + "\n]" for name, cases in parts.items()]
    target.write_text("{\n" + ",\n".join(texts) + "\n}\n")


def switching(random: SplitMix64, count: int, known: tuple[Cause, ...] = ()) -> dict[str, Any]:
    """A pool of up to eight subnets, and service times of one of them around the budget; some are absurd.

    ``known``: causes of a slower device, now and at the last switch.
    """
    pool = [candidate(random, number) for number in range(1 + random.below(8))]
    current = random.choice(pool)
    budget = Budget(latency_ms=(32 + random.below(352)) / 16, memory_mb=random.choice([None, 2.0, 8.0]))
    pace = random.choice([0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0])
    calls = [current.cost.latency_ms * pace * (56 + random.below(16)) / 64 for _ in range(count)]
    calls = [one * random.choice([8, 1024]) if random.below(24) == 0 else one for one in calls]
    at_s = random.choice([-10.0, 7.0, 7.875, 7.9375, 9.0])
    last = LastSwitch(at_s, bool(random.below(2)), random.choice([0.0, 0.25, 1.0]))
    cause: Cause = "unknown"
    if known:
        last = replace(last, at_s=random.choice([-40.0, at_s]), cause=random.choice(list(known)))
        cause = random.choice(list(known))
    available = beside(current, pool, budget)
    decision = decide(
        current=current,
        pool=available,
        budget=budget,
        service_ms=calls,
        now_s=8.0,
        last=last,
        settings=SETTINGS,
        cause=cause,
    )
    ratio = 1.0 if decision is None else decision.ratio
    over = is_over(current, calls, budget, SETTINGS)
    return {
        "pool": [[str(one.subnet), one.cost.latency_ms, one.cost.peak_bytes, one.accuracy] for one in pool],
        "current": str(current.subnet),
        "budget": [budget.latency_ms, budget.memory_mb],
        "service_ms": calls,
        "last": [last.at_s, last.up, last.up_cooldown_s],
        **({"cause": cause, "last_cause": last.cause, "is_over": over} if known else {}),
        "bounds_ms": bounds_ms(current, pool, budget, SETTINGS),
        "beside": [str(one.subnet) for one in available],
        "likely": [str(one.subnet) for one in likely_next(current, available, budget, ratio, SETTINGS)],
        "decision": None
        if decision is None
        else {
            "target": None if decision.target is None else str(decision.target.subnet),
            "ratio": decision.ratio,
            "service_ms": decision.service_ms,
            "why": decision.why,
            "fits": decision.fits,
        },
    }


def causes(random: SplitMix64) -> dict[str, Any]:
    """Three readings of a system, the last of which differs from the first in some ways, and what they tell."""
    before = SpeedReading(
        frequency_mhz=random.choice([None, 1024.0, 2048.0]),
        limit_share=random.choice([None, 0.5, 1.0]),
        throttles=random.choice([None, 4]),
        held_back=random.choice([(), ("cpufreq",)]),
        busy_ticks=random.choice([None, 1000, 1000]),
        total_ticks=10_000,
        own_ticks=random.choice([None, 500, 500]),
        cores=random.choice([1, 2, 8]),
        run_ns=random.choice([None, 4096, 4096]),
        waited_ns=512,
        power_mode=random.choice(["unknown", "governor schedutil"]),
        saving=random.below(8) == 0,
        thermal_status=random.choice([None, 0, 2]),
    )
    now = before
    for _ in range(random.below(3)):
        now = msgspec.structs.replace(now, **random.choice(CHANGES))
    return {
        "readings": [msgspec.to_builtins(one) for one in (before, before, now)],
        "stated": lasting_cause(before, now),
        "cause": slow_cause(before, before, now),
    }


CHANGES: list[dict[str, Any]] = [
    {"frequency_mhz": 512.0},
    {"frequency_mhz": 896.0},
    {"limit_share": 0.25},
    {"throttles": 5},
    {"held_back": ("cpufreq", "devfreq")},
    {"busy_ticks": 1064, "total_ticks": 10_128},
    {"busy_ticks": 1008, "total_ticks": 10_128, "own_ticks": 508},
    {"busy_ticks": 8, "total_ticks": 100},
    {"run_ns": 8192, "waited_ns": 4608},
    {"run_ns": 8192, "waited_ns": 576},
    {"run_ns": 64, "waited_ns": 16},
    {"power_mode": "nvpmodel 15W"},
    {"saving": True},
    {"thermal_status": 1},
    {"thermal_status": 3},
]


def candidate(random: SplitMix64, number: int) -> Candidate:
    """A path of one block; slower ones are mostly more accurate."""
    latency_ms = (8 + random.below(184)) / 8
    accuracy = (latency_ms + random.below(8)) / 32
    cost = Cost(latency_ms=latency_ms, peak_bytes=500_000 * (1 + random.below(6)))
    return Candidate(Plan(Subnet((Edge(f"b{number}"),))), cost, accuracy)


def followed(random: SplitMix64) -> dict[str, Any]:
    """Switches one after the other, and how long to wait before going up again."""
    last, now_s, steps = LastSwitch(), 0.0, []
    for _ in range(8):
        now_s += random.choice([-0.25, 0.125, 0.25, 0.5, 4.0])
        why = random.choice(["slower", "faster"])
        last = last.followed_by(why, now_s=now_s, settings=SETTINGS)
        steps.append({"now_s": now_s, "why": why, "last": [last.at_s, last.up, last.up_cooldown_s]})
    return {"steps": steps}


def drifting(random: SplitMix64) -> dict[str, Any]:
    """An uplink that changes, goes and comes back; whenever a plan is called for, one is made with it."""
    planned = random.choice([None, Uplink(mbps=8.0, round_trip_ms=4.0)])
    drift = NetworkDrift(planned, (1, 4096), DRIFT)
    now_s, looks, uplink = 0.0, [], planned
    for _ in range(30):
        now_s += random.choice([0.125, 0.25, 0.5, 0.5, -1.0]) if random.below(8) == 0 else 0.25
        if random.below(4) == 0:
            known = [Uplink(mbps=m, round_trip_ms=r) for m in (2.0, 8.0, 16.0) for r in (1.0, 4.0, 5.0)]
            uplink = random.choice([None, *known])
        calls = drift.calls_for_a_plan(uplink, now_s)
        if calls:
            drift.planned_with(uplink, now_s)
        sent = None if uplink is None else [uplink.mbps, uplink.round_trip_ms]
        looks.append({"now_s": now_s, "uplink": sent, "calls": calls})
    return {"planned": None if planned is None else [planned.mbps, planned.round_trip_ms], "looks": looks}


def searching(random: SplitMix64) -> dict[str, Any]:
    """Drift ratios at which nothing fits, one after the other, and at which a search begins; some find nothing."""
    fits = True

    def search(budget: Budget, cancelled: object) -> list[Candidate]:
        if fits:
            return []
        raise InfeasibleBudgetError("nothing fits", nearest=(), nearest_latency_ms=1.0, nearest_peak_bytes=1)

    background = BackgroundSearch(search, lambda outcome: None)
    now_s, steps = 0.0, []
    for _ in range(12):
        now_s += random.choice([-4.0, 0.0, 4.0, 8.0, 16.0])
        ratio, fits = random.choice([1.5, 2.0, 3.0, 4.0]), random.below(3) > 0
        begun = background.begin(Budget(latency_ms=1.0), ratio, now_s=now_s, cooldown_s=8.0)
        background.wait(60.0)
        steps.append({"now_s": now_s, "ratio": ratio, "fits": fits, "begun": begun})
    return {"cooldown_s": 8.0, "steps": steps}


def rungs(random: SplitMix64) -> dict[str, Any]:
    """The latencies at which a pool is filled besides a budget."""
    fastest_ms = (8 + random.below(56)) / 8
    slowest_ms = fastest_ms * random.choice([1.0, 1.25, 2.0, 6.0, 64.0])
    budget_ms = fastest_ms * random.choice([0.5, 1.0, 1.5, 3.0, 128.0])
    found = rungs_ms(fastest_ms, slowest_ms, budget_ms=budget_ms)
    return {"fastest_ms": fastest_ms, "slowest_ms": slowest_ms, "budget_ms": budget_ms, "rungs_ms": list(found)}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("switching.json"))
