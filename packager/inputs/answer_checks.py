"""Checks of what everything after loading assumes of a model's answers, on noise, before anything is cut or trained.

One tensor of finite logits, the same for a sample whatever else is in its batch, and the same at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from packager.errors import ModelLoadError

NOISE_SAMPLES = 4
_GAINS = (0.3, 3.0)  # of noise: logits that happen to lie between 0 and 1 for one do not for another
_TOLERANCE = 1e-3  # of the spread of the answers: the order of summation differs between batch sizes
_UNIT = 1e-4  # of a sum of probabilities
_NAMED = 3
_TRANSPARENT = ("View", "Reshape", "Squeeze", "Unsqueeze", "Clone", "Alias", "Transpose", "Permute", "Select", "Slice")
_REMEDY = {
    "softmax": "end the model at the logits: leave the softmax out; devices apply it to the answers themselves",
    "sigmoid": "end the model at the logits, one per class of which one is right; several labels per image"
    " (--task multilabel) end there too; one output for two classes is no such classifier",
}


def require_one_tensor(answer: object, specification: str) -> None:
    """Refuse an answer that is not one tensor.

    Raises:
        ModelLoadError: names what it is instead, and how a classifier returns its logits alone.
    """
    if isinstance(answer, Tensor):
        return
    parts: Sequence[tuple[object, object]] = ()
    if isinstance(answer, Mapping):
        parts = tuple((f"[{key!r}]", value) for key, value in answer.items())
    elif isinstance(answer, Sequence) and not isinstance(answer, str):
        parts = tuple((f"[{position}]", value) for position, value in enumerate(answer))
    listed = ", ".join(f"{key} {_described(value)}" for key, value in parts[:_NAMED])
    first = next((key for key, value in parts if "logits" in str(key)), parts[0][0] if parts else "[0]")
    raise ModelLoadError(
        f"{specification} answers with a {type(answer).__name__}{f' of {len(parts)} ({listed})' if parts else ''},"
        " not with one tensor",
        hint=f"a classifier returns its logits alone: wrap it in a module whose forward returns model(x){first}",
    )


def check_answers(module: nn.Module, noise: Tensor, *, logits: bool = True) -> tuple[str, ...]:
    """Run the model on noise [NOISE_SAMPLES, *input] and refuse answers that nothing after loading could use.

    ``logits``: False for a task whose answers may be probabilities or anything else.

    Returns: notes on answers that can be used, but are not what is expected.

    Raises:
        ModelLoadError: the model does not take a batch, or its answers are not finite (names the first layer), differ
            from call to call or with the batch (names the layers), or are probabilities.
    """
    with torch.no_grad():
        answers, again = _answer(module, noise), _answer(module, noise)
        _require_finite(module, noise, answers)
        _require_same(answers, again, "from call to call", _in_training_mode(module))
        alone = torch.cat([_answer(module, noise[:1]), _answer(module, noise[1:])])
        _require_same(answers, alone, "with the other images of a batch", _of_batches(module))
        if answers.dim() < 2 or not logits:
            return ()
        gains = _GAINS if noise.is_floating_point() else ()
        spread = torch.cat([answers, *(_answer(module, gain * noise[:2]) for gain in gains)])
    return _require_logits(spread, lambda: _last_operator(module, noise[:1]))


def _answer(module: nn.Module, batch: Tensor) -> Tensor:
    try:
        return module(batch)
    except Exception as error:  # a model's forward may raise anything
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelLoadError(
            f"the model does not take a batch of {len(batch)} samples: {reason}",
            hint=f"its forward takes [batch, {', '.join(map(str, batch.shape[1:]))}] with any batch",
        ) from error


def _require_finite(module: nn.Module, noise: Tensor, answers: Tensor) -> None:
    if answers.isfinite().all():
        return
    raise ModelLoadError(
        f"the model answers noise with {'NaN' if answers.isnan().any() else 'infinity'}, first at layer"
        f" {_first_not_finite(module, noise) or 'of its output'}",
        hint="look for a division by zero, a root or logarithm of zero, or an overflow there",
    )


def _first_not_finite(module: nn.Module, noise: Tensor) -> str | None:
    """The first layer, in the order of computation, whose answer is not finite."""
    found: list[str] = []

    def watch(name: str) -> torch.utils.hooks.RemovableHandle:
        def look(_: nn.Module, __: object, answer: object) -> None:
            if not found and isinstance(answer, Tensor) and not answer.isfinite().all():
                found.append(name)

        return layers[name].register_forward_hook(look)

    layers = {name: layer for name, layer in module.named_modules() if name}
    handles = [watch(name) for name in layers]
    try:
        module(noise)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _require_same(answers: Tensor, others: Tensor, what: str, layers: Sequence[str]) -> None:
    spread = max(float(answers.abs().max()), 1e-6)
    if answers.shape == others.shape and float((answers - others).abs().max()) <= _TOLERANCE * spread:
        return
    if not layers:
        hint = "its forward mixes the images of a batch, decides by their values, or draws random numbers"
    else:
        hint = (
            "devices answer single images: batch normalisation needs running statistics (track_running_stats=True),"
            " dropout and noise have to end with model.eval() (training=self.training)"
        )
    named = f": {', '.join(layers[:_NAMED])}{' …' if len(layers) > _NAMED else ''}" if layers else ""
    raise ModelLoadError(
        f"the model's answer to an image differs {what}, also in evaluation mode{named}",
        hint=hint,
    )


def _of_batches(module: nn.Module) -> tuple[str, ...]:
    """Layers that compute with the statistics of a batch."""
    normalising = {
        name: layer for name, layer in module.named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)
    }
    return tuple(
        f"{name} has no running statistics" if layer.running_mean is None else f"{name} is in training mode"
        for name, layer in normalising.items()
        if layer.training or layer.running_mean is None
    )


def _in_training_mode(module: nn.Module) -> tuple[str, ...]:
    """Layers that ``eval()`` left in training mode."""
    return tuple(f"{name} is in training mode" for name, layer in module.named_modules() if name and layer.training)


def _last_operator(module: nn.Module, sample: Tensor) -> str:
    """The operator that makes the answer, as autograd names it, past those that only reshape; "" if unknown."""
    with torch.enable_grad():
        answer = module(sample.clone().requires_grad_() if sample.is_floating_point() else sample)
    step = answer.grad_fn
    while step is not None and step.name().startswith(_TRANSPARENT) and step.next_functions:
        step = step.next_functions[0][0]
    return "" if step is None else step.name()


def _require_logits(answers: Tensor, operator: Callable[[], str]) -> tuple[str, ...]:
    """Refuse probabilities: answers [n, classes, …] that sum to 1, or come out of a sigmoid."""
    wide = answers.double()
    bounded = bool((wide >= 0).all() and (wide <= 1).all())
    several = answers.shape[1] > 1
    if several and bounded and float((wide.sum(1) - 1).abs().max()) < _UNIT:
        _refuse("softmax")
    if bounded and operator().startswith(("Sigmoid", "Hardsigmoid")):
        _refuse("sigmoid")
    if several and float(wide.logsumexp(1).abs().max()) < _UNIT:
        return ("the model ends in a log-softmax: confidences are right, but logits are expected; leave it out",)
    return ()


def _refuse(kind: str) -> None:
    raise ModelLoadError(f"the model answers with probabilities (a {kind}), not with logits", hint=_REMEDY[kind])


def _described(value: object) -> str:
    return f"{list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
