"""Leaves in a file of branch weights the exits that placements keep and the most accurate ones, in half precision.

    python -m benchmarks.exits.select RECIPE BUNDLE ALL.safetensors KEPT.safetensors

RECIPE is that of zoo/ which the exits are for; BUNDLE was packaged with ALL (``--save-branches``). Exits are placed by
their accuracy on #calibration and their latencies here, at ``BUDGETS_BYTES`` and all distributions of the time.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save

from benchmarks.exits.mean_accuracy import STOP_TIMES, Pool, timed_pool
from benchmarks.exits.networks import NETWORKS
from device_sdk.files.atomic import write_atomically
from device_sdk.policies.placement import ExitCandidate, place
from device_sdk.progress import SilentProgress
from packager.inputs.weights import read_state_dict

BUDGETS_BYTES = tuple(2_000 * 2**step for step in range(12))  # to 4 MB
_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@dataclass(frozen=True)
class Selection:
    """The exits to keep, by id, and how many there were."""

    kept: frozenset[str]
    of: int


def select(pool: Pool) -> Selection:
    """All exits of any best placement; of each cut point the most accurate, which confidence needs."""
    kept = {one.exit for one in _most_accurate(pool.chosen_by)}
    for stop in STOP_TIMES.values():
        for budget in BUDGETS_BYTES:
            kept |= set(place(pool.chosen_by, full_time=pool.full_ms, memory_bytes=budget, stop_times=stop).exits)
    return Selection(frozenset(kept), len(pool.chosen_by))


def _most_accurate(exits: Sequence[ExitCandidate]) -> list[ExitCandidate]:
    """The most accurate exit of each cut point; of equals the smallest."""
    best: dict[int, ExitCandidate] = {}
    for one in sorted(exits, key=lambda one: (one.accuracy, -one.memory_bytes)):
        best[one.position] = one
    return list(best.values())


def halved(tensors: dict[str, torch.Tensor], kept: frozenset[str]) -> dict[str, torch.Tensor]:
    """The tensors of the exits ``kept``; floats in half precision."""
    owned = {name: value for name, value in tensors.items() if name.partition(".")[0] in kept}
    return {name: value.half() if value.is_floating_point() else value for name, value in owned.items()}


def main(recipe: Path, bundle: Path, branches: Path, out: Path) -> None:
    """Select, write, and say what was kept."""
    [network] = [one for one in NETWORKS if one.recipe == recipe.name]
    with tempfile.TemporaryDirectory() as state:
        pool = timed_pool(network, bundle, Path(state), _DATA, progress=SilentProgress())
    found = select(pool)
    data = save(halved(read_state_dict(branches), found.kept))
    write_atomically(out, data)
    print(f"kept {len(found.kept)} of {found.of} exits, {len(data):,} bytes: {' '.join(sorted(found.kept))}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:5]))
