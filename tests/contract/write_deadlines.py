"""Writes deadlines.json: times of steps, and which answer is sure to be there by a deadline (see README.md)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from device_sdk.execution.stepped_plan import answer_times_ms, last_in_time, slowness
from device_sdk.random_source import SplitMix64

RUNS = (0, 1, 2, 5, 9, 10, 40, 99, 100, 101, 128)
STEPS = (1, 2, 4)
PRESENT = (None, 0.5, 4.0)


def main(target: Path) -> None:
    """One case a line."""
    random = SplitMix64(0)
    cases = [case(random, runs, steps, present) for runs in RUNS for steps in STEPS for present in PRESENT]
    target.write_text("[\n" + ",\n".join(json.dumps(one) for one in cases) + "\n]\n")


def case(random: SplitMix64, count: int, steps: int, present: float | None) -> dict[str, Any]:
    """Numbers in 32nds. Some runs end early, some had a pause; deadlines lie on both sides of every answer time."""
    typical_ms = [(1 + random.below(64)) / 32 for _ in range(steps)]
    runs_ms = []
    for _ in range(count):
        reached = 1 + random.below(steps)
        run = [value + random.below(8) / 32 for value in typical_ms[:reached]]
        if random.below(8) == 0:
            run[random.below(reached)] += 4.0
        runs_ms.append(run)
    times = answer_times_ms(runs_ms, typical_ms, present_slowness=present)
    deadlines = sorted({0.0, *times, *(time / 2 for time in times), 2 * times[-1]})
    return {
        "typical_ms": typical_ms,
        "runs_ms": runs_ms,
        "present_slowness": present,
        "slowness": slowness(runs_ms, typical_ms),
        "answer_times_ms": times,
        "choices": [{"deadline_ms": one, "last": last_in_time(times, one)} for one in deadlines],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("deadlines.json"))
