"""A node of an ONNX graph, and the form of the functions that run one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from packager.inputs.onnx_model.values import Value

Inputs: TypeAlias = Sequence[Value | None]


@dataclass(frozen=True)
class OnnxNode:
    """``operator`` of ONNX's own set at ``opset``; "" among the inputs is one that is left out."""

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)


Operator: TypeAlias = Callable[[OnnxNode, Inputs], Value | tuple[Value, ...]]


def given(inputs: Inputs, index: int) -> Value | None:
    """Input ``index``, or None if absent."""
    return inputs[index] if index < len(inputs) else None


def present(inputs: Inputs) -> list[Value]:
    """The inputs that are not left out."""
    return [value for value in inputs if value is not None]
