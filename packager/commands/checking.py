"""``pathweave package --check``: which adaptations a model supports, before any training."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_sdk.commands.command_line import emit, progress
from device_sdk.extras import require

if TYPE_CHECKING:
    from rich.table import Table

    from packager.doctor.examination import Examination

_NOTES = 8  # printed at most; --json prints all


def check_model(
    *,
    specification: str,
    weights: Path | None,
    input_shape: tuple[int, int, int] | None,
    classes: str | None,
    normalisation: Any,
    interpolation: Any,
    crop: Any,
    training: str | None,
    budget_minutes: float | None,
    memory_gb: float | None,
    as_json: bool,
    started: float,
    **_: Any,
) -> None:
    """Report whether the model can be cut, skipped, merged, shrunk, quantised, run smaller, exited and split."""
    require("torch", extra="packager")

    from packager.doctor.examination import SAMPLES, examine
    from packager.inputs.job_loader import load_model_of_job, load_samples
    from packager.inputs.pixels import Pixels
    from packager.planning.run_plan import memory_limit
    from packager.torch_device import use_threads

    use_threads(None)
    limit = memory_limit(memory_gb)
    pixels = Pixels(normalisation, interpolation, crop)
    loaded = load_model_of_job(specification, weights=weights, input_shape=input_shape, classes=classes, pixels=pixels)
    images = count = None
    if training is not None:
        shown = progress(as_json)
        images, count, notes = load_samples(
            training, loaded, count=SAMPLES, weights_given=weights is not None, progress=shown
        )
        loaded = replace(loaded, notes=(*loaded.notes, *notes))
    found = examine(
        loaded,
        images=images,
        image_count=count,
        budget_minutes=budget_minutes,
        memory_bytes=limit,
        spent=time.monotonic() - started,
    )
    emit(found.described(), as_json=as_json, text=lambda: _print(found))


def _print(found: Examination) -> None:
    from rich.console import Console

    console = Console()
    shape = "×".join(map(str, found.input_shape))
    console.print(f"{found.model}: {shape} in, {'×'.join(map(str, found.answer_shape))} out ({found.source})")
    console.print(_verdicts(found))
    console.print(_blocks(found))
    for note in found.notes[:_NOTES]:
        console.print(f"note: {note}", markup=False)
    if len(found.notes) > _NOTES:
        console.print(f"note: {len(found.notes) - _NOTES} more, which --json prints")
    console.print(found.conclusion, markup=False)


def _verdicts(found: Examination) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "", "")
    table.show_header = False
    for one in found.verdicts:
        table.add_row(one.capability, "yes" if one.possible else "no", escape(one.says))
    return table


def _blocks(found: Examination) -> Table:
    from rich.table import Table

    table = Table("block", "parameters", "MACs", "bytes behind it", "on the way")
    for block, cut in zip(found.blocks, found.cut_points[1:], strict=True):
        name = block["id"] + (" (mandatory cut)" if cut.mandatory else "")
        packed = "" if cut.packet_nbytes is None else f"{cut.packet_nbytes:,}{' *' if cut.split else ''}"
        table.add_row(name, f"{block['parameters']:,}", f"{block['macs']:,}", f"{cut.nbytes:,}", packed)
    table.caption = "* fewer bytes than the input's: a server may take over there"
    return table
