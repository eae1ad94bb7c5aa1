"""Shared options of the device's commands, and opening of bundles and data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import click

from device_sdk.commands.command_line import json_option, progress
from device_sdk.errors import UsageError
from device_sdk.signing.trust import UNSTATED, Unstated

if TYPE_CHECKING:
    from device_sdk.data.kinds import LabelledSamples
    from device_sdk.data.targets import TargetDataset
    from device_sdk.offload.remote_model import Privacy
    from device_sdk.session.adaptive_model import AdaptiveModel
    from device_sdk.session.homes import WantedHomes

ChosenTrust = Path | Unstated | None
_SENT: tuple[Privacy, ...] = ("never", "activations", "inputs")  # each allows what the ones before it allow

Command = TypeVar("Command", bound=Callable[..., object])

existing = click.Path(path_type=Path)
token_option = click.option("--token", envvar="PATHWEAVE_TOKEN", help="Access token of the server [$PATHWEAVE_TOKEN].")

fallback_option = click.option(
    "--fallback",
    type=click.Choice(["subnet", "exit", "abstain"]),
    help="What answers when the server of a split does not [default: as the memory allows].",
)
privacy_option = click.option(
    "--privacy",
    type=click.Choice(_SENT),
    default="never",
    show_default=True,
    help="What a server may be sent: nothing, activations at a cut point, or also samples.",
)
server_model_option = click.option(
    "--server-model",
    help="Its model that answers samples [run: those that the plan names, or this bundle's, from images].",
)
limit_option = click.option("--limit", type=click.IntRange(min=2), help="Use at most this many images.")


def trust_options(command: Command) -> Command:
    """--trust FILE and --no-trust, as the argument ``trust``: a path, None, or UNSTATED with neither."""

    @functools.wraps(command)
    def with_trust(*arguments: object, trust: Path | None, no_trust: bool, **options: object) -> object:
        if trust is not None and no_trust:
            raise UsageError("give --trust or --no-trust, not both")
        chosen = None if no_trust else UNSTATED if trust is None else trust
        return command(*arguments, trust=chosen, **options)

    key = click.option(
        "--trust", type=existing, help="Public key or key list that must have signed the bundle; needed with a URL."
    )
    anyone = click.option("--no-trust", is_flag=True, help="Take the bundle at a URL whatever key signed it, or none.")
    return key(anyone(cast(Command, with_trust)))


def power_options(command: Command) -> Command:
    """--active-w, --radio-w and --waiting-w, as the argument ``power``: None without the first."""

    @functools.wraps(command)
    def with_power(
        *arguments: object, active_w: float | None, radio_w: float, waiting_w: float, **options: object
    ) -> object:
        from device_sdk.supernet.cost import Power

        power = None if active_w is None else Power(active_w=active_w, radio_w=radio_w, waiting_w=waiting_w)
        return command(*arguments, power=power, **options)

    active = click.option("--active-w", type=float, help="Power of the device while it computes, watts.")
    radio = click.option("--radio-w", type=float, default=0.0, show_default=True, help="While it sends.")
    waiting = click.option(
        "--waiting-w", type=float, default=0.0, show_default=True, help="While it waits for a server."
    )
    return active(radio(waiting(cast(Command, with_power))))


def location_options(command: Command) -> Command:
    """BUNDLE, --trust or --no-trust (as argument ``trust``), --state and --json."""
    decorators = (
        click.argument("bundle"),
        trust_options,
        click.option("--state", type=existing, help="Folder for fetched bundles, profiles, the plan and the log."),
        json_option,
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def bundle_options(command: Command) -> Command:
    """The same, with --token, --threads and --home (as argument ``homes``)."""
    threads = click.option(
        "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Inference threads."
    )
    homes = click.option(
        "--home",
        "homes",
        multiple=True,
        help="Where blocks may run, instead of --threads: cpu-1t, cpu-2t, openvino-2t …, several times, or all. The "
        "full model runs at the first.",
    )
    return location_options(token_option(threads(homes(command))))


def chosen_homes(homes: Sequence[str]) -> WantedHomes:
    """The values of --home as ``AdaptiveModel.open`` takes them."""
    return "all" if tuple(homes) == ("all",) else homes or None


def require_permission(server: str | None, privacy: Privacy, least: Privacy) -> None:
    """Raise UsageError where a server is named that may not be sent what it needs, ``least``."""
    if server is not None and _SENT.index(privacy) < _SENT.index(least):
        more = "" if least == "inputs" else ", or with --privacy inputs for samples too"
        raise UsageError(
            f"the server {server} may be sent {'nothing' if privacy == 'never' else privacy + ' only'}",
            hint=f"allow what it needs with --privacy {least}{more}",
        )


def open_model(
    bundle: str,
    *,
    trust: ChosenTrust,
    token: str | None,
    threads: int,
    homes: Sequence[str] = (),
    state: Path | None,
    exits: Collection[str] | None = None,
    as_json: bool,
) -> AdaptiveModel:
    """The bundle in a folder or at a URL, ready for inference; ``exits``: those to begin with."""
    from device_sdk.session.adaptive_model import AdaptiveModel

    shown = progress(as_json)
    return AdaptiveModel.open(
        bundle,
        trust=trust,
        token=token,
        threads=threads,
        homes=chosen_homes(homes),
        exits=exits,
        state_folder=state,
        progress=shown,
    )


def load_data(
    model: AdaptiveModel, reference: str, *, limit: int | None, as_json: bool, labelled: bool = True
) -> LabelledSamples | TargetDataset:
    """Samples of the model's kind, with its class indices where they are ``labelled``; says what was left out.

    For a model of maps, boxes or classes of words, with these.
    """
    from device_sdk.data.kinds import KINDS, kind_name
    from device_sdk.data.targets import LOADERS, TargetsOf
    from device_sdk.data.targets.values import TABLES
    from device_sdk.session.samples import SampleChecker

    manifest = model.bundle.manifest
    task, shape = manifest.task, manifest.cut_points[0].tensors[0].shape
    if labelled and task.kind == "embedding":
        raise UsageError("a model of vectors has no targets to be judged by", hint="run it on files, or adapt it")
    if labelled and task.kind in LOADERS:
        owner = TargetsOf(task.class_names, shape, manifest.preprocessing, model.bundle.read_blob)
        targets = LOADERS[task.kind](reference, owner, limit)
        for note in targets.notes:
            click.echo(f"note: {note}", err=True)
        return targets
    kind = KINDS[kind_name(manifest.preprocessing)]
    dataset = kind.load(reference, manifest.preprocessing, limit=limit, labelled=labelled, progress=progress(as_json))
    lost = SampleChecker(manifest, model.bundle.read_blob).notes(dataset.samples)
    for note in (*dataset.notes, *lost):
        click.echo(f"note: {note}", err=True)
    if not labelled:
        return dataset
    if task.kind in TABLES:
        return dataset.with_targets(TABLES[task.kind](dataset.class_names, task.class_names))
    return dataset.relabelled(manifest.task.class_names, manifest.task.class_ids)
