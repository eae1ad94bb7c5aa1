"""Loads weights files into modules: only tensors, found inside what training scripts save, and only if all names and
shapes match.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from packager.errors import WeightsError

BranchWeights = Mapping[str, Tensor]
"""Tensors of added blocks and exits, as ``<block or exit id>.<name>``."""

SUFFIXES = (".safetensors", ".pth", ".pt")

_NAMED = 3  # keys named in a message
# Missing in some files, and without influence on outputs.
_COUNTERS = "num_batches_tracked"
_STATISTICS = ("running_mean", "running_var")
# Auxiliary heads of GoogLeNet and Inception, used only in training; the models are built without them.
_AUXILIARY_HEADS = ("aux1.", "aux2.", "AuxLogits.")
# torchvision's published DenseNet files have the names from before 2018: norm.1 instead of norm1.
_OLD_DENSENET = re.compile(r"^(.*denselayer\d+\.(?:norm|conv))\.([12]\..*)$")
_SAVE_HINT = "save only the weights: torch.save(model.state_dict(), path)"
_DEPTH = 2  # of keys in keys, such as {"model": {"state_dict": …}}
_COMPILED = "_orig_mod."  # torch.compile puts it before the names of every module that it wraps
_AVERAGE_COUNTERS = frozenset({"n_averaged"})  # of torch.optim.swa_utils.AveragedModel; no part of a model


def load_weights(module: nn.Module, path: Path) -> tuple[str, ...]:
    """Load ``path`` into ``module``, all or nothing; returns the keys and prefixes that were removed, for a person.

    Accepted: a state dict as ``.safetensors``, ``.pth`` or ``.pt``; also under a key such as ``model`` beside other
    entries, and behind prefixes such as ``module.`` (data-parallel, averaged), ``_orig_mod.`` (compiled) or ``model.``
    (Lightning), as long as one state dict alone can be meant.

    Raises:
        WeightsError: the file is missing, unreadable, holds several state dicts that could be meant or none, or its
            names or shapes are not those of the module (the first three are named), or it holds NaN or infinity.
    """
    expected = module.state_dict()
    found = _find(path, expected)
    state = found.tensors
    _check_names(state, expected, path=path)
    _check_shapes(state, expected, path=path)
    module.load_state_dict({name: state.get(name, value) for name, value in expected.items()})
    return found.removed


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file by name, wrappers removed.

    Raises:
        WeightsError: as for ``load_weights``.
    """
    return _find(path, None).tensors


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names and values."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(name.encode() + tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def require_finite(module: nn.Module) -> None:
    """Refuse weights that are not numbers. Buffers may hold infinity, as masks of attention do, but statistics not.

    Raises:
        WeightsError: a parameter or buffer holds NaN or infinity; names the first three.
    """
    parameters = dict(module.named_parameters())
    broken = []
    for name, value in module.state_dict().items():
        if not value.is_floating_point():
            continue
        strict = name in parameters or name.endswith(_STATISTICS)
        wrong = ~value.isfinite() if strict else value.isnan()
        if wrong.any():
            kind = "NaN" if value.isnan().any() else "infinity"
            broken.append(f"{name} ({kind} in {int(wrong.sum())} of {value.numel():,} values)")
    if broken:
        raise WeightsError(
            f"weights of the model are not numbers: {_some(broken)}",
            hint="the training diverged, or they overflowed in half precision: take an earlier checkpoint",
        )


def _find(path: Path, expected: Mapping[str, Tensor] | None) -> FoundState:
    """The state dict in a file; see ``find_state``."""
    content = _read(path)
    if not isinstance(content, Mapping) or not content:
        raise WeightsError(f"{path} holds no state dict", hint=_SAVE_HINT)
    try:
        found = find_state(content, expected)
    except WeightsError as error:
        raise WeightsError(f"{path}: {error}", hint=error.hint) from error
    if found is None:
        odd = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
        raise WeightsError(f"{path} holds entries that are no tensors: {_some(odd)}", hint=_SAVE_HINT)
    renamed = {_OLD_DENSENET.sub(r"\1\2", name): value for name, value in found.tensors.items()}
    return FoundState(renamed, found.removed)


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
            hint=_names_hint(state, expected),
        )


def _names_hint(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    prefix = prefix_of(expected, state)
    if prefix:
        return f"the model's own names begin with {prefix!r}: return the module inside it, whose names the file has"
    return "check that model and weights belong together"


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


@dataclass(frozen=True)
class FoundState:
    """Tensors by name, and what was removed to reach them: keys and prefixes, outermost first."""

    tensors: dict[str, Tensor]
    removed: tuple[str, ...] = ()


def find_state(content: Mapping[object, object], expected: Collection[str] | None = None) -> FoundState | None:
    """The one state dict in ``content``; None where there is none.

    Args:
        expected: names of the model's own tensors. With them, a state dict that has all of these under one prefix, as
            Lightning saves it, is found too. Without them only the prefixes of wrappers are removed.

    Raises:
        WeightsError: several different state dicts could be meant; the message names them.
    """
    candidates = [_bare(tensors, keys, expected) for keys, tensors in _state_dicts(content)]
    fitting = [one for one in candidates if expected is not None and prefix_of(one.tensors, expected) is not None]
    if not fitting:
        return max(candidates, key=lambda one: len(one.tensors), default=None)
    others = [one for one in fitting[1:] if not _equal(one, fitting[0])]
    if others:
        names = " and ".join(", ".join(one.removed) for one in (fitting[0], *others[:2]))
        raise WeightsError(
            f"several sets of weights could be meant: {names}",
            hint="save one of them alone, for example torch.save(torch.load(FILE)['model_ema'], 'weights.pth')",
        )
    return fitting[0]


def prefix_of(names: Collection[str], expected: Collection[str]) -> str | None:
    """The prefix under which ``names`` has all of ``expected``, "" if as they are; None if there is none or several.

    Counters of batch normalisation may be missing.
    """
    wanted = [name for name in expected if not name.endswith(_COUNTERS)]
    if not wanted:
        return None
    known, ending = set(names), wanted[0]
    prefixes = {name[: -len(ending)] for name in known if name == ending or name.endswith(f".{ending}")}
    whole = [prefix for prefix in prefixes if all(prefix + name in known for name in wanted)]
    return "" if "" in whole else whole[0] if len(whole) == 1 else None


def _state_dicts(
    content: Mapping[object, object], keys: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], Mapping[str, Tensor]]]:
    """The mappings of nothing but tensors in ``content``, with the keys that lead to them."""
    if content and all(isinstance(value, Tensor) for value in content.values()):
        return [(keys, {str(name): value for name, value in content.items() if isinstance(value, Tensor)})]
    if len(keys) == _DEPTH:
        return []
    inner = [(str(key), value) for key, value in content.items() if isinstance(value, Mapping)]
    return [found for key, value in inner for found in _state_dicts(value, (*keys, key))]


def _bare(tensors: Mapping[str, Tensor], keys: tuple[str, ...], expected: Collection[str] | None) -> FoundState:
    """Without the prefixes of wrappers and, with ``expected``, the one prefix before all of these names."""
    removed = [f"key {key!r}" for key in keys]
    counters = _AVERAGE_COUNTERS & (set(tensors) - set(expected or ()))
    found = {name: value for name, value in tensors.items() if name not in counters}
    if counters:
        removed.append(f"entry {min(counters)!r}")
    if any(_COMPILED in name for name in found):
        found = {name.replace(_COMPILED, ""): value for name, value in found.items()}
        removed.append(f"prefix {_COMPILED!r}")
    prefix = prefix_of(found, expected) if expected is not None else None
    if prefix is None and found and all(name.startswith("module.") for name in found):
        prefix = "module."
    if prefix:
        inside = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
        outside = len(found) - len(inside)
        removed.append(f"prefix {prefix!r}" + (f" with {outside} tensors outside it" if outside else ""))
        found = inside
    return FoundState(found, tuple(removed))


def _equal(one: FoundState, other: FoundState) -> bool:
    return one.tensors.keys() == other.tensors.keys() and all(
        value.shape == other.tensors[name].shape and bool((value == other.tensors[name]).all())
        for name, value in one.tensors.items()
    )
