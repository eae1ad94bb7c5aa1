"""``torchrun … -m pathweave package``: real processes that train together over gloo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import packager
from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.runtimes import OnnxRuntime
from packager.data.batches import Share
from packager.errors import TrainingError
from packager.training.process_group import Place, _request_to_end_as_error, find_place, joined

VARIABLES = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}

_TELLING_MODEL = '''
import os
from pathlib import Path
from users_models import small as plain

def small():
    """The small model; says which process it was built in."""
    Path(f"process-{os.environ.get('RANK')}").write_text(str(os.getpid()))
    return plain()
'''


def test_the_place_is_what_torchrun_says():
    assert find_place(VARIABLES) == Place(Share(1, 3), local_rank=0)


@pytest.mark.parametrize("environ", [{}, {"WORLD_SIZE": "1"}, VARIABLES | {"WORLD_SIZE": "1"}, {"RANK": "3"}])
def test_without_others_a_process_is_alone(environ):
    assert find_place(environ) is None
    with joined(environ) as ranks:
        assert ranks.alone


WRONG = [("RANK", "3"), ("RANK", "-1"), ("RANK", "first"), ("WORLD_SIZE", "many"), ("WORLD_SIZE", "0")]
WRONG += [("MASTER_ADDR", ""), ("MASTER_PORT", "0"), ("MASTER_PORT", "x"), ("LOCAL_RANK", ""), ("LOCAL_RANK", "-2")]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_variables_that_contradict_each_other_are_wrong_usage(name, value):
    with pytest.raises(UsageError, match="is missing or wrong") as caught:
        find_place(VARIABLES | {name: value})
    assert "torchrun" in str(caught.value.hint)


@pytest.mark.parametrize("missing", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_variables_that_are_missing_are_wrong_usage(missing):
    with pytest.raises(UsageError, match="means several processes"):
        find_place({name: value for name, value in VARIABLES.items() if name != missing})


def test_a_request_to_end_is_an_error_once():
    def asked_to_end() -> None:
        with _request_to_end_as_error():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)

    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(TrainingError, match="was terminated, or another process of it has ended"):
            asked_to_end()
        os.kill(os.getpid(), signal.SIGTERM)  # while it says so
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_a_request_to_end_does_is_as_before_then():
    before = signal.getsignal(signal.SIGTERM)
    with _request_to_end_as_error():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.fixture
def torchrun(command_line) -> Callable[..., subprocess.Popen[str]]:
    """Starts a command line of ours in two processes."""

    def start(*arguments: object) -> subprocess.Popen[str]:
        root = str(Path(__file__).parents[3])
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "pathweave")
        return subprocess.Popen(
            [sys.executable, *launcher, *map(str, arguments)],
            cwd=command_line.folder,
            env=os.environ | {"PYTHONPATH": root, "CI": "1", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def arguments(command_line, tiny_traced) -> tuple[object, ...]:
    """``pathweave package`` of a small model that knows the digits, all but --out."""
    (command_line.folder / "telling_models.py").write_text(_TELLING_MODEL)
    save_file(tiny_traced.whole.state_dict(), command_line.folder / "tiny.safetensors")
    model = ("package", "--model", "telling_models:small", "--weights", "tiny.safetensors")
    data = ("--data", "digits#train", "--val", "digits#search")
    choices = ("--recipe", "recipe.toml", "--max-span", 2, "--steps", 30, "--exits", 1, "--threads", 1)
    return *model, *data, *choices, "--json"


@pytest.mark.slow
def test_two_processes_make_a_bundle_as_good_as_one(command_line, torchrun, pathweave, arguments):
    running = torchrun(*arguments, "--out", "two")
    out, err = running.communicate(timeout=200)
    assert running.returncode == 0, err
    two, one = json.loads(out), pathweave(*arguments, "--out", "one").result  # one object on standard output
    assert two["steps"] == one["steps"] == {"distil": 9, "tune": 17, "exits": 4}
    for of_two, of_one in zip(two["range_accuracy"], one["range_accuracy"], strict=True):
        assert of_two["accuracy"] == pytest.approx(of_one["accuracy"], abs=0.06)
    bundles = [Bundle.open(command_line.folder / name) for name in ("two", "one")]
    bundles[0].verify()
    run_self_test(Workspace(bundles[0], OnnxRuntime(threads=1)))
    errors = [_distillation_errors(bundle) for bundle in bundles]
    assert errors[0] == pytest.approx(errors[1], abs=0.08)  # each keeps what its own looks found best
    assert not (command_line.folder / "two.work").exists()


@pytest.mark.slow
def test_two_processes_share_the_branches_of_the_zoo(command_line, torchrun, pathweave, arguments):
    names = ["none-p1", "none-p2h256", "separable3-p1", "spatial3-p2", "none-p4h256"]
    recipe = (command_line.folder / "recipe.toml").read_text() + f"branches = {names}\n"
    (command_line.folder / "zoo.toml").write_text(recipe)
    arguments = tuple("zoo.toml" if one == "recipe.toml" else one for one in arguments)
    running = torchrun(*arguments, "--max-span", 1, "--out", "zoo-of-two")
    out, err = running.communicate(timeout=200)
    assert running.returncode == 0, err
    one = pathweave(*arguments, "--max-span", 1, "--out", "zoo-of-one").result
    assert json.loads(out)["steps"] == one["steps"]
    assert one["steps"]["exits"] > 0
    bundles = [Bundle.open(command_line.folder / name) for name in ("zoo-of-two", "zoo-of-one")]
    ids = [[exit_.id for exit_ in bundle.manifest.exits] for bundle in bundles]
    assert ids[0] == ids[1]
    run_self_test(Workspace(bundles[0], OnnxRuntime(threads=1)))


@pytest.mark.slow
def test_a_run_in_which_a_process_is_killed_says_so_and_goes_on(command_line, torchrun, arguments):
    folder, state_path = command_line.folder, command_line.folder / "killed.work" / "state.pt"
    running = torchrun(*arguments, "--out", "killed")
    _wait_for_state(state_path, running, phase="tune")
    os.kill(int((folder / "process-1").read_text()), signal.SIGKILL)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 1
    assert not (folder / "killed").exists()
    told = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(told) == 1, err
    assert "another process of" in told[0]
    assert "the same command again" in err
    assert str(Path(packager.__file__).parent) not in err  # no stack trace of ours
    assert json.loads(out)["error"]["type"] == "TrainingError"

    state = torch.load(state_path, weights_only=True)
    torch.save(state | {"seconds": 1000.0}, state_path)
    running = torchrun(*arguments, "--out", "killed")
    out, err = running.communicate(timeout=200)
    assert running.returncode == 0, err
    assert json.loads(out)["steps"] == {"distil": 9, "tune": 17, "exits": 4}
    assert json.loads(out)["minutes"] > 1000 / 60  # earlier parts count
    Bundle.open(folder / "killed").verify()


def _distillation_errors(bundle: Bundle) -> dict[str, float]:
    return {block.id: block.distillation_error for block in bundle.manifest.blocks if block.kind != "original"}


def _wait_for_state(path: Path, running: subprocess.Popen[str], *, phase: str) -> None:
    end = time.monotonic() + 120
    while not path.exists() or torch.load(path, weights_only=True)["phase"] != phase:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
