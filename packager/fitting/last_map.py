"""Finds the last linear map of a block: a layer whose output enters the block's output channel by channel.

It is found by perturbation, not by graph analysis: if the layer's output z is changed by d, the block's output y must
change by y(z + d) - y(z) = gain · d, with one gain per channel, up to a final rectifier. Everything in between
(batch-norm, a sum with a shortcut, a scale per channel) then belongs to gain and rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from packager.supernet.blocks.trainable import evaluated

_SEED = 0
_TOLERANCE = 1e-3  # of the response's size
_LEAST_GAIN = 1e-6
_LEAST_SHARE = 0.02  # minimum share of a channel's positions that respond behind a rectifier


@dataclass(frozen=True)
class LastMap:
    """The layer, the batch-norm behind it (or None), and the relation of its output z to the block's output y.

    y = v, or y = max(v, 0) if ``rectified``, with v = gain · z + offset + rest. ``gain``, ``offset``: [channels]; the
    batch-norm contributes gain · z + offset to v, without one the offset is 0. ``channels_last``: z has its channels
    last, y at dimension 1.
    """

    layer: str
    norm: str | None
    gain: torch.Tensor
    offset: torch.Tensor
    rectified: bool
    channels_last: bool

    def aligned(self, z: torch.Tensor) -> torch.Tensor:
        """z, or a tensor of its shape, in the layout of y."""
        return z.movedim(-1, 1) if self.channels_last else z


def last_map(module: nn.Module, features: torch.Tensor) -> LastMap | None:
    """The last linear map of ``module``, found on ``features`` [batch, *start shape]; None if there is none."""
    calls = outputs_of(module, features, _is_linear)
    with evaluated(module):
        output = module(features)
    for name, outputs in reversed(calls.items()):
        if len(outputs) == 1 and (found := _follows(module, name, features, outputs[0], output)) is not None:
            return found
    return None


def outputs_of(
    module: nn.Module, features: torch.Tensor, wanted: Callable[[nn.Module], bool]
) -> dict[str, list[torch.Tensor]]:
    """Outputs of each layer that is ``wanted``, by name, in order of the calls."""
    given: dict[str, list[torch.Tensor]] = {}

    def noting(name: str) -> Callable[..., None]:
        return lambda layer, inputs, output: given.setdefault(name, []).append(output.clone())

    hooks = [layer.register_forward_hook(noting(name)) for name, layer in module.named_modules() if wanted(layer)]
    try:
        with evaluated(module):
            module(features)
    finally:
        for hook in hooks:
            hook.remove()
    return given


def _is_linear(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return isinstance(layer, nn.Linear)


def _follows(module: nn.Module, name: str, features: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> LastMap | None:
    """The map at the layer ``name`` if the block's output is linear in it channel by channel, else None."""
    linear = isinstance(module.get_submodule(name), nn.Linear)
    channels_last = linear and y.dim() == z.dim() > 2 and y.shape != z.shape and z.movedim(-1, 1).shape == y.shape
    if not channels_last and y.shape != z.shape:
        return None
    axis = -1 if linear and not channels_last else 1
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(_SEED)) * z.std().clamp_min(1e-3)
    disturbed = disturbed_output(module, name, features, noise)
    d, change = (
        t.movedim(axis, 0).flatten(1) for t in (noise.movedim(-1, 1) if channels_last else noise, disturbed - y)
    )
    rectified = bool((y >= 0).all() and (disturbed >= 0).all())
    alive = (
        ((y > 0) & (disturbed > 0)).movedim(axis, 0).flatten(1) if rectified else torch.ones_like(d, dtype=torch.bool)
    )
    gain = (d * change * alive).sum(1) / (d.square() * alive).sum(1).clamp_min(1e-12)
    gain = torch.where(alive.float().mean(1) > _LEAST_SHARE, gain, 0.0)
    wrong = ((change - gain[:, None] * d) * alive)[gain != 0].abs().max() if (gain != 0).any() else None
    if wrong is None or wrong > _TOLERANCE * change.abs().max() or gain.abs().max() < _LEAST_GAIN:
        return None
    norm = _norm_behind(module, name, features)
    offset = torch.zeros_like(gain) if norm is None else _offset(module.get_submodule(norm), gain)
    if offset is None:
        return None
    found = LastMap(name, norm, gain, offset, rectified, channels_last)
    if rectified and not _is_rectifier(module, found, features, z, y):
        return None
    return found


def _offset(norm: nn.Module, gain: torch.Tensor) -> torch.Tensor | None:
    """The batch-norm's offset to gain · z per channel; None if its output is scaled again."""
    slope = norm.weight / (norm.running_var + norm.eps).sqrt()
    if ((slope - gain).abs() > 1e-2 * gain.abs().max())[gain != 0].any():
        return None
    return (norm.bias - slope * norm.running_mean).detach()


def disturbed_output(module: nn.Module, name: str, features: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """The output of ``module`` with ``by`` added to the output of its layer ``name``."""
    hook = module.get_submodule(name).register_forward_hook(lambda layer, inputs, output: output + by)
    try:
        with evaluated(module):
            return module(features)
    finally:
        hook.remove()


def before_rectifier(
    module: nn.Module, found: LastMap, features: torch.Tensor, z: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """v [like y]: the output with z raised until nothing is clipped, minus the contribution of the raise."""
    if not found.rectified:
        return y
    gain = found.gain
    usable = gain.abs() > _LEAST_GAIN
    height = 8.0 * float(y.abs().max()) + 8.0 * float((gain.abs().max() * z.abs()).max()) + 1.0
    axis = -1 if isinstance(module.get_submodule(found.layer), nn.Linear) else 1
    lift = torch.where(usable, height / torch.where(usable, gain, 1.0), 0.0)
    shape = [1] * z.dim()
    shape[axis] = -1
    lifted = disturbed_output(module, found.layer, features, lift.view(shape).expand(z.shape))
    raised = (torch.where(usable, height, 0.0)).view(shape).expand(z.shape)
    return lifted - found.aligned(raised)


def _is_rectifier(module: nn.Module, found: LastMap, features: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> bool:
    """True if y = max(v, 0). An upper bound, as of ReLU6, is detected by raising z."""
    v = before_rectifier(module, found, features, z, y)
    return bool((v.clamp_min(0) - y).abs().max() <= 1e-2 * y.abs().max().clamp_min(1e-6))


def _norm_behind(module: nn.Module, name: str, features: torch.Tensor) -> str | None:
    """The batch-norm that reads the output of the layer ``name``, if any."""
    given: list[torch.Tensor] = []
    takers: list[str] = []

    def taking(norm: str) -> Callable[..., None]:
        return lambda layer, inputs: takers.append(norm) if any(inputs[0] is tensor for tensor in given) else None

    hooks = [module.get_submodule(name).register_forward_hook(lambda layer, inputs, output: given.append(output))]
    for norm, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.affine and layer.track_running_stats:
            hooks.append(layer.register_forward_pre_hook(taking(norm)))
    try:
        with evaluated(module):
            module(features)
    finally:
        for hook in hooks:
            hook.remove()
    return takers[0] if takers else None
