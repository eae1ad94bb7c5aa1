"""Leaves in a file of branch weights the exits that a placement ever keeps, in half precision.

    python -m benchmarks.exits.select BUNDLE ALL.safetensors KEPT.safetensors

BUNDLE was packaged with ALL (``--save-branches``). Exits are placed by their accuracy on test.zip#calibration and their
latencies here, at ``BUDGETS_BYTES`` and all distributions of the time.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save

from benchmarks.exits.mean_accuracy import STOP_TIMES, Pool, timed_pool
from device_sdk.files.atomic import write_atomically
from device_sdk.policies.placement import place
from device_sdk.progress import SilentProgress
from packager.supernet.branch_weights import read_branches

BUDGETS_BYTES = tuple(2_000 * 2**step for step in range(12))  # to 4 MB
_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@dataclass(frozen=True)
class Selection:
    """The exits to keep, by id, and how many there were."""

    kept: frozenset[str]
    of: int


def select(pool: Pool) -> Selection:
    """All exits of any best placement."""
    kept: set[str] = set()
    for stop in STOP_TIMES.values():
        for budget in BUDGETS_BYTES:
            kept |= set(place(pool.chosen_by, full_time=pool.full_ms, memory_bytes=budget, stop_times=stop).exits)
    return Selection(frozenset(kept), len(pool.chosen_by))


def halved(tensors: dict[str, torch.Tensor], kept: frozenset[str]) -> dict[str, torch.Tensor]:
    """The tensors of the exits ``kept``; floats in half precision."""
    owned = {name: value for name, value in tensors.items() if name.partition(".")[0] in kept}
    return {name: value.half() if value.is_floating_point() else value for name, value in owned.items()}


def main(bundle: Path, branches: Path, out: Path) -> None:
    """Select, write, and say what was kept."""
    with tempfile.TemporaryDirectory() as state:
        pool = timed_pool(bundle, Path(state), _DATA, progress=SilentProgress())
    found = select(pool)
    data = save(halved(read_branches(branches), found.kept))
    write_atomically(out, data)
    print(f"kept {len(found.kept)} of {found.of} exits, {len(data):,} bytes: {' '.join(sorted(found.kept))}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
