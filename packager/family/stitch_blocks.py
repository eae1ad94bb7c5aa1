"""Stitches as blocks of a family's bundle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from device_sdk.progress import Progress
from device_sdk.supernet.blocks import STITCH
from packager.family.joining import JoinedGraph
from packager.family.stitches import FittedStitch
from packager.joining.block_store import BlockStore, StoredBlock
from packager.joining.networks import CutNetwork
from packager.renditions.calibration import Features
from packager.renditions.int8 import NAME as INT8
from packager.tracing.traced_model import tensors_of

_BATCH = 8
_CALIBRATED = 64  # images


def stored_stitches(
    stitches: Sequence[FittedStitch],
    networks: Sequence[CutNetwork],
    names: Sequence[str],
    graph: JoinedGraph,
    images: torch.Tensor,
    *,
    renditions: Sequence[str],
    progress: Progress,
) -> tuple[StoredBlock, ...]:
    """The stitches as blocks, in fp32 and where ``renditions`` has it and its error is small in int8.

    ``images``: prepared [n, *input], for calibration.

    Raises:
        VerificationError: a fragment does not compute what the module computes.
    """
    store = BlockStore(graph.cut_points, graph.input_sizes)
    found = []
    with progress.task("export stitches", len(stitches)) as task:
        for one in stitches:
            (a, start), (b, end) = one.start, one.end
            name = f"{names[a]}.{start}-to-{names[b]}.{end}"
            ends = graph.numbering.of(one.start), graph.numbering.of(one.end)
            features = _features(networks[a], start, images[:_CALIBRATED]) if INT8 in renditions else None
            found.append(
                store.stored(name, STITCH, one.module, ends, macs=one.macs, error=one.error, features=features)
            )
            task.advance()
    return tuple(found)


def _features(network: CutNetwork, cut: int, images: torch.Tensor) -> Features:
    made: list[torch.Tensor] = []
    for batch in images.split(_BATCH):
        made += next(tensors_of([found]) for place, found in network.features(batch) if place == cut)
    return np.asarray(torch.cat(made).numpy())
