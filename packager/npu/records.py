"""Records of compiling in a manifest, summed up per chip, and compared with the compiler that is installed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from device_sdk.supernet.blocks import Block, CompiledFor, RefusedNodes

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class ChipRecord:
    """All that a bundle says about one chip.

    ``macs_share``: of the original path's MACs that the NPU takes, 0 to 1; a block counts by its share of nodes.
    ``without``: blocks that have no rendition for it. ``refused``: nodes by block.
    """

    chip: str
    compiler: str
    blocks: int
    macs_share: float
    without: tuple[str, ...]
    refused: tuple[tuple[str, RefusedNodes], ...]

    def described(self) -> dict[str, Any]:
        """As JSON output has it."""
        return {
            "chip": self.chip,
            "compiler": self.compiler,
            "blocks": self.blocks,
            "macs_share": round(self.macs_share, 4),
            "without": list(self.without),
            "refused": [
                {"block": block, "operator": one.operator, "count": one.count, "reason": one.reason}
                for block, one in self.refused
            ],
        }

    def lines(self) -> list[str]:
        """A line on the whole, and one for each operator that is refused for a reason, with its blocks."""
        text = f"{self.chip} ({self.compiler}): takes {self.macs_share:.0%} of the MACs of the original path"
        text += f", none of {', '.join(self.without)}" if self.without else ""
        return [text, *grouped(self.refused)]


def grouped(refused: Iterable[tuple[str, RefusedNodes]]) -> list[str]:
    """A line for each operator and reason: how many nodes are refused, and in which blocks."""
    blocks: dict[tuple[str, str], list[str]] = {}
    counts: dict[tuple[str, str], int] = {}
    for block, one in refused:
        blocks.setdefault((one.operator, one.reason), []).append(block)
        counts[one.operator, one.reason] = counts.get((one.operator, one.reason), 0) + one.count
    return [
        f"  {counts[operator, reason]} {operator} in {', '.join(dict.fromkeys(found))}: {reason}"
        for (operator, reason), found in blocks.items()
    ]


def chip_records(blocks: Sequence[Block]) -> tuple[ChipRecord, ...]:
    """One record for each chip that any of ``blocks`` was compiled for; blocks without MACs count as taken."""
    found: dict[str, dict[str, CompiledFor]] = {}
    for block in blocks:
        for rendition in block.renditions:
            for one in rendition.compiled:
                found.setdefault(one.chip, {})[block.id] = one
    originals = [block for block in blocks if block.is_original]
    macs = max(1, sum(block.macs for block in originals))
    return tuple(
        ChipRecord(
            chip=chip,
            compiler=min((one.compiler for one in records.values()), key=_version),
            blocks=len(records),
            macs_share=sum(block.macs * records[block.id].share for block in originals if block.id in records) / macs,
            without=tuple(block.id for block in originals if block.id not in records or not records[block.id].nodes),
            refused=tuple((block, refused) for block, one in records.items() for refused in one.refused),
        )
        for chip, records in found.items()
    )


def outdated(records: Sequence[ChipRecord], installed: str | None) -> str | None:
    """One line if a record is of an older version of the compiler that is ``installed`` here; else None."""
    if installed is None:
        return None
    older = [one for one in records if _name(one.compiler) == _name(installed) and _older(one.compiler, installed)]
    if not older:
        return None
    chips = ", ".join(one.chip for one in older)
    return f"compiled for {chips} by {older[0].compiler}; {installed} is installed: package again"


def _name(compiler: str) -> str:
    return compiler.partition(" ")[0]


def _version(compiler: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBER.findall(compiler.partition(" ")[2])[:8]))


def _older(compiler: str, installed: str) -> bool:
    return _version(compiler) < _version(installed)
