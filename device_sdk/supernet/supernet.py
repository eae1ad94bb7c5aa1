"""The supernet: the directed acyclic graph whose edges are the renditions of all blocks at every input size.

It holds one pretrained network, or several that share the input and the output: a family. The cut points of all members
are numbered together, so that every block leads to a higher number.

The input size is a dimension of the path: the graph has one copy of the inner cut points per input size, and all copies
share the input and the output. Algorithms on paths see nodes and edges only and need no notion of sizes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property

from device_sdk.errors import ManifestError, UsageError
from device_sdk.supernet.blocks import (
    DECODER,
    ENCODER,
    ITEM_BYTES,
    Block,
    CutPoint,
    Exit,
    InputSize,
    Member,
    Rendition,
    TensorSpec,
    free_axes,
)
from device_sdk.supernet.plan import (
    AnswerLocally,
    Ask,
    Cascade,
    Decider,
    Edge,
    ExitChoice,
    Plan,
    Split,
    Subnet,
    size_text,
)

_MOST_BITS = 8  # of a value on its way to a server


class Supernet:
    """The directed acyclic graph whose edges are the renditions of all blocks.

    ``members``: of a family, the largest first; none for a bundle of one network.

    Raises:
        ManifestError: the parts do not make a graph on which the originals of each member lead from 0 to N.
    """

    def __init__(
        self,
        cut_points: Iterable[CutPoint],
        blocks: Iterable[Block],
        exits: Iterable[Exit] = (),
        input_sizes: Iterable[InputSize] = (),
        members: Iterable[Member] = (),
    ) -> None:
        self.cut_points = tuple(cut_points)
        self.blocks = tuple(blocks)
        self.exits = tuple(exits)
        self.input_sizes = tuple(input_sizes)  # besides the model's own
        self.members = tuple(members)
        self._blocks_by_id = {block.id: block for block in self.blocks}
        self._exits_by_id = {exit_.id: exit_ for exit_ in self.exits}
        self._check()

    def _check(self) -> None:
        if [cut.index for cut in self.cut_points] != list(range(len(self.cut_points))):
            raise ManifestError("cut points are not numbered 0 to N without gaps")
        if self.output_index < 1:
            raise ManifestError("there is no cut point besides the input")
        if len(self._blocks_by_id) != len(self.blocks):
            raise ManifestError("two blocks have the same id")
        for cut in self.cut_points:
            self._check_tensors(cut)
        self._check_originals()
        mandatory = [cut.index for cut in self.cut_points if cut.mandatory]
        for block in self.blocks:
            self._check_block(block, mandatory)
        if len(self._exits_by_id) != len(self.exits):
            raise ManifestError("two exits have the same id")
        for exit_ in self.exits:
            if not 0 < exit_.position < self.output_index:
                raise ManifestError(
                    f"exit {exit_.id} is at cut point {exit_.position}; exits lie between 0 and {self.output_index}"
                )
            _check_renditions(f"exit {exit_.id}", exit_.renditions)
        self._check_input_sizes()

    def _check_originals(self) -> None:
        """Each member's originals lead from 0 to N; every other cut point is a bottleneck, or of just one member."""
        originals = [block for block in self.blocks if block.is_original]
        if len({one.name for one in self.members}) < len(self.members):
            raise ManifestError("two members have the same name")
        ids = [block.id for block in originals]
        listed = [name for one in self.members for name in one.blocks] or ids
        if sorted(listed) != sorted(ids):
            raise ManifestError("the members do not list each original block once")
        passed = []
        for chain in self._chains:
            ends = [0, *(block.end for block in chain)]
            if [block.start for block in chain] != ends[:-1] or ends[-1] != self.output_index:
                raise ManifestError("the original blocks do not make one path from the input to the output")
            passed += ends[1:-1]
        if sorted([*passed, *self._decoders]) != list(range(1, self.output_index)):
            raise ManifestError("a cut point is no bottleneck and not one that just one member's original blocks pass")
        for block in self.blocks:
            if (block.kind == ENCODER) != (block.end in self._decoders) or (
                (block.kind == DECODER) != (block.start in self._decoders)
            ):
                raise ManifestError(f"block {block.id} is {block.kind}, but runs from {block.start} to {block.end}")
        kinds = [block.kind for block in self.blocks]
        if not kinds.count(ENCODER) == len(self._encoders) == kinds.count(DECODER) == len(self._decoders):
            raise ManifestError("a bottleneck has not just one encoder and one decoder")

    @cached_property
    def _chains(self) -> tuple[tuple[Block, ...], ...]:
        """The original blocks of each member, from the input on."""
        if not self.members:
            return (tuple(sorted((one for one in self.blocks if one.is_original), key=lambda one: one.start)),)
        return tuple(tuple(self.block(name) for name in one.blocks) for one in self.members)

    @cached_property
    def _encoders(self) -> dict[int, Block]:
        """The encoder that leads to each bottleneck."""
        return {block.end: block for block in self.blocks if block.kind == ENCODER}

    @cached_property
    def _decoders(self) -> dict[int, Block]:
        """The decoder that leads from each bottleneck."""
        return {block.start: block for block in self.blocks if block.kind == DECODER}

    @cached_property
    def _places(self) -> tuple[dict[int, int], ...]:
        """For each member, its cut points and the number of its originals that lead to each."""
        return tuple({0: 0} | {block.end: at for at, block in enumerate(chain, start=1)} for chain in self._chains)

    def original_stretches(self, start: int, end: int) -> tuple[tuple[Block, ...], ...]:
        """The original blocks that lead from one cut point to another: of one member; between input and output of all.

        Empty where no member passes both.
        """
        pairs = zip(self._chains, self._places, strict=True)
        return tuple(chain[at[start] : at[end]] for chain, at in pairs if start in at and end in at)

    def replaced(self, block: Block) -> int | None:
        """The number of originals that ``block`` replaces; None for one between two members."""
        stretches = self.original_stretches(block.start, block.end)
        return max(map(len, stretches), default=None)

    def _check_input_sizes(self) -> None:
        sizes = [one.size for one in self.input_sizes]
        channels, own = self.cut_points[0].tensors[0].shape[:1], self.cut_points[0].tensors[0].shape[1:]
        if len({*sizes, own}) <= len(sizes):
            raise ManifestError("an input size is listed twice, or is the model's own")
        counts = [len(cut.tensors) for cut in self.cut_points]
        for one in self.input_sizes:
            name = size_text(one.size)
            if [len(shapes) for shapes in one.shapes] != counts:
                raise ManifestError(f"the input size {name} does not give one shape per tensor of every cut point")
            for cut, shapes in zip(self.cut_points, one.shapes, strict=True):
                if any(len(shape) != len(spec.shape) for shape, spec in zip(shapes, cut.tensors, strict=True)):
                    raise ManifestError(f"at the input size {name} a tensor of cut point {cut.index} has other axes")
            answer = self.cut_points[-1].tensors[-1].shape
            if one.shapes[0][0] != (*channels, *one.size) or not _same_answer(one.shapes[-1][-1], answer):
                raise ManifestError(f"the input size {name} has other ends than the model")
        stuck = [block.id for block in self.blocks if block.is_original and not _runs_at_any_size(block)]
        if self.input_sizes and stuck:
            raise ManifestError(f"block {stuck[0]} runs at no other input size than the model's own")

    def _check_tensors(self, cut: CutPoint) -> None:
        if not cut.tensors:
            raise ManifestError(f"cut point {cut.index} has no tensor")
        for tensor in cut.tensors:
            if tensor.dtype not in ITEM_BYTES:
                raise ManifestError(f"tensor {tensor.name} at cut point {cut.index} is of unknown type {tensor.dtype}")

    def _check_block(self, block: Block, mandatory: list[int]) -> None:
        if not 0 <= block.start < block.end <= self.output_index:
            raise ManifestError(f"block {block.id} runs from {block.start} to {block.end}")
        if not block.is_original and not block.fits_kind(self.replaced(block)):
            raise ManifestError(f"block {block.id} is {block.kind}, but runs from {block.start} to {block.end}")
        _check_renditions(f"block {block.id}", block.renditions)
        following = bisect_right(mandatory, block.start)
        if following < len(mandatory) and mandatory[following] < block.end:
            raise ManifestError(f"block {block.id} jumps over the mandatory cut point {mandatory[following]}")

    @property
    def output_index(self) -> int:
        """N, the index of the last cut point."""
        return len(self.cut_points) - 1

    @cached_property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """The input sizes of edges: the model's own, written as (), then the others."""
        return ((), *(one.size for one in self.input_sizes))

    @property
    def node_count(self) -> int:
        """Nodes of the graph: input, output, and the inner cut points once per input size, in topological order.

        With one input size, node k is cut point k.
        """
        return len(self.sizes) * (self.output_index - 1) + 2

    @property
    def output_node(self) -> int:
        """The last node."""
        return self.node_count - 1

    def node(self, position: int, input_size: tuple[int, ...] = ()) -> int:
        """The node of cut point ``position`` on paths of this input size; UsageError where there are none."""
        if input_size not in self._size_numbers:
            raise UsageError(f"the bundle has no input size {size_text(input_size)}")
        if position in (0, self.output_index):
            return self.output_node if position else 0
        return self._size_numbers[input_size] * (self.output_index - 1) + position

    @cached_property
    def _size_numbers(self) -> dict[tuple[int, ...], int]:
        return {size: number for number, size in enumerate(self.sizes)}

    @cached_property
    def _cut_points_by_size(self) -> dict[tuple[int, ...], tuple[CutPoint, ...]]:
        found: dict[tuple[int, ...], tuple[CutPoint, ...]] = {(): self.cut_points}
        for one in self.input_sizes:
            found[one.size] = tuple(map(CutPoint.resized, self.cut_points, one.shapes))
        return found

    def cut_points_at(self, input_size: tuple[int, ...]) -> tuple[CutPoint, ...]:
        """The cut points with the shapes that their tensors have at this input size; UsageError if there is none."""
        if input_size not in self._cut_points_by_size:
            raise UsageError(f"the bundle has no input size {size_text(input_size)}")
        return self._cut_points_by_size[input_size]

    @cached_property
    def free_axes(self) -> dict[str, frozenset[int]]:
        """By tensor, the axes (0 is the batch) whose extents differ between the input sizes."""
        return free_axes(self.cut_points, self.input_sizes)

    def ends(self, edge: Edge) -> tuple[CutPoint, CutPoint]:
        """The cut points that ``edge`` leads from and to, at its input size."""
        block, cuts = self.block(edge.block), self.cut_points_at(edge.input_size)
        return cuts[block.start], cuts[block.end]

    def nodes_of(self, edge: Edge) -> tuple[int, int]:
        """The nodes that ``edge`` leads from and to."""
        block = self.block(edge.block)
        return self.node(block.start, edge.input_size), self.node(block.end, edge.input_size)

    @cached_property
    def edges_from(self) -> tuple[tuple[tuple[Edge, int], ...], ...]:
        """For each node, the edges that leave it and the node that each reaches."""
        leaving: list[list[tuple[Edge, int]]] = [[] for _ in range(self.node_count)]
        for size in self.sizes:
            for block in self.blocks:
                start, end = self.node(block.start, size), self.node(block.end, size)
                for rendition in block.renditions:
                    if not size or rendition.any_size:
                        leaving[start].append((Edge(block.id, rendition.name, size), end))
        return tuple(tuple(edges) for edges in leaving)

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """All edges, by the node that they leave."""
        return tuple(edge for leaving in self.edges_from for edge, _ in leaving)

    @cached_property
    def _edge_set(self) -> frozenset[Edge]:
        return frozenset(self.edges)

    def block(self, block_id: str) -> Block:
        """The block of this id, or UsageError."""
        try:
            return self._blocks_by_id[block_id]
        except KeyError:
            raise UsageError(f"there is no block {block_id}") from None

    def rendition(self, edge: Edge) -> Rendition:
        """The rendition that ``edge`` names, or UsageError."""
        for rendition in self.block(edge.block).renditions:
            if rendition.name == edge.rendition:
                return rendition
        raise UsageError(f"block {edge.block} has no rendition {edge.rendition}")

    def exit(self, exit_id: str) -> Exit:
        """The exit of this id, or UsageError."""
        try:
            return self._exits_by_id[exit_id]
        except KeyError:
            raise UsageError(f"there is no exit {exit_id}") from None

    def exit_rendition(self, choice: ExitChoice) -> Rendition:
        """The rendition of an exit that ``choice`` names, or UsageError."""
        for rendition in self.exit(choice.exit).renditions:
            if rendition.name == choice.rendition:
                return rendition
        raise UsageError(f"exit {choice.exit} has no rendition {choice.rendition}")

    def exit_tensor(self, exit_: Exit) -> TensorSpec:
        """Output tensor of an exit: ``exit_<id>``, shaped like the model's own output."""
        answer = self.cut_points[-1].tensors[-1]
        return TensorSpec(name=f"exit_{exit_.id}", shape=answer.shape, low=answer.low, high=answer.high)

    def exits_along(self, subnet: Subnet) -> tuple[Exit, ...]:
        """The exits at cut points that ``subnet`` passes, by position: a merged block jumps over some."""
        passed = {block.end for _, block in self.walk(subnet)}
        usable = [one for one in self.exits if not subnet.input_size or _runs_at_any_size(one)]
        return tuple(sorted((e for e in usable if e.position in passed), key=lambda e: e.position))

    @property
    def original(self) -> Subnet:
        """The path of the original blocks in their first rendition at the model's own size: the developer's model.

        Of a family that of the largest member.
        """
        return self.originals[0]

    @cached_property
    def originals(self) -> tuple[Subnet, ...]:
        """``original`` of each member, the largest first."""
        return tuple(Subnet(self.edges_along(chain)) for chain in self._chains)

    @cached_property
    def any_size_original(self) -> Subnet:
        """The path of the original blocks in their first renditions that run at every input size.

        The same as ``original`` where there is only one size.
        """
        return self._any_size_originals[0]

    @cached_property
    def _any_size_originals(self) -> tuple[Subnet, ...]:
        return tuple(Subnet(self._any_size_edges(chain)) for chain in self._chains)

    def _any_size_edges(self, blocks: Iterable[Block]) -> tuple[Edge, ...]:
        fixed = not self.input_sizes
        return tuple(Edge(b.id, next(one.name for one in b.renditions if fixed or one.any_size)) for b in blocks)

    def edges_along(self, blocks: Iterable[Block], input_size: tuple[int, ...] = ()) -> tuple[Edge, ...]:
        """The blocks in their first renditions that run at an input size."""
        if not input_size:
            return tuple(Edge(block.id, block.renditions[0].name) for block in blocks)
        return Subnet(self._any_size_edges(blocks)).at(input_size).edges

    def originals_at(self, input_size: tuple[int, ...]) -> tuple[Subnet, ...]:
        """The original path of each member at an input size, the largest member first."""
        return tuple(path.at(input_size) for path in self._any_size_originals) if input_size else self.originals

    def originals_from(self, position: int) -> tuple[Edge, ...]:
        """The original blocks from a cut point to the output, of the member that passes it.

        From a bottleneck its decoder comes first.
        """
        decoder = self._decoders.get(position)
        if decoder is not None:
            return (*self.edges_along([decoder]), *self.originals_from(decoder.end))
        return self.edges_along(self.original_stretches(position, self.output_index)[0])

    @property
    def bottlenecks(self) -> tuple[int, ...]:
        """The cut points that no original path passes: an encoder leads to each, a decoder from it."""
        return tuple(sorted(self._decoders))

    def through(self, subnet: Subnet, position: int) -> Subnet | None:
        """``subnet``, by way of bottleneck ``position`` where it is one; None if the path cannot pass there.

        It can where it passes the start of the bottleneck's encoder and the end of its decoder.
        """
        ends = [0, *(block.end for _, block in self.walk(subnet))]
        if position in ends:
            return subnet
        if position not in self._decoders or subnet.input_size:
            return None
        encoder, decoder = self._encoders[position], self._decoders[position]
        if encoder.start not in ends or decoder.end not in ends:
            return None
        crossing = self.edges_along([encoder, decoder])
        return Subnet((*subnet.edges[: ends.index(encoder.start)], *crossing, *subnet.edges[ends.index(decoder.end) :]))

    @property
    def members_with_exits(self) -> tuple[Subnet, ...]:
        """The original paths of further members that pass exits, in each rendition.

        Answering early may make them pay, which a search among paths without exits does not see.
        """
        names = dict.fromkeys(edge.rendition for edge in self.edges)
        paths = [path for path in self.originals[1:] if self.exits_along(path)]
        return tuple(dict.fromkeys(self.in_rendition(path, name) for path in paths for name in names))

    def in_rendition(self, subnet: Subnet, name: str) -> Subnet:
        """``subnet`` in rendition ``name`` wherever a block has it at the subnet's input size."""
        wanted = (Edge(edge.block, name, edge.input_size) for edge in subnet.edges)
        pairs = zip(wanted, subnet.edges, strict=True)
        return Subnet(tuple(new if new in self._edge_set else own for new, own in pairs))

    def check(self, subnet: Subnet) -> None:
        """Raise UsageError unless ``subnet`` is a path from the input to the output."""
        self.check_stretch(subnet.edges, start=0, end=self.output_index)

    def check_stretch(self, edges: Iterable[Edge], *, start: int, end: int) -> None:
        """Raise UsageError unless ``edges`` follow each other from cut point ``start`` to ``end``."""
        position, size = start, None
        for edge in edges:
            rendition = self.rendition(edge)
            block = self.block(edge.block)
            if size is None:
                self.node(0, edge.input_size)
            if edge.input_size and not rendition.any_size:
                raise UsageError(f"block {edge.block}@{edge.rendition} runs only at the model's own input size")
            if size not in (None, edge.input_size):
                raise UsageError(f"block {edge.block} runs at another input size than those before it")
            size = edge.input_size
            if block.start != position:
                raise UsageError(f"block {edge.block} starts at cut point {block.start}, not at {position}")
            position = block.end
        if position != end:
            where = "the output" if end == self.output_index else f"cut point {end}"
            raise UsageError(f"the path ends at cut point {position}, not at {where}")

    def check_plan(self, plan: Plan) -> None:
        """Raise UsageError unless the plan is one of this supernet.

        Its subnet is a path; its exits lie on it, at most one at each cut point; what goes on at a server leaves at a
        cut point that the subnet passes, and its tail leads from there to the output. Exits ask only in a plan that
        asks, at or behind the cut point whose activations it sends.
        """
        self.check(plan.subnet)
        thresholds = [choice.threshold for choice in plan.exits]
        thresholds += [] if plan.hard_threshold is None else [plan.hard_threshold]
        if not all(map(math.isfinite, thresholds)):
            raise UsageError("a threshold of the plan is not a number")
        prior, classes = plan.class_prior, self.cut_points[-1].tensors[-1].shape[-1]
        if prior is not None and len(prior.log_ratios) != classes:
            raise UsageError(f"the plan's prior is of {len(prior.log_ratios)} classes, the model has {classes}")
        along = self.exits_along(plan.subnet)
        positions = []
        for choice in plan.exits:
            rendition, exit_ = self.exit_rendition(choice), self.exit(choice.exit)
            if plan.subnet.input_size and not rendition.any_size:
                raise UsageError(f"exit {exit_.id}@{rendition.name} runs only at the model's own input size")
            if exit_ not in along:
                raise UsageError(f"the subnet does not pass cut point {exit_.position}, where exit {exit_.id} is")
            positions.append(exit_.position)
        if positions != sorted(set(positions)):
            raise UsageError("a plan's exits follow each other, one at a cut point")
        for choice in plan.exits:
            self._check_asking_early(choice, plan)
        if plan.split is not None:
            self._check_split(plan.split, plan.subnet, positions)
            self._check_fallback(plan, plan.split)
        if not isinstance(plan.hard, AnswerLocally):
            self._check_decider(plan.hard.decider)
        if isinstance(plan.hard, Ask):
            self._check_ask(plan.hard, plan.subnet)
        if isinstance(plan.hard, Cascade):
            self._check_cascade(plan.hard, plan)

    def _check_asking_early(self, choice: ExitChoice, plan: Plan) -> None:
        if choice.ask_below == 0:
            return
        if not 0 < choice.ask_below <= choice.threshold:
            raise UsageError(
                f"exit {choice.exit} asks below a confidence of {choice.ask_below:g}; "
                f"it must lie from 0 to the threshold, {choice.threshold:g}"
            )
        if not isinstance(plan.hard, Ask):
            raise UsageError(f"exit {choice.exit} asks a server in a plan that asks none")
        if plan.split is not None:
            raise UsageError(f"exit {choice.exit} asks a server in a plan whose path goes on at one")
        position = self.exit(choice.exit).position
        if plan.hard.sends != "input" and plan.hard.sends > position:
            raise UsageError(
                f"exit {choice.exit} at cut point {position} cannot send activations of cut point {plan.hard.sends}"
            )

    def _check_cascade(self, cascade: Cascade, plan: Plan) -> None:
        self.check(cascade.subnet)
        if cascade.subnet == plan.subnet:
            raise UsageError("the second path of a cascade is the same as the first")
        if plan.split is not None:
            raise UsageError("a plan whose path goes on at a server has no second path here")
        at = cascade.position
        if at and self._head(cascade.subnet, at) != self._head(plan.subnet, at):
            raise UsageError(f"the paths of the cascade are not the same up to cut point {at}")

    def _check_decider(self, decider: Decider) -> None:
        classes = self.cut_points[-1].tensors[-1].shape[-1]
        if decider.made_for not in (0, classes):
            raise UsageError(f"the decider was made for {decider.made_for} classes; the model has {classes}")

    def _check_split(self, split: Split, subnet: Subnet, exits: list[int]) -> None:
        if split.is_whole:
            self._check_whole(split, subnet, exits)
            return
        self._check_sent(split.position, split.tail, subnet, what="the subnet cannot be split")
        if len(split.bits) != len(self.cut_points[split.position].tensors):
            raise UsageError(f"the split gives bits for {len(split.bits)} tensors at cut point {split.position}")
        for bits in split.bits:
            if not 1 <= bits <= _MOST_BITS:
                raise UsageError(f"activations travel in 1 to {_MOST_BITS} bits, not in {bits}")
        if exits and exits[-1] > split.position:
            raise UsageError(f"an exit at cut point {exits[-1]} lies behind the split at {split.position}")

    @staticmethod
    def _check_fallback(plan: Plan, split: Split) -> None:
        if split.fallback == "exit" and not plan.exits:
            raise UsageError("without its server the split's samples take an exit, and the plan has none")
        if plan.is_head and isinstance(plan.hard, Ask) and plan.hard.sends != "input":
            raise UsageError("activations behind a split cannot be sent: nothing runs there on this device")

    def _check_whole(self, split: Split, subnet: Subnet, exits: list[int]) -> None:
        if split.bits or split.per_channel or split.compress:
            raise UsageError("the input of a server's model travels as it is: such a split gives no bits and no coding")
        if exits:
            raise UsageError(f"an exit at cut point {exits[-1]} lies behind the split at 0")
        if subnet.input_size:
            raise UsageError("a path that goes on at a server runs at the model's own input size")

    def _check_ask(self, ask: Ask, subnet: Subnet) -> None:
        if ask.sends != "input":
            self._check_sent(ask.sends, ask.tail, subnet, what="activations cannot be sent from the subnet")
        elif ask.tail:
            raise UsageError("a plan that sends the input names no tail: the server's model runs as a whole")

    def _check_sent(self, position: int, tail: tuple[Edge, ...], subnet: Subnet, *, what: str) -> None:
        if subnet.input_size:
            raise UsageError("a path that goes on at a server runs at the model's own input size")
        if position not in [0, *(block.end for _, block in self.walk(subnet))][:-1]:
            raise UsageError(f"{what} at cut point {position}: it does not pass there")
        self.check_stretch(tail, start=position, end=self.output_index)
        if any(edge.input_size for edge in tail):
            raise UsageError("a server runs a tail at the model's own input size")
        if any(edge.home for edge in tail):
            raise UsageError("a server runs a tail at homes of its own, which a plan does not name")

    def edges_here(self, plan: Plan) -> tuple[Edge, ...]:
        """The edges of the plan's subnet that may run on this device: all, or those before a split."""
        if plan.split is None or not plan.is_head:
            return plan.subnet.edges
        position = plan.split.position
        return tuple(edge for edge, block in self.walk(plan.subnet) if block.end <= position)

    def _head(self, subnet: Subnet, position: int) -> tuple[Edge, ...]:
        """The edges of ``subnet`` up to a cut point; UsageError where it does not pass there."""
        ends = [block.end for _, block in self.walk(subnet)]
        if position not in ends:
            raise UsageError(f"the path does not pass cut point {position}")
        return subnet.edges[: ends.index(position) + 1]

    def second_edges(self, plan: Plan) -> tuple[Edge, ...]:
        """The edges that a cascade runs for its hard samples alone; none without a cascade."""
        if not isinstance(plan.hard, Cascade):
            return ()
        return tuple(edge for edge, block in self.walk(plan.hard.subnet) if block.start >= plan.hard.position)

    def walk(self, subnet: Subnet) -> Iterator[tuple[Edge, Block]]:
        """The edges of ``subnet`` with their blocks, in order."""
        for edge in subnet.edges:
            self.rendition(edge)
            yield edge, self.block(edge.block)


def _same_answer(shape: tuple[int, ...], own: tuple[int, ...]) -> bool:
    """True if an output of ``shape`` is the same as the model's ``own`` one; maps may have another resolution."""
    return shape == own or (len(shape) == len(own) > 1 and shape[0] == own[0])


def _runs_at_any_size(part: Block | Exit) -> bool:
    return any(rendition.any_size for rendition in part.renditions)


def _check_renditions(owner: str, renditions: tuple[Rendition, ...]) -> None:
    if not renditions:
        raise ManifestError(f"{owner} has no rendition")
    if len({rendition.name for rendition in renditions}) != len(renditions):
        raise ManifestError(f"{owner} has two renditions of one name")
