"""The self-test of a bundle: every block against its golden outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from device_sdk.bundles.runnable import golden_inputs, matches
from device_sdk.errors import (
    SelfTestError,
)
from device_sdk.execution.workspace import Workspace
from device_sdk.progress import Progress, SilentProgress
from device_sdk.supernet.blocks import CutPoint, Golden
from device_sdk.supernet.plan import Edge, ExitChoice, size_text


def run_self_test(
    workspace: Workspace, *, exits: Collection[str] | None = None, progress: Progress | None = None
) -> None:
    """Run every block and every exit alone, and the original path whole at each input size, on the golden inputs.

    Under a memory cap one sample at a time, and the path in pages if it takes more. With ``exits`` only these exits
    run: they came to a bundle that has passed. Of a bundle in part, the blocks that are held run, and no whole path.

    Raises:
        SelfTestError: a rendition does not reproduce its golden outputs here.
        BlobError, CompositionError, RuntimeFailedError: it does not even load.
        BudgetError: the memory cap is too small for a block or exit; says the least that works.
    """
    bundle, supernet, cut_points = workspace.bundle, workspace.supernet, workspace.supernet.cut_points
    branches = [
        (exit_, rendition, ExitChoice(exit_.id, threshold=1.0, rendition=rendition.name))
        for exit_ in supernet.exits
        for rendition in exit_.renditions
        if exits is None or exit_.id in exits
    ]
    check = _Check(workspace)
    edges = [edge for edge in supernet.edges if not edge.input_size and bundle.part.has(edge)] if exits is None else []
    with_paths = exits is None and bundle.part.is_whole
    total = len(edges) + len(branches) + (len(supernet.sizes) if with_paths else 0)
    with (progress or SilentProgress()).task("self-test", total) as task:
        for edge in edges:
            start = cut_points[supernet.block(edge.block).start]
            check(f"block {edge}", (edge,), None, start, supernet.rendition(edge).golden)
            task.advance()
        for exit_, rendition, choice in branches:
            check(f"exit {exit_.id}", (), choice, cut_points[exit_.position], rendition.golden)
            task.advance()
        if not with_paths:
            return
        original = supernet.original.edges
        check("the original path", original, None, cut_points[0], bundle.manifest.self_test.original)
        task.advance()
        for size in supernet.input_sizes:
            path = supernet.any_size_original.at(size.size).edges
            name = f"the original path at {size_text(size.size)}"
            check(name, path, None, supernet.cut_points_at(size.size)[0], size.golden)
            task.advance()


class _Check:
    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        vectors = workspace.bundle.manifest.self_test
        self._seed, self._batch = vectors.seed, vectors.batch

    def __call__(
        self, what: str, edges: Sequence[Edge], exit_: ExitChoice | None, start: CutPoint, golden: Golden
    ) -> None:
        inputs = golden_inputs(start, seed=self._seed, batch=self._batch)
        step = self._batch if self._workspace.memory_cap_bytes is None else 1
        loaded = self._workspace.load_stretch(edges, exit_)
        try:
            runs = [loaded.run([one[at : at + step] for one in inputs]) for at in range(0, self._batch, step)]
            outputs = [np.concatenate(one) for one in zip(*runs, strict=True)]
        finally:
            loaded.close()
        if matches(golden, outputs):
            return
        raise SelfTestError(
            f"{what} does not reproduce its golden outputs with {self._workspace.runtime.identity}",
            hint="the bundle or this machine's runtime is broken; do not use the bundle here",
        )
