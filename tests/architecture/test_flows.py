"""Files and functions that each flow of the SDK enters: what a reader has to follow. The ceilings only sink."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import pytest

from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.signing import signatures
from device_sdk.supernet.goal import Goal
from pathweave import AdaptiveModel
from tests.device_sdk.tiny_bundle import TinyBundle, draw_images, write_tiny_bundle

ROOT = Path(__file__).parents[2]
PRODUCT = ("device_sdk/", "pathweave/")
CEILINGS = {  # files, functions
    "open": (56, 246),  # the manifest says which kind of samples it takes
    "call": (10, 22),  # by way of the preparer of its kind
    "adapt": (72, 555),  # its search again, within a lower aim, where predictions were low
    "exits": (75, 420),
    "all kinds": (94, 765),
}


@dataclass
class Entered:
    """Code objects of the product that ran."""

    code: set[CodeType] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self.code.add(frame.f_code)

    def product(self) -> list[tuple[str, str]]:
        """File and function of each."""
        found = []
        for code in self.code:
            path = Path(code.co_filename)
            name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
            if name.startswith(PRODUCT) and not code.co_name.startswith("<"):
                found.append((name, f"{code.co_qualname}:{code.co_firstlineno}"))
        return found


@contextmanager
def entering() -> Iterator[Entered]:
    """Records the functions entered, also by threads that start meanwhile."""
    entered = Entered()
    threading.setprofile(entered)
    sys.setprofile(entered)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> TinyBundle:
    folder = tmp_path_factory.mktemp("tiny")
    private, _ = signatures.new_key_pair()
    (folder / "key").write_bytes(private)
    write_tiny_bundle(folder / "bundle", folder / "key")
    return TinyBundle(folder / "bundle", folder / "key", folder / "key.pub", *draw_images(60, seed=2))


@pytest.fixture
def state(bundle: TinyBundle, tmp_path: Path) -> Path:
    """A state folder of a device that has tested and profiled the bundle."""
    with AdaptiveModel.open(bundle.folder, state_folder=tmp_path) as model:
        model.profile()
    return tmp_path


QUICK = AdaptationSettings(time_limit_s=1.0)
FLOWS: dict[str, Callable[[AdaptiveModel, TinyBundle], object]] = {
    "call": lambda model, tiny: model(tiny.images[0]),
    "adapt": lambda model, tiny: model.adapt(tiny.images, Goal(latency_ratio=0.9), labels=tiny.labels, settings=QUICK),
    "exits": lambda model, tiny: model.adapt(
        tiny.images, Goal(optimise="latency_ms", max_drop=0.005), {"exits"}, tiny.labels
    ),
    "all kinds": lambda model, tiny: model.adapt(
        tiny.images, Goal(latency_ms=1e3, coverage=0.9), {"subnets", "exits", "abstain"}, tiny.labels, settings=QUICK
    ),
}


@pytest.mark.parametrize("flow", CEILINGS)
def test_a_flow_enters_no_more_files_and_functions_than_its_ceiling(flow: str, bundle: TinyBundle, state: Path) -> None:
    if flow == "open":
        with entering() as entered, AdaptiveModel.open(bundle.folder, state_folder=state):
            pass
    else:
        with AdaptiveModel.open(bundle.folder, state_folder=state) as model:
            model(bundle.images[0])  # warm
            with entering() as entered:
                FLOWS[flow](model, bundle)
    found = entered.product()
    files, functions = len({file for file, _ in found}), len(set(found))
    print(f"{flow}: {files} files, {functions} functions")
    most_files, most_functions = CEILINGS[flow]
    assert files <= most_files, sorted({file for file, _ in found})
    assert functions <= most_functions
