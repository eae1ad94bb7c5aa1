"""The homes that an application wants, those of them that work here, and their runtime."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import StorageError, UsageError
from device_sdk.execution.guarded_self_test import run_guarded_home_check
from device_sdk.execution.home_check import HomeReport
from device_sdk.execution.open_homes import ONE_HOME, OpenHomes
from device_sdk.machine import usable_cores
from device_sdk.progress import Progress
from device_sdk.runtimes.port import Runtime
from device_sdk.runtimes.processor_homes import processor_homes
from device_sdk.runtimes.providers import installed_providers, installed_version, require_installed
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.session.device_state import DeviceState
from device_sdk.supernet.home import CPU, Home
from device_sdk.supernet.plan import Edge

WantedHomes = Sequence[str] | Literal["all"] | None
Check = Callable[[Bundle, RuntimeSettings, Home], HomeReport]

_log = logging.getLogger(__name__)


def wanted_homes(wanted: WantedHomes) -> tuple[Home, ...]:
    """The homes that an application names; "all": threads from 1 to all cores, and every provider that is here.

    The first is that of the full model: with "all", one thread of the processor.

    Raises:
        UsageError: a name is no home, or one is named twice.
        RuntimeFailedError: a provider that is named is not installed.
    """
    if wanted is None:
        return ()
    if wanted == "all":
        return all_homes()
    if isinstance(wanted, str):
        wanted = [wanted]
    homes = tuple(map(Home.parse, wanted))
    if not homes:
        raise UsageError("homes names none", hint='give names such as "cpu-2t", or "all"')
    if len(set(homes)) < len(homes):
        raise UsageError(f"homes names one twice: {', '.join(map(str, homes))}")
    for home in homes:
        require_installed(home.provider)
    return homes


def all_homes() -> tuple[Home, ...]:
    """The homes of the processor (``processor_homes``), and one of each other provider that is here."""
    cores = usable_cores()
    others = [Home(provider, cores if provider in _THREADED else 1) for provider in installed_providers()]
    return (*processor_homes(), *(home for home in others if home.provider != CPU))


_THREADED = ("openvino", "xnnpack")  # on the processor too, with threads of their own


@dataclass(frozen=True)
class CheckedHomes:
    """``settings`` and ``runtime`` of the homes that work; ``open``: what runs at each; ``left_out`` with reasons.

    ``bundle``: without the renditions that run at none of them.
    """

    bundle: Bundle
    settings: RuntimeSettings
    runtime: Runtime
    open: OpenHomes = ONE_HOME
    left_out: dict[str, str] = field(default_factory=dict)
    reports: tuple[HomeReport, ...] = ()


def check_homes(
    bundle: Bundle,
    settings: RuntimeSettings,
    first: Runtime,
    state_folder: Path,
    *,
    check: Check | None = None,
    progress: Progress | None = None,
) -> CheckedHomes:
    """Check the homes of ``settings`` that are not threads of the processor, each once per bundle and version.

    ``first``: the runtime of the first home, at which the bundle was tested. A home that fails is left out, with a
    warning and the reason in the log: it is not tried again until its version, ONNX Runtime's or the driver's changes.
    No provider is loaded in this process before its check has passed in another.
    """
    if len(settings.homes) < 2:
        return CheckedHomes(bundle, settings, first)

    def guarded(bundle: Bundle, settings: RuntimeSettings, home: Home) -> HomeReport:
        return run_guarded_home_check(bundle, settings, home, progress=progress)

    state = DeviceState(state_folder, bundle, first)
    working, left_out, reports = [settings.homes[0]], {}, []
    for home in settings.homes[1:]:
        if not home.on_processor:
            report = _report(state, bundle, settings, home, check or guarded)
            reports.append(report)
            if not report.works:
                left_out[str(home)] = report.why_not()
                _log.warning("%s is left out: %s", home, report.why_not())
                continue
        working.append(home)
    refused = {one.home: one.refused_blocks for one in reports if one.works}
    if len(working) < 2:
        alone = settings.first
        return CheckedHomes(bundle.runnable(alone.accepts), alone, first, left_out=left_out, reports=tuple(reports))
    kept, homes = msgspec.structs.replace(settings, homes=tuple(working)), OpenHomes(tuple(working), refused)
    return CheckedHomes(_runnable(bundle, homes, kept), kept, kept.make(), homes, left_out, tuple(reports))


def _runnable(bundle: Bundle, homes: OpenHomes, settings: RuntimeSettings) -> Bundle:
    """``bundle`` without renditions of blocks that run at none of ``homes``, and of exits that the first does not run.

    Exits run with the blocks before them, and alone at the first home.
    """
    supernet = bundle.supernet
    blocks = {
        rendition
        for block in supernet.blocks
        for rendition in block.renditions
        if homes.of(supernet, Edge(block.id, rendition.name))
    }
    exits = {one for exit_ in supernet.exits for one in exit_.renditions if settings.first.accepts(one)}
    offered = {one for exit_ in bundle.offered.exits for one in exit_.renditions if settings.first.accepts(one)}
    runs = blocks | exits | offered
    return bundle.runnable(lambda one: one in runs)


def _report(state: DeviceState, bundle: Bundle, settings: RuntimeSettings, home: Home, check: Check) -> HomeReport:
    version = _version(home)
    known = state.load_home(home, version)
    if known is not None:
        return known
    report = check(bundle, settings, home)
    try:
        state.save_home(report, home, version)
    except StorageError as error:
        _log.warning("the check of %s cannot be kept: %s", home, error)
    return report


def _version(home: Home) -> str:
    import onnxruntime

    return f"{onnxruntime.__version__} {installed_version(home.provider)}"
