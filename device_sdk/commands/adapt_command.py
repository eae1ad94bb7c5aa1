"""``pathweave adapt``: the best plan for a goal, of all kinds that are considered."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
from click.core import ParameterSource

from device_sdk.commands.adapt_report import found_summary, print_found
from device_sdk.commands.command_line import emit, progress
from device_sdk.commands.command_options import (
    ChosenTrust,
    Command,
    bundle_options,
    fallback_option,
    limit_option,
    load_data,
    open_model,
    power_options,
    privacy_option,
    require_permission,
    server_model_option,
)
from device_sdk.errors import UsageError
from device_sdk.files.drawing import require_picture
from device_sdk.supernet.goal import KINDS, Goal

if TYPE_CHECKING:
    from device_sdk.offload.remote_model import Privacy
    from device_sdk.policies.measured_splits.region import Cell
    from device_sdk.session.adaptive_model import AdaptiveModel
    from device_sdk.supernet.cost import Power, Uplink
    from device_sdk.supernet.plan import Fallback

_OPTIMISED = {"accuracy": "accuracy", "latency": "latency_ms", "energy": "energy_mj", "bytes": "bytes_sent"}
_GOAL: tuple[tuple[str, str], ...] = (
    ("latency_ms", "Limit of the latency: of a subnet at --percentile, of other plans on average."),
    ("latency_ratio", "The same as a share of the full model's."),
    ("p95_latency_ms", "Limit of the 95th percentile of the latency, over samples."),
    ("calls_per_second", "Pace at which the application calls.  [default: 20 ms between calls]"),
    ("accuracy", "Least accuracy, 0 to 1, of the samples that are answered."),
    (
        "certainty",
        "Probability, 0 to 1, with which --accuracy or --max-drop, and a cascade's latency, hold on new samples.",
    ),
    ("max_drop", "Most accuracy that exits or a split may lose, 0 to 1, instead of --accuracy."),
    ("share_asked", "Most samples that a server is asked about, 0 to 1."),
    ("energy_mj", "Limit of the mean energy; needs --active-w."),
    ("bytes_sent", "Limit of the mean bytes sent per sample."),
    ("macs", "Limit of a hybrid's mean multiply-accumulates, in millions."),
    ("memory_mb", "Limit of the memory on the device: weights once loaded and working set."),
    ("storage_mb", "Limit of the weights of a split's part here, as they are stored."),
)


def goal_options(command: Command) -> Command:
    """The options that make a ``Goal``, as the argument ``goal``."""

    @functools.wraps(command)
    def with_goal(*arguments: object, optimise: str, percentile: float, coverage: float, **options: object) -> object:
        limits = {name: options.pop(name) for name, _ in _GOAL}
        if limits["macs"] is not None:
            limits["macs"] = cast(float, limits["macs"]) * 1e6
        fields = {"percentile": percentile, "coverage": coverage, **limits}
        goal = Goal(optimise=_OPTIMISED[optimise], **fields)  # type: ignore[arg-type]
        return command(*arguments, goal=goal, **options)

    decorated: Callable[..., object] = with_goal
    for name, text in reversed(_GOAL):
        decorated = click.option("--" + name.replace("_", "-"), type=float, help=text)(decorated)
    coverage = click.option(
        "--coverage", type=float, default=1.0, show_default=True, help="Least share of samples that are answered."
    )
    percentile = click.option(
        "--percentile", type=float, default=50.0, show_default=True, help="Percentile of calls that keep --latency-ms."
    )
    optimise = click.option(
        "--optimise",
        type=click.Choice(list(_OPTIMISED)),
        default="accuracy",
        show_default=True,
        help="What to optimise.",
    )
    return cast(Command, optimise(percentile(coverage(decorated))))


@click.command()
@bundle_options
@click.option("--data", help="Private samples: a folder or zip with class folders, a CSV list …; perhaps #part.")
@limit_option
@click.option("--unlabelled", is_flag=True, help="Use predictions of the server or the full model instead of labels.")
@goal_options
@click.option(
    "--consider",
    help=f"Kinds of plans, with commas between: {', '.join(KINDS)}; or all that can be had."
    "  [default: subnets, and what --server and --coverage allow]",
)
@click.option("--explain", is_flag=True, help="Show the best plan of each kind, and what limits it.")
@click.option("--no-take", is_flag=True, help="Show the plan only; the one in use stays.")
@click.option("--server", help="URL of a server that may answer hard samples, or run tails [default: of BUNDLE's URL].")
@server_model_option
@privacy_option
@click.option("--network", help="Plan with a typical network instead of the measured one: wifi, lte, 3g, ble or lora.")
@click.option("--uplink-mbps", type=float, help="Plan with this uplink in Mbit/s instead of the measured one.")
@click.option("--round-trip-ms", type=float, default=0.0, show_default=True, help="Round-trip time with --uplink-mbps.")
@power_options
@fallback_option
@click.option("--device-factor", type=float, help="Estimate a split for a device so many times slower than this one.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw a split's latencies to FILE.svg or FILE.png.")
@click.option(
    "--map",
    "map_file",
    type=click.Path(path_type=Path),
    help="Draw the fastest kind of plan over uplinks, devices and allowed drops, to FILE.svg or FILE.png.",
)
@click.option("--no-prior", is_flag=True, help="Do not correct answers by the mix of classes of the images.")
@click.option("--strategy", default="pathweave", show_default=True, help="How to search (guide: adapt on a device).")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search.")
@click.option(
    "--time-limit",
    "time_limit_s",
    type=click.FloatRange(min=0, min_open=True),
    default=20.0,
    show_default=True,
    help="Seconds of the search after which the best so far is taken.",
)
def adapt(
    bundle: str,
    trust: ChosenTrust,
    token: str | None,
    threads: int,
    homes: tuple[str, ...],
    state: Path | None,
    data: str | None,
    limit: int | None,
    unlabelled: bool,
    goal: Goal,
    consider: str | None,
    explain: bool,
    no_take: bool,
    server: str | None,
    server_model: str | None,
    privacy: Privacy,
    network: str | None,
    uplink_mbps: float | None,
    round_trip_ms: float,
    power: Power | None,
    fallback: Fallback | None,
    device_factor: float | None,
    picture: Path | None,
    map_file: Path | None,
    no_prior: bool,
    strategy: str,
    seed: int,
    time_limit_s: float,
    as_json: bool,
) -> None:
    """Find the best plan for this device and these images, and use it from now on.

    Subnets compete by default. With --consider exits, early answers do too; with --server, sending hard samples to it
    and splitting. A split alone (--consider split) may be estimated without a server, with --uplink-mbps.
    """
    from device_sdk.policies.gathering import AdaptationSettings
    from device_sdk.policies.hybrid.joint_search import JointSettings

    kinds = _kinds(consider)
    for file in (picture, map_file):
        if file is not None:
            require_picture(file)
    if data is None and (kinds != {"split"} or goal.max_drop is not None):
        raise UsageError("plans are chosen on private images", hint="give --data")
    if power is None and (goal.energy_mj is not None or goal.optimise == "energy_mj"):
        raise UsageError("energies are unknown without the device's power", hint="give --active-w")
    uplink = _uplink(network, uplink_mbps, round_trip_ms)
    server, estimates = _server(server, bundle, kinds, device_factor, uplink)
    if map_file is not None and not estimates and (server is None or kinds & {"hybrid"} or kinds == {"split"}):
        raise UsageError(
            "a map compares plans that use a server",
            hint="give --consider split --uplink-mbps, or --server with several kinds to --consider",
        )
    if server is None and server_model is not None:
        raise UsageError("--server-model names a model of a server", hint="give --server too")
    require_permission(server, privacy, "activations" if server_model is None and "hybrid" not in kinds else "inputs")
    settings = AdaptationSettings(
        strategy=strategy,
        seed=seed,
        time_limit_s=time_limit_s,
        use_prior=not no_prior,
        fallback=fallback,
        privacy=_estimated(privacy),
        device_factor=1.0 if device_factor is None else device_factor,
        joint=JointSettings(seed=seed, least_coverage=1 - (1.0 if goal.share_asked is None else goal.share_asked)),
    )
    with open_model(
        bundle, trust=trust, token=token, threads=threads, homes=homes, state=state, as_json=as_json
    ) as model:
        if server is not None:
            _connect(model, server, server_model, token, privacy)
        dataset = None
        unlabelled = unlabelled or model.bundle.manifest.task.kind == "embedding"
        if data is not None:
            dataset = load_data(model, data, limit=limit, as_json=as_json, labelled=not unlabelled)
        found = model.adapt(
            None if dataset is None else dataset.samples,
            goal,
            _usable(model, server, server_model) if "all" in kinds else kinds or None,
            None if dataset is None or unlabelled else dataset.labels,
            take=not (no_take or estimates),
            settings=settings,
            uplink=uplink,
            power=power,
            progress=progress(as_json),
        )
        from device_sdk.policies.measured_splits.region import MAX_DROPS

        cells: tuple[Cell, ...] = ()
        if map_file is not None and found.region is not None:
            drops = sorted({*MAX_DROPS, *(() if goal.max_drop is None else (goal.max_drop,))})
            cells = found.region.cells(max_drops=drops, progress=progress(as_json))
    if picture is not None and found.split is not None:
        from device_sdk.commands.split_report import draw_split

        draw_split(picture, found.split)
    summary = found_summary(found, taken=not (no_take or estimates))
    if map_file is not None and not cells:
        click.echo("no map is drawn: no server answers", err=True)
        map_file = None
    if map_file is not None:
        from device_sdk.commands.plan_map import described_cells, map_drawing, print_map
        from device_sdk.files.drawing import write_drawing

        write_drawing(map_file, map_drawing(cells))
        summary["map"] = described_cells(cells)

    def show() -> None:
        print_found(found, explain=explain)
        if map_file is not None:
            print_map(cells)

    emit(summary, as_json=as_json, text=show)


def _estimated(privacy: Privacy) -> Privacy:
    """Everything may be sent by an estimate, since nothing is, unless --privacy says otherwise."""
    given = click.get_current_context().get_parameter_source("privacy") is ParameterSource.COMMANDLINE
    return privacy if given else "inputs"


def _kinds(consider: str | None) -> set[str]:
    return set() if consider is None else {one.strip() for one in consider.split(",") if one.strip()}


def _usable(model: AdaptiveModel, server: str | None, server_model: str | None) -> set[str]:
    """All kinds of plans for which everything is there."""
    from device_sdk.policies.planning.proposers import that_need

    kinds = set(that_need(None))
    kinds |= {"exits"} if model.exits.held else set()
    kinds |= set(that_need("tails")) if server is not None else set()
    return kinds | (set(that_need("answers")) if server_model is not None else set())


def _uplink(network: str | None, mbps: float | None, round_trip_ms: float) -> Uplink | None:
    from device_sdk.supernet.cost import Uplink

    if network is not None and mbps is not None:
        raise UsageError("give --network or --uplink-mbps, not both")
    if mbps is not None:
        return Uplink(mbps, round_trip_ms)
    return None if network is None else Uplink.typical(network)


def _server(
    server: str | None, bundle: str, kinds: set[str], device_factor: float | None, uplink: Uplink | None
) -> tuple[str | None, bool]:
    """The server, by default of a bundle's URL where a split or a hybrid is wanted; True if a split is estimated."""
    if kinds & {"split", "hybrid"}:
        home, separator, _ = bundle.partition("/v1/bundles/")
        server = server or (home if separator and "://" in home else None)
    if device_factor is not None:
        if server is not None and server != bundle.partition("/v1/bundles/")[0]:
            raise UsageError("for a slower device a split is only estimated", hint="leave out --server")
        server = None
    estimates = kinds == {"split"} and server is None
    if estimates and uplink is None:
        raise UsageError("the uplink's bandwidth is unknown", hint="give --uplink-mbps, or --server to measure it")
    return server, estimates


def _connect(model: AdaptiveModel, server: str, asked: str | None, token: str | None, privacy: Privacy) -> None:
    from device_sdk.offload.remote_model import RemoteModel

    if asked is not None:
        model.remote.connect(RemoteModel(server=server, model=asked, token=token, privacy=privacy))
    tails = f"{model.bundle.manifest.name}:tail"
    model.remote.connect(RemoteModel(server=server, model=tails, token=token, privacy=privacy))
