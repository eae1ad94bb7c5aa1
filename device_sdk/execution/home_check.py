"""The check of a home that is not the first: what runs there, with the right answers, and what does not, and why."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from device_sdk.bundles.runnable import golden_inputs, sample_outputs
from device_sdk.errors import CompositionError, RuntimeFailedError
from device_sdk.execution.workspace import Workspace
from device_sdk.progress import Progress
from device_sdk.runtimes.port import Array
from device_sdk.runtimes.providers import KNOWN
from device_sdk.supernet.blocks import Golden
from device_sdk.supernet.home import Home
from device_sdk.supernet.plan import Edge

NO_REASON = "the provider gave no reason"
_MOST_REASON = 300


class BlockAtHome(msgspec.Struct, frozen=True):
    """One block in one rendition at a home.

    ``nodes``: of its session, ``assigned`` of them to the home's provider. ``refused``: number of the others by
    operator, which the processor runs in the same session. ``failure``: why it does not run here at all; empty where it
    does.
    """

    block: str
    nodes: int = 0
    assigned: int = 0
    refused: dict[str, int] = {}
    failure: str = ""


class HomeReport(msgspec.Struct, frozen=True):
    """Result of the check of one home.

    ``runtime``: its identity with all versions. ``failure``: why the home as a whole cannot be used, such as a crash;
    then it is left out until a version changes.
    """

    home: str
    runtime: str
    blocks: tuple[BlockAtHome, ...] = ()
    failure: str = ""

    @property
    def refused_blocks(self) -> frozenset[str]:
        """The blocks that do not run here."""
        return frozenset(one.block for one in self.blocks if one.failure)

    @property
    def works(self) -> bool:
        """True if at least one block runs here."""
        return not self.failure and any(not one.failure for one in self.blocks)

    def why_not(self) -> str:
        """Why nothing runs here."""
        failures = [one.failure for one in self.blocks if one.failure]
        return self.failure or (f"it runs no block: {failures[0]}" if failures else "no block is for it")

    def refusals(self) -> list[tuple[str, int, str]]:
        """Operators that the processor runs instead, with the number of nodes and the reason, if any."""
        counts: dict[str, int] = {}
        for one in self.blocks:
            for operator, count in one.refused.items():
                counts[operator] = counts.get(operator, 0) + count
        return [(name, count, NO_REASON) for name, count in sorted(counts.items())]


def check_home(workspace: Workspace, home: Home, progress: Progress) -> HomeReport:
    """Run every held block alone on the golden inputs at ``home``, one sample after the other.

    ``workspace``: with a runtime at this home alone. Answers may differ from the golden ones by the provider's
    tolerance, relative to their largest magnitude. A block whose session is refused, that the provider runs no node of,
    or that answers otherwise does not run here.
    """
    supernet, bundle, provider = workspace.supernet, workspace.bundle, KNOWN[home.provider]
    edges = [
        edge
        for edge in supernet.edges
        if not edge.input_size and bundle.part.has(edge) and _is_for(supernet.rendition(edge).providers, provider.name)
    ]
    blocks = []
    with progress.task(f"check {home}", len(edges)) as task:
        for edge in edges:
            blocks.append(_checked(workspace, edge, provider.relative_tolerance))
            task.advance()
    return HomeReport(str(home), workspace.runtime.identity, tuple(blocks))


def _is_for(providers: Iterable[str], name: str) -> bool:
    return not providers or name in providers


def _checked(workspace: Workspace, edge: Edge, relative_tolerance: float) -> BlockAtHome:
    supernet, name = workspace.supernet, str(edge)
    start, vectors = supernet.ends(edge)[0], workspace.bundle.manifest.self_test
    inputs = golden_inputs(start, seed=vectors.seed, batch=vectors.batch)
    golden = supernet.rendition(edge).golden
    try:
        loaded = workspace.runtime.load(workspace.bundle.stretch((edge,)))
    except (RuntimeFailedError, CompositionError) as error:
        return BlockAtHome(name, failure=str(error)[:_MOST_REASON])
    try:
        nodes = sum(getattr(loaded, "nodes_by_provider", {}).values())
        assigned, refused = getattr(loaded, "assigned", nodes), dict(getattr(loaded, "refused", {}))
        if nodes and not assigned:
            operators = ", ".join(f"{operator} ×{count}" for operator, count in sorted(refused.items()))
            return BlockAtHome(name, nodes, 0, refused, f"the provider refuses all of it: {operators}")
        runs = [loaded.run([one[at : at + 1] for one in inputs]) for at in range(vectors.batch)]
    except RuntimeFailedError as error:
        return BlockAtHome(name, failure=str(error)[:_MOST_REASON])
    finally:
        loaded.close()
    outputs = [np.concatenate(one) for one in zip(*runs, strict=True)]
    failure = "" if _is_near(golden, outputs, relative_tolerance) else "its answers differ from the golden ones"
    return BlockAtHome(name, nodes, assigned, refused, failure)


def _is_near(golden: Golden, outputs: list[Array], relative_tolerance: float) -> bool:
    sampled = sample_outputs(outputs)
    if [len(one) for one in sampled] != [len(one) for one in golden.samples]:
        return False
    for expected, actual in zip(golden.samples, sampled, strict=True):
        largest = max(map(abs, expected), default=0.0)
        allowed = golden.tolerance + relative_tolerance * largest
        if not np.all(np.abs(np.subtract(actual, expected)) <= allowed):
            return False
    return True
