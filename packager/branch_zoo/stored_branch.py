"""A branch from its name and its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from packager.branch_zoo.modules import build_branch
from packager.branch_zoo.self_merge import hidden_widths, resized
from packager.branch_zoo.specs import Shape, parse
from packager.errors import WeightsError
from packager.supernet.expansion import TrainableExit, count_macs

_HINT = "the model and its cut points must be as when the branches were trained"
_LINEAR = re.compile(r"dense\.(\d{1,3})\.weight")


def exit_of(position: int, name: str, state: Mapping[str, torch.Tensor], shape: Shape) -> TrainableExit:
    """The exit at cut point ``position`` of this ``shape`` with the branch ``name`` of the zoo and its weights.

    A self-merged branch has the hidden widths of its weights.

    Raises:
        WeightsError: the weights belong to another branch, or the shape suits none.
    """
    spec, outputs = parse(name), _outputs(state)
    branch = build_branch(spec, shape, classes=outputs[-1], seed=0) if spec is not None and outputs else None
    if spec is None or branch is None:
        raise WeightsError(f"there is no branch {name[:80]} at cut point {position}", hint=_HINT)
    if spec.merged and len(outputs) - 1 == len(hidden_widths(branch)):
        branch = resized(branch, outputs[:-1])
    try:
        branch.load_state_dict(dict(state))
    except RuntimeError as error:
        raise WeightsError(f"the weights of {spec.exit_id(position)} have other names or shapes", hint=_HINT) from error
    return TrainableExit(
        id=spec.exit_id(position), position=position, branch=spec.name, module=branch, macs=count_macs(branch, shape)
    )


def _outputs(state: Mapping[str, torch.Tensor]) -> list[int]:
    """Outputs of each fully connected layer, in order."""
    layers = {int(found[1]): len(v) for key, v in state.items() if (found := _LINEAR.fullmatch(key)) and v.dim() == 2}
    return [layers[index] for index in sorted(layers)]
