"""The real script: as a process, as a person or a program would run it, and in this process where it only refuses."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from device_sdk.energy import find_meter
from device_sdk.logs.adaptation_log import read_log
from jetson_demo.run_demo import run_demo
from pathweave.cli import main

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60
BROKEN = b"\x89PNG\r\n\x1a\n and then nothing"


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    printed = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, printed[1]
    return printed


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(arguments, group=run_demo)
    return status, capsys.readouterr().err


@pytest.fixture(scope="module")
def finished_run(start, arguments) -> tuple[dict, str]:
    """A run over all photos: its JSON and what it told on standard error."""
    printed, told = finished(start(arguments("--json")))
    return json.loads(printed), told


def test_a_program_gets_one_object_with_what_came_out(finished_run):
    summary, _ = finished_run
    assert (summary["frames"], summary["skipped"]) == (40, 0)
    assert 0 < summary["median_ms"] <= summary["p95_ms"]
    assert summary["mean_ms"] > 0
    assert 0 <= summary["share_early"] <= 1
    assert sum(summary["sources"].values()) == pytest.approx(1)
    assert summary["budget_ms"] == 500
    assert summary["measured_ms"] <= 500
    assert summary["plan"].startswith("o0 ")


def test_the_provider_is_the_one_that_ran(finished_run):
    summary, told = finished_run
    assert summary["provider"] in summary["runtime"]
    assert f"{summary['provider']} runs this bundle" in told


def test_energy_is_that_of_the_timed_answers_and_names_its_source(finished_run):
    energy = finished_run[0]["energy"]
    assert energy["source"] == find_meter(stated_w=10).source
    if energy["source"].startswith("model"):
        assert energy["mean_w"] == pytest.approx(10)
        assert energy["mj_per_frame"] >= 10 * finished_run[0]["mean_ms"]


def test_without_a_terminal_it_tells_a_line_now_and_then(finished_run):
    _, told = finished_run
    assert "\x1b" not in told
    assert len([line for line in told.splitlines() if " of 40 images: " in line]) >= 1
    assert "adapting on 20 unlabelled images, choosing exits on 20 others" in told


def test_it_finds_a_subnet_then_exits_and_writes_both_down(finished_run, model):
    events = [type(line.event).__name__ for line in read_log(model.log.path)]
    assert events.index("Adapted") < events.index("PlanChosen")


def test_broken_images_are_counted_named_once_and_skipped(start, arguments, own_photos):
    (own_photos / "blue" / "broken.png").write_bytes(BROKEN)
    (own_photos / "notes.txt").write_text("no image")
    printed, told = finished(start(arguments("--loop", "--max-frames", "40", "--json", source=own_photos)))
    summary = json.loads(printed)
    assert (summary["frames"], summary["skipped"]) == (40, 1)
    assert told.count("skipped ") == told.count("broken.png is not a readable image") == 1


def test_a_person_gets_a_summary_and_no_more_images_than_wished(start, arguments):
    printed, _ = finished(start(arguments("--max-frames", "7")))
    assert "7 images answered, 0 files skipped" in printed
    assert "energy: " in printed
    assert "budget of 500 ms" in printed


def test_a_deadline_a_memory_limit_and_the_planner_are_in_the_summary(start, arguments, photos):
    limits = ("--deadline-ms", "1000", "--memory-mb", "64", "--accuracy", "0.2")
    printed, _ = finished(start(arguments("--data", str(photos), "--max-frames", "5", "--json", *limits)))
    summary = json.loads(printed)
    assert (summary["deadline_ms"], summary["memory_mb"], summary["missed"]) == (1000, 64, 0)
    assert "subnet" in summary["planned"]["kinds"]
    assert summary["planned"]["considered"] >= 2
    assert summary["replanned"] == []


def test_an_accuracy_and_live_update_exclude_each_other(arguments, capsys):
    status, told = refused(arguments("--accuracy", "0.5", "--live"), capsys)
    assert status == 2
    assert "--accuracy or --live" in told


def test_labelled_data_is_what_it_adapts_on(start, arguments, photos):
    _, told = finished(start(arguments("--data", str(photos), "--max-frames", "3", "--latency-ms", "400")))
    assert "adapting on 28 labelled images, choosing exits on 12 others" in told


def test_interrupted_it_ends_with_the_summary(start, arguments):
    process = start(arguments("--loop", "--json"))
    for line in process.stderr:
        if " images: " in line:
            break
    process.send_signal(signal.SIGINT)
    printed, _ = finished(process)
    assert json.loads(printed)["frames"] >= 1


def test_in_a_terminal_there_is_a_picture(start, arguments):
    ours, theirs = pty.openpty()
    process = start(arguments("--max-frames", "20"), stderr=theirs)
    os.close(theirs)
    seen = _all_of(ours)
    printed, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, seen
    assert "20 images answered" in printed
    for word in ("image", "answer", "latency", "plan", "energy", "events", "20 of 20", "tiny version 1", "switched to"):
        assert word in seen


def _all_of(terminal: int) -> str:
    """What was written to a terminal until its last writer left."""
    data, ends_s = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_s:
        try:
            read = os.read(terminal, 65536)
        except OSError:  # how Linux says that nobody writes any more
            break
        if not read:
            break
        data += read
    os.close(terminal)
    return data.decode()


def test_the_bundle_of_the_demo_is_taken_where_none_is_named(start, tiny, photos, state, tmp_path):
    (tmp_path / "demo" / "bundles").mkdir(parents=True)
    (tmp_path / "demo" / "bundles" / "digits").symlink_to(tiny.folder)
    given = ["--source", f"folder:{photos}", "--state", str(state), "--latency-ms", "500", "--max-frames", "2"]
    printed, _ = finished(start([*given, "--trust", str(tiny.public_key)], folder=tmp_path))
    assert "2 images answered" in printed


@pytest.mark.parametrize("broken", [False, True], ids=["empty", "only broken images"])
def test_a_folder_without_a_usable_image_is_an_error(arguments, tmp_path, capsys, broken):
    folder = tmp_path / "photos"
    folder.mkdir()
    if broken:
        (folder / "a.jpg").write_bytes(BROKEN)
    status, told = refused(arguments(source=folder), capsys)
    assert status == 1
    assert ("no image could be used" if broken else "holds no images") in told


def test_a_folder_that_is_not_there_is_an_error(arguments, tmp_path, capsys):
    status, told = refused(arguments(source=tmp_path / "nowhere"), capsys)
    assert status == 1
    assert "there is no folder" in told


def test_a_bundle_that_is_not_there_is_an_error(arguments, tmp_path, capsys):
    status, told = refused(arguments(bundle=tmp_path / "nowhere"), capsys)
    assert status == 1
    assert "error: " in told
    assert "nowhere" in told


def test_no_bundle_at_all_is_wrong_usage(photos, tmp_path, capsys):
    with contextlib.chdir(tmp_path):
        status, told = refused(["--source", f"folder:{photos}"], capsys)
    assert status == 2
    assert "pathweave demo --work demo" in told


def test_a_bundle_that_somebody_else_signed_is_refused(arguments, tiny, capsys):
    status, _ = refused(arguments("--trust", str(tiny.foreign_key)), capsys)
    assert status == 1


@pytest.mark.parametrize("source", ["photos", "screen:0", "folder:", "camera:"])
def test_a_source_that_it_does_not_know_is_wrong_usage(tiny, capsys, source):
    status, told = refused(["--source", source, "--bundle", str(tiny.folder)], capsys)
    assert status == 2
    assert "folder:PATH" in told


@pytest.mark.parametrize(
    "options",
    [
        ("--latency-ratio", "0"),
        ("--latency-ms", "-1"),
        ("--latency-ms", "soon"),
        ("--latency-ratio", "0.5", "--latency-ms", "2"),
        ("--power-watts", "0", "--latency-ms", "2"),
        ("--max-frames", "0", "--latency-ms", "2"),
    ],
)
def test_a_budget_or_number_that_makes_no_sense_is_wrong_usage(arguments, capsys, options):
    status, told = refused(arguments(*options), capsys)
    assert status == 2
    assert "error: " in told


def test_a_budget_that_nothing_fits_names_the_nearest(arguments, capsys):
    status, told = refused(arguments("--latency-ms", "0.0001"), capsys)
    assert status == 1
    assert "hint: " in told
    assert "Traceback" not in told


def test_a_provider_that_is_not_there_is_never_replaced(arguments, capsys):
    status, told = refused(arguments("--provider", "AbacusExecutionProvider"), capsys)
    assert status == 1
    assert "AbacusExecutionProvider" in told


def test_its_help_calls_it_by_its_name(capsys):
    assert main(["--help"], group=run_demo, prog_name="run_demo.py") == 0
    assert capsys.readouterr().out.startswith("Usage: run_demo.py")


def test_it_loads_neither_torch_nor_flask():
    script = "import sys, jetson_demo.run_demo; print(*{'torch', 'flask', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout.strip(), done.stderr) == ("", "")
