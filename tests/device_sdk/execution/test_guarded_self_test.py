"""The self-test in a child process: what a bundle does in there does not reach this one."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import textwrap
import time

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import BlobError, BudgetError, PathweaveError, SelfTestError
from device_sdk.execution.guarded_self_test import SelfTestAbortedError, SelfTestLimits, run_guarded_self_test
from device_sdk.runtimes.settings import RuntimeSettings

QUICK = SelfTestLimits(start_s=20.0, step_s=1.0, total_s=20.0)
TIMES_AS_LONG_AS_AN_IMPORT = 8.0


def seconds(call):
    started_s = time.monotonic()
    call()
    return time.monotonic() - started_s


@pytest.mark.alone
def test_a_good_bundle_passes_soon_and_every_step_is_reported(bundle, runtime):
    class Bars:
        total, done = 0.0, 0.0

        def task(self, name, total, *, done=0.0):
            import contextlib

            self.total = total
            return contextlib.nullcontext(self)

        def advance(self, amount=1.0):
            self.done += amount

    bars = Bars()
    command = [sys.executable, "-c", "import device_sdk, numpy, onnxruntime"]
    import_s = seconds(lambda: subprocess.run(command, check=True, timeout=120))
    taken_s = seconds(lambda: run_guarded_self_test(bundle, runtime, RuntimeSettings(), progress=bars))
    assert taken_s < TIMES_AS_LONG_AS_AN_IMPORT * import_s
    assert bars.total == bars.done > 10


def test_the_child_imports_no_torch(bundle, runtime, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import os; os._exit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    run_guarded_self_test(bundle, runtime, RuntimeSettings())


def test_errors_of_the_self_test_are_those_of_the_child(own_bundle, runtime):
    bundle = Bundle.open(own_bundle.folder)
    with pytest.raises(BudgetError):
        run_guarded_self_test(bundle, runtime, RuntimeSettings(lean=True), memory_cap_bytes=1000)
    blob = own_bundle.blob("m1-4")
    blob.write_bytes(bytes(blob.stat().st_size))
    with pytest.raises(BlobError, match="digest") as caught:
        run_guarded_self_test(bundle, runtime, RuntimeSettings())
    assert caught.value.hint


def test_wrong_outputs_are_found_in_the_child(own_bundle, runtime):
    def change(manifest):
        manifest["self_test"]["original"]["samples"][0][0] += 1.0

    own_bundle.edit(change)
    with pytest.raises(SelfTestError, match="original path") as caught:
        run_guarded_self_test(Bundle.open(own_bundle.folder), runtime, RuntimeSettings())
    assert not isinstance(caught.value, SelfTestAbortedError)


def loop_for_ever(own_bundle):
    """Put an endless loop in front of the first block."""
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    from benchmarks.faults.hostile_models import looped

    data = looped(own_bundle.blob("o0").read_bytes(), "o0")
    name = hashlib.sha256(data).hexdigest()
    (own_bundle.folder / "blobs" / name).write_bytes(data)

    def rename(manifest):
        manifest["blocks"][0]["renditions"][0] |= {"blob": name, "size_bytes": len(data)}

    own_bundle.edit(rename, sign=True)


def test_an_endless_loop_in_a_signed_bundle_ends(own_bundle, runtime):
    loop_for_ever(own_bundle)
    with pytest.raises(PathweaveError):  # where it is not refused before
        run_guarded_self_test(Bundle.open(own_bundle.folder), runtime, RuntimeSettings(), limits=QUICK)


def test_huge_shapes_are_an_error_of_ours(own_bundle, runtime):
    def change(manifest):
        manifest["cut_points"][0]["tensors"][0]["shape"] = [3, 200_000, 200_000]

    own_bundle.edit(change)
    with pytest.raises(PathweaveError):
        run_guarded_self_test(Bundle.open(own_bundle.folder), runtime, RuntimeSettings(), limits=QUICK)


def interpreter(folder, body):
    """An executable that takes the place of Python: it reads the request and does ``body``."""
    path = folder / "python"
    head = f"#!{sys.executable}\nimport json, os, signal, sys, time\nrequest = json.loads(sys.stdin.readline())\n"
    path.write_text(head + textwrap.dedent(body))
    path.chmod(0o755)
    return str(path)


READY = "print(json.dumps({'kind': 'ready'}), flush=True)\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (READY + "time.sleep(60)", "did not go on for 1 s"),
        (READY + "os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        (READY + "os._exit(0)", "ended its process"),
        (READY + "print(json.dumps({'kind': 'failed', 'error': 'MemoryError'}), flush=True)", "too much memory"),
        (READY + "print(json.dumps({'kind': 'failed', 'error': 'KeyError', 'message': 'x'}), flush=True)", "KeyError"),
        (READY + "print('garbage', flush=True); time.sleep(60)", "did not go on"),
    ],
)
def test_a_child_that_hangs_crashes_or_fails_is_one_clear_error(bundle, runtime, tmp_path, body, message):
    with pytest.raises(SelfTestAbortedError, match=message) as caught:
        run_guarded_self_test(bundle, runtime, RuntimeSettings(), limits=QUICK, interpreter=interpreter(tmp_path, body))
    assert caught.value.hint


def test_steps_that_never_end_altogether_end_at_the_total(bundle, runtime, tmp_path):
    body = READY + "while True:\n    time.sleep(0.05); print(json.dumps({'kind': 'step'}), flush=True)\n"
    limits = SelfTestLimits(start_s=20.0, step_s=5.0, total_s=0.5)
    with pytest.raises(SelfTestAbortedError):
        run_guarded_self_test(
            bundle, runtime, RuntimeSettings(), limits=limits, interpreter=interpreter(tmp_path, body)
        )


@pytest.mark.parametrize("missing", ["no file", "not ours"])
def test_where_no_interpreter_can_be_started_the_self_test_runs_here(bundle, runtime, tmp_path, caplog, missing):
    command = str(tmp_path / "python") if missing == "no file" else interpreter(tmp_path, "sys.exit(2)")
    run_guarded_self_test(bundle, runtime, RuntimeSettings(), interpreter=command)
    assert "runs in this process" in caplog.text


def test_no_environment_of_the_working_directory_is_imported(bundle, runtime, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("import os; os._exit(3)")
    monkeypatch.chdir(tmp_path)
    run_guarded_self_test(bundle, runtime, RuntimeSettings())
    assert json.dumps({}) == "{}"
