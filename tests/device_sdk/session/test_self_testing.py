from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from device_sdk.errors import BlobError, RuntimeFailedError, SelfTestError
from device_sdk.execution.guarded_self_test import SelfTestAbortedError
from device_sdk.session.device_state import DeviceState
from device_sdk.session.opening import STRIKES, ensure_self_tested


@pytest.fixture
def state(bundle, runtime, tmp_path):
    return DeviceState(tmp_path, bundle, runtime)


def raising(error, calls):
    def test():
        calls.append(error)
        raise error

    return test


def test_a_bundle_that_passed_is_not_tested_again(state):
    calls = []
    for _ in range(2):
        ensure_self_tested(state, lambda: calls.append(1))
    assert calls == [1]
    assert state.self_test_passed()


def test_a_damaged_memory_means_another_test_and_never_a_refusal(state):
    calls = []
    for opening in range(1, 2 * STRIKES + 1):
        ensure_self_tested(state, lambda: calls.append(1))
        assert len(calls) == opening
        for path in state.folder.glob("self-test*.json"):
            path.write_bytes(b"{damaged")
            assert not state.self_test_passed()


def test_the_attempt_is_on_disk_before_the_test_begins(state):
    seen = []
    ensure_self_tested(state, lambda: seen.append(state.load_attempts().strikes))
    assert seen == [1]


def test_of_eight_that_open_a_bundle_at_once_one_tests_it(bundle, runtime, tmp_path):
    calls = []

    def test():
        calls.append(1)
        time.sleep(0.02)

    def opened(_):
        ensure_self_tested(DeviceState(tmp_path, bundle, runtime), test)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(opened, range(8)))
    assert calls == [1]


@pytest.mark.parametrize("error", [SelfTestAbortedError("hung"), RuntimeFailedError("no memory")])
def test_what_may_pass_next_time_is_tried_a_few_times(state, error):
    calls = []
    for _ in range(STRIKES):
        with pytest.raises(type(error)):
            ensure_self_tested(state, raising(error, calls))
    with pytest.raises(SelfTestError, match=f"before: {error}") as caught:
        ensure_self_tested(state, raising(error, calls))
    assert len(calls) == STRIKES
    assert caught.value.hint


def test_wrong_outputs_are_final(state):
    calls = []
    for _ in range(3):
        with pytest.raises(SelfTestError, match="wrong"):
            ensure_self_tested(state, raising(SelfTestError("wrong"), calls))
    assert len(calls) == 1


@pytest.mark.parametrize("error", [BlobError("decayed"), KeyboardInterrupt()])
def test_what_is_not_the_bundles_fault_does_not_count(state, error):
    for _ in range(STRIKES + 1):
        with pytest.raises(type(error)):
            ensure_self_tested(state, raising(error, []))
    ensure_self_tested(state, lambda: None)


def test_a_state_that_cannot_be_written_does_not_keep_a_good_bundle_from_opening(state, caplog):
    state.folder.write_bytes(b"a file in the way")
    ensure_self_tested(state, lambda: None)
    assert "cannot be kept" in caplog.text
