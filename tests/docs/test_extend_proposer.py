"""docs/extend/proposer.py works on a bundle as it stands."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from device_sdk.errors import UsageError
from device_sdk.policies.planning.proposers import PROPOSERS
from device_sdk.signing import signatures
from device_sdk.supernet.plan import Abstain, Margin
from pathweave import AdaptiveModel, Goal
from tests.device_sdk.tiny_bundle import draw_images, write_tiny_bundle

EXAMPLE = Path(__file__).parents[2] / "docs" / "extend" / "proposer.py"


@pytest.fixture
def example() -> Iterator[dict[str, object]]:
    """The names of the example, whose proposer is registered."""
    yield runpy.run_path(str(EXAMPLE))
    PROPOSERS.pop("margins", None)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[AdaptiveModel]:
    private, _ = signatures.new_key_pair()
    (tmp_path / "key").write_bytes(private)
    write_tiny_bundle(tmp_path / "bundle", tmp_path / "key")
    with AdaptiveModel.open(tmp_path / "bundle", state_folder=tmp_path / "state") as opened:
        yield opened


def noisy_images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images with the signal halved, so that the model is wrong about some."""
    images, labels = draw_images(count, seed=5)
    noise = np.random.default_rng(6).integers(-40, 40, size=(count, 1, 1, 3))
    return np.clip(images + noise, 0, 255).astype(np.uint8), labels


def test_its_kind_is_chosen_when_it_is_considered(example: dict[str, object], model: AdaptiveModel) -> None:
    images, labels = noisy_images(150)
    found = model.adapt(images, Goal(coverage=0.5), {"margins"}, labels)
    assert isinstance(found.plan.hard, Abstain)
    assert isinstance(found.plan.hard.decider, Margin)
    assert found.plan.hard.decider.threshold in example["ROUND"]
    assert found.expected.coverage >= 0.5
    assert found.expected.accuracy > found.by_kind["subnet"].cost.accuracy
    assert None in model(images).labels


def test_it_competes_with_the_kinds_of_the_sdk(example: dict[str, object], model: AdaptiveModel) -> None:
    images, labels = noisy_images(150)
    found = model.adapt(images, Goal(coverage=0.5), {"abstain", "margins"}, labels, take=False)
    assert found.by_kind["abstain"].cost.accuracy >= found.by_kind["margins"].cost.accuracy


def test_without_the_file_there_is_no_such_kind(model: AdaptiveModel) -> None:
    images, labels = noisy_images(30)
    with pytest.raises(UsageError, match="no kind of plan 'margins'"):
        model.adapt(images, Goal(), {"margins"}, labels)


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 100
