from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import StorageError
from device_sdk.profiling.profile import FORMAT
from device_sdk.profiling.speed_reading import Zone
from device_sdk.profiling.sustained import Stage, SustainedProfile, SustainedSample
from device_sdk.profiling.timing import current_conditions
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.device_state import DeviceState, default_state_folder
from device_sdk.supernet.plan import ANY_SERVER, Ask, Edge, MaxConfidence, Plan, Subnet


def asking(threshold):
    return Ask(MaxConfidence(threshold), ANY_SERVER)


ROOT = Path(__file__).parents[3]


@pytest.fixture
def plan(bundle):
    return Plan(bundle.supernet.original, hard=asking(0.25))


@pytest.fixture
def state(tmp_path, bundle, runtime):
    return DeviceState(tmp_path, bundle, runtime)


def files(state):
    return sorted(path.name for path in state.folder.iterdir())


def test_a_new_state_remembers_nothing(state):
    assert not state.self_test_passed()
    assert state.load_profile() is None
    assert state.load_plan() is None
    assert not state.folder.exists()


def test_what_is_kept_is_found_again(state, slow_profile, tmp_path, bundle, runtime, plan):
    state.remember_self_test()
    state.save_profile(slow_profile)
    state.save_plan(plan)
    again = DeviceState(tmp_path, bundle, runtime)
    assert again.self_test_passed()
    assert again.load_profile() == slow_profile
    assert again.load_plan() == plan
    assert len(files(state)) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b'{"subnet": 3}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_cannot_be_read_counts_as_absent(state, slow_profile, content, plan):
    state.save_profile(slow_profile)
    state.save_plan(plan)
    for path in state.folder.iterdir():
        path.write_bytes(content)
    assert state.load_profile() is None
    assert state.load_plan() is None
    state.save_plan(plan)
    assert state.load_plan() == plan


def test_a_folder_in_place_of_a_file_counts_as_absent(state, plan):
    state.save_plan(plan)
    [path] = state.folder.iterdir()
    path.unlink()
    path.mkdir()
    assert state.load_plan() is None
    with pytest.raises(StorageError):
        state.save_plan(plan)


def test_another_runtime_has_a_state_of_its_own(state, tmp_path, bundle, slow_profile, plan):
    state.remember_self_test()
    state.save_profile(slow_profile)
    state.save_plan(plan)
    other = DeviceState(tmp_path, bundle, OnnxRuntime(threads=2))
    assert not other.self_test_passed()
    assert other.load_profile() is None
    assert other.load_plan() is None


def governor(system, name):
    path = system / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)


def test_plans_kept_for_other_threads_are_named(state, tmp_path, bundle, plan):
    other = DeviceState(tmp_path, bundle, OnnxRuntime(threads=2))
    assert other.runtimes_with_plans() == ()
    state.save_plan(plan)
    assert other.runtimes_with_plans() == (OnnxRuntime(threads=1).identity,)
    assert state.runtimes_with_plans() == ()


FIRST_FORMAT = b'{"subnet":{"edges":[]},"exits":[],"split":null,"escalation":{"threshold":0.5},"runtime":"onnxruntime"}'


def test_a_plan_of_the_first_format_is_told_and_left(state, plan, caplog):
    state.save_plan(plan)
    (path,) = state.folder.glob("plan-*.json")
    old = path.with_name(path.name.replace("plan-2-", "plan-"))
    path.unlink()
    old.write_bytes(FIRST_FORMAT)
    assert state.load_plan() is None
    assert "of an earlier format" in caplog.text
    assert old.read_bytes() == FIRST_FORMAT
    state.save_plan(plan)
    assert state.load_plan() == plan
    assert old.read_bytes() == FIRST_FORMAT


def test_a_kept_plan_of_an_unknown_kind_is_told_and_not_used(state, plan, caplog):
    state.save_plan(plan)
    (path,) = state.folder.glob("plan-2-*.json")
    path.write_bytes(path.read_bytes().replace(b'"kind":"ask"', b'"kind":"pray"'))
    assert state.load_plan() is None
    assert "pray" in caplog.text


def test_each_power_mode_driver_and_batch_has_a_profile_of_its_own(tmp_path, bundle, runtime, slow_profile):
    system = tmp_path / "system"
    state = DeviceState(tmp_path, bundle, runtime, system=system)
    governor(system, "performance")
    here = current_conditions(system)
    quick = msgspec.structs.replace(slow_profile, device=here.device, power_mode=here.power_mode, driver=here.driver)
    state.save_profile(quick)
    state.save_profile(msgspec.structs.replace(quick, batch=8))
    assert state.load_profile() == quick
    assert state.load_profile(batch=8).batch == 8
    assert state.load_profile(batch=2) is None
    governor(system, "powersave")
    assert state.load_profile() is None
    governor(system, "performance")
    assert state.load_profile() == quick  # nothing was lost meanwhile
    (system / "sys/module/nvidia").mkdir(parents=True)
    (system / "sys/module/nvidia/version").write_text("550.54.14")
    assert state.load_profile() is None


@pytest.mark.parametrize("format_", [b"%d" % (FORMAT - 1), b"%d" % (FORMAT + 1), b'"x"'])
def test_a_profile_of_another_format_is_ignored(state, slow_profile, format_):
    state.save_profile(slow_profile)
    [path] = state.folder.iterdir()
    path.write_bytes(path.read_bytes().replace(b'"format":%d' % FORMAT, b'"format":' + format_))
    assert state.load_profile() is None


def test_another_bundle_of_the_same_name_has_a_state_of_its_own(state, own_bundle, tmp_path, runtime, slow_profile):
    state.remember_self_test()
    state.save_profile(slow_profile)
    own_bundle.edit(lambda manifest: manifest.update(version=2))
    other = DeviceState(tmp_path, Bundle.open(own_bundle.folder), runtime)
    assert not other.self_test_passed()
    assert other.load_profile() is None
    other.save_profile(slow_profile)  # a file that was copied from elsewhere
    assert other.load_profile() is None


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path, bundle, runtime):
    (tmp_path / "file").write_text("")
    state = DeviceState(tmp_path / "file", bundle, runtime)
    with pytest.raises(StorageError) as caught:
        state.remember_self_test()
    assert caught.value.hint
    assert not state.self_test_passed()


WRITER = """
import sys
from pathlib import Path
from device_sdk.bundles.bundle import Bundle
from device_sdk.session.device_state import DeviceState
from device_sdk.supernet.plan import ANY_SERVER, Ask, MaxConfidence, Plan
from device_sdk.runtimes import OnnxRuntime

bundle = Bundle.open(sys.argv[2])
state = DeviceState(Path(sys.argv[1]), bundle, OnnxRuntime(threads=1))
for _ in range(150):
    state.save_plan(Plan(bundle.supernet.original, hard=Ask(MaxConfidence(float(sys.argv[3])), ANY_SERVER)))
"""


def test_a_file_that_two_processes_write_at_once_is_always_whole(state, tmp_path, tiny_bundle):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(tiny_bundle.folder), name], env=environment)
        for name in ("0.25", "0.5")
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        plan = state.load_plan()
        assert plan is not None or not seen
        if plan is not None:
            seen.add(plan.hard_threshold)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen | {state.load_plan().hard_threshold} <= {0.25, 0.5}
    assert len(files(state)) == 1  # no temporary file is left


def test_the_default_folder_is_the_users_folder_for_state():
    script = "from device_sdk.session.device_state import default_state_folder; print(default_state_folder())"

    def printed(**variables):
        environment = {"PYTHONPATH": str(ROOT), "HOME": "/home/somebody", **variables}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert printed() == "/home/somebody/.local/state/pathweave"
    assert printed(XDG_STATE_HOME="/x") == "/x/pathweave"
    assert printed(XDG_STATE_HOME="/x", PATHWEAVE_STATE="/y/z") == "/y/z"
    assert default_state_folder().is_absolute()


def test_a_plan_of_another_graph_counts_as_absent(state):
    state.save_plan(Plan(Subnet((Edge("o0"), Edge("m1-4", "int8")))))
    assert state.load_plan() is None


def test_the_last_sustained_profile_of_a_power_mode_is_kept(tmp_path, bundle, runtime):
    system = tmp_path / "system"
    state = DeviceState(tmp_path, bundle, runtime, system=system)
    stage = Stage(seconds=6.0, calls=100, mean_ms=10.1, median_ms=10.0, p95_ms=11.0, zones=(Zone("cpu", 70.0, 80.0),))
    found = SustainedProfile(
        bundle=bundle.digest,
        runtime=runtime.identity,
        plan="o0",
        created="2026-01-01T00:00:00+00:00",
        seconds=60.0,
        calls=1000,
        first=stage,
        last=stage,
        sustained_over_first=1.0,
        settled_s=0.0,
        outcome="steady",
        samples=(SustainedSample(at_s=1.0, calls=100, median_ms=10.0, p95_ms=11.0, held_back=("cpufreq",)),),
    )
    assert state.load_sustained() is None
    governor(system, "performance")
    state.save_sustained(found)
    assert state.load_sustained() == found
    governor(system, "powersave")
    assert state.load_sustained() is None
    governor(system, "performance")
    state.save_sustained(msgspec.structs.replace(found, calls=2))
    assert state.load_sustained().calls == 2
