"""``pathweave package --check``: which adaptations a model supports, before any training."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from device_sdk.commands.command_line import emit, progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from packager.doctor.examination import Examination
    from packager.doctor.npu import NpuFindings
    from packager.pipeline import Limits

_NOTES = 8  # printed at most; --json prints all


def check_model(options: Mapping[str, Any], limits: Limits) -> None:
    """Report whether the model can be cut, skipped, merged, shrunk, quantised, run smaller, exited and split."""
    from packager.doctor.examination import SAMPLES, examine
    from packager.inputs.job import load_model_of_job, load_samples
    from packager.inputs.job_data import TASKS
    from packager.inputs.pixels import Pixels
    from packager.npu.chips import DEFAULT_CHIPS, chips_named

    as_json, weights = options["as_json"], options["weights"]
    loaded = load_model_of_job(
        options["specification"],
        weights=weights,
        input_shape=options["input_shape"],
        classes=options["classes"],
        pixels=Pixels(options["normalisation"], options["interpolation"], options["crop"]),
        task=options["task"],
    )
    images = count = None
    if options["training"] is not None:
        images, count, notes = load_samples(
            options["training"],
            loaded,
            count=SAMPLES,
            weights_given=weights is not None,
            task=options["task"],
            progress=progress(as_json),
        )
        loaded = replace(loaded, notes=(*loaded.notes, *notes))
    found = examine(
        loaded,
        images=images,
        image_count=count,
        budget_minutes=options["budget_minutes"],
        memory_bytes=limits.memory_bytes,
        spent=time.monotonic() - (limits.started or 0.0),
        chips=chips_named(options["chips"] or DEFAULT_CHIPS),
        task=TASKS[options["task"]],
    )
    emit(found.described(), as_json=as_json, text=lambda: _print(found))


def _print(found: Examination) -> None:
    from rich.console import Console

    console = Console()
    shape = "×".join(map(str, found.input_shape))
    console.print(f"{found.model}: {shape} in, {'×'.join(map(str, found.answer_shape))} out ({found.source})")
    console.print(_verdicts(found))
    console.print(_blocks(found))
    _print_npu(console, found.npu)
    for note in found.notes[:_NOTES]:
        console.print(f"note: {note}", markup=False)
    if len(found.notes) > _NOTES:
        console.print(f"note: {len(found.notes) - _NOTES} more, which --json prints")
    console.print(found.conclusion, markup=False)


def _print_npu(console: Console, found: NpuFindings | None) -> None:
    """A row for each block, and a line for each reason of a refusal; nothing if blocks were not compiled."""
    from rich.table import Table

    if found is None or found.note:
        return
    table = Table("block", "activations", *(f"{chip} takes" for chip in found.chips))
    for block in found.blocks:
        table.add_row(block.id, block.form, *(f"{block.share(chip):.0%}" for chip in found.chips))
    console.print(table)
    for chip in found.chips:
        if refusals := found.refusals(chip):
            console.print(f"{chip} leaves to the processor:")
        for line in refusals:
            console.print(line, markup=False, soft_wrap=True)


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
