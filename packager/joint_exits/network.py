"""A copy of a model with exits: the blocks up to the last exit learn, those behind it stay the model's own.

Source: the hybrid and cascade papers train exits and backbone together (HI, §3.2; Kaya, Hong and Dumitras,
"Shallow-Deep Networks", ICML 2019, §5); a copy leaves the developer's network as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn

from packager.branch_zoo.modules import build_branch
from packager.branch_zoo.self_merge import exit_of
from packager.branch_zoo.specs import parse
from packager.errors import PackagingError, WeightsError
from packager.inputs.weights import BranchWeights
from packager.supernet.blocks.streams import several
from packager.supernet.blocks.trainable import count_macs
from packager.supernet.expansion import TrainableExit
from packager.tracing.traced_model import TracedModel, tensors_of

PREFIX = "joint-"  # of weights' names beside those of branches
_TRUNK = f"{PREFIX}trunk."
_EXIT = re.compile(rf"{PREFIX}x(\d{{1,6}})-([^.]+)\.(.+)")
_FIRST, _LAST = 1 / 3, 2 / 3  # of the work: exits before answer few samples, exits behind save little
_STRUCTURES = ("separable3x2-p2h256", "none-p1h256")  # by default the first that fits


@dataclass(frozen=True)
class JointNetwork:
    """The copy, cut into blocks, and its exits in the order of their cut points."""

    traced: TracedModel
    exits: tuple[TrainableExit, ...]

    @property
    def module(self) -> nn.Module:
        """The copy as a whole, of whose layers the blocks are made."""
        return self.traced.whole

    @property
    def learned(self) -> tuple[nn.Module, ...]:
        """The blocks up to the last exit, which learn."""
        return self.traced.blocks[: self.exits[-1].position]

    def answers(self, images: torch.Tensor) -> Iterator[torch.Tensor]:
        """Logits [n, classes] of each exit in order, then of the end, for ``images`` [n, *input]."""
        live = images
        for number, block in enumerate(self.traced.blocks, start=1):
            (live,) = tensors_of([block(live)])
            for exit_ in self.exits:
                if exit_.position == number:
                    yield exit_.module(live)
        yield live

    def difference(self, original: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The learned weights by name: those of exits, and of the trunk those that differ, less the original's."""
        tensors = {f"{PREFIX}{one.id}.{key}": value for one in self.exits for key, value in _state(one.module)}
        for key, value in _state(self.module):
            if value.is_floating_point() and not torch.equal(value, original[key]):
                tensors[f"{_TRUNK}{key}"] = value - original[key]
        return {name: value.detach().contiguous() for name, value in tensors.items()}

    def learn(self, given: BranchWeights) -> None:
        """Take the weights that ``difference`` returned, for exits of these cut points and structures.

        Raises:
            WeightsError: the trunk's weights have other names or shapes.
        """
        state = self.module.state_dict()
        for name, value in given.items():
            if name.startswith(_TRUNK):
                key = name.removeprefix(_TRUNK)
                if key not in state or state[key].shape != value.shape:
                    raise WeightsError(f"the weights of joint exits are of another model: {key[:80]}")
                state[key] = state[key] + value.to(state[key].dtype)
        self.module.load_state_dict(state)


def with_new_exits(traced: TracedModel, *, count: int, structures: Sequence[str], seed: int) -> JointNetwork:
    """Exits with weights from ``seed`` at up to ``count`` cut points between a third and two thirds of the work.

    Args:
        structures: names of the zoo's branches, one exit of each at every cut point; none: the first default that fits.

    Raises:
        PackagingError: no cut point there can have an exit.
    """
    exits = []
    for position in joint_positions(traced, count=count):
        built = [_built(traced, position, name, seed) for name in structures or _STRUCTURES]
        fitting = [one for one in built if one is not None]
        exits += fitting if structures else fitting[:1]
    if not exits:
        raise PackagingError(
            "no exit can learn with the model: no branch fits a cut point between a third and two thirds of its work",
            hint="set joint_exits to 0",
        )
    return JointNetwork(traced, tuple(exits))


def with_given_exits(traced: TracedModel, given: BranchWeights) -> JointNetwork:
    """The copy with what ``JointNetwork.difference`` returned.

    Raises:
        WeightsError: it belongs to another model.
    """
    states: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
    for name, value in given.items():
        found = _EXIT.fullmatch(name)
        if found is not None:
            states.setdefault((int(found[1]), found[2]), {})[found[3]] = value
        elif not name.startswith(_TRUNK):
            raise WeightsError(f"the branch weights name no joint exit: {name[:80]}")
    exits = []
    for (position, structure), state in sorted(states.items(), key=lambda item: item[0]):
        if position not in usable_positions(traced):
            raise WeightsError(f"the branch weights have a joint exit at cut point {position}, where there can be none")
        exits.append(exit_of(position, structure, state, traced.tensors[position].shape))
    if not exits:
        raise WeightsError("the branch weights have a trunk for joint exits but no exit")
    network = JointNetwork(traced, tuple(exits))
    network.learn(given)
    return network


def joint_positions(traced: TracedModel, *, count: int) -> tuple[int, ...]:
    """Up to ``count`` cut points from a third to two thirds of the work, evenly spaced by it."""
    macs = [count_macs(block, *_read_shapes(traced, index)) for index, block in enumerate(traced.blocks)]
    done = [0, *accumulate(macs)]
    free = list(usable_positions(traced))
    chosen: list[int] = []
    for number in range(count):
        share = _LAST if count == 1 else _FIRST + (_LAST - _FIRST) * number / (count - 1)
        left = [one for one in free if one not in chosen]
        if left:
            chosen.append(min(left, key=lambda one: abs(done[one] - share * done[-1])))
    return tuple(sorted(chosen))


def usable_positions(traced: TracedModel) -> tuple[int, ...]:
    """The cut points at which an exit may be: inner ones with one tensor of floats."""
    left_out = several(traced.cuts)
    inner = range(1, len(traced.blocks))
    return tuple(one for one in inner if one not in left_out and traced.tensors[one].dtype == "float32")


def _built(traced: TracedModel, position: int, name: str, seed: int) -> TrainableExit | None:
    spec, shape = parse(name), traced.tensors[position].shape
    if spec is None:
        raise PackagingError(f"there is no branch {name[:80]}", hint="docs/adr/0043 lists the names")
    module = build_branch(spec, shape, classes=traced.tensors[-1].size, seed=seed + position)
    if module is None:
        return None
    return TrainableExit(spec.exit_id(position), position, spec.name, module, count_macs(module, shape))


def _read_shapes(traced: TracedModel, index: int) -> list[tuple[int, ...]]:
    return [spec.shape for position in traced.read_by(index) for spec in traced.cuts[position]]


def _state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.state_dict().items()
