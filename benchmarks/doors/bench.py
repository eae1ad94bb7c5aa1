"""Doors: networks saved as .pt2 and .onnx, packaged like the modules that they were exported from, and folders.

A file counts if what is made of it is right: of an exported program the same cut points and the same subnets as of the
module, of an ONNX file a supernet whose exported blocks answer as ONNX Runtime answers the file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.doors.files import NETWORKS, QUICK_NETWORKS
from benchmarks.doors.huggingface import ARCHITECTURES, QUICK, huggingface_rows, huggingface_share
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import CHECKOUT
from device_sdk.machine import usable_cores

SECONDS = 600.0  # of one network
TARGETS = {
    "pt2_share": Target(minimum=0.9),
    "onnx_share": Target(minimum=0.8),
    "huggingface_share": Target(minimum=0.9),
}
_MOST_SIDE_BY_SIDE = 2
_LAST_LINE = -1


def run(options: BenchOptions) -> BenchOutcome:
    """Export, import, cut and compare each network in a process of its own."""
    names = QUICK_NETWORKS if options.quick else NETWORKS
    table: list[dict[str, object]] = []
    with (
        options.progress.task("doors", len(names)) as task,
        ThreadPoolExecutor(min(_MOST_SIDE_BY_SIDE, usable_cores())) as processes,
    ):
        for name, rows in zip(names, processes.map(_checked, names), strict=True):
            table += rows
            task.note(name)
            task.advance()
    folders = huggingface_rows(QUICK if options.quick else tuple(ARCHITECTURES))
    figures = {"networks": float(len(names)), **_shares(table, names), "huggingface_share": huggingface_share(folders)}
    table += [{"file": "hf", **row} for row in folders]
    return BenchOutcome(figures, table, "random weights and inputs")


def _shares(table: Sequence[dict[str, object]], names: Sequence[str]) -> dict[str, float]:
    """Shares of networks for which every file of a kind passed; files that the exporter cannot write do not count."""
    figures = {}
    for kind in ("pt2", "onnx"):
        rows = [row for row in table if row["file"] == kind and row["exported"]]
        failed = {row["network"] for row in rows if not row["passed"]}
        passed = {row["network"] for row in rows} - failed
        figures[f"{kind}_share"] = len(passed) / len(names)
        figures[f"{kind}_files"] = float(len(rows))
        figures[f"{kind}_files_share"] = sum(bool(row["passed"]) for row in rows) / max(1, len(rows))
    return figures


def _checked(name: str) -> list[dict[str, object]]:
    """The rows of one network, with the reason of what failed."""
    command = [sys.executable, "-m", "benchmarks.doors.check", name]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=SECONDS)
        lines = done.stderr if done.returncode else ""
    except subprocess.TimeoutExpired:
        lines = f"took more than {SECONDS:.0f} s"
    if lines or done.returncode:
        reason = next((line for line in reversed(lines.splitlines()) if line.strip()), "it died")[:300]
        return [
            {"network": name, "file": kind, "exported": True, "passed": False, "reason": reason}
            for kind in ("pt2", "onnx")
        ]
    rows: list[dict[str, object]] = json.loads(done.stdout.splitlines()[_LAST_LINE])
    return rows
