"""Makes the files of zoo/ that this bench's networks start from: weights in half precision, and a tokenizer.

    python -m benchmarks.tasks.retrain DATA CASE…

CASE: maps, boxes, sounds, sensors, or words, the small network that asks about texts.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import ZOO
from benchmarks.tasks.asked_texts import small_bundle
from benchmarks.tasks.bench import CASES
from benchmarks.tasks.texts import texts_by_part
from device_sdk.commands.command_line import progress
from device_sdk.files.atomic import write_atomically


def main(data: Path, names: Sequence[str]) -> None:
    """Train each, and package it, which says whether its weights are whole."""
    for name in names:
        for old in ZOO.glob(f"tasks-{name}.*"):
            old.unlink()
        with tempfile.TemporaryDirectory() as work:
            options = BenchOptions(quick=False, data_folder=data, work_folder=Path(work), progress=progress())
            if name == "words":
                small_bundle(texts_by_part(options), options)
            else:
                CASES[name](options)
            for made in Path(work).glob(f"tasks-{name}.*"):
                write_atomically(ZOO / made.name, made.read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
