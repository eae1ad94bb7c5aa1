"""The graph of an exported program: its computing nodes and their inputs."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx
from torch.export.graph_signature import OutputKind

from packager.errors import TraceError

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
_SEVERAL_VIEWS = ("split", "split_with_sizes", "chunk", "unbind")  # a getitem takes one of them
_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_GRADIENTS_ARGS, _AUTOCAST_ARGS = 1, 4  # number of arguments before the region's graph
_AUTOCAST_ENABLED = 2


class ExportedGraph:
    """The computing nodes of an exported program, in order.

    ``taps``: outputs before the last one, ``output``; only of a backbone (``several_outputs``). ``constants``: tensors
    that do not depend on the input. ``changed``: tensors modified in place through views, and those views.
    """

    def __init__(self, program: torch.export.ExportedProgram, *, several_outputs: bool = False) -> None:
        signature = program.graph_signature
        count = len(signature.user_outputs)
        if len(signature.user_inputs) != 1 or count < 1 or (count > 1 and not several_outputs):
            raise TraceError(
                f"the model has {len(signature.user_inputs)} inputs and {count} outputs; one of each is supported",
                hint="wrap a backbone and its head in packager.inputs.two_stage.TwoStage(backbone, head)",
            )
        self.states: dict[str, torch.Tensor] = _states(program)
        graph = inline_regions(program)
        self.input = next(node for node in graph.nodes if node.name == signature.user_inputs[0])
        outputs = _user_outputs(graph, signature)
        tensors = [node for node in outputs if node and isinstance(node.meta.get("val"), torch.Tensor)]
        if len(tensors) < count:
            raise TraceError("the model's output is not a tensor")
        *self.taps, self.output = tensors
        self.nodes = [n for n in graph.nodes if n.op == "call_function" and (n.users or _changes_input(n))]
        _undo_inplace(self.nodes)
        _clone_what_views_change(self.nodes, self.input)
        self.changed = _changed_in_parts(self.nodes)
        self.constants = self._from_states_alone()

    def _from_states_alone(self) -> frozenset[fx.Node]:
        """Tensors that depend only on parameters, buffers and sizes, such as a position bias or a mask.

        They are not features: every block that needs one recomputes it.
        """
        found: set[fx.Node] = set()
        for node in self.nodes:
            if not is_size(node) and node not in self.changed and found.issuperset(self.tensor_inputs(node)):
                found.add(node)
        return frozenset(found)

    def tensor_inputs(self, node: fx.Node) -> list[fx.Node]:
        """Inputs that are activations: neither parameters nor symbolic sizes."""
        return [n for n in node.all_input_nodes if n.name not in self.states and not is_size(n)]


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


def is_size(node: fx.Node) -> bool:
    """True if a node's value is a number, such as a symbolic size."""
    value = node.meta.get("val")
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)


def _changes_input(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _user_outputs(graph: fx.Graph, signature: torch.export.ExportGraphSignature) -> list[fx.Node | None]:
    """The model's outputs, in order; None for those that are not nodes, such as numbers."""
    (results,) = graph.output_node().args
    assert isinstance(results, tuple | list)
    kinds = [spec.kind for spec in signature.output_specs]
    found = [result for result, kind in zip(results, kinds, strict=True) if kind is OutputKind.USER_OUTPUT]
    return [result if isinstance(result, fx.Node) else None for result in found]


def _changed_in_parts(nodes: Sequence[fx.Node]) -> frozenset[fx.Node]:
    """Tensors that operators modify in place, with all of their views."""
    found: set[fx.Node] = set()
    for node in nodes:
        if _changes_input(node):
            source = _viewed(node.args[0])
            if isinstance(source, fx.Node):
                found |= {source, node}
    for node in nodes:
        if operator_name(node) in (*_VIEWS, *_SEVERAL_VIEWS) and node.args[0] in found:
            found.add(node)
    return frozenset(found)


def _viewed(source: object) -> object:
    """The tensor that a chain of views is of."""
    while isinstance(source, fx.Node) and operator_name(source) in (*_VIEWS, *_SEVERAL_VIEWS):
        source = source.args[0]
    return source


def _undo_inplace(nodes: Sequence[fx.Node]) -> None:
    """Replace in-place operators by functional ones, and redirect later readers of the tensor to the result.

    An operator that writes to a view of another tensor is kept.
    """
    order = {node: index for index, node in enumerate(nodes)}
    for node in nodes:
        packet = getattr(node.target, "overloadpacket", None)
        name = str(packet).removeprefix("aten.") if packet is not None else ""
        if not name.endswith("_") or name.startswith("_") or not hasattr(torch.ops.aten, name[:-1]):
            continue
        changed = node.args[0]
        assert isinstance(changed, fx.Node)
        if operator_name(changed) in _VIEWS:
            continue
        changed.replace_all_uses_with(node, delete_user_cb=lambda user, n=node: order.get(user, -1) > order[n])
        node.target = getattr(getattr(torch.ops.aten, name[:-1]), node.target._overloadname)


def _clone_what_views_change(nodes: list[fx.Node], entry: fx.Node) -> None:
    """Clone tensors before they are modified through views, since their original values are still needed.

    A block's input is another block's cached output, and autograd keeps the results of layers.
    """
    cloned: set[fx.Node] = set()
    for node in [node for node in nodes if _changes_input(node)]:
        source = _viewed(node.args[0])
        if source in cloned or not (source is entry or source in nodes):
            continue
        assert isinstance(source, fx.Node)
        with source.graph.inserting_after(source):
            copied = source.graph.call_function(torch.ops.aten.clone.default, (source,))
        copied.meta = {"val": source.meta["val"]}
        source.replace_all_uses_with(copied, delete_user_cb=lambda user, own=copied: user is not own)
        nodes.insert(nodes.index(source) + 1 if source in nodes else 0, copied)
        cloned.add(copied)


def operator_name(node: fx.Node) -> str:
    """The name without overload, such as ``conv2d``; for Python functions such as ``getitem`` their own."""
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet).removeprefix("aten.") if packet is not None else getattr(node.target, "__name__", "")


def inline_regions(program: torch.export.ExportedProgram) -> fx.Graph:
    """The graph of ``program`` with its regions inlined, so that it can be cut inside them.

    Linear attention is often computed under ``autocast(enabled=False)``. In evaluation such a region, or one under
    ``no_grad``, equals its operators. A region that enables autocast is kept.
    """
    graph, members = program.graph, dict(program.graph_module.named_modules())
    for node in list(graph.nodes):
        position = _region_position(node)
        if position is None:
            continue
        region = node.args[position]
        assert isinstance(region, fx.Node)
        _inline(node, members[str(region.target)], node.args[position + 1 :])
        graph.erase_node(node)
    return graph


def _region_position(node: fx.Node) -> int | None:
    """The index of the argument of ``node`` that is a region's graph; None if it is no region or must be kept."""
    if node.target is _GRADIENTS:
        return _GRADIENTS_ARGS
    if node.target is _AUTOCAST and not node.args[_AUTOCAST_ENABLED]:
        return _AUTOCAST_ARGS
    return None


def _inline(call: fx.Node, region: torch.nn.Module, given: tuple[fx.node.Argument, ...]) -> None:
    """Insert the operators of ``region`` before ``call``, and redirect readers of its results."""
    assert isinstance(region, fx.GraphModule)
    placed: dict[fx.Node, fx.node.Argument] = {}
    inputs = iter(given)
    for node in region.graph.nodes:
        if node.op == "placeholder":
            placed[node] = next(inputs)
        elif node.op == "output":
            _hand_out(call, [placed[result] for result in node.args[0]])
        else:
            with call.graph.inserting_before(call):
                placed[node] = call.graph.node_copy(node, lambda one: placed[one])


def _hand_out(call: fx.Node, results: list[fx.node.Argument]) -> None:
    for reader in list(call.users):
        assert reader.target is operator.getitem
        result = results[reader.args[1]]
        assert isinstance(result, fx.Node)
        reader.replace_all_uses_with(result)
        call.graph.erase_node(reader)
