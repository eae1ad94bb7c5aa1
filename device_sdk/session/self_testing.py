"""Self-test of a bundle before its first use: it runs once, and a bundle that failed is not tried again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from device_sdk.errors import CompositionError, PathweaveError, RuntimeFailedError, SelfTestError, StorageError
from device_sdk.execution.guarded_self_test import SelfTestAbortedError
from device_sdk.files.locks import if_possible
from device_sdk.session.device_state import DeviceState, SelfTestAttempts

STRIKES = 3  # failures that another attempt may not repeat: too slow, crashed, power lost
_UNFINISHED = "the process ended during the self-test"

_log = logging.getLogger(__name__)


def ensure_self_tested(state: DeviceState, test: Callable[[], None]) -> None:
    """Run ``test`` unless the bundle of ``state`` has passed; remember how it ended.

    An attempt is written down before it begins, so one that takes the process or the device with it counts. After
    ``STRIKES`` of them, or one result that differs from the golden outputs, the bundle is refused without a test.
    Of several that open the bundle at once, one runs the test, and the others wait for its result.

    Raises:
        SelfTestError: the bundle failed, now or before.
        PathweaveError: as ``test``.
    """
    if state.self_test_passed():
        return
    with if_possible(state.self_testing()):
        if not state.self_test_passed():
            _self_test(state, test)


def _self_test(state: DeviceState, test: Callable[[], None]) -> None:
    attempts = state.load_attempts()
    if attempts.strikes >= STRIKES:
        raise SelfTestError(
            f"the bundle failed its self-test here before: {attempts.failure}",
            hint="a new version, or another version of the runtime, is tested again",
        )
    begun = SelfTestAttempts(attempts.strikes + 1, _UNFINISHED)
    _keep(lambda: state.save_attempts(begun))
    try:
        test()
    except (SelfTestError, CompositionError, RuntimeFailedError) as error:
        failed = _failed(begun, error)
        _keep(lambda: state.save_attempts(failed))
        raise
    except BaseException:  # not the bundle's fault: a damaged blob, a memory cap, an interrupt
        _keep(lambda: state.save_attempts(attempts))
        raise
    _keep(state.remember_self_test)
    _keep(lambda: state.save_attempts(SelfTestAttempts()))  # a damaged memory of this means another test, no strike


def _failed(begun: SelfTestAttempts, error: PathweaveError) -> SelfTestAttempts:
    final = isinstance(error, SelfTestError) and not isinstance(error, SelfTestAbortedError)
    return msgspec.structs.replace(begun, strikes=STRIKES if final else begun.strikes, failure=str(error))


def _keep(write: Callable[[], None]) -> None:
    """On a full disk the bundle is used all the same, and tested again next time."""
    try:
        write()
    except StorageError as error:
        _log.warning("the result of the self-test cannot be kept: %s", error)
