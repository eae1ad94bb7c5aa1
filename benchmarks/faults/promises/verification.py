"""R2, S5: damaged bundles and hostile models."""

from __future__ import annotations

import contextlib
import importlib.util
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.faults.device import Device
from benchmarks.faults.promise import Findings, Trial
from benchmarks.faults.small_bundle import SERVED, SmallBundle
from benchmarks.faults.tools.fault_proxy import FolderServer
from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import BundleError, CompositionError
from device_sdk.fragments.composition import compose

WHOLE_S = 30.0  # a trial that is given less tries a part of the bundle's bytes
LOOK_S, LOOK_BYTES = 1.0, 20_000_000  # what looking at a small model may cost


def verified_bytes(trial: Trial, findings: Findings) -> None:
    """R2: one byte at a time of a bundle, and of a store, is another one; then files end at each byte."""
    bundle = trial.bundle.copy(trial.folder / "copy")
    files = sorted(path for path in bundle.folder.rglob("*") if path.is_file())
    altered = [(path, way, at) for path in files for way in ("flip", "cut") for at in range(path.stat().st_size)]
    count = 0
    for path, way, at in altered if trial.seconds >= WHOLE_S else _as_many_as_fit(altered, trial, 0.7):
        count += 1
        with _altered(path, way, at, trial):
            found = _opens(bundle)
        findings.case(not found, f"{path.name[:12]} with {way} at {at} was loaded", "torn")
    findings.note(f"{count} of the {len(altered)} alterations of {sum(p.stat().st_size for p in files)} bytes")
    findings.case(_opens(bundle), "the bundle does not open unaltered")
    _in_the_store(trial, findings)


def _as_many_as_fit(
    altered: list[tuple[Path, str, int]], trial: Trial, share: float
) -> Iterator[tuple[Path, str, int]]:
    """All of them, in an order in which any beginning is spread over all files."""
    order = trial.random.permutation(len(altered))
    ends_s = trial.ends_s(share)
    for number in order:
        if trial.clock() > ends_s:
            return
        yield altered[number]


@contextlib.contextmanager
def _altered(path: Path, way: str, at: int, trial: Trial) -> Iterator[None]:
    data = path.read_bytes()
    mask = 1 << (at % 8)
    path.write_bytes(data[:at] if way == "cut" else data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
    try:
        yield
    finally:
        path.write_bytes(data)


def _opens(bundle: SmallBundle) -> bool:
    """True if the bundle opens and all of its bytes verify."""
    try:
        Bundle.open(bundle.folder, trust=bundle.public_key).verify()
    except BundleError:
        return False
    return True


def _in_the_store(trial: Trial, findings: Findings) -> None:
    """A device that has had versions 1 and 2: no damage to one file of its store brings back 1."""
    www = trial.folder / "www"
    with FolderServer(www) as server:
        device = Device(f"http://127.0.0.1:{server.port}/{SERVED}", trial.folder / "state", trial.bundle.public_key)
        for version in (1, 2):
            trial.bundle.publish(www / SERVED, version)
            device.open()
    files = sorted(path for path in device.store.folder.rglob("*") if path.is_file() and path.stat().st_size)
    altered = [(path, way, at) for path in files for way in ("flip", "cut") for at in range(path.stat().st_size)]
    count = 0
    for path, way, at in _as_many_as_fit(altered, trial, 0.3):
        count += 1
        with _altered(path, way, at, trial):
            try:
                version = device.stored_version()
            except BundleError:
                version = 0
        what = f"{path.relative_to(device.state)} with {way} at {at}: version {version} opens"
        findings.case(version in (0, 2), what, "torn")
    findings.note(f"{count} of the {len(altered)} alterations of a device's store")


def hostile_models(trial: Trial, findings: Findings) -> None:
    """S5: every model of the corpus is refused by its reader, before a runtime sees it."""
    if importlib.util.find_spec("onnx") is None:
        findings.missing.append("the corpus, which is made with the package onnx")
        return
    from benchmarks.faults.hostile_models import corpus, stretch

    ends_s, turns = trial.ends_s(), 0
    while turns == 0 or trial.clock() < ends_s:
        for name, make in corpus().items():
            data = make()
            began_s = time.perf_counter()
            if turns == 0:
                tracemalloc.start()
            refused = _refused(partial(compose, stretch(data)))
            peak_bytes = 0
            if turns == 0:
                peak_bytes = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            took_s = time.perf_counter() - began_s
            findings.case(refused is None, f"{name}: {refused}", "crashed")
            findings.case(took_s < LOOK_S, f"{name}: looking at it took {took_s:.1f} s", "hung")
            findings.case(peak_bytes < LOOK_BYTES, f"{name}: looking at it took {peak_bytes} bytes")
        turns += 1
    findings.note(f"{len(corpus())} models")


def _refused(read: Callable[[], object]) -> str | None:
    """None if it is refused with an error that says so, else a description of the outcome."""
    try:
        read()
    except CompositionError as error:
        return None if str(error) else "refused without a word"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "taken"
