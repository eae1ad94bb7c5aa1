"""R9, R10: updates that a device must refuse, and those that it must undo."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults.bad_versions import BAD_VERSIONS, make_bad
from benchmarks.faults.device import Device
from benchmarks.faults.promise import Findings, Trial
from benchmarks.faults.small_bundle import SERVED, SmallBundle
from benchmarks.faults.tools.fault_proxy import FolderServer
from benchmarks.faults.tools.forked import Forked
from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import PathweaveError
from device_sdk.execution.guarded_self_test import SelfTestLimits, run_guarded_self_test
from device_sdk.runtimes import make_runtime
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.session.opening import STRIKES
from device_sdk.signing import signatures

LIMITS = SelfTestLimits(start_s=30.0, step_s=3.0, total_s=6.0)
SLACK_S = 10.0  # of a busy machine
RELEASING = "device_sdk.signing.release"  # and releases that expire


def no_way_back(trial: Trial, findings: Findings) -> None:
    """R9: a server offers what a device that has version 2 must not take."""
    www, ends_s, turns = trial.folder / "www", trial.ends_s(), 0
    with FolderServer(www) as server:
        url = f"http://127.0.0.1:{server.port}/{SERVED}"
        while turns == 0 or trial.clock() < ends_s:
            for name, offer in _OFFERS.items():
                turns += 1
                device = Device(url, trial.folder / f"state-{turns}", trial.bundle.public_key)
                served = trial.bundle.publish(www / SERVED, 2)
                device.open()
                known = device.store.highest("reference")
                offer(served, trial)
                version, source = _opened(device)
                findings.case((version, source) == (2, "kept"), f"{name}: version {version} opens, {source}")
                findings.case(device.store.highest("reference") == known, f"{name}: the mark has changed")
                version, source = _opened(device)
                findings.case((version, source) == (2, "kept"), f"{name}, again: version {version} opens, {source}")
                trial.bundle.publish(www / SERVED, 3)
                version, _ = _opened(device)
                findings.case(version == 3, f"after {name}: version {version} opens instead of the newer 3")
    findings.note(", ".join(_OFFERS))
    if importlib.util.find_spec(RELEASING) is None:
        findings.missing += ["freeze at a version", "rotation of keys", "clocks that jump"]
        return
    from benchmarks.faults.promises.freshness import try_freshness

    try_freshness(trial, findings)


def _opened(device: Device) -> tuple[int, str]:
    try:
        return device.open()
    except PathweaveError as error:
        return 0, f"{type(error).__name__}: {error}"


def _older(served: SmallBundle, trial: Trial) -> None:
    trial.bundle.publish(served.folder, 1)


def _other_bytes(served: SmallBundle, trial: Trial) -> None:
    served.edit(lambda manifest: manifest["provenance"].update(source="elsewhere"))


def _other_product(served: SmallBundle, trial: Trial) -> None:
    served.edit(lambda manifest: manifest.update(name="another", version=3))


def _other_key(served: SmallBundle, trial: Trial) -> None:
    key = trial.folder / "stranger"
    key.write_bytes(signatures.new_key_pair()[0])
    served.edit(lambda manifest: manifest.update(version=3), private_key=key)


def _older_signature(served: SmallBundle, trial: Trial) -> None:
    signature = (served.folder / "manifest.sig").read_bytes()
    served.edit(lambda manifest: manifest.update(version=3))
    (served.folder / "manifest.sig").write_bytes(signature)


def _no_signature(served: SmallBundle, trial: Trial) -> None:
    served.edit(lambda manifest: manifest.update(version=3))
    (served.folder / "manifest.sig").unlink()


def _blobs_of_another(served: SmallBundle, trial: Trial) -> None:
    """The manifest of version 3 with what was stored under its blob's name in version 2."""
    before = served.blobs()
    trial.bundle.publish(served.folder, 3)
    for name in set(served.blobs()) - set(before):
        path = served.folder / "blobs" / name
        path.write_bytes(bytes(path.stat().st_size))


_OFFERS: dict[str, Callable[[SmallBundle, Trial], None]] = {
    "an older version": _older,
    "the same version with other bytes": _other_bytes,
    "another product": _other_product,
    "another key": _other_key,
    "an older signature": _older_signature,
    "no signature": _no_signature,
    "blobs of another version": _blobs_of_another,
}


def bad_updates(trial: Trial, findings: Findings) -> None:
    """R10: updates that are signed, whole and bad; ``LIMITS`` instead of minutes, so that the trial ends soon."""
    www = trial.folder / "www"
    runtime, settings = make_runtime("onnxruntime", threads=1), RuntimeSettings()
    interpreter = _interpreter(trial.folder)

    def self_test(bundle: Bundle) -> None:
        run_guarded_self_test(bundle, runtime, settings, limits=LIMITS, interpreter=interpreter)

    with FolderServer(www) as server:
        device = Device(f"http://127.0.0.1:{server.port}/{SERVED}", trial.folder / "state", trial.bundle.public_key)
        trial.bundle.copy(www / SERVED)
        first = device.open(self_test=self_test)
        findings.case(first == (1, "downloaded"), f"the good version: {first}")
        for version, name in enumerate(BAD_VERSIONS, start=2):
            if not make_bad(trial.bundle, www / SERVED, name, version):
                findings.missing.append(f"{name}, which is made with the package onnx")
                continue
            began_s = time.monotonic()
            found = _opened_tested(device, self_test)
            took_s = time.monotonic() - began_s
            findings.case(found == (1, "kept"), f"{name}: {found}", "crashed")
            limit_s = LIMITS.start_s + LIMITS.total_s + SLACK_S
            findings.case(took_s < limit_s, f"{name}: undone after {took_s:.0f} s", "hung")
            findings.note(f"{name}: undone after {took_s:.1f} s")
            findings.case(device.stored_version() == 1, f"{name}: version {device.stored_version()} is kept")
        _power_lost(trial, device, findings)
        _publish_good(trial.bundle, www / SERVED, version=50)
        found = _opened_tested(device, self_test)
        findings.case(found == (50, "downloaded"), f"a good version after the bad ones: {found}")


def _publish_good(bundle: SmallBundle, folder: Path, *, version: int) -> None:
    served = bundle.publish(folder, 1)
    served.edit(lambda manifest: manifest.update(version=version))


def _power_lost(trial: Trial, device: Device, findings: Findings) -> None:
    """Each attempt to test the update takes the device with it."""
    _publish_good(trial.bundle, trial.folder / "www" / SERVED, version=40)

    def hang(bundle: Bundle) -> None:
        (trial.folder / "begun").touch()
        time.sleep(60)

    for _ in range(STRIKES):
        with Forked(lambda: device.open(self_test=hang)):
            ends_s = time.monotonic() + 20
            while not (trial.folder / "begun").exists() and time.monotonic() < ends_s:
                time.sleep(0.01)
        findings.kills += 1
        (trial.folder / "begun").unlink(missing_ok=True)
    found = _opened_tested(device, hang)
    begun = (trial.folder / "begun").exists()
    findings.case(found == (1, "kept") and not begun, f"after {STRIKES} lost powers: {found}, tested again: {begun}")


def _opened_tested(device: Device, self_test: Callable[[Bundle], None]) -> tuple[int, str]:
    try:
        return device.open(self_test=self_test)
    except Exception as error:
        return 0, f"{type(error).__name__}: {error}"


def _interpreter(folder: Path) -> str:
    """Python; for versions that crash or hang it does so once it has read the request, as their model would."""
    path = folder / "python"
    script = f"""\
        #!{sys.executable}
        import json, os, signal, subprocess, sys, time
        line = sys.stdin.buffer.readline()
        manifest = json.load(open(os.path.join(json.loads(line)["folder"], "manifest.json")))
        way = manifest["provenance"]["source"]
        if way in ("crash", "hang"):
            print(json.dumps({{"kind": "ready"}}), flush=True)
            if way == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(600)
        real = subprocess.Popen([{sys.executable!r}, *sys.argv[1:]], stdin=subprocess.PIPE)
        real.stdin.write(line)
        real.stdin.flush()
        sys.exit(real.wait())
    """
    path.write_text(textwrap.dedent(script))
    path.chmod(0o755)
    return str(path)
