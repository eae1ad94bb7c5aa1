"""Verification of a supernet before it is signed: golden vectors, and distillation errors of added blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from device_sdk.progress import Progress
from device_sdk.supernet.blocks import Golden
from packager.exporting.export import ExportedBlocks
from packager.exporting.verification import SUBNETS, Verifier
from packager.training.losses import distillation_errors


@dataclass(frozen=True)
class Verified:
    """``golden``: vectors by block or exit id. ``max_abs_diff``: of the original path from the model."""

    golden: Mapping[str, Golden]
    original_golden: Golden
    max_abs_diff: float
    distillation_errors: Mapping[str, float]


def verify(
    exported: ExportedBlocks, examples: npt.NDArray[np.float32], *, seed: int, batch: int, progress: Progress
) -> Verified:
    """Compare all parts, sampled subnets and the original path with torch, on real ``examples`` in batches.

    Raises:
        VerificationError: an output differs from torch.
    """
    expansion, verifier, golden = exported.expansion, Verifier(exported), {}
    with progress.task("verify", len(expansion.blocks) + len(expansion.exits) + SUBNETS + 3) as task:
        for block in expansion.blocks:
            task.note(block.id)
            golden[block.id] = verifier.golden([block.id])
            task.advance()
        for exit_ in expansion.exits:
            task.note(exit_.id)
            golden[exit_.id] = verifier.golden([], exit_.id)
            task.advance()
        task.note("sampled subnets")
        verifier.sampled_subnets(seed=seed, checked=task.advance)
        task.note("the original path")
        original_golden = verifier.original_golden()
        task.advance()
        samples = torch.from_numpy(examples)
        max_abs_diff = verifier.original_difference(samples, batch=batch)
        task.advance()
        task.note("distillation errors")
        errors = distillation_errors(expansion, samples, batch=batch)
        task.advance()
    return Verified(golden, original_golden, max_abs_diff, errors)
