"""Tracing a pretrained model to its cut points and to trainable original blocks (AdaptiveNet §4.1).

torch.export gives the graph; cut points are the positions where exactly one tensor is live, symbolic sizes left
out. Each block is rebuilt as an ``fx.GraphModule`` whose calls of torch.nn layers are the model's own modules, since an
exported graph has batch-norm and dropout frozen in evaluation mode and cannot be pruned.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn

from device_sdk.graph import TensorSpec
from packager.errors import TraceError

_EXAMPLE_BATCH = 4
_LEAF_MODULES = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._BatchNorm,
    nn.Linear,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.modules.dropout._DropoutNd,
)
# an anchor does the computing that a block is made of; what follows it up to the next anchor belongs to it while it is
# one of the tail operators, which inference engines fuse with it (AdaptiveNet §4.1, second principle)
_ANCHORS = ("conv", "linear", "matmul", "bmm", "addmm", "mm", "scaled_dot_product_attention", "einsum")
_TAIL = [
    "batch_norm",
    "relu",
    "relu_",
    "relu6",
    "hardtanh",
    "hardtanh_",
    "gelu",
    "silu",
    "silu_",
    "hardswish",
    "hardswish_",
    "hardsigmoid",
    "sigmoid",
    "tanh",
    "leaky_relu",
    "leaky_relu_",
    "elu",
    "mish",
    "prelu",
    "dropout",
    "dropout_",
    "add",
    "add_",
    "mul",
    "mul_",
    "max_pool2d",
]
_VIEWS = (
    "slice",
    "select",
    "view",
    "transpose",
    "permute",
    "unsqueeze",
    "squeeze",
    "expand",
    "narrow",
    "getitem",
)


@dataclass(frozen=True)
class TracedModel:
    """A model cut into original blocks: block k maps cut point k to k + 1.

    ``tensors[k]`` describes cut point k (names ``cut_k``), ``blocks[k]`` is trainable, ``whole`` is the model itself.
    """

    whole: nn.Module
    blocks: tuple[nn.Module, ...]
    tensors: tuple[TensorSpec, ...]

    @property
    def parameters(self) -> tuple[int, ...]:
        """Parameters of each block."""
        return tuple(parameter_count(block) for block in self.blocks)

    def features(self, batch: torch.Tensor) -> list[torch.Tensor]:
        """The tensors at all cut points, 0 to N, for ``batch`` [batch, *input]."""
        features = [batch]
        for block in self.blocks:
            features.append(block(features[-1]))
        return features


def parameter_count(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def trace(model: nn.Module, example: torch.Tensor, *, gamma: float = 0.0) -> TracedModel:
    """Cut ``model`` into blocks.

    1. export; 2. find the cut points; 3. join neighbours while a block has at most ``gamma`` · P0 parameters;
    4. rebuild every block from the model's own modules; 5. check that the blocks compute what the model computes.

    ``example`` is one prepared batch [batch, *input] of real samples.

    Raises:
        TraceError: the model cannot be exported (says where), has no cut point, or is not reproduced by its blocks.
    """
    model = _without_inplace_modules(model)
    program = _export(model, example)
    body = _Body(program)
    positions = _cut_positions(body)
    if not positions:
        raise TraceError(
            "the model has no cut point: nowhere between two layers is a single tensor live",
            hint="a chain of layers or residual blocks can be cut, parallel streams cannot",
        )
    bounds = _join_small(body, positions, gamma=gamma)
    blocks = tuple(_BlockBuilder(body, model, first, last).build() for first, last in itertools.pairwise(bounds))
    return _checked(model, blocks, example)


def _without_inplace_modules(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # cached features must survive the next block
    return model


def _export(model: nn.Module, example: torch.Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=65536)
    # 0 and 1 are specialised by torch.export, so the example has a batch of several samples
    example = example[:1].repeat(_EXAMPLE_BATCH, *[1] * (example.dim() - 1))
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
    except Exception as error:  # torch.export raises many unrelated types
        raise TraceError(
            f"the model cannot be traced: {_where(error)}",
            hint="torch.export must accept the model: no control flow that depends on data, one tensor in, one out",
        ) from error


def _where(error: Exception) -> str:
    """The first line that says something, and the model's own source line if torch names one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    source = [line for line in lines if line.startswith('File "') and "/torch/" not in line]
    return lines[0][:200] + (f" (at {source[-1][:160]})" if source else "")


class _Body:
    """The computing nodes of an exported program, in order, with what each needs to know about its inputs."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        signature = program.graph_signature
        if len(signature.user_inputs) != 1 or len(signature.user_outputs) != 1:
            raise TraceError(
                f"the model has {len(signature.user_inputs)} inputs and {len(signature.user_outputs)} outputs; "
                "one of each is supported"
            )
        self.states: dict[str, torch.Tensor] = _states(program)
        graph = program.graph
        by_name = {node.name: node for node in graph.nodes}
        self.input = by_name[signature.user_inputs[0]]
        self.output = by_name[signature.user_outputs[0]]
        self.nodes = [n for n in graph.nodes if n.op == "call_function" and (n.users or _changes_input(n))]
        _undo_inplace(self.nodes)
        if not isinstance(self.output.meta.get("val"), torch.Tensor):
            raise TraceError("the model's output is not a tensor")

    def tensor_inputs(self, node: fx.Node) -> list[fx.Node]:
        """Inputs that carry activations: neither parameters nor symbolic sizes."""
        return [n for n in node.all_input_nodes if n.name not in self.states and not _is_size(n)]


def _states(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    signature = program.graph_signature
    targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    states = {name: program.state_dict.get(target) for name, target in targets.items()}
    states = {
        name: tensor if tensor is not None else program.constants[targets[name]] for name, tensor in states.items()
    }
    for name, target in signature.inputs_to_lifted_tensor_constants.items():
        states[name] = program.constants[target]
    return states


def _is_size(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)


def _changes_input(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _undo_inplace(nodes: Sequence[fx.Node]) -> None:
    """Replace in-place operators by the functional ones; later readers of the changed tensor read the result.

    An operator that fills part of another tensor through a view stays as it is.
    """
    order = {node: index for index, node in enumerate(nodes)}
    for node in nodes:
        packet = getattr(node.target, "overloadpacket", None)
        name = str(packet).removeprefix("aten.") if packet is not None else ""
        if not name.endswith("_") or name.startswith("_") or not hasattr(torch.ops.aten, name[:-1]):
            continue
        changed = node.args[0]
        assert isinstance(changed, fx.Node)
        if _operator(changed) in _VIEWS:
            continue
        changed.replace_all_uses_with(node, delete_user_cb=lambda user, n=node: order.get(user, -1) > order[n])
        node.target = getattr(getattr(torch.ops.aten, name[:-1]), node.target._overloadname)


def _operator(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(packet).removeprefix("aten.")


def _is_anchor(node: fx.Node) -> bool:
    return any(word in _operator(node) for word in _ANCHORS)


def _cut_positions(body: _Body) -> list[int]:
    """Indices of the nodes whose output is a cut point, the model's output left out.

    After node k exactly one tensor is live, there is an anchor since the last cut and one to come, and the tail of
    the last anchor is complete.
    """
    singles = _single_live_positions(body)
    anchors = [index for index, node in enumerate(body.nodes) if _is_anchor(node)]
    positions: list[int] = []
    for anchor, following in itertools.pairwise(anchors):
        candidates = [index for index in singles if anchor <= index < following]
        if not candidates:
            continue
        best = candidates[0]
        for index in candidates[1:]:
            if any(_operator(body.nodes[k]) not in _TAIL for k in range(best + 1, index + 1)):
                break
            best = index
        positions.append(best)
    return positions


def _single_live_positions(body: _Body) -> list[int]:
    """Nodes after which their own output is the only live tensor."""
    last_use: dict[fx.Node, int] = {body.output: len(body.nodes)}
    for index, node in enumerate(body.nodes):
        for source in body.tensor_inputs(node):
            last_use[source] = max(last_use.get(source, -1), index)
    live: set[fx.Node] = {body.input}
    singles: list[int] = []
    for index, node in enumerate(body.nodes):
        if not _is_size(node):
            live.add(node)
        live = {n for n in live if last_use.get(n, -1) > index}
        if live == {node} and isinstance(node.meta.get("val"), torch.Tensor):
            singles.append(index)
    return singles


def _join_small(body: _Body, positions: Sequence[int], *, gamma: float) -> list[int]:
    """Bounds of the blocks: neighbours are joined while together they have at most gamma · P0 parameters (§4.1)."""
    counted: set[str] = set()
    sizes: list[int] = []
    starts = [-1, *positions]
    ends = [*positions, len(body.nodes) - 1]
    for start, end in zip(starts, ends, strict=True):
        names = {n.name for k in range(start + 1, end + 1) for n in body.nodes[k].all_input_nodes} & body.states.keys()
        sizes.append(sum(body.states[name].numel() for name in names - counted))
        counted |= names
    limit = gamma * sum(sizes)
    bounds, current = [-1], sizes[0]
    for position, size in zip(positions, sizes[1:], strict=True):
        if current + size > limit:
            bounds.append(position)
            current = 0
        current += size
    return [*bounds, len(body.nodes) - 1]


class _BlockBuilder:
    """Rebuilds the nodes of one block as a GraphModule with the model's own torch.nn layers in it."""

    def __init__(self, body: _Body, model: nn.Module, first: int, last: int) -> None:
        self._body = body
        self._model = model
        self._nodes = body.nodes[first + 1 : last + 1]
        self._entry = body.nodes[first] if first >= 0 else body.input
        self._result = body.nodes[last] if last < len(body.nodes) - 1 else body.output
        self._inside = set(self._nodes)
        self._graph = fx.Graph()
        self._root = nn.Module()
        self._new: dict[fx.Node, fx.Node] = {}
        self._members: dict[str, str] = {}

    def build(self) -> fx.GraphModule:
        """The block as a module: one tensor in, one tensor out."""
        self._new[self._entry] = self._graph.placeholder("features")
        layers = self._layer_calls()
        for node in self._nodes:
            layer = layers.get(node)
            if layer is not None:
                self._new[node] = self._call_layer(layer, node)
            elif not _is_size(node):
                self._copy(node)
        self._graph.output(self._new[self._result])
        module = fx.GraphModule(self._root, self._graph)
        module.graph.eliminate_dead_code()
        module.recompile()
        module.delete_all_unused_submodules()
        return module.eval()

    def _layer_calls(self) -> dict[fx.Node, str]:
        """Nodes that are the whole call of one known layer, with the path of that layer in the model."""
        calls: dict[tuple[str, str], list[fx.Node]] = {}
        for node in self._nodes:
            stack = list((node.meta.get("nn_module_stack") or {}).items())
            if stack and not _is_size(node):
                calls.setdefault((stack[-1][0], stack[-1][1][0]), []).append(node)
        found = {}
        for (_, path), nodes in calls.items():
            try:
                layer = self._model.get_submodule(path) if path else None
            except AttributeError:
                continue
            if len(nodes) == 1 and isinstance(layer, _LEAF_MODULES):
                found[nodes[0]] = path
        return found

    def _call_layer(self, path: str, node: fx.Node) -> fx.Node:
        name = self._member(path, self._model.get_submodule(path))
        return self._graph.call_module(name, (self._new[self._body.tensor_inputs(node)[0]],))

    def _copy(self, node: fx.Node) -> None:
        self._new[node] = self._graph.node_copy(node, self._resolve)
        self._new[node].meta = {}

    def _resolve(self, node: fx.Node) -> fx.Node:
        if node not in self._new:
            if node.name in self._body.states:
                self._new[node] = self._get_state(node.name)
            elif _is_size(node):
                self._new[node] = self._recompute_size(node)
            else:
                raise TraceError(f"the operator at {node.name} reaches over a cut point")
        return self._new[node]

    def _recompute_size(self, node: fx.Node) -> fx.Node:
        """A symbolic size from the block's own input instead of from an earlier tensor."""
        wanted = node.meta["val"]
        for axis, extent in enumerate(self._entry.meta["val"].shape):
            if isinstance(extent, torch.SymInt) and str(extent) == str(wanted):
                return self._graph.call_function(torch.ops.aten.sym_size.int, (self._new[self._entry], axis))
        copied = self._graph.node_copy(node, self._resolve)
        copied.meta = {}
        return copied

    def _get_state(self, name: str) -> fx.Node:
        tensor = self._body.states[name]
        member = name.removeprefix("p_").removeprefix("b_")
        if member not in self._root._parameters and member not in self._root._buffers:
            if isinstance(tensor, nn.Parameter):
                self._root.register_parameter(member, tensor)
            else:
                self._root.register_buffer(member, tensor)
        return self._graph.get_attr(member)

    def _member(self, path: str, module: nn.Module) -> str:
        name = path.replace(".", "_")
        if name not in self._root._modules:
            self._root.add_module(name, module)
        return name


def _checked(model: nn.Module, blocks: Iterable[nn.Module], example: torch.Tensor) -> TracedModel:
    """Describe the cut points and make sure that the blocks reproduce the model at several batch sizes."""
    blocks = tuple(blocks)
    traced = TracedModel(whole=model, blocks=blocks, tensors=())
    with torch.no_grad():
        for batch in (1, 3):
            samples = example[:1].repeat(batch, *[1] * (example.dim() - 1))
            try:
                features = traced.features(samples)
            except Exception as error:
                raise TraceError(f"the cut model does not run at batch {batch}: {_where(error)}") from error
            expected = model(samples)
            difference = (features[-1] - expected).abs().max().item()
            if not difference <= 1e-4 * max(1.0, expected.abs().max().item()):
                raise TraceError(f"the cut model differs from the model by {difference:.2g} at batch {batch}")
        features = traced.features(example)
    tensors = tuple(_describe(index, feature) for index, feature in enumerate(features))
    return TracedModel(whole=model, blocks=blocks, tensors=tensors)


def _describe(index: int, feature: torch.Tensor) -> TensorSpec:
    low, high = torch.quantile(feature.flatten()[:1_000_000].float(), torch.tensor([0.01, 0.99])).tolist()
    return TensorSpec(
        name=f"cut_{index}",
        shape=tuple(feature.shape[1:]),
        dtype=str(feature.dtype).removeprefix("torch."),
        low=round(low, 4),
        high=round(max(high, low + 1e-3), 4),
    )
