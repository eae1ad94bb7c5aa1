"""Writes placements.json: candidates, limits, and which exits are kept (see README.md)."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from device_sdk.policies.placement import ExitCandidate, StopTimes, Strategy, place
from device_sdk.random_source import SplitMix64

FULL_TIME = 16.0
SIZES = (*range(10), 60, 60)  # candidates per seed
STOP_TIMES = (StopTimes(), StopTimes((0.25, 0.5, 1.0), (1.0, 0.0, 3.0)), StopTimes((0.5, 1.0), (3.0, 1.0)))


def main(target: Path) -> None:
    """One case a line."""
    cases = [
        case(candidates(SplitMix64(seed), size), memory_bytes, stop_times)
        for seed, size in enumerate(SIZES)
        for stop_times in STOP_TIMES
        for memory_bytes in (None, 0, 40, 120)
    ]
    target.write_text("[\n" + ",\n".join(json.dumps(one) for one in cases) + "\n]\n")


def candidates(random: SplitMix64, count: int) -> list[ExitCandidate]:
    """Numbers in 32nds, so that sums are exact in any order; few values, so that many choices are equally good."""
    return [
        ExitCandidate(
            exit=f"x{number}",
            position=1 + random.below(5),
            accuracy=random.below(33) / 32,
            reach_time=float(random.below(18)),
            branch_time=random.below(6) / 4,
            memory_bytes=random.below(50),
        )
        for number in range(count)
    ]


def case(candidates: list[ExitCandidate], memory_bytes: int | None, stop_times: StopTimes) -> dict[str, Any]:
    """The placement of both strategies that every implementation has."""

    def placed(strategy: Strategy) -> dict[str, Any]:
        found = place(
            candidates,
            full_time=FULL_TIME,
            memory_bytes=memory_bytes,
            stop_times=stop_times,
            strategy=strategy,
            time_limit_s=None,
        )
        return {"exits": found.exits, "expectation": found.expectation, "memory_bytes": found.memory_bytes}

    return {
        "candidates": [asdict(one) for one in candidates],
        "full_time": FULL_TIME,
        "memory_bytes": memory_bytes,
        "until": stop_times.until,
        "weight": stop_times.weight,
        "exact": placed("exact"),
        "greedy": placed("greedy"),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("placements.json"))
