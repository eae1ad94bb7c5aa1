from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from benchmarks.faults.processes import try_promise
from benchmarks.faults.promise import Promise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="promises are tried on Linux")


def tried(check, folder, **settings):
    promise = Promise("X", "It holds.", seconds=0.1, quick_seconds=0.1, check=check)
    return try_promise(promise, folder / "x", seconds=0.1, start="fork", **settings).findings


def test_what_a_trial_found_comes_back(tmp_path):
    def check(trial, findings):
        findings.case(trial.folder.is_dir() and trial.bundle.folder.is_dir(), "no folders")
        findings.kills += 7
        findings.note("a note")

    found = tried(check, tmp_path)
    assert (found.kept, found.cases, found.kills, found.notes) == (True, 1, 7, ["a note"])


def test_a_trial_that_raises_is_not_kept_and_says_where(tmp_path):
    def check(trial, findings):
        findings.case(True, "")
        raise KeyError("lost")

    found = tried(check, tmp_path)
    assert not found.kept
    assert found.harms == {"crashed": 1}
    assert "KeyError: 'lost' (test_processes.py:" in found.broken[0]


@pytest.mark.parametrize(
    ("end", "message"),
    [(lambda: os.kill(os.getpid(), signal.SIGKILL), "ended with -9"), (lambda: os._exit(3), "ended with 3")],
)
def test_a_trial_that_takes_its_process_with_it_has_crashed(tmp_path, end, message):
    found = tried(lambda trial, findings: end(), tmp_path)
    assert found.harms == {"crashed": 1}
    assert message in found.broken[0]


@pytest.mark.slow
def test_a_trial_that_does_not_end_hangs_and_takes_what_it_started_with_it(tmp_path):
    def check(trial, findings):
        child = os.fork()
        if child:
            (trial.folder / "child").write_text(str(child))
        time.sleep(60)

    found = tried(check, tmp_path, grace_s=1.0)
    assert found.harms == {"hung": 1}
    child = int((tmp_path / "x" / "trial" / "child").read_text())
    ends_s = time.monotonic() + 5
    while time.monotonic() < ends_s and running(child):
        time.sleep(0.01)
    assert not running(child)


def running(pid):
    """A zombie, where nobody waits for it, has ended too."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_trial_and_its_libraries_say_is_in_its_log(tmp_path):
    def check(trial, findings):
        os.write(2, b"said by a library\n")
        findings.case(b"said by a library" in trial.log_path.read_bytes(), "not in the log")

    assert tried(check, tmp_path).kept
