"""Faults: the 18 promises of docs/guarantees.md, each tried with real faults in a process of its own."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.faults.processes import Tried, require_linux, try_promise
from benchmarks.faults.promises.registry import PROMISES
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target

TARGETS = {
    "promises_kept": Target(minimum=18),
    "kills": Target(minimum=1000),
    "torn": Target(maximum=0),
    "hung": Target(maximum=0),
    "crashes": Target(maximum=0),
    "leaked": Target(maximum=0),
}
DATA = "the contract tests' bundle (13 fragments, images of 2 × 2 pixels), random inputs; at nice -10 where permitted"


def run(options: BenchOptions) -> BenchOutcome:
    """Every promise for its share of the time; ``--quick``: hardly a tenth of it, so that there are fewer kills."""
    require_linux()
    tried = []
    with options.progress.task("promises", len(PROMISES)) as task:
        for promise in PROMISES:
            seconds = promise.quick_seconds if options.quick else promise.seconds
            tried.append(try_promise(promise, options.work_folder / promise.name, seconds=seconds))
            task.advance()
    return BenchOutcome(figures(tried), table(tried), DATA)


def figures(tried: Iterable[Tried]) -> dict[str, float]:
    """The figures of issue 31. A promise of which a part could not be tried is not counted as kept."""
    found = [one.findings for one in tried]
    harms = {name: sum(one.harms.get(name, 0) for one in found) for name in ("torn", "hung", "crashed", "leaked")}
    return {
        "promises_kept": sum(one.kept and not one.missing for one in found),
        "promises_partly": sum(one.kept and bool(one.missing) for one in found),
        "kills": sum(one.kills for one in found),
        "torn": harms["torn"],
        "hung": harms["hung"],
        "crashes": harms["crashed"],
        "leaked": harms["leaked"],
    }


def table(tried: Iterable[Tried]) -> list[dict[str, object]]:
    """A row for each promise."""
    return [
        {
            "promise": one.promise.name,
            "statement": one.promise.statement,
            "kept": verdict(one),
            "cases": one.findings.cases,
            "kills": one.findings.kills,
            "seconds": round(one.seconds, 1),
            "failures": one.findings.failures,
            "broken": one.findings.broken,
            "missing": one.findings.missing,
            "notes": one.findings.notes,
        }
        for one in tried
    ]


def verdict(tried: Tried) -> str:
    """``yes``, ``no``, or ``partly`` where a part could not be tried."""
    if not tried.findings.kept:
        return "no"
    return "partly" if tried.findings.missing else "yes"
