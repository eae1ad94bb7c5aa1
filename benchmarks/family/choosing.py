"""One family: its rungs are measured, it is adapted at each latency, and choices and rivals are judged together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.family.adapting import Adapted, adaptations
from benchmarks.family.figures import Duel, JudgedFamily, evenly_spaced, rival
from benchmarks.family.networks import Family
from benchmarks.runner.run import BenchOptions
from benchmarks.support.judged import Right
from benchmarks.sure.judging import Judge
from device_sdk.bundles.bundle import Bundle
from device_sdk.runtimes import runs_on
from device_sdk.search.ladder import ladder
from device_sdk.supernet.blocks import STITCH
from device_sdk.supernet.plan import Subnet, size_text
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class FamilyResult:
    """``runs``: the adaptations by rising latency; ``first``: the one that was made first. ``searched``: on #search."""

    supernet: Supernet
    runs: Sequence[Adapted]
    first: Adapted
    judged: JudgedFamily
    searched: dict[Subnet, Right]


def result_of(family: Family, options: BenchOptions) -> FamilyResult:
    """Rivals and choices are found on #search, and looked at once on #report.

    1. measure all rungs for the range of latencies; 2. profile, and adapt at each latency, the largest first;
    3. measure choices and rungs in one interleaved run; 4. judge the rungs on #search, of which the most accurate
    within each latency is the rival; 5. judge choices and rivals on #report.
    """
    bundle = Bundle.open(family.folder, accepts=runs_on("onnxruntime"))
    rungs = [rung for column in ladder(bundle.supernet) for rung in column]
    judge = Judge(bundle)
    try:
        measured = judge.ratios(rungs)
        limits = evenly_spaced([measured[one] for one in rungs], family.latencies)
        done = _adapted(family, limits[::-1], options)
        chosen = list(dict.fromkeys(one.subnet for one in done if one.subnet is not None))
        ratios = judge.ratios([*chosen, *rungs])
        searched = judge.right(rungs, family.search)
        duels = _duels(done[::-1], rungs, ratios, searched)
        right = judge.right(list(dict.fromkeys([*chosen, *(one.rival for one in duels)])), family.report)
    finally:
        judge.close()
    stitched = {one for one in chosen if any(_is_stitch(bundle.supernet, block) for block in one.block_ids)}
    path_bytes = {one: sum(map(bundle.blob_size, bundle.blob_names(one.edges))) for one in [*chosen, *rungs]}
    judged = JudgedFamily(duels, rungs, ratios, right, stitched, path_bytes)
    return FamilyResult(bundle.supernet, done[::-1], done[0], judged, searched)


def _adapted(family: Family, limits: Sequence[float], options: BenchOptions) -> list[Adapted]:
    state, search, found = options.work_folder / family.name, family.search, []
    with options.progress.task(f"adapt {family.name}", len(limits)) as task:
        for one in adaptations(
            family.folder, state, search.images, search.labels, limits, time_limit_s=family.time_limit_s
        ):
            found.append(one)
            task.advance()
    return found


def _duels(
    runs: Sequence[Adapted], rungs: Sequence[Subnet], ratios: dict[Subnet, float], searched: dict[Subnet, Right]
) -> list[Duel]:
    latencies = np.array([ratios[one] for one in rungs])
    accuracies = np.array([searched[one].mean() for one in rungs])
    return [Duel(one.ratio, one.subnet, rungs[rival(latencies, accuracies, one.ratio)]) for one in runs]


def _is_stitch(supernet: Supernet, block: str) -> bool:
    return supernet.block(block).kind == STITCH


def path_text(supernet: Supernet, path: Subnet) -> str:
    """A short text: members with renditions and numbers of blocks, stitches between them, and the input size.

    For example ``resnet32-cifar10 9 int8 + 1 fp32, stitch, resnet20-cifar10 4 int8, 192x192``.
    """
    parts: list[str] = []
    name, renditions = "", Counter[str]()

    def close() -> None:
        if renditions:
            parts.append(f"{name} {' + '.join(f'{count} {one}' for one, count in renditions.items())}")
            renditions.clear()

    for edge in path.edges:
        if _is_stitch(supernet, edge.block):
            close()
            parts.append("stitch" if edge.rendition == "fp32" else f"stitch {edge.rendition}")
            continue
        member = edge.block.partition(".")[0]  # as joining names blocks; names of members have no full stop
        if member != name:
            close()
            name = member
        renditions[edge.rendition] += 1
    close()
    return ", ".join([*parts, *([size_text(path.input_size)] if path.input_size else [])])
