"""A network that knows the digits, and a tiny grid of the branch zoo on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from device_sdk.progress import SilentProgress
from packager.branch_zoo.cultivation import Cultivation
from packager.branch_zoo.rungs import ZooSettings
from packager.branch_zoo.selection import answer_times
from packager.branch_zoo.specs import BranchSpec, parse
from packager.data.batches import BatchSource
from packager.supernet.expansion import expand
from packager.training.ranks import Ranks

NAMES = ("none-p1", "none-p2h256", "depthwise3-p2", "separable3-p1", "spatial3-p2h512h256", "dilated3-p4")


@pytest.fixture(scope="session")
def tiny_grid() -> tuple[BranchSpec, ...]:
    found = tuple(spec for name in NAMES if (spec := parse(name)) is not None)
    assert len(found) == len(NAMES)
    return found


@pytest.fixture
def digit_batches(digits, digits_preprocessing) -> BatchSource:
    """Four batches that repeat."""
    return BatchSource(digits("train", limit=256), digits_preprocessing, batch=64, seed=5, variants=1)


@pytest.fixture
def cultivation(
    tiny_traced, tiny_grid, digit_batches, digits, digits_preprocessing, tmp_path
) -> Callable[..., Cultivation]:
    """Makes a cultivation of the tiny grid at cut points 2 and 3."""

    def make(
        *,
        positions: tuple[int, ...] = (2, 3),
        work: Path | None = None,
        ranks: Ranks | None = None,
        source: BatchSource | None = None,
        device: torch.device | None = None,
        **choices,
    ) -> Cultivation:
        expansion = expand(tiny_traced, max_span=1)
        validation = digits("search", limit=100)
        held_out = BatchSource(validation, digits_preprocessing, batch=100, seed=0).plain(0, 100)
        settings = ZooSettings(**({"steps": 45, "grid": tiny_grid, "checkpoint_seconds": 0.0} | choices))
        folder = work or tmp_path
        return Cultivation(
            expansion,
            source or digit_batches,
            held_out,
            positions=positions,
            times=answer_times(expansion),
            settings=settings,
            device=device,
            folder=folder,
            progress=SilentProgress(),
            ranks=ranks,
        )

    return make
