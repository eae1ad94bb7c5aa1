"""Paths through a supernet, and plans: what a device runs."""

from __future__ import annotations

import msgspec


class Edge(msgspec.Struct, frozen=True, order=True):
    """One step of a subnet: a block id, the name of one of its renditions, and the input size of the subnet.

    ``input_size``: height and width of the images at cut point 0; empty for the model's own size.
    """

    block: str
    rendition: str = "fp32"
    input_size: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self._without_size}:{size_text(self.input_size)}" if self.input_size else self._without_size

    @property
    def _without_size(self) -> str:
        return self.block if self.rendition == "fp32" else f"{self.block}@{self.rendition}"

    def at(self, input_size: tuple[int, ...]) -> Edge:
        """The same block and rendition at another input size."""
        return Edge(self.block, self.rendition, input_size)

    @classmethod
    def parse(cls, text: str) -> Edge:
        """The edge that ``str`` writes as ``text``.

        Raises:
            ValueError: what follows the colon is not a size.
        """
        name, _, size = text.partition(":")
        block, _, rendition = name.partition("@")
        return cls(block, rendition or "fp32", tuple(map(int, size.split("x"))) if size else ())


def size_text(size: tuple[int, ...]) -> str:
    """``(160, 160)`` as ``160x160``, height first."""
    return "x".join(map(str, size))


class Subnet(msgspec.Struct, frozen=True, order=True):
    """A path 0 → N, written as explicit block ids. All edges have one input size."""

    edges: tuple[Edge, ...]

    def __str__(self) -> str:
        names = " ".join(edge._without_size for edge in self.edges)
        return f"{size_text(self.input_size)}: {names}" if self.input_size else names

    @property
    def block_ids(self) -> tuple[str, ...]:
        """The ids of its blocks, in order."""
        return tuple(edge.block for edge in self.edges)

    @property
    def input_size(self) -> tuple[int, ...]:
        """Height and width of its input; empty for the model's own."""
        return self.edges[0].input_size if self.edges else ()

    def at(self, input_size: tuple[int, ...]) -> Subnet:
        """The same blocks and renditions at another input size."""
        return Subnet(tuple(edge.at(input_size) for edge in self.edges))


class ExitChoice(msgspec.Struct, frozen=True):
    """An exit that a plan uses: it answers the samples whose confidence reaches ``threshold``."""

    exit: str
    threshold: float
    rendition: str = "fp32"


class Split(msgspec.Struct, frozen=True):
    """The path goes on at the server from cut point ``position``; its tensors travel in ``bits`` bits."""

    position: int
    bits: int = 8


class Escalation(msgspec.Struct, frozen=True):
    """Samples that no exit answered and whose confidence is below ``threshold`` are answered by the server's model.

    0 sends nothing, anything above 1 everything that reaches the end.
    """

    threshold: float


class Plan(msgspec.Struct, frozen=True):
    """What a device runs: a subnet, the exits it may take, and who answers hard samples."""

    subnet: Subnet
    exits: tuple[ExitChoice, ...] = ()
    split: Split | None = None
    escalation: Escalation | None = None
