"""Training in several processes: as threads that share a ``Ranks``, and the port's rules for every adapter.

As a script this file is one of several processes, told by torchrun's variables which one, that prints what it finds.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from device_sdk.errors import UsageError
from device_sdk.progress import SilentProgress
from packager.branch_zoo.plain import attach_exits
from packager.data.batches import BatchSource
from packager.errors import TrainingError
from packager.inputs.recipe import Recipe
from packager.output.checkpoints import Checkpoints
from packager.supernet.expansion import Expansion, expand
from packager.supernet.macs_ranges import MacsRanges
from packager.tracing.traced_model import TracedModel, trace
from packager.training.losses import distillation_errors
from packager.training.process_group import joined
from packager.training.range_accuracy import RangeAccuracy
from packager.training.ranks import Alone, LeadClock, Ranks
from packager.training.trainer import Trainer

TUNING = 1_000_000_000  # batches of the second phase are counted from here


def behaviour(ranks: Ranks) -> dict[str, Any]:
    """What a process finds of the port's methods: those of all processes are compared."""
    rank = ranks.share.rank
    tensors = [torch.full((2, 3), float(rank)), torch.tensor(10.0 * rank)]
    ranks.average(tensors)
    weighted = torch.tensor([1.0, 5.0]) * (rank + 1)
    ranks.average([weighted], weight=[0.25, 0.75][rank])
    strided = torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last) * rank
    ranks.average([strided])
    state = {"weight": torch.tensor([1.5]), "done": 3, "notes": ["a"], "from": rank}
    found = {
        "sum": ranks.sum(torch.tensor([rank + 1.0])).tolist(),
        "average": [tensor.flatten().tolist() for tensor in tensors],
        "weighted": weighted.tolist(),
        "strided": strided.flatten().tolist(),
        "any": [ranks.any(False), ranks.any(rank == 1), ranks.any(True)],
        "from lead": ranks.from_lead(0.1 + rank),
        "bytes": ranks.bytes_from_lead(b"abc" if rank == 0 else b"").decode(),
        "nothing": ranks.state_from_lead(None),
        "state": str(ranks.state_from_lead(state if rank == 0 else None)),
    }
    ranks.require_same(lambda: {"recipe": [1, 2], "data": "x"})
    try:
        ranks.require_same(lambda: {"recipe": 1, "data": rank, "weights": [rank]})
    except TrainingError as error:
        found["differing"] = str(error)
    found["may tell"] = ranks.claim_error_report()
    return found


EXPECTED = {
    "sum": [3.0],
    "average": [[0.5] * 6, [5.0]],
    "weighted": [1.75, 8.75],
    "strided": [value / 2 for value in range(24)],
    "any": [False, True, True],
    "from lead": 0.1,
    "bytes": "abc",
    "nothing": None,
    "state": str({"weight": torch.tensor([1.5]), "done": 3, "notes": ["a"], "from": 0}),
    "differing": "the processes of this run do not start from the same: data, weights differ",
}


def processes(count: int) -> list[subprocess.Popen[str]]:
    """This file as a script in so many processes, started as torchrun does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    root = str(Path(__file__).parents[3])
    shared = os.environ | {"PYTHONPATH": root, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    shared["WORLD_SIZE"] = str(count)
    return [
        subprocess.Popen(
            [sys.executable, __file__],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def test_threads_exchange_what_the_port_promises(together):
    found = [future.result() for future in together(2, behaviour)]
    assert sorted(one.pop("may tell") for one in found) == [False, True]
    assert found == [EXPECTED, EXPECTED]


@pytest.mark.slow
def test_processes_exchange_what_the_port_promises_and_notice_that_one_dies():
    running = processes(2)
    done = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, -signal.SIGKILL], done
    found = [json.loads(out.splitlines()[0]) for out, _ in done]
    assert sorted(one.pop("may tell") for one in found) == [False, True]  # one of them tells
    assert found == [EXPECTED, EXPECTED]
    assert json.loads(done[0][0].splitlines()[1]) == {
        "error": "another process of this run has ended or does not respond",
        "hint": "run the same command again: training resumes from the last saved state",
    }


def test_alone_nothing_changes_and_nothing_is_described():
    ranks, values = Alone(), [torch.tensor([1.0, 2.0])]
    ranks.average(values, weight=0.5)
    ranks.require_same(lambda: pytest.fail("there is nobody to compare with"))
    assert values[0].tolist() == [1.0, 2.0]
    assert (ranks.any(False), ranks.any(True), ranks.from_lead(0.3)) == (False, True, 0.3)
    assert (ranks.alone, ranks.leads, ranks.claim_error_report(), ranks.share.of(7)) == (True, True, True, 7)


def test_all_processes_have_the_first_ones_clock(together):
    def read(ranks: Ranks) -> list[float]:
        times = iter([[1.0, 3.5, 9.0], [70.0, 80.0, 99.0]][ranks.share.rank])
        clock = LeadClock(ranks, clock=lambda: next(times))
        return [clock.tick(), clock(), clock(), clock.tick(), clock()]

    assert [future.result() for future in together(2, read)] == [[1.0, 1.0, 1.0, 3.5, 3.5]] * 2


# Training


class Killed(Exception):
    """The process dies here."""


class Recording(BatchSource):
    """Notes how many samples it gave at which step; dies, gives no numbers, or has too many, at one of them."""

    def __init__(self, *arguments: Any, faults: dict[str, int] | None = None, **choices: Any) -> None:
        super().__init__(*arguments, **choices)
        self.given: list[tuple[int, int]] = []
        self._faults = faults or {}

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        if step == self._faults.get("killed"):
            raise Killed
        images, labels = super().batch(step)
        self.given.append((step, len(labels)))
        if step == self._faults.get("short") and self._faults.pop("short") is not None:
            raise torch.OutOfMemoryError
        return images * float("nan") if step == self._faults.get("nan") else images, labels


@dataclass(frozen=True)
class Trained:
    """What one process has in the end."""

    expansion: Expansion
    trainer: Trainer
    source: Recording

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return weights(self.expansion)


def weights(expansion: Expansion) -> dict[str, torch.Tensor]:
    modules = {part.id: part.module for part in (*expansion.blocks, *expansion.exits)}
    return {f"{i}.{name}": value for i, module in modules.items() for name, value in module.state_dict().items()}


def differing(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in first if not torch.equal(first[name], second[name])}


@pytest.fixture
def train(together, digits, digits_preprocessing, tmp_path) -> Callable[..., list[Any]]:
    """Trains in so many processes; returns of each what it has in the end, or its error."""
    dataset = digits("train", limit=300)

    def run(
        count: int,
        expansion: Callable[[], Expansion],
        *,
        batch: int = 32,
        work: str = "work",
        faults: dict[int, dict[str, int]] | None = None,
        judge: Any = None,
        **choices: Any,
    ) -> list[Any]:
        fixed = {"checkpoint_seconds": 0.0, "device": "cpu", "precision": "float32", "batch": batch}
        recipe = Recipe(**(fixed | choices))
        # Processes have weights of their own. Threads that share originals and move them at once may spoil them.
        expansions = [copy.deepcopy(expansion()) for _ in range(count)]

        def one(ranks: Ranks) -> Trained:
            rank = ranks.share.rank
            source = Recording(
                dataset,
                digits_preprocessing,
                batch=batch,
                seed=5,
                crop=0.125,
                share=ranks.share,
                faults=(faults or {}).get(rank),
            )
            checkpoints = Checkpoints(tmp_path / work, {}, leads=ranks.leads)
            checkpoints.begin()
            shown = judge if ranks.leads else None
            trainer = Trainer(expansions[rank], source, recipe, checkpoints, SilentProgress(), judge=shown, ranks=ranks)
            trainer.train()
            return Trained(expansions[rank], trainer, source)

        futures = together(count, one)
        return [future.exception() or future.result() for future in futures]

    return run


@pytest.fixture(scope="module")
def plain_traced(noise) -> TracedModel:
    """A model in which samples do not see each other: no statistics of a batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        hidden = [layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())]
        return trace(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *hidden, nn.Linear(16, 10)), noise(8, 1, 8, 8))


@pytest.fixture
def with_exits(tiny_traced) -> Callable[[], Expansion]:
    """Makes blocks and exits with batch-norm around the shared originals."""
    return lambda: attach_exits(expand(tiny_traced, max_span=2), count=1)


@pytest.mark.parametrize(("count", "batch"), [(2, 32), (4, 30)])
def test_gradients_are_those_of_the_whole_batch(plain_traced, train, count, batch):
    choices = {"steps": 12, "distil_share": 0.0, "tune_rate": 0.2, "batch": batch}
    (alone,) = train(1, lambda: expand(plain_traced, max_span=2), work="alone", **choices)
    first, *others = train(count, lambda: expand(plain_traced, max_span=2), **choices)
    start = weights(expand(plain_traced, max_span=2))
    assert max((start[name] - value).abs().max().item() for name, value in alone.weights.items()) > 1e-2
    for name, value in alone.weights.items():
        torch.testing.assert_close(first.weights[name], value, atol=2e-6, rtol=1e-4)
    assert not any(differing(first.weights, other.weights) for other in others)


def test_two_processes_do_half_of_the_work_each_and_come_to_the_same(with_exits, train, digits, digits_preprocessing):
    choices = {"steps": 40, "distil_share": 0.4, "exit_share": 0.2, "recalibrate_batches": 4, "patience": 3}
    (alone,) = train(1, with_exits, work="alone", **choices)
    first, second = train(2, with_exits, **choices)
    assert first.trainer.steps_done == alone.trainer.steps_done == {"distil": 13, "tune": 19, "exits": 8}
    whole = [(step, 32) for step, _ in alone.source.given]
    assert alone.source.given == whole
    assert first.source.given == second.source.given == [(step, 16) for step, _ in whole]
    assert not differing(first.weights, second.weights)  # statistics of batches too

    images, labels = BatchSource(digits("search"), digits_preprocessing, batch=64, seed=0).plain(0, 300)
    errors = [sum(distillation_errors(one.expansion, images).values()) for one in (alone, first)]
    assert errors[1] == pytest.approx(errors[0], rel=0.05)
    ranges = [paths for _, _, paths in MacsRanges(alone.expansion).samples(3, seed=0)]
    accuracies = [RangeAccuracy(one.expansion, images, labels, ranges=ranges).look() for one in (alone, first)]
    assert accuracies[1] == pytest.approx(accuracies[0], abs=0.04)


@pytest.mark.parametrize("count", [1, 3])
def test_a_run_that_lost_a_process_goes_on_with_any_number_of_them(with_exits, train, tmp_path, count):
    choices = {"steps": 20, "distil_share": 0.5, "exit_share": 0.2}
    lost, killed = train(2, with_exits, faults={1: {"killed": TUNING + 3}}, **choices)
    assert isinstance(killed, Killed)
    assert isinstance(lost, TrainingError)
    assert "has ended" in str(lost)
    done = train(count, with_exits, **choices)
    assert all(one.source.given[0][0] == TUNING + 3 for one in done)
    assert all(one.trainer.steps_done == {"distil": 8, "tune": 8, "exits": 4} for one in done)
    assert not any(differing(done[0].weights, one.weights) for one in done)


def test_what_is_no_number_in_one_process_stops_all_with_the_last_good_state(with_exits, train, tmp_path):
    found = train(2, with_exits, faults={1: {"nan": 3}}, steps=20, distil_share=0.5)
    assert [str(error) for error in found] == ["the loss became nan at step 3 of distil"] * 2
    state = Checkpoints(tmp_path / "work", {}).state
    assert state is not None
    assert state["done"] == 3
    assert all(value.isfinite().all() for module in state["modules"].values() for value in module.values())


def test_memory_that_is_short_in_one_process_halves_the_batch_in_all(with_exits, train):
    found = train(2, with_exits, faults={1: {"short": 2}}, steps=12, distil_share=0.5)
    assert all(one.trainer.notes == ("memory was too short: trained with batches of 16",) for one in found)
    assert [[step for step, _ in one.source.given][:4] for one in found] == [[0, 1, 2, 2]] * 2
    assert not differing(found[0].weights, found[1].weights)


def test_processes_with_different_weights_do_not_train(with_exits, train):
    made = iter([with_exits(), with_exits()])
    expansions = []

    def one_weight_off() -> Expansion:
        expansions.append(next(made))
        if len(expansions) == 2:
            next(expansions[-1].added[0].module.parameters()).data.view(-1)[0] += 1e-6
        return expansions[-1]

    for error in train(2, one_weight_off, steps=12):
        assert isinstance(error, TrainingError)
        assert str(error).endswith("weights differ")


def test_a_time_budget_is_that_of_the_first_process(with_exits, train):
    first, second = train(2, with_exits, budget_minutes=1.5 / 60, steps=None)
    assert first.trainer.steps_done == second.trainer.steps_done
    assert all(steps > 0 for steps in first.trainer.steps_done.values())
    assert not differing(first.weights, second.weights)


class NeverBetter:
    """Judges like RangeAccuracy: the first look is the best."""

    def look(self, count=None, *, device: torch.device | None = None) -> list[float]:
        return [0.5]

    def answers_of(self, paths, count=None, *, device=None) -> tuple[torch.Tensor, float]:
        return torch.full((4,), 0.5), 0.0


def test_patience_is_that_of_the_first_process(plain_traced, train):
    choices = {"steps": 400, "distil_share": 0.0, "patience": 1, "batch": 4, "checkpoint_seconds": 60.0}
    found = train(2, lambda: expand(plain_traced, max_span=2), judge=NeverBetter(), **choices)
    assert [one.trainer.steps_done["tune"] for one in found] == [220, 220]


@pytest.mark.parametrize(("count", "batch", "least"), [(4, 6, 8), (10, 64, 80)])
def test_too_many_processes_for_a_batch_are_wrong_usage(with_exits, train, count, batch, least):
    for error in train(count, with_exits, batch=batch, steps=5):
        assert isinstance(error, UsageError)
        assert f"a batch of {batch} is too small for {count} processes" in str(error)
        assert f"batches of {least} samples" in str(error.hint)


def main() -> None:
    try:
        with joined(os.environ) as ranks:
            print(json.dumps(behaviour(ranks)), flush=True)
            if not ranks.leads:
                os.kill(os.getpid(), signal.SIGKILL)
            ranks.any(False)
    except TrainingError as error:
        print(json.dumps({"error": str(error), "hint": error.hint}))


if __name__ == "__main__":
    main()
