"""Modules without the wrappers that training puts around them: torch.compile, data parallel, weight averages."""

from __future__ import annotations

import torch
from torch import nn

from packager.errors import ModelLoadError

# The attribute that holds the wrapped module, by the wrapper's class.
_INSIDE = {
    "OptimizedModule": "_orig_mod",  # torch.compile
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "AveragedModel": "module",
    "EMAModel": "module",
    "ModelEma": "module",  # timm
    "ModelEmaV2": "module",
    "ModelEmaV3": "module",
}


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside its wrappers, and without those around its parts; attributes of a wrapper stay readable.

    ``module`` itself is changed where parts of it are wrapped. What ``module.compile()`` set is removed.

    Raises:
        ModelLoadError: a TorchScript module, which cannot be cut.
    """
    bare = _inside(module)
    for layer in list(bare.modules()):
        for name, part in list(layer.named_children()):
            if _inside(part) is not part:
                setattr(layer, name, _inside(part))
    for layer in bare.modules():
        if isinstance(layer, torch.jit.ScriptModule):
            raise ModelLoadError(
                f"the model holds a TorchScript module ({layer.original_name}), which cannot be cut into blocks",
                hint="return the nn.Module that was scripted or traced",
            )
        if layer._compiled_call_impl is not None:
            layer._compiled_call_impl = None
    return bare


def attribute_of(module: nn.Module, name: str) -> object:
    """An attribute of a module, or of what it wraps, outermost first; None if none has it."""
    while True:
        found = getattr(module, name, None)
        inner = _next(module)
        if found is not None or inner is None:
            return found
        module = inner


def _inside(module: nn.Module) -> nn.Module:
    inner = _next(module)
    return module if inner is None else _inside(inner)


def _next(module: nn.Module) -> nn.Module | None:
    """The module that a wrapper holds; None if ``module`` is no wrapper."""
    attribute = _INSIDE.get(type(module).__name__)
    inner = None if attribute is None else getattr(module, attribute, None)
    return inner if isinstance(inner, nn.Module) else None
