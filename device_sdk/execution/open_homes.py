"""The homes that are open here, and which renditions run at each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from device_sdk.supernet.home import PROVIDERS, Home
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class OpenHomes:
    """``homes``: the first is that of edges that name none; none at all where there is one alone.

    ``refused``: by the name of a home, the blocks in a rendition that do not run there: ``BLOCK@RENDITION`` as
    ``Edge`` writes them. ``most_threads``: homes with more are left out; None for no limit.
    """

    homes: tuple[Home, ...] = ()
    refused: Mapping[str, frozenset[str]] = field(default_factory=dict)
    most_threads: int | None = None

    @property
    def several(self) -> bool:
        """True if there is a choice."""
        return len(self.homes) > 1

    def of(self, supernet: Supernet, edge: Edge) -> tuple[Edge, ...]:
        """``edge``, which names no home, at each of its homes; the first has no name. It alone for one home."""
        if not self.several:
            return (edge,)
        providers, name = supernet.rendition(edge).providers, str(edge.at(()))
        return tuple(
            edge.on("" if number == 0 else str(home))
            for number, home in enumerate(self.homes)
            if (self.most_threads is None or home.threads <= self.most_threads)
            and (not providers or PROVIDERS[home.provider] in providers)
            and name not in self.refused.get(str(home), ())
        )

    def of_each(self, supernet: Supernet, edges: Iterable[Edge]) -> dict[Edge, tuple[Edge, ...]]:
        """The homes of each of ``edges``, for ``CostModel.at_best_homes``; none where there is no choice."""
        return {edge: self.of(supernet, edge) for edge in edges} if self.several else {}

    def first(self, supernet: Supernet, subnet: Subnet) -> Subnet:
        """``subnet``, which names no homes, with each edge at the first home that it has."""
        if not self.several:
            return subnet
        return Subnet(tuple((*self.of(supernet, edge), edge)[0] for edge in subnet.edges))

    def within(self, threads: int | None) -> OpenHomes:
        """The same with a limit on threads."""
        return replace(self, most_threads=threads)


ONE_HOME = OpenHomes()
