"""Finds a model's tensors inside what training scripts save: under a key, behind prefixes, beside other entries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from packager.errors import WeightsError

_DEPTH = 2  # of keys in keys, such as {"model": {"state_dict": …}}
_COMPILED = "_orig_mod."  # torch.compile puts it before the names of every module that it wraps
_COUNTERS = frozenset({"n_averaged"})  # of torch.optim.swa_utils.AveragedModel; no part of a model
_BATCH_COUNTER = "num_batches_tracked"


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
    fitting = [one for one in candidates if expected is not None and _fits(one.tensors, expected)]
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
    wanted = [name for name in expected if not name.endswith(_BATCH_COUNTER)]
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
    counters = _COUNTERS & (set(tensors) - set(expected or ()))
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


def _fits(tensors: Mapping[str, Tensor], expected: Collection[str]) -> bool:
    return prefix_of(tensors, expected) is not None


def _equal(one: FoundState, other: FoundState) -> bool:
    return one.tensors.keys() == other.tensors.keys() and all(
        value.shape == other.tensors[name].shape and bool((value == other.tensors[name]).all())
        for name, value in one.tensors.items()
    )
