"""Peak memory of ``adapt`` among plans of all kinds, on 1,000 photographs made one by one, as a folder is read.

``python -m benchmarks.choosing_memory BUNDLE SERVER PHOTOGRAPHS``: adapts alone, in this process, and prints its peak.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from device_sdk.bundles.bundle import MANIFEST
from device_sdk.machine import peak_resident_bytes
from pathweave import AdaptiveModel, Goal, RemoteModel
from pathweave.server_process import running_server

TARGETS = {"peak_mb": Target(maximum=700.0)}
KINDS = frozenset(["subnets", "exits", "abstain", "ask", "split"])
PHOTOGRAPHS, QUICK_PHOTOGRAPHS = 1000, 60
SIDE, COARSE = 224, 7
GOAL = Goal(latency_ratio=1.5, coverage=0.9, share_asked=0.5)  # kept on a busy machine too


class Photographs(Sequence[Any]):
    """Images uint8 [224, 224, 3], each drawn when it is taken."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Photographs(self._numbers[at])
        colours = np.random.default_rng(self._numbers[at]).integers(0, 256, (COARSE, COARSE, 3), dtype=np.uint8)
        return np.asarray(Image.fromarray(colours).resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def run(options: BenchOptions) -> BenchOutcome:
    """The whole process counts. A server answers and runs tails; labels are its answers."""
    from benchmarks.support.bundles import CHECKOUT, adapted_bundle  # torch is not to count

    folder = options.work_folder / "bundle"
    shutil.copytree(adapted_bundle(options), folder)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["preprocessing"]["resize"] = manifest["cut_points"][0]["tensors"][0]["shape"][1:]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    count = QUICK_PHOTOGRAPHS if options.quick else PHOTOGRAPHS
    with running_server(folder, data=options.work_folder / "server") as server:
        command = [sys.executable, "-m", "benchmarks.choosing_memory", str(folder.resolve()), server, str(count)]
        done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True)
    row = json.loads(done.stdout)
    return BenchOutcome(row["figures"], [row], data=f"{count} synthetic photographs, resized to the network's input")


def measure(folder: Path, server: str, count: int) -> dict[str, Any]:
    """Figures, and what was chosen."""
    with AdaptiveModel.open(folder, state_folder=folder.with_name("state")) as model:
        for way in ("images", "tail"):
            name = f"{model.bundle.manifest.name}:{way}"
            model.remote.connect(RemoteModel(server=server, model=name, privacy="inputs", timeout_s=60.0))
        found = model.adapt(Photographs(range(count)), GOAL, KINDS)
        figures = {"peak_mb": (peak_resident_bytes() or 0) / 1e6, "adapt_seconds": found.seconds}
    return {"figures": figures, "plan": found.choice.kind, "kinds": sorted(found.by_kind), "notes": found.notes}


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
