"""Fits the last linear map of a block to the teacher's features at the block's end, by ridge regression.

The rest of the block is unchanged. With y = gain · z + rest, the target of gain · z is the teacher's feature minus the
rest, and z is linear in the layer's input: one least-squares problem per output channel, all with the same matrix.
Behind a rectifier, a zero of the teacher only implies v <= 0: the target there is min(v, 0) with the current v, in a
few iterations (as in He, Zhang and Sun, "Channel pruning for accelerating very deep neural networks", 2017).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from packager.fitting.features import BATCH
from packager.fitting.last_map import LastMap, before_rectifier
from packager.supernet.blocks.trainable import evaluated

ROWS_FLOATS = 12_000_000  # at most so many numbers of rows are held: 48 MB
MOST_ROWS = 16_384
_MOST_INPUTS = 4_608  # of the layer: beyond, the matrix alone takes over 170 MB
_RIDGES = (1e-4, 1e-2, 1e-1)  # of the mean of the matrix's diagonal; the best on rows that were not fitted is taken
_HELD_OUT = 8  # every 8th row chooses the ridge
_ROUNDS = 3
_LEAST_GAIN = 1e-6


@dataclass(frozen=True)
class Rows:
    """Rows of the regression: layer inputs [rows, inputs], rest of v, the teacher's y, and v [rows, channels]."""

    read: torch.Tensor
    rest: torch.Tensor
    target: torch.Tensor


def rows_for(layer: nn.Module) -> int:
    """The number of rows for fitting ``layer``."""
    inputs, outputs = _inputs(layer), layer.weight.shape[0]
    return min(MOST_ROWS, ROWS_FLOATS // (inputs + 2 * int(outputs)))


def refitted(
    module: nn.Module,
    found: LastMap,
    features: torch.Tensor,
    target: torch.Tensor,
    *,
    seed: int,
    counted: torch.Tensor | None = None,
) -> nn.Module | None:
    """A copy of ``module`` whose layer ``found`` is fitted: ``features`` [count, *start] → ``target`` [count, *end].

    None if the layer has too many inputs or they are not finite. ``seed``: for drawing positions. ``counted`` [count,
    …], without the layer's channels: the positions to draw from; all by default.
    """
    made = copy.deepcopy(module)
    layer = made.get_submodule(found.layer)
    if _inputs(layer) > _MOST_INPUTS:
        return None
    rows = _collected(made, found, features, target, seed=seed, counted=counted)
    norm = made.get_submodule(found.norm) if found.norm is not None else None
    centred = norm is not None or layer.bias is not None
    solution = solved(rows, centred=centred, rectified=found.rectified)
    if solution is None:
        return None
    weight, bias = solution
    with torch.no_grad():
        if norm is not None:
            _put_with_norm(layer, norm, rows.read, weight, bias)
        else:
            _put(layer, found.gain, weight, bias)
    return made


def _inputs(layer: nn.Module) -> int:
    return int(layer.weight[0].numel())


def _collected(
    module: nn.Module,
    found: LastMap,
    features: torch.Tensor,
    target: torch.Tensor,
    *,
    seed: int,
    counted: torch.Tensor | None,
) -> Rows:
    """Rows at random positions, equally from all samples; of those ``counted``, if given."""
    layer = module.get_submodule(found.layer)
    seen: dict[str, torch.Tensor] = {}
    hook = layer.register_forward_hook(
        lambda layer, inputs, output: seen.update(read=inputs[0].detach().clone(), z=output.detach().clone())
    )
    random = torch.Generator().manual_seed(seed)
    wanted = rows_for(layer)
    parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    try:
        for first in range(0, len(features), BATCH):
            batch = features[first : first + BATCH]
            with evaluated(module):
                y = module(batch)
            read, z = seen["read"], seen["z"]
            v = before_rectifier(module, found, batch, z, y)
            own = slice(first, first + BATCH)
            every = torch.arange(_positions(layer, z)) if counted is None else counted[own].flatten().nonzero()[:, 0]
            drawn = every[torch.randperm(len(every), generator=random)]
            chosen = drawn[: max(1, round(wanted / len(features) * len(batch)))]
            parts.append(_drawn(layer, found, read, z, v, target[own], chosen))
    finally:
        hook.remove()
    return Rows(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _positions(layer: nn.Module, z: torch.Tensor) -> int:
    return z.numel() // int(layer.weight.shape[0])


def _drawn(
    layer: nn.Module,
    found: LastMap,
    read: torch.Tensor,
    z: torch.Tensor,
    v: torch.Tensor,
    target: torch.Tensor,
    chosen: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Layer inputs, rest of v, and the teacher's y at the positions ``chosen``."""
    axis = 1 if isinstance(layer, nn.Conv2d) or found.channels_last else v.dim() - 1

    def flat(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.movedim(axis, -1).flatten(0, -2)[chosen]

    rest = flat(v) - found.gain * flat(found.aligned(z)) - found.offset
    return _read_rows(layer, read, z, chosen), rest, flat(target)


def _read_rows(layer: nn.Module, read: torch.Tensor, z: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Layer inputs at the ``chosen`` positions of z: [chosen, inputs]."""
    if not isinstance(layer, nn.Conv2d):
        return read.flatten(0, -2)[chosen]
    if layer.kernel_size == (1, 1) and layer.padding == (0, 0):
        return read[:, :, :: layer.stride[0], :: layer.stride[1]].movedim(1, -1).flatten(0, 2)[chosen]
    height, width = z.shape[2:]
    image, position = chosen // (height * width), chosen % (height * width)
    rows = torch.empty(len(chosen), _inputs(layer))
    for index in range(len(read)):  # one image at a time: unfolding multiplies memory by kernel²
        mine = image == index
        unfolded = functional.unfold(
            read[index : index + 1],
            layer.kernel_size,
            dilation=layer.dilation,
            padding=layer.padding,
            stride=layer.stride,
        )
        rows[mine] = unfolded[0].T[position[mine]]
    return rows


def solved(rows: Rows, *, centred: bool, rectified: bool) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Weights [channels, inputs] and biases [channels] of gain · z, in float64; None if rows are not finite."""
    judges = torch.zeros(len(rows.read), dtype=torch.bool)
    judges[::_HELD_OUT] = len(rows.read) >= 2 * _HELD_OUT
    problem = Ridge(rows.read[~judges], centred=centred)
    aim = rows.target - rows.rest
    first = problem.moments(aim[~judges])
    best: tuple[float, torch.Tensor, torch.Tensor] | None = None
    for ridge in _RIDGES:
        factor = problem.factor(ridge)
        if factor is None:
            continue
        moments = first
        for turn in range(_ROUNDS if rectified else 1):
            weight, bias = problem.solve(factor, moments)
            made = rows.read @ weight.T.float() + bias.float()
            if rectified and turn < _ROUNDS - 1:
                off = rows.target <= 0
                moments = problem.moments(torch.where(off, (made + rows.rest).clamp_max(0) - rows.rest, aim)[~judges])
        answer = made + rows.rest
        seen = judges if bool(judges.any()) else ~judges
        error = ((answer.clamp_min(0) if rectified else answer) - rows.target)[seen].square().mean().item()
        if best is None or error < best[0]:
            best = (error, weight, bias)
    return best and (best[1], best[2])


class Ridge:
    """Normal equations of the rows, accumulated in float64."""

    def __init__(self, read: torch.Tensor, *, centred: bool) -> None:
        self._read = read
        self._mean = read.double().mean(0) if centred else torch.zeros(read.shape[1], dtype=torch.float64)
        self._centred = centred
        self._matrix = torch.zeros(read.shape[1], read.shape[1], dtype=torch.float64)
        for part in read.split(2048):
            shifted = part.double() - self._mean
            self._matrix.addmm_(shifted.T, shifted)

    def factor(self, ridge: float) -> torch.Tensor | None:
        """The Cholesky factor after adding ``ridge`` times the diagonal's mean to the diagonal; None if it fails."""
        added = max(ridge * float(self._matrix.diagonal().mean()), 1e-12)
        ridged = self._matrix + added * torch.eye(len(self._matrix), dtype=torch.float64)
        factor, failed = torch.linalg.cholesky_ex(ridged)
        return None if failed.item() else factor

    def moments(self, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Products with a ``target`` [rows, channels], and its centre: what ``solve`` needs, whatever the ridge."""
        centre = target.double().mean(0) if self._centred else torch.zeros(target.shape[1], dtype=torch.float64)
        right = torch.zeros(self._read.shape[1], target.shape[1], dtype=torch.float64)
        for part, aim in zip(self._read.split(2048), target.split(2048), strict=True):
            right.addmm_((part.double() - self._mean).T, aim.double() - centre)
        return right, centre

    def solve(
        self, factor: torch.Tensor, moments: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and biases for the target of ``moments``."""
        right, centre = moments
        weight = torch.cholesky_solve(right, factor).T
        return weight, centre - weight @ self._mean


def _put(layer: nn.Module, gain: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Write the weights of gain · z into the layer; channels that do not reach the output are unchanged."""
    usable = gain.abs() > _LEAST_GAIN
    scale = torch.where(usable, gain, 1.0).double()
    shaped = (weight / scale[:, None]).view(layer.weight.shape).to(layer.weight.dtype)
    layer.weight[usable] = shaped[usable]
    if layer.bias is not None:
        layer.bias[usable] = (bias / scale).to(layer.bias.dtype)[usable]


def _put_with_norm(
    layer: nn.Module, norm: nn.Module, read: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> None:
    """Write the weights, at the norms of the layer's rows, and set batch-norm so both modes yield gain · z.

    Its statistics are those of the rows, so training mode starts from the same output as evaluation mode.
    """
    lengths = layer.weight.flatten(1).norm(dim=1).double()
    scale = lengths.clamp_min(1e-6) / weight.norm(dim=1).clamp_min(1e-12)
    made = (read @ weight.T.float()).double()
    mean, variance = made.mean(0), made.var(0, unbiased=False)
    own = layer.bias.double() if layer.bias is not None else torch.zeros_like(mean)
    layer.weight.copy_((weight * scale[:, None]).view(layer.weight.shape))
    norm.running_mean.copy_(mean * scale + own)
    norm.running_var.copy_(variance * scale.square())
    norm.weight.copy_((variance * scale.square() + norm.eps).sqrt() / scale)
    norm.bias.copy_(mean + bias)
