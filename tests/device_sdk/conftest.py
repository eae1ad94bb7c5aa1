"""Small supernets for the tests of the graph and of what works on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, pairwise, product

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from device_sdk.cost import CostModel, EdgeCost
from device_sdk.graph import Block, CutPoint, Edge, Golden, Rendition, Subnet, Supernet, TensorSpec

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

SupernetBuilder = Callable[..., Supernet]


def _rendition(name: str) -> Rendition:
    return Rendition(name, runtime="none", blob="0" * 64, size_bytes=1, golden=Golden((), 0.0))


def _build(
    length: int,
    spans: Iterable[tuple[int, int]] = (),
    *,
    int8: Iterable[str] = (),
    tensors: int = 1,
    values: int = 4,
) -> Supernet:
    """Originals o0 … and merged blocks m<start>_<end>; ``int8``: ids with a second rendition."""
    int8 = set(int8)

    def block(name: str, start: int, end: int) -> Block:
        renditions = (_rendition("fp32"), _rendition("int8")) if name in int8 else (_rendition("fp32"),)
        kind = "original" if end == start + 1 else "merged"
        return Block(name, start, end, kind, parameters=1, macs=1, renditions=renditions)

    cuts = [
        CutPoint(index, tuple(TensorSpec(f"cut_{index}_{n}", (values,)) for n in range(tensors)))
        for index in range(length + 1)
    ]
    blocks = [block(f"o{index}", index, index + 1) for index in range(length)]
    blocks += [block(f"m{start}_{end}", start, end) for start, end in spans]
    return Supernet(cuts, blocks)


@pytest.fixture(scope="session")
def build_supernet() -> SupernetBuilder:
    """Builds a supernet of ``length`` originals and merged ``spans`` (see ``_build``)."""
    return _build


@pytest.fixture(scope="session")
def elastic_supernet() -> SupernetBuilder:
    """Builds the supernet of ``length`` originals in which every span of 2 and 3 has a merged block."""

    def build(length: int, **settings: int) -> Supernet:
        spans = [(i, i + n) for i in range(length) for n in (2, 3) if i + n <= length]
        return _build(length, spans, **settings)

    return build


@st.composite
def _supernets(draw: st.DrawFn, max_length: int = 5) -> Supernet:
    length = draw(st.integers(1, max_length))
    possible = [(i, j) for i in range(length) for j in range(i + 2, length + 1)]
    spans = draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
    names = [f"o{i}" for i in range(length)] + [f"m{i}_{j}" for i, j in spans]
    return _build(length, spans, int8=draw(st.lists(st.sampled_from(names), unique=True, max_size=4)))


@st.composite
def _priced(draw: st.DrawFn) -> tuple[Supernet, CostModel]:
    supernet = draw(_supernets())
    eighths, sizes = st.integers(3, 80), st.integers(0, 20)  # latencies in eighths of 1 ms add up exactly
    costs = {}
    for edge in supernet.edges:
        latency_ms = draw(eighths) / 8
        costs[edge] = EdgeCost(latency_ms, latency_ms, draw(sizes) * 10**6, draw(sizes) * 10**6)
    offset_ms = draw(st.sampled_from([0.0, 0.5, -0.125]))
    return supernet, CostModel(costs, scale=draw(st.sampled_from([1.0, 0.5, 2.0])), offset_ms=offset_ms)


@pytest.fixture(scope="session")
def supernets() -> st.SearchStrategy[Supernet]:
    """Random supernets: a chain of originals, random merged spans, one or two renditions per block."""
    return _supernets()


@pytest.fixture(scope="session")
def priced_supernets() -> st.SearchStrategy[tuple[Supernet, CostModel]]:
    """Random supernets with a random cost model."""
    return _priced()


@pytest.fixture(scope="session")
def all_subnets() -> Callable[[Supernet], list[Subnet]]:
    """Every subnet by brute force: for every choice of cut points, every choice of edges between them."""

    def edges_between(supernet: Supernet, start: int, end: int) -> list[Edge]:
        return [
            Edge(block.id, rendition.name)
            for block in supernet.blocks
            if (block.start, block.end) == (start, end)
            for rendition in block.renditions
        ]

    def paths(supernet: Supernet) -> Iterator[Subnet]:
        inner = range(1, supernet.output_index)
        for size in range(supernet.output_index):
            for chosen in combinations(inner, size):
                cuts = (0, *chosen, supernet.output_index)
                steps = [edges_between(supernet, *pair) for pair in pairwise(cuts)]
                yield from (Subnet(edges) for edges in product(*steps))

    return lambda supernet: list(paths(supernet))


@pytest.fixture(scope="session")
def uniform_costs() -> Callable[..., CostModel]:
    """A cost model in which an original takes 1 ms and a merged block of span n takes 0.5 · n + 0.25 ms."""

    def build(supernet: Supernet, **settings: float) -> CostModel:
        costs = {}
        for block in supernet.blocks:
            span = block.end - block.start
            latency_ms = 1.0 if span == 1 else 0.5 * span + 0.25
            for rendition in block.renditions:
                latency = latency_ms if rendition.name == "fp32" else latency_ms * 0.75
                costs[Edge(block.id, rendition.name)] = EdgeCost(latency, latency, 1_000_000, 500_000)
        return CostModel(costs, **settings)

    return build
