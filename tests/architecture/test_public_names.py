from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import device_sdk.errors
import device_sdk.supernet.plan
import pathweave
import pathweave.errors
import pathweave.plan
from device_sdk.signing import signatures
from pathweave.cli import COMMANDS

ROOT = Path(__file__).parents[2]

PUBLIC_NAMES = {
    *("AdaptiveModel", "Answer", "Running", "Plan", "plan_head", "PathweaveError"),
    *("open", "load_dataset", "Goal", "Found", "Uplink", "Power", "RemoteModel"),
    *("AdaptationSettings", "ElasticSettings", "LiveSettings"),
}
MOST_NAMES, MOST_MEMBERS, MOST_COMMANDS = 18, 19, 14  # what a person can hold in the head
# The 14th command, worker, runs on machines that serve nothing: as an option of serve it would need an address.

TIMES_AS_LONG_AS_NUMPY = 10.0  # in processor time; usually 5


def test_the_public_names_are_exactly_these() -> None:
    assert {name for name in pathweave.__all__ if not name.startswith("_")} == PUBLIC_NAMES
    assert set(dir(pathweave)) >= PUBLIC_NAMES


def test_every_public_name_is_there() -> None:
    for name in PUBLIC_NAMES:
        assert getattr(pathweave, name).__name__ == name


def test_there_are_few_of_them() -> None:
    assert len(pathweave.__all__) <= MOST_NAMES
    assert len(COMMANDS) <= MOST_COMMANDS


def test_an_open_model_has_few_members(tmp_path: Path) -> None:
    from tests.device_sdk.tiny_bundle import write_tiny_bundle

    private, _ = signatures.new_key_pair()
    (tmp_path / "key").write_bytes(private)
    write_tiny_bundle(tmp_path / "bundle", tmp_path / "key")
    with pathweave.open(tmp_path / "bundle", state_folder=tmp_path / "state") as model:
        members = {name for name in dir(model) if not name.startswith("_")}
    assert len(members) <= MOST_MEMBERS, sorted(members)


def test_every_error_of_the_sdk_is_in_its_room() -> None:
    errors = {
        name
        for name, value in vars(device_sdk.errors).items()
        if isinstance(value, type) and issubclass(value, device_sdk.errors.PathweaveError)
    }
    assert errors <= vars(pathweave.errors).keys()


def test_every_term_of_a_plan_is_in_its_room() -> None:
    terms = {
        name
        for name, value in vars(device_sdk.supernet.plan).items()
        if isinstance(value, type) and value.__module__ == "device_sdk.supernet.plan" and not name.startswith("_")
    }
    assert terms <= vars(pathweave.plan).keys()


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("InputError", "from pathweave.errors import InputError"),
        ("MaxConfidence", "from pathweave.plan import MaxConfidence"),
        ("Budget", "it is now pathweave.Goal"),
    ],
)
def test_a_name_that_moved_says_where_it_is_now(name: str, now: str) -> None:
    with pytest.raises(AttributeError, match=now):
        getattr(pathweave, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = pathweave.Nonsense


@pytest.mark.alone
@pytest.mark.parametrize("statement", ["import pathweave", "from pathweave import AdaptiveModel, Goal"])
def test_importing_is_quick_and_leaves_heavy_libraries_alone(statement: str) -> None:
    seconds, heavy = imported(statement)
    assert heavy == ""
    assert seconds < TIMES_AS_LONG_AS_NUMPY * imported("import numpy")[0]


def imported(statement: str) -> tuple[float, str]:
    """The least of five processor times of an import, and which heavy libraries came with it."""
    script = (
        "import sys, time; started = time.process_time()\n"
        f"{statement}\n"
        "print(time.process_time() - started)\n"
        "print(*sorted({'torch', 'onnxruntime', 'sklearn', 'flask'} & set(sys.modules)))\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()
        for _ in range(5)
    ]
    return min(float(seconds) for seconds, _ in outputs), outputs[0][1]
