"""Trains many independent branches in one pass over the batches, each with its own clipping and optimizer state.

A profile (docs/adr/0043) decided how: forward and backward branch by branch, on the CPU several branches at once with
one thread each, since a branch's operators are too small to be divided among cores; then one fused optimizer update for
all. Grouped convolutions over all branches, ``vmap``'s way, are slower on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import nn

from packager.branch_zoo.features import FeatureBatch
from packager.branch_zoo.modules import Branch
from packager.supernet.blocks.trainable import evaluated

_GRADIENT_NORM = 5.0  # each branch's gradient is clipped to this norm

Result = TypeVar("Result")
BranchLoss = Callable[[torch.Tensor, FeatureBatch], torch.Tensor]
"""The loss of one branch's logits [batch, classes]."""


class BranchTraining:
    """Branches by exit id, trained together. ``diverged``: those whose gradient was not finite; they learn no more."""

    def __init__(self, branches: Mapping[str, Branch], *, rate: float, device: torch.device) -> None:
        self.branches = {name: branch.to(device) for name, branch in branches.items()}
        self.diverged: set[str] = set()
        self._rate = rate
        self._fused = device.type in ("cpu", "cuda")
        workers = torch.get_num_threads() if device.type == "cpu" else 1
        self._pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
        self._optimizer = self._new_optimizer()

    def step(self, batch: FeatureBatch, loss: BranchLoss, *, rate: float) -> None:
        """One update of every branch at learning rate ``rate``."""
        if self._optimizer is None:
            return
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        learning = {name: branch for name, branch in self.branches.items() if name not in self.diverged}

        def learn(name: str) -> bool:
            branch = learning[name]
            branch.train()
            loss(branch.after_stem(batch.stemmed).float(), batch).backward()
            return bool(torch.isfinite(nn.utils.clip_grad_norm_(list(branch.parameters()), _GRADIENT_NORM)))

        for name, finite in self._side_by_side(learn, learning):
            if not finite:
                self.diverged.add(name)
                self.branches[name].zero_grad(set_to_none=True)
        self._optimizer.step()

    def keep(self, names: Collection[str]) -> None:
        """Drop all other branches; those kept keep their optimizer state."""
        states: Mapping[nn.Parameter, Any] = {} if self._optimizer is None else self._optimizer.state
        self.branches = {name: branch for name, branch in self.branches.items() if name in names}
        self._optimizer = self._new_optimizer()
        if self._optimizer is not None:
            self._optimizer.state.update({p: states[p] for p in self._parameters() if p in states})

    def accuracies(self, judged_on: FeatureBatch, *, batch: int = 256) -> dict[str, float]:
        """The accuracy of each branch, 0 to 1; -1 for one that diverged."""

        def accuracy(name: str) -> float:
            return -1.0 if name in self.diverged else branch_accuracy(self.branches[name], judged_on, batch=batch)

        return dict(self._side_by_side(accuracy, self.branches))

    @property
    def state(self) -> dict[str, Any]:
        """All that ``restore`` needs, as plain tensors."""
        return {
            "branches": {name: branch.state_dict() for name, branch in self.branches.items()},
            "optimizer": None if self._optimizer is None else self._optimizer.state_dict(),
            "diverged": sorted(self.diverged),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from ``state``: of a training that began with the same branches."""
        self.keep(state["branches"].keys())
        for name, branch in self.branches.items():
            branch.load_state_dict(state["branches"][name])
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        self.diverged = set(state["diverged"])

    def close(self) -> None:
        """End the threads. Idempotent."""
        self._pool.shutdown()

    def _side_by_side(self, work: Callable[[str], Result], names: Iterable[str]) -> list[tuple[str, Result]]:
        """``work`` for each branch, in their order."""
        chosen = list(names)
        return list(zip(chosen, self._pool.map(work, chosen), strict=True))

    def _parameters(self) -> Iterator[nn.Parameter]:
        for branch in self.branches.values():
            yield from branch.parameters()

    def _new_optimizer(self) -> torch.optim.Optimizer | None:
        parameters = list(self._parameters())
        return torch.optim.AdamW(parameters, lr=self._rate, fused=self._fused) if parameters else None


def branch_accuracy(branch: Branch, judged_on: FeatureBatch, *, batch: int = 256) -> float:
    """The share of samples that ``branch`` answers right, 0 to 1."""
    with evaluated(branch):
        answers = torch.cat([branch.after_stem(part).argmax(1) for part in judged_on.stemmed.split(batch)])
    return float((answers == judged_on.labels).double().mean())
