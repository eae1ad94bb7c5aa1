"""``pathweave admin rollouts``: start, watch and change rollouts of a server, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from device_sdk.commands.command_line import emit, json_option
from device_sdk.commands.command_options import token_option
from device_sdk.errors import UsageError
from device_sdk.files.atomic import decode_json
from server.asking import ask_server
from server.rollouts.plan import Limits, Plan, Stage

_url = click.argument("url")
_number = click.argument("number", type=click.IntRange(min=1))
_version = click.IntRange(min=1)
_TAG = "tag:"
_PLAN_MAX_BYTES = 2_000_000
_STAGE_HINT = "for example 5,hold_minutes=120,min_devices=50,approval=operator,tag:region=eu,device=kitchen-pi"


@click.group()
def rollouts() -> None:
    """Rollouts: a version for some devices first, then for more, halted by what they report."""


@rollouts.command("start")
@_url
@click.argument("name")
@click.argument("version", type=_version)
@click.option("--stage", "stages", multiple=True, help=f"PERCENT and KEY=VALUE; {_STAGE_HINT}. Repeatable.")
@click.option(
    "--limit", "limits", multiple=True, help="SIGNAL=VALUE, none for no limit, as self_test=0.001. Repeatable."
)
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="The whole plan as JSON instead.")
@click.option("--baseline", type=_version, help="The version that it replaces [default: what devices get now].")
@click.option("--against", type=_version, help="A/B: half of each stage gets this version.")
@click.option("--on-halt", type=click.Choice(["reverse", "pause"]), default="reverse", show_default=True)
@click.option("--no-rollback", is_flag=True, help="Without a signed rollback: devices that have the version keep it.")
@token_option
@json_option
def start(
    url: str,
    name: str,
    version: int,
    stages: tuple[str, ...],
    limits: tuple[str, ...],
    plan_file: Path | None,
    baseline: int | None,
    against: int | None,
    on_halt: str,
    no_rollback: bool,
    token: str | None,
    as_json: bool,
) -> None:
    """Start to give VERSION of the bundle NAME to the devices of the server at URL.

    A version that is not published yet is planned: it begins once it is there.
    """
    if (plan_file is None) == (not stages):
        raise UsageError("give --stage, once or more, or --plan FILE", hint=f"--stage {_STAGE_HINT}")
    if plan_file is not None:
        plan = _read_plan(plan_file)
    else:
        made = {"stages": [_stage(one) for one in stages], "limits": _limits(limits), "on_halt": on_halt}
        plan = _checked({**made, "no_rollback": no_rollback, "against": against}, Plan, "the plan")
    asked = {"bundle": name, "version": version, "baseline": baseline, "plan": msgspec.to_builtins(plan)}
    report = ask_server("POST", url, "/v1/rollouts", dict[str, Any], asked, token=token, what="the rollout")
    for warning in () if as_json else report.get("warnings", ()):
        click.echo(f"warning: {warning}", err=True)
    emit(report, as_json=as_json, text="\n".join(_lines(report)))


@rollouts.command("list")
@_url
@token_option
@json_option
def list_rollouts(url: str, token: str | None, as_json: bool) -> None:
    """List rollouts, the newest first."""
    told = ask_server("GET", url, "/v1/rollouts", dict[str, Any], token=token, what="the rollouts")
    text = "\n".join(_head(one) for one in told.get("rollouts", ())) or "no rollout"
    emit(told, as_json=as_json, text=text)


@rollouts.command("show")
@_url
@_number
@token_option
@json_option
def show(url: str, number: int, token: str | None, as_json: bool) -> None:
    """Show a rollout: stages, devices, bytes, signals with their limits and 95 % intervals."""
    report = ask_server("GET", url, f"/v1/rollouts/{number}", dict[str, Any], token=token, what="the rollout")
    emit(report, as_json=as_json, text="\n".join(_lines(report)))


def _change(action: str, help_text: str) -> Callable[..., None]:
    def command(url: str, number: int, token: str | None, as_json: bool) -> None:
        path = f"/v1/rollouts/{number}/{action}"
        report = ask_server("POST", url, path, dict[str, Any], token=token, what="the rollout")
        emit(report, as_json=as_json, text=_head(report))

    command.__doc__ = help_text
    return rollouts.command(action)(_url(_number(token_option(json_option(command)))))


_change("pause", "Give the version to no further device.")
_change("resume", "Go on with a stage that was paused.")
_change("approve", "Begin the next stage; after the last one, give all devices the version.")
_change("reverse", "Send devices back to the version that was replaced.")


def _read_plan(path: Path) -> Plan:
    try:
        with path.open("rb") as file:
            data = file.read(_PLAN_MAX_BYTES)
        return decode_json(data, Plan)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is no plan of a rollout: {error}") from error


def _stage(text: str) -> dict[str, Any]:
    """A stage on the command line."""
    found: dict[str, Any] = {"tags": {}, "devices": []}
    for part in text.split(","):
        name, separator, value = part.partition("=")
        if not separator:
            found["percent"] = part.removesuffix("%")
        elif name.startswith(_TAG):
            found["tags"][name.removeprefix(_TAG)] = value
        elif name == "device":
            found["devices"].append(value)
        else:
            found[name] = value
    return msgspec.to_builtins(_checked(found, Stage, f"the stage {text!r}"))


def _limits(given: tuple[str, ...]) -> dict[str, Any]:
    pairs = (one.partition("=")[::2] for one in given)
    return msgspec.to_builtins(
        _checked({name: None if value == "none" else value for name, value in pairs}, Limits, "--limit")
    )


def _checked(value: dict[str, Any], kind: type[Any], what: str) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{what} is not valid: {error}", hint=f"--stage {_STAGE_HINT}") from error


def _head(one: dict[str, Any]) -> str:
    waits = ", waits for approval" if one["waits_for_approval"] else ""
    stage = f"stage {one['stage'] + 1} of {one['stages_planned']}"
    why = f": {one['why']}" if one["why"] else ""
    return (
        f"{one['number']}  {one['bundle']} {one['baseline']} -> {one['version']}  {one['state']}, {stage}{waits}{why}"
    )


def _lines(report: dict[str, Any]) -> list[str]:
    """A report for people."""
    share = (
        "no device known" if report["share"] is None else f"{report['share']:.2%} of {report['fleet_devices']} devices"
    )
    lines = [_head(report), f"has the version: {share}"]
    for number, stage in enumerate(report["stages"], start=1):
        size = "not published yet" if stage["bytes"] is None else f"{stage['bytes'] / 1e6:.3g} MB to deliver"
        got = "".join(f"; {one['got']} got {version}, {one['run']} run it" for version, one in stage["devices"].items())
        lines.append(f"stage {number}: {stage['known_devices']} known devices, {size}{got}")
    for one in report["signals"]:
        verdict = "  HALTS" if one["halts"] else "  doubtful" if one["doubtful"] else ""
        where = f" [{one['tag']}]" if one["tag"] else ""
        found = f"{one['value']:+.2%} ({one['low']:+.2%} to {one['high']:+.2%})"
        lines.append(f"{one['signal']}{where}: {found} of {one['devices']} devices, limit {one['limit']:+.2%}{verdict}")
    if report["against"] is not None:
        lines += [line for version in report["versions"] for line in _compared(version)]
    return lines


def _compared(version: dict[str, Any]) -> list[str]:
    shares = version["shares"].items()
    found = [f"{name} {one['share']:.2%}" for name, one in shares if one["share"] is not None]
    means = [
        f"{name} {one['mean']:.4g} ({one['low']:.4g} to {one['high']:.4g})" for name, one in version["means"].items()
    ]
    return [f"version {version['version']}: {', '.join((*found, *means)) or 'nothing reported'}"]
