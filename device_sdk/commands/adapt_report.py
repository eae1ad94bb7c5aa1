"""Lines and JSON of what ``pathweave adapt`` found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE

if TYPE_CHECKING:
    from device_sdk.policies.deciding.promises import Promise
    from device_sdk.policies.found import Found, Measured
    from device_sdk.policies.hybrid.choice import HybridChoice
    from device_sdk.policies.planning.choice import Choice
    from device_sdk.supernet.cost import PlanCost
    from device_sdk.supernet.plan import Subnet

_BUSY = 1.1  # slowdown that is worth a line
_ENERGY = 3  # of the cells of a row


def found_summary(found: Found, *, taken: bool) -> dict[str, Any]:
    """Everything about a choice as JSON."""
    import msgspec

    from device_sdk.commands.split_report import split_summary
    from device_sdk.supernet.plan import encode_plan

    choice = found.choice
    limits = {name: value for name, value in msgspec.structs.asdict(found.goal).items() if value is not None}
    return {
        "kind": choice.kind,
        "plan": encode_plan(choice.plan).decode(),
        "subnet": list(map(str, choice.plan.subnet.edges)),
        "exits": {one.exit: one.threshold for one in choice.plan.exits if one.threshold < UNREACHABLE_CONFIDENCE},
        "prior": choice.plan.class_prior is not None,
        "taken": taken,
        "goal": limits,
        "expected": _cost(choice.cost),
        "held_out": None if found.held_out is None else _cost(found.held_out),
        "measured": None if found.measured is None else _measurement(found.measured),
        "accuracy_interval": found.accuracy_interval,
        "full_accuracy": found.full_accuracy,
        "promise": None if choice.promise is None else _promise(choice.promise),
        "samples": found.samples,
        "judged": found.judged,
        "considered": choice.considered,
        "seconds": found.seconds,
        "stopped": found.stopped,
        "saved_by_asking_early": choice.saved_by_asking_early,
        "kinds": {
            kind: {"subnet": str(one.plan.subnet), "expected": _cost(one.cost), "misses": sorted(one.misses)}
            for kind, one in choice.by_kind.items()
        },
        "notes": list(found.notes),
        "split": None if found.split is None else split_summary(found.split),
        "hybrid": None if found.hybrid is None else _hybrid(found.hybrid),
    }


def _measurement(measured: Measured) -> dict[str, Any]:
    return {**asdict(measured), "ratio": measured.ratio}


def _promise(promise: Promise) -> dict[str, Any]:
    return {
        "certainty": promise.certainty,
        "samples": promise.samples,
        "wrong": promise.wrong,
        "won": promise.won,
        "least_accuracy": promise.least_accuracy,
    }


def _cost(cost: PlanCost) -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(cost)


def _hybrid(choice: HybridChoice) -> dict[str, Any]:
    def described(pair: Any) -> dict[str, Any] | None:
        return None if pair is None else asdict(pair) | {"base": str(pair.base), "global_": str(pair.global_)}

    return {"pair": described(choice.pair), "separate": described(choice.separate)}


def print_found(found: Found, *, explain: bool) -> None:
    """Print the plan, what it costs, and with ``explain`` or several kinds the best of each."""
    from device_sdk.commands.split_report import print_split

    if found.split is not None:
        print_split(found.split)
        return
    choice = found.choice
    if explain or len(choice.by_kind) > len({"subnet", "full model"} & choice.by_kind.keys()):
        _print_kinds(found)
    for line in _lines(found):
        click.echo(line)


def _homes(subnet: Subnet) -> Iterator[str]:
    """The homes along a path, where it names any."""
    if any(edge.home for edge in subnet.edges):
        runs = [(home or "the first home", len(list(edges))) for home, edges in groupby(e.home for e in subnet.edges)]
        yield "runs at " + ", then ".join(f"{home} ({count} block{'s' * (count > 1)})" for home, count in runs)


def _lines(found: Found) -> Iterator[str]:
    choice, measured = found.choice, found.measured
    yield f"{choice.kind}: {choice.plan.subnet}"
    yield from _homes(choice.plan.subnet)
    if choice.plan.second is not None:
        yield f"hard samples ({choice.cost.share_second:.0%}) are answered by {choice.plan.second}"
    if found.hybrid is not None:
        yield from _hybrid_lines(found.hybrid)
    yield from told_of_exits(choice)
    if choice.plan.class_prior is not None:
        yield "answers are corrected by the mix of classes of these images (--no-prior: not)"
    if measured is not None:
        yield from _latency_lines(measured, found.goal.latency_ms, alone=_alone(choice))
    if found.held_out is not None:
        accuracy, mean_ms = _cells(found.held_out)[:2]
        full = "" if found.full_accuracy is None else f" (full model {found.full_accuracy:.1%})"
        took = "" if found.held_out.latency_ms is None else f", {mean_ms} ms predicted"
        yield f"on {found.judged} samples that did not choose: accuracy {accuracy}{full}{took}"
    if found.accuracy_interval is not None:
        low, high = found.accuracy_interval
        yield f"expected on new samples like these: {low:.1%} to {high:.1%}"
    if choice.promise is not None:
        yield _promise_line(choice.promise, is_drop=found.goal.max_drop is not None)
    yield f"best of {choice.considered:,} that were judged in {found.seconds:.1f} s ({found.stopped})"
    yield from (f"note: {note}" for note in found.notes)


def _promise_line(promise: Promise, *, is_drop: bool) -> str:
    least, count = promise.least_accuracy, f"{promise.wrong} of {promise.samples} new samples were"
    if is_drop:
        won = f", {promise.won} won" if promise.won else ""
        return f"with a certainty of {promise.certainty:.0%} it loses at most {1 - least:.1%}: {count} lost{won}"
    return f"with a certainty of {promise.certainty:.0%} its accuracy is at least {least:.1%}: {count} answered wrongly"


def _alone(choice: Choice) -> str:
    return "without exits" if choice.plan.second is None else "by the first path alone"


def _latency_lines(measured: Measured, limit_ms: float | None, *, alone: str) -> Iterator[str]:
    """The measured latency, its certainty, and what it leaves out."""
    preparing = f"preparing a sample takes another {measured.prepare_ms:.3f} ms"
    share = f"{measured.ratio:.0%} of the full model's {measured.full_ms:.3f} ms"
    if measured.without_exits_ms is not None:
        yield f"latency: {measured.latency_ms:.3f} ms on average, {measured.without_exits_ms:.3f} ms {alone};"
        yield f"  {share}; {preparing}"
        return
    low_ms, high_ms = measured.interval_ms
    yield f"latency: {measured.latency_ms:.3f} ms ({low_ms:.3f} to {high_ms:.3f}) when nothing else runs, {share};"
    yield f"  {preparing}"
    if limit_ms is not None:
        yield f"the budget of {limit_ms:.3f} ms is kept with a probability of {measured.within_budget_probability:.0%}"
    if measured.slowdown > _BUSY:
        yield f"the device is busy: calls take {measured.slowdown:.1f} times as long now"


def _hybrid_lines(choice: HybridChoice) -> Iterator[str]:
    pair = choice.pair
    yield f"base, here: {pair.base}"
    yield f"global, at the server: {pair.global_}"
    yield f"{pair.sent:.0%} are sent, {pair.cost:.4g} per sample, accuracy {pair.accuracy:.1%}"
    if choice.separate is not None:
        yield f"picked one by one they would reach {choice.separate.accuracy:.1%}"


def _print_kinds(found: Found) -> None:
    from rich.console import Console
    from rich.table import Table

    from device_sdk.policies.exits.placed_exits import without_timed_exits

    options, chosen = found.by_kind, without_timed_exits(found.plan)
    energy = any(one.cost.energy_mj is not None for one in options.values())
    table = Table(box=None, pad_edge=False)
    for heading in ("kind", "accuracy", "ms", "p95", *(("mJ",) if energy else ()), "bytes", "early", "asked", "none"):
        table.add_column(heading, no_wrap=True)
    table.add_column("misses", overflow="fold")
    for kind, one in options.items():
        cells = [cell for number, cell in enumerate(_cells(one.cost)) if energy or number != _ENERGY]
        style = "bold" if one.plan == chosen else None
        table.add_row(kind, *cells, ", ".join(sorted(one.misses)), style=style)
    Console().print(table)


def told_of_exits(choice: Choice) -> Iterator[str]:
    """Lines on the decisions of each exit, and on the saving by sending samples from exits."""
    for one in choice.plan.exits:
        answers = (
            f"answers from a confidence of {one.threshold:.3f} on" if one.threshold < UNREACHABLE_CONFIDENCE else ""
        )
        asks = f"asks below {one.ask_below:.3f}" if one.ask_below else ""
        if answers or asks:
            yield f"exit {one.exit} {' and '.join(filter(None, (answers, asks)))}"
    saved = choice.saved_by_asking_early
    if saved:
        units = {"latency_ms": "ms", "energy_mj": "mJ", "bytes_sent": "bytes"}
        amounts = ", ".join(f"{amount:.3g} {units[name]}" for name, amount in saved.items())
        yield f"against asking at the end alone it saves on average {amounts} per sample"


def _cells(cost: PlanCost) -> list[str]:
    def number(value: float | None, form: str) -> str:
        return "unknown" if value is None else format(value, form)

    return [
        number(cost.accuracy, ".1%"),
        number(cost.latency_ms, ".3f"),
        number(cost.p95_latency_ms, ".3f"),
        number(cost.energy_mj, ".3g"),
        f"{cost.bytes_sent:,.0f}",
        f"{cost.share_early:.0%}",
        f"{cost.share_asked:.0%}" + (f" ({cost.share_asked_early:.0%} early)" if cost.share_asked_early else ""),
        f"{cost.share_abstained:.0%}",
    ]
