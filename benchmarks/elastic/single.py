"""The single model, without exits and pages, under a limit of memory, in a process of its own that may be ended.

``python -m benchmarks.elastic.single BUNDLE INPUTS BYTES [GROUP]``: exits with 0 once the model has answered. The limit
is beyond the bare runtime: ``memory.max`` of a control group of version 2 that the process joins, or where there is
none, ``RLIMIT_DATA``: the kernel refuses memory above it, and the runtime fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.workspace import Workspace
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from device_sdk.supernet.plan import Plan

_GROUP = "pathweave-elastic-single"
_LIMIT_S = 60.0
_CHECKOUT = Path(__file__).parents[2]  # benchmarks.support.bundles has it too, but imports torch


def answers_within(folder: Path, inputs: Path, limit_bytes: int, *, beside: Path | None) -> bool:
    """True if the single model of a bundle answers the first of ``inputs`` within so many bytes.

    ``beside``: a control group beside which one for the process can be made; None: there is none.
    """
    group = None if beside is None else beside.parent / _GROUP
    command = [sys.executable, "-m", "benchmarks.elastic.single", str(folder), str(inputs), str(limit_bytes)]
    if group is not None:
        group.mkdir(exist_ok=True)
        command.append(str(group))
    try:
        done = subprocess.run(command, cwd=_CHECKOUT, capture_output=True, text=True, timeout=_LIMIT_S)
    finally:
        with contextlib.suppress(OSError):
            if group is not None:
                group.rmdir()
    if done.returncode and "Traceback" in done.stderr and not _ran_out(done.stderr):
        raise RuntimeError(f"the single model failed for another reason: {done.stderr.strip().splitlines()[-1]}")
    return done.returncode == 0


def _ran_out(errors: str) -> bool:
    return any(word in errors for word in ("bad_alloc", "MemoryError", "Failed to allocate", "BFCArena"))


def _limit_group(group: Path, limit_bytes: int) -> None:
    bare_bytes = int((group / "memory.current").read_text())
    with contextlib.suppress(OSError):  # a system without swap
        (group / "memory.swap.max").write_text("0")
    (group / "memory.max").write_text(str(bare_bytes + limit_bytes))


def _limit_data(limit_bytes: int) -> None:
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    allowed = 1024 * int(found[1]) + limit_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))


def main(folder: Path, inputs: Path, limit_bytes: int, group: Path | None) -> None:
    """1. the bare runtime, which has run a block; 2. the limit; 3. the whole model."""
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    sample = np.load(inputs, mmap_mode="r")[:1].copy()
    bundle = Bundle.open(folder)
    workspace = Workspace(bundle, OnnxRuntime(threads=1, lean=True))
    original = bundle.supernet.original
    workspace.load_stretch(original.edges[:1]).run([sample])
    if group is None:
        _limit_data(limit_bytes)
    else:
        _limit_group(group, limit_bytes)
    loaded = workspace.load_plan(Plan(original))
    loaded.run(sample)


if __name__ == "__main__":
    _folder, _inputs, _bytes, *_group = sys.argv[1:]
    main(Path(_folder), Path(_inputs), int(_bytes), Path(_group[0]) if _group else None)
