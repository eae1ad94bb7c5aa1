"""Fixtures of the SDK's tests: small supernets, and bundles that are built once (``tiny_bundle``, ``heavy_bundle``)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise, product
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from device_sdk.bundles.bundle import Bundle
from device_sdk.profiling.profile import MeasuredEdge, MeasuredExit, MeasuredSubnet, Profile
from device_sdk.profiling.stretches import device_identity
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.providers import plugin_devices
from device_sdk.session.device_state import DeviceState
from device_sdk.signing import signatures
from device_sdk.supernet.cost import CostModel, EdgeCost
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet
from tests.device_sdk.heavy_bundle import write_heavy_bundle
from tests.device_sdk.supernets import SupernetBuilder, build, priced_strategy, supernet_strategy
from tests.device_sdk.tiny_bundle import TinyBundle, draw_images, write_tiny_bundle

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def build_supernet() -> SupernetBuilder:
    """Builds a supernet of ``length`` originals and merged ``spans`` (see ``supernets.build``)."""
    return build


@pytest.fixture(scope="session")
def elastic_supernet() -> SupernetBuilder:
    """Builds the supernet of ``length`` originals in which every span of 2 and 3 has a merged block."""

    def grow(length: int, **settings: int) -> Supernet:
        spans = [(i, i + n) for i in range(length) for n in (2, 3) if i + n <= length]
        return build(length, spans, **settings)

    return grow


@pytest.fixture(scope="session")
def supernets() -> st.SearchStrategy[Supernet]:
    """Random supernets: a chain of originals, random merged spans, one or two renditions per block."""
    return supernet_strategy()


@pytest.fixture(scope="session")
def priced_supernets() -> st.SearchStrategy[tuple[Supernet, CostModel]]:
    """Random supernets with a random cost model."""
    return priced_strategy()


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


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> TinyBundle:
    """The tiny bundle; never alter it (``own_bundle`` is a copy)."""
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    folder = tmp_path_factory.mktemp("tiny")
    private, public = folder / "key", folder / "key.pub"
    for path, data in zip((private, public), signatures.new_key_pair(), strict=True):
        path.write_bytes(data)
    write_tiny_bundle(folder / "bundle", private)
    return TinyBundle(folder / "bundle", private, public, *draw_images(60, seed=2))


@pytest.fixture
def own_bundle(tiny_bundle: TinyBundle, tmp_path: Path) -> TinyBundle:
    """A copy of the tiny bundle that a test may alter."""
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle.folder, folder)
    return TinyBundle(folder, tiny_bundle.private_key, tiny_bundle.public_key, tiny_bundle.images, tiny_bundle.labels)


@pytest.fixture(scope="session")
def bundle(tiny_bundle: TinyBundle) -> Bundle:
    """The tiny bundle, opened."""
    return Bundle.open(tiny_bundle.folder)


@pytest.fixture(scope="session")
def runtime() -> OnnxRuntime:
    """ONNX Runtime on one thread."""
    return OnnxRuntime(threads=1)


@pytest.fixture(scope="session")
def openvino() -> None:
    """Skips where OpenVINO cannot run: its plug-in is missing, or takes no processor of this make."""
    pytest.importorskip("onnxruntime_ep_openvino", reason="needs the extra: pip install 'pathweave[openvino]'")
    if not plugin_devices("openvino"):
        pytest.skip("OpenVINO's plug-in offers no device here: it takes Intel's processors alone")


@pytest.fixture(scope="session")
def slow_profile(bundle: Bundle, runtime: OnnxRuntime) -> Profile:
    """A profile of a device a thousand times slower than any: what it allows is always measured to fit.

    A 3×3 convolution takes 100 ms and 4 MB, its int8 rendition half; a 1×1 convolution 30 ms and 1 MB; the ends
    10 ms and 1 MB. Working sets are 1 MB.
    """
    slow, quick = {"o1": 100.0, "o2": 100.0, "o3": 100.0}, {"o0": 10.0, "o4": 10.0}
    costs = {}
    for edge in bundle.supernet.edges:
        latency_ms = {**slow, **quick}.get(edge.block, 30.0) * (0.5 if edge.rendition == "int8" else 1.0)
        resident = int((4e6 if edge.block in slow else 1e6) * (0.5 if edge.rendition == "int8" else 1.0))
        costs[edge] = EdgeCost(latency_ms, latency_ms, resident, 1_000_000)
    original = bundle.supernet.original
    original_ms = CostModel(costs).latency_ms(original)
    return Profile(
        bundle=bundle.digest,
        device=device_identity(),
        runtime=runtime.identity,
        batch=1,
        created="2026-01-01T00:00:00+00:00",
        edges=tuple(MeasuredEdge(edge, cost) for edge, cost in costs.items()),
        scale=1.0,
        offset_ms=0.0,
        fitted=(MeasuredSubnet(original, original_ms, original_ms),),
        original_ms=original_ms,
        exits=tuple(
            MeasuredExit(exit_.id, "fp32", EdgeCost(1.0, 1.0, 10_000, 1_000)) for exit_ in bundle.supernet.exits
        ),
    )


@pytest.fixture
def slow_state(slow_profile: Profile, bundle: Bundle, runtime: OnnxRuntime, tmp_path: Path) -> Path:
    """A state folder in which the tiny bundle has the slow profile and has passed its self-test."""
    folder = tmp_path / "state"
    state = DeviceState(folder, bundle, runtime)
    state.save_profile(slow_profile)
    state.remember_self_test()
    return folder


@pytest.fixture(scope="session")
def build_heavy(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bundle]:
    """Builds a bundle in a folder of its own; arguments as ``write_heavy_bundle``."""
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    return lambda **sizes: write_heavy_bundle(tmp_path_factory.mktemp("heavy") / "bundle", **sizes)


@pytest.fixture(scope="session")
def heavy_bundle(build_heavy: Callable[..., Bundle]) -> Bundle:
    """42 MB of weights in fourteen blocks of 3 MB."""
    return build_heavy(blocks=14, channels=288)


@pytest.fixture(scope="session")
def elastic_heavy(build_heavy: Callable[..., Bundle]) -> Bundle:
    """7 MB: a small convolution, five of 0.9 MB and three merged ones that replace all of these or some, two exits.

    Under a cap of 10 MB the original runs in pages, and subnets of one or two large blocks do not.
    """
    return build_heavy(blocks=6, channels=160, colours=3, merged=[(1, 3), (3, 6), (1, 6)], exits=[1, 3])
