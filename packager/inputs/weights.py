"""Loads weights files into modules: only tensors, and only if every name and shape matches."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from packager.errors import WeightsError

SUFFIXES = (".safetensors", ".pth", ".pt")

_NAMED = 3  # keys named in a message
# Missing in some files, and without influence on outputs.
_COUNTERS = "num_batches_tracked"
# Auxiliary heads of GoogLeNet and Inception, used only in training; the models are built without them.
_AUXILIARY_HEADS = ("aux1.", "aux2.", "AuxLogits.")
# torchvision's published DenseNet files have the names from before 2018: norm.1 instead of norm1.
_OLD_DENSENET = re.compile(r"^(.*denselayer\d+\.(?:norm|conv))\.([12]\..*)$")


def load_weights(module: nn.Module, path: Path) -> None:
    """Load ``path`` into ``module``, all or nothing.

    Accepted: a state dict as ``.safetensors``, ``.pth`` or ``.pt``, also under the key ``state_dict`` and
    with the prefix ``module.`` of data-parallel training.

    Raises:
        WeightsError: the file is missing, unreadable, holds more than tensors, or its names or shapes are not
            those of the module (the first three are named).
    """
    state = read_state_dict(path)
    expected = module.state_dict()
    _check_names(state, expected, path=path)
    _check_shapes(state, expected, path=path)
    module.load_state_dict({name: state.get(name, value) for name, value in expected.items()})


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file by name, wrappers removed.

    Raises:
        WeightsError: as for ``load_weights``.
    """
    content = _read(path)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not content:
        raise WeightsError(f"{path} holds no state dict", hint=_SAVE_HINT)
    odd = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if odd:
        raise WeightsError(f"{path} holds entries that are no tensors: {_some(odd)}", hint=_SAVE_HINT)
    names = [str(name) for name in content]
    prefix = "module." if all(name.startswith("module.") for name in names) else ""
    return {
        _OLD_DENSENET.sub(r"\1\2", name.removeprefix(prefix)): value
        for name, value in zip(names, content.values(), strict=True)
    }


_SAVE_HINT = "save only the weights: torch.save(model.state_dict(), path)"


def _read(path: Path) -> object:
    if not path.is_file():
        raise WeightsError(f"there is no weights file {path}")
    if path.suffix not in SUFFIXES:
        raise WeightsError(f"{path} has an unknown suffix for weights", hint=f"known are {', '.join(SUFFIXES)}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # readers raise various errors on damaged bytes
        if "unsupported global" in str(error).lower():
            raise WeightsError(
                f"{path} holds Python objects besides tensors, which are refused", hint=_SAVE_HINT
            ) from error
        raise WeightsError(
            f"{path} cannot be read: truncated, damaged or not a weights file",
            hint="download or save it again",
        ) from error


def _check_names(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, path: Path) -> None:
    missing = [name for name in expected if name not in state and not name.endswith(_COUNTERS)]
    unexpected = [
        name
        for name in state
        if name not in expected and not name.endswith(_COUNTERS) and not name.startswith(_AUXILIARY_HEADS)
    ]
    problems = []
    if missing:
        problems.append(f"{len(missing)} keys are missing ({_some(missing)})")
    if unexpected:
        problems.append(f"{len(unexpected)} keys are unexpected ({_some(unexpected)})")
    if problems:
        raise WeightsError(
            f"{path} does not fit the model: {' and '.join(problems)}",
            hint="check that model and weights belong together",
        )


def _check_shapes(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, path: Path) -> None:
    wrong = [
        f"{name} is {list(state[name].shape)} instead of {list(value.shape)}"
        for name, value in expected.items()
        if name in state and state[name].shape != value.shape
    ]
    if wrong:
        raise WeightsError(
            f"{path} does not fit the model: {len(wrong)} tensors have other shapes ({_some(wrong)})",
            hint="check that model, number of classes and weights belong together",
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
