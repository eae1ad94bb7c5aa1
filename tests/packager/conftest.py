"""Small models, real digits and what the packager makes of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from device_sdk.data.datasets import ImageDataset, load_dataset
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.progress import Progress, SilentProgress
from packager.branch_zoo.plain import attach_exits
from packager.data.batches import BatchSource, Share
from packager.errors import TrainingError
from packager.exporting.export import ExportedBlocks, export_blocks
from packager.inputs.model_loader import load_model
from packager.inputs.recipe import Recipe
from packager.output.checkpoints import Checkpoints
from packager.supernet.expansion import Expansion, expand
from packager.tracing.traced_model import TracedModel, trace
from packager.training.ranks import Ranks
from packager.training.trainer import Trainer
from packager.zoo import ZOO
from packager.zoo.resnet import SmallResNet
from pathweave.cli import main


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def noise() -> Callable[..., torch.Tensor]:
    """Builds seeded random tensors."""

    def build(*shape: int, seed: int = 0) -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    return build


@pytest.fixture(scope="session")
def digits() -> Callable[..., ImageDataset]:
    """Loads a part of scikit-learn's digits."""
    return lambda part, limit=None: load_dataset(f"digits#{part}", limit=limit)


@pytest.fixture(scope="session")
def digits_preprocessing() -> Preprocessing:
    return ZOO["resnet_digits"].preprocessing


@pytest.fixture(scope="session")
def network_of_digits(digits, digits_preprocessing) -> Callable[..., SmallResNet]:
    """Makes residual networks that know the digits, as well as so many ``steps`` teach them."""

    def trained(widths: tuple[int, ...], *, depth: int, steps: int, seed: int) -> SmallResNet:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = SmallResNet(channels=1, widths=widths, depth=depth, classes=10)
        source = BatchSource(digits("train"), digits_preprocessing, batch=64, seed=0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(steps):
            images, labels = source.batch(step)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return model.requires_grad_(False)

    return trained


@pytest.fixture(scope="session")
def tiny_traced(network_of_digits, digits, digits_preprocessing) -> TracedModel:
    """A residual network that knows the digits, six blocks: stem, two at 8×8, two at 4×4, head."""
    model = network_of_digits((8, 16), depth=2, steps=80, seed=3)
    return trace(model, BatchSource(digits("train"), digits_preprocessing, batch=64, seed=0).plain(0, 16)[0])


@pytest.fixture
def tiny_expansion(tiny_traced) -> Expansion:
    """Fresh merged blocks around the shared originals, which nothing may change."""
    return expand(tiny_traced, max_span=3)


@pytest.fixture(scope="session")
def tiny_exported(tiny_traced) -> ExportedBlocks:
    return export_blocks(expand(tiny_traced, max_span=3))


@pytest.fixture(scope="session")
def tiny_exported_with_exits(tiny_traced) -> ExportedBlocks:
    """The originals with six exits that were not trained."""
    return export_blocks(attach_exits(expand(tiny_traced, max_span=1), count=3))


@pytest.fixture
def run_training(tmp_path) -> Callable[..., Trainer]:
    """Trains an expansion on a source, as a recipe of these choices says; returns the trainer."""

    def run(
        expansion: Expansion,
        source: BatchSource,
        *,
        work: str = "work",
        judge: Any = None,
        progress: Progress | None = None,
        **choices: Any,
    ) -> Trainer:
        recipe = Recipe(**({"checkpoint_seconds": 0.0, "device": "cpu", "precision": "float32"} | choices))
        checkpoints = Checkpoints(tmp_path / work, {"run": "test"})
        checkpoints.begin()
        trainer = Trainer(expansion, source, recipe, checkpoints, progress or SilentProgress(), judge=judge)
        trainer.train()
        return trainer

    return run


@pytest.fixture(scope="session")
def zoo_traced(noise) -> Callable[[str], TracedModel]:
    """Traces models of the zoo, each once."""
    traced: dict[str, TracedModel] = {}

    def build(name: str) -> TracedModel:
        if name not in traced:
            model = load_model(f"zoo:{name}")
            traced[name] = trace(model.module, noise(4, *model.input_shape))
        return traced[name]

    return build


@pytest.fixture(scope="session")
def qnn() -> None:
    """Skips where the compiler for NPUs is not installed; in CI it must be there."""
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        if os.environ.get("PATHWEAVE_REQUIRE_QNN") == "1":
            pytest.fail("CI needs the extra qnn")
        pytest.skip("needs onnxruntime-qnn, of the extra qnn")


class DyingSource(BatchSource):
    """Raises ``Killed`` when the batch of step ``dies_at`` of a phase is asked for."""

    class Killed(Exception):
        """The process dies here."""

    dies_at: int | None = None

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        if step % 1_000_000_000 == self.dies_at:
            raise self.Killed
        return super().batch(step)


@pytest.fixture
def dying_source(digits, digits_preprocessing) -> DyingSource:
    """Four batches that come round and round."""
    source = DyingSource(digits("train", limit=256), digits_preprocessing, batch=64, seed=5, variants=1)
    assert source.distinct_batches == 4
    return source


# Processes that train together, as threads of this one


class Meeting:
    """Where threads exchange what they have. One that ends with an error leaves: what it gave before still counts."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._rounds: dict[int, dict[int, Any]] = {}
        self._left = False

    def exchange(self, number: int, rank: int, mine: Any) -> list[Any]:
        """What all give in the round of this number."""
        with self._changed:
            given = self._rounds.setdefault(number, {})
            given[rank] = mine
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(given) == self._count or self._left, timeout=100)
            if len(given) < self._count:
                raise TrainingError("another process of this run has ended or does not respond")
            self._rounds.pop(number - 1, None)  # who gives in this round has taken from the last
            return [given[other] for other in range(self._count)]

    def leave(self) -> None:
        with self._changed:
            self._left = True
            self._changed.notify_all()


class ThreadRanks(Ranks):
    """One of several threads that exchange what they have at a meeting."""

    def __init__(self, share: Share, meeting: Meeting) -> None:
        super().__init__(share, local_rank=share.rank)
        self._meeting = meeting
        self._exchanges = 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._exchange(values.clone())).sum(0)

    def bytes_from_lead(self, data: bytes) -> bytes:
        return self._exchange(data)[0]

    def claim_error_report(self) -> bool:
        return self.leads

    def leave(self) -> None:
        self._exchange(None)

    def _exchange(self, mine: Any) -> list[Any]:
        self._exchanges += 1
        return self._meeting.exchange(self._exchanges, self.share.rank, mine)


@pytest.fixture
def together() -> Callable[..., list[Future]]:
    """Runs a function of ``Ranks`` in so many of them; returns what became of it in each."""

    def run(count: int, work: Callable[[Ranks], Any]) -> list[Future]:
        meeting = Meeting(count)

        def one(rank: int) -> Any:
            torch.set_num_threads(1)
            try:
                return work(ThreadRanks(Share(rank, count), meeting))
            except BaseException:
                meeting.leave()
                raise

        with ThreadPoolExecutor(count) as pool:
            return [pool.submit(one, rank) for rank in range(count)]

    return run


# The command line, and one bundle made with it

ROOT = Path(__file__).parents[2]

_USER_MODULE = '''
from torch import Tensor, nn
from device_sdk.data.preprocessing import Preprocessing
from packager.zoo.resnet import SmallResNet

def small():
    """A model of a user's own, with the shape of digits."""
    return for_digits(SmallResNet(channels=1, widths=(8, 16), depth=2, classes=10))

def silent():
    """A model without preprocessing."""
    return SmallResNet(channels=1, widths=(8, 16), depth=2, classes=10)

def five_answers():
    return for_digits(SmallResNet(channels=1, widths=(8, 16), depth=2, classes=5))

def one_layer():
    return for_digits(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))

class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 10), nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        return self.last(x) if x.sum() > 0 else x

class Branching(DataDependent):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        return self.last(x) if x.sum() > 0 else self.last(x) + 0.0

def data_dependent():
    return for_digits(DataDependent())

def branching():
    return for_digits(Branching())

def for_digits(model):
    model.input_shape = (1, 8, 8)
    model.preprocessing = Preprocessing(scale=1 / 16, mean=(0.3,), std=(0.4,), channels=1)
    return model
'''

RECIPE = "device = 'cpu'\nsteps = 48\nbatch = 32\ncheckpoint_seconds = 0.0\nprecision = 'float32'\n"


@dataclass(frozen=True)
class CommandLine:
    """Runs ``pathweave`` in processes of its own, in a folder that has a model and a recipe."""

    folder: Path

    def start(self, *arguments: object, python_path: Path = ROOT) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": f"{python_path}{os.pathsep}{ROOT}", "CI": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "pathweave", *map(str, arguments)],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: object, python_path: Path = ROOT) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, python_path=python_path)
        stdout, stderr = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


@pytest.fixture(scope="session")
def command_line(tmp_path_factory) -> CommandLine:
    folder = tmp_path_factory.mktemp("command_line")
    (folder / "users_models.py").write_text(_USER_MODULE)
    (folder / "recipe.toml").write_text(RECIPE)
    return CommandLine(folder)


@pytest.fixture(scope="session")
def package_arguments() -> tuple[str, ...]:
    """``pathweave package`` of the user's small model, all but --out."""
    data = ("--data", "digits#train", "--val", "digits#search")
    return ("package", "--model", "users_models:small", *data, "--recipe", "recipe.toml", "--threads", "1", "--json")


@pytest.fixture(scope="session")
def packaged(command_line, package_arguments) -> Path:
    """A bundle of the user's small model, not signed. Tests that change it copy it."""
    done = command_line.run(*package_arguments, "--out", "reference")
    assert done.returncode == 0, done.stderr
    return command_line.folder / "reference"


@dataclass(frozen=True)
class Outcome:
    """What a command line came to."""

    status: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """The one JSON object on standard output."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)


@pytest.fixture
def pathweave(command_line, monkeypatch, capsys) -> Callable[..., Outcome]:
    """Runs a command line in this process, in the folder of ``command_line``."""
    monkeypatch.chdir(command_line.folder)

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Outcome(status, *capsys.readouterr())

    return run
