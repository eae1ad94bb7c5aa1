"""S3: bytes from untrusted sources."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.faults.parsers import NAMES, Parser, parsers
from benchmarks.faults.promise import Findings, Trial
from benchmarks.faults.tools.mutation import mutations

INPUT_S = 1.0  # no input takes longer
GUIDED_S = 60.0  # atheris takes several seconds to start
START_S = 60.0  # of the fuzzer's process, on a busy machine
CHECKOUT = Path(__file__).parents[3]


def any_bytes(trial: Trial, findings: Findings) -> None:
    """S3: each parser for its share of the time, by mutations of good inputs and, where it is here, by atheris."""
    known = parsers(trial.bundle.folder)
    guided = importlib.util.find_spec("atheris") is not None and trial.seconds >= GUIDED_S
    for name in NAMES:
        share_s = trial.seconds / len(NAMES)
        counts = [_mutate(known[name], findings, share_s / 2 if guided else share_s, trial.seed)]
        if guided:
            counts.append(_guide(name, trial, findings, share_s / 2))
        findings.note(f"{name}: {' and '.join(map(str, counts))} inputs")
    findings.note("mutations, and atheris" if guided else "mutations alone: atheris is not here, or has no time")


def _mutate(parser: Parser, findings: Findings, seconds: float, seed: int) -> int:
    """Mutations of good inputs; the number of inputs."""
    ends_s, count = time.monotonic() + seconds, 0
    for data in mutations(parser.seeds, seed=seed):
        began_s = time.perf_counter()
        what = _crash(parser, data)
        took_s = time.perf_counter() - began_s
        findings.case(what is None, f"{parser.name}: {what} for {data[:60].hex()}… ({len(data)} bytes)", "crashed")
        findings.case(took_s <= INPUT_S, f"{parser.name}: {len(data)} bytes took {took_s:.1f} s", "hung")
        count += 1
        if time.monotonic() > ends_s:
            return count
    return count


def _crash(parser: Parser, data: bytes) -> str | None:
    """The exception that ``parser`` raised, unless it is a documented one; None for none."""
    try:
        parser.read(data)
    except parser.documented:
        return None
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


def _guide(name: str, trial: Trial, findings: Findings, seconds: float) -> int:
    """Atheris in a process of its own; the number of inputs."""
    corpus = trial.new_folder(f"corpus-{name}")
    arguments = [name, str(trial.bundle.folder), str(max(1.0, seconds)), str(trial.seed), str(corpus)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.faults.fuzz", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds + START_S,
        )
    except subprocess.TimeoutExpired:
        findings.case(False, f"{name}: atheris did not end", "hung")
        return 0
    said = re.search(r"stat::number_of_executed_units: *([0-9]+)", done.stderr)
    count = int(said[1]) if said else 0
    harm = "hung" if "timeout" in done.stderr.lower() else "crashed"
    lines = [line for line in done.stderr.splitlines() if "Error" in line or "exception" in line]
    findings.case(done.returncode == 0, f"{name}: {' '.join(lines)[-300:] or done.stderr[-300:]}", harm)  # type: ignore[arg-type]
    findings.case(count > 0, f"{name}: atheris tried nothing")
    findings.cases += count
    return count
