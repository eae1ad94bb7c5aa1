"""Share of a model's blocks that the NPU of a phone will take, before any training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from device_sdk.errors import MissingExtraError
from device_sdk.progress import SilentProgress
from device_sdk.supernet.blocks import CompiledFor
from packager.errors import PackagingError
from packager.exporting.export import export_blocks
from packager.npu.chips import Chip
from packager.npu.compiler import Compiler
from packager.npu.records import grouped
from packager.renditions.calibration import Calibration
from packager.renditions.htp import NAME, Trial, parts_with_features
from packager.renditions.int8 import cut_point_ranges
from packager.renditions.rendition_set import MAX_ERROR
from packager.supernet.expansion import expand
from packager.tracing.traced_model import TracedModel


@dataclass(frozen=True)
class NpuBlock:
    """An original block, as chips take it.

    ``form``: ``8 bits`` or ``16 bits`` of its activations, or ``half precision``: the narrowest that suits.
    ``error``: of the answers in the emulator. ``reason``: why there is no rendition; empty if there is one.
    """

    id: str
    macs: int
    form: str
    error: float
    compiled: tuple[CompiledFor, ...]
    reason: str = ""

    def share(self, chip: str) -> float:
        """Share of the block that ``chip`` takes, 0 to 1."""
        return 0.0 if self.reason else next((one.share for one in self.compiled if one.chip == chip), 0.0)


@dataclass(frozen=True)
class NpuFindings:
    """The blocks for ``chips``. ``note``: why there are none; empty if there are."""

    chips: tuple[str, ...] = ()
    blocks: tuple[NpuBlock, ...] = ()
    note: str = ""

    def macs_share(self, chip: str) -> float:
        """Share of the MACs that ``chip`` takes, 0 to 1."""
        macs = max(1, sum(block.macs for block in self.blocks))
        return sum(block.macs * block.share(chip) for block in self.blocks) / macs

    def refusals(self, chip: str) -> list[str]:
        """A line for each operator that ``chip`` refuses for a reason, and for each block without a rendition."""
        records = [(block.id, one) for block in self.blocks for one in block.compiled if one.chip == chip]
        lines = grouped((block, refused) for block, one in records for refused in one.refused)
        return [*lines, *(f"  {block.id}: {block.reason}" for block in self.blocks if block.reason)]

    def described(self) -> dict[str, Any]:
        """As JSON output has it."""
        return {
            "note": self.note,
            "chips": {chip: {"macs_share": round(self.macs_share(chip), 4)} for chip in self.chips},
            "blocks": [
                {
                    "id": block.id,
                    "form": block.form,
                    "error": block.error if block.error < float("inf") else None,
                    "reason": block.reason,
                    "chips": {
                        one.chip: {
                            "share": round(block.share(one.chip), 4),
                            "refused": [
                                {"operator": some.operator, "count": some.count, "reason": some.reason}
                                for some in one.refused
                            ],
                        }
                        for one in block.compiled
                    },
                }
                for block in self.blocks
            ],
        }


def npu_findings(traced: TracedModel, examples: torch.Tensor, chips: Sequence[Chip]) -> NpuFindings:
    """Compile every original block of a model, whose cut points have one tensor each, for ``chips``.

    ``examples``: prepared images [count, *input] for ranges and errors. Without the compiler, a note says what to
    install.
    """
    names = tuple(chip.name for chip in chips)
    try:
        with Compiler() as compiler:
            return NpuFindings(names, tuple(npu_blocks(traced, examples, chips, compiler)))
    except MissingExtraError as error:
        return NpuFindings(names, note=f"not compiled for NPUs: {error} ({error.hint})")
    except PackagingError as error:
        return NpuFindings(names, note=f"not compiled for NPUs: {error}")


def npu_blocks(
    traced: TracedModel, examples: torch.Tensor, chips: Sequence[Chip], compiler: Compiler
) -> Iterator[NpuBlock]:
    """The original blocks in order, each compiled in the narrowest form that suits.

    Raises:
        TraceError, VerificationError: a block cannot be exported, or its features are not finite.
    """
    expansion = expand(traced, max_span=1)
    expansion = replace(expansion, blocks=expansion.originals)
    exported = export_blocks(expansion)
    calibration = Calibration(expansion, examples, batch=len(examples))
    quantization = cut_point_ranges(calibration, SilentProgress(), name=NAME)
    trial = Trial(exported, compiler, chips, quantization, batch=len(examples))
    macs = {block.id: block.macs for block in expansion.blocks}
    for part, features in parts_with_features(exported, calibration):
        best = trial.best(part, features)
        reason = best.reason() if best.golden is None or best.error > MAX_ERROR else ""
        yield NpuBlock(part, macs[part], best.form, best.error, best.record, reason)
