from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from device_sdk.data.preprocessing import Preprocessing, prepare
from device_sdk.errors import TransferError, UsageError
from device_sdk.offload.asking import AskClient
from device_sdk.offload.remote_calls import MAX_UNDER_WAY, CircuitBreaker, RemoteReply
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.policies.planning.server_evidence import ask_servers
from device_sdk.progress import SilentProgress

CLASSES = ("red", "green", "blue")
PREPROCESSING = Preprocessing(scale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))
PATIENCE_S = 60.0
random = np.random.default_rng(7)


def client(url: str, *, model: str = "bright:images", breaker: Any = None, **settings: Any) -> AskClient:
    settings = {"timeout_s": 2.0, "privacy": "inputs"} | settings
    return AskClient(
        RemoteModel(server=url, model=model, **settings),
        class_names=CLASSES,
        input_shape=(3, 4, 5),
        preprocessing=PREPROCESSING,
        breaker=breaker or patient(),
    )


def patient() -> CircuitBreaker:
    """A breaker that never opens by failures."""
    return CircuitBreaker(clock=time.monotonic, failures=10**9)


def draw(count: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images that no call had before, their tensors, and the right answer of ``bright:images``."""
    images = random.integers(0, 256, (count, 4, 5, 3), dtype=np.uint8)
    tensors = prepare(images, PREPROCESSING, input_shape=(3, 4, 5))
    return tensors, images, images.mean(axis=(1, 2), dtype=np.float64).astype(np.float32)


def ask(asked: AskClient, count: int = 6) -> RemoteReply:
    """One call: either exactly right or a failure in one line. A slow server holds its reply until it is well again."""
    tensors, images, right = draw(count)
    reply = asked.answer(tensors, images)
    assert (reply.output is None) != (reply.failure is None)
    if reply.output is not None:
        assert reply.output.tobytes() == right.tobytes()
    else:
        assert reply.failure
        assert "\n" not in reply.failure
    return reply


def is_answered(asked: AskClient) -> bool:
    """Whether a call is answered soon: a busy machine may miss a short time-out."""
    end = time.monotonic() + PATIENCE_S
    while ask(asked).failure is not None:
        if time.monotonic() > end:
            return False
    return True


def test_images_are_answered_by_the_server(faulty_server):
    assert ask(client(faulty_server.url)).failure is None


def test_tensors_are_answered_where_the_server_takes_them(faulty_server):
    tensors, images, _ = draw()
    for known in (images, None):
        reply = client(faulty_server.url, model="bright").answer(tensors, known)
        np.testing.assert_allclose(reply.output, tensors.mean(axis=(2, 3)), atol=1e-6)


def test_pixels_are_recovered_where_images_are_not_known(faulty_server):
    tensors, _, right = draw()
    assert client(faulty_server.url).answer(tensors, None).output.tobytes() == right.tobytes()


def test_images_are_resized_to_what_the_server_takes(faulty_server):
    faulty_server.fail("twice_the_size")
    tensors, images, right = draw()
    reply = client(faulty_server.url).answer(tensors, images)
    np.testing.assert_allclose(reply.output, right, atol=3)


def test_many_samples_go_in_pieces(faulty_server):
    assert ask(client(faulty_server.url, max_batch=4), count=11).failure is None
    posts = [line for line in faulty_server.asked() if line.startswith("POST")]
    assert len(posts) == 3


def test_the_metadata_is_asked_for_once(faulty_server):
    asked = client(faulty_server.url)
    for _ in range(3):
        ask(asked)
    assert [line.split()[0] for line in faulty_server.asked()] == ["GET", "GET", "POST", "POST", "POST"]


def test_no_samples_are_answered_by_nobody(faulty_server):
    reply = client(faulty_server.url).answer(np.empty((0, 3, 4, 5), np.float32), None)
    assert reply.output.shape == (0, 3)
    assert faulty_server.asked() == []


def test_with_privacy_never_nothing_is_sent(faulty_server):
    asked = client(faulty_server.url, privacy="never")
    assert "privacy" in ask(asked).failure
    assert faulty_server.asked() == []
    assert RemoteModel(server=faulty_server.url, model="m").privacy == "never"


def test_a_closed_one_sends_nothing(faulty_server):
    asked = client(faulty_server.url)
    asked.close()
    asked.close()
    assert "closed" in ask(asked).failure
    assert faulty_server.asked() == []


FAULTS = [
    *("no_id", "wrong_id", "wrong_model", "wrong_version", "wrong_name", "wrong_shape", "one_more_class"),
    *("one_more_sample", "wrong_datatype", "nan", "infinity", "garbage", "empty", "not_json", "html_500", "busy"),
    "expired_token",
    *("redirect", "cut_json", "trailing", "header_length", "huge", "hang_up", "not_http", "cut_connection"),
    *("slow", "drip_head", "drip_body"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_a_failure_in_time_and_over_when_the_server_is_well_again(faulty_server, fault):
    asked = client(faulty_server.url, timeout_s=0.4)
    assert is_answered(asked)
    faulty_server.fail(fault)
    assert ask(asked).failure is not None
    faulty_server.fail("")
    assert is_answered(asked)


def test_the_reply_to_an_earlier_call_is_a_failure(faulty_server):
    asked = client(faulty_server.url)
    ask(asked)
    faulty_server.fail("stale")
    assert "another request" in ask(asked).failure


@pytest.mark.parametrize("fault", ["classes", "class_count", "two_inputs", "text_input", "fixed_batch", "large_input"])
def test_a_model_that_does_not_fit_is_asked_once_and_sent_nothing(faulty_server, fault):
    faulty_server.fail(fault)
    asked = client(faulty_server.url, breaker=CircuitBreaker(clock=time.monotonic))
    assert "does not fit" in ask(asked).failure
    for _ in range(3):
        assert "does not fit" in ask(asked).failure
    assert faulty_server.asked() == ["GET /v2/models/bright%3Aimages", "GET /v2"]


def test_a_model_exchanged_for_another_is_noticed(faulty_server):
    asked = client(faulty_server.url)
    ask(asked)
    faulty_server.fail("wrong_version")
    assert "another version" in ask(asked).failure
    faulty_server.fail("classes")
    assert "does not fit" in ask(asked).failure


def test_an_open_breaker_answers_at_once_and_sends_nothing(faulty_server):
    asked = client(faulty_server.url, breaker=CircuitBreaker(clock=time.monotonic))
    faulty_server.fail("html_500")
    for _ in range(3):
        ask(asked)
    faulty_server.fail("")
    for _ in range(20):
        assert "no requests to the server" in ask(asked).failure
    assert faulty_server.asked() == []


class Crowd:
    """Threads that ask without a pause, each about images of its own; everything that they were told is kept."""

    def __init__(self, asked: AskClient, *, threads: int) -> None:
        self.asked = asked
        self.replies: list[tuple[str | None, bool]] = []  # failure, whether it was wrong
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(threads)
        self._running = [self._pool.submit(self._ask, seed) for seed in range(threads)]

    def _ask(self, seed: int) -> None:
        own = np.random.default_rng(seed)
        while not self._over.wait(0.01):
            images = own.integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
            right = images.mean(axis=(1, 2), dtype=np.float64).astype(np.float32)
            tensors = prepare(images, PREPROCESSING, input_shape=(3, 4, 5))
            reply = self.asked.answer(tensors, images)
            wrong = reply.output is not None and reply.output.tobytes() != right.tobytes()
            self.replies.append((reply.failure, wrong))

    def comes_to(self, *, failing: bool, limit_s: float = PATIENCE_S) -> bool:
        """Whether the next twelve replies in a row are all failures, or all answers, before ``limit_s``."""
        first, deadline = len(self.replies), time.monotonic() + limit_s
        while time.monotonic() < deadline:
            latest = self.replies[first:][-12:]
            if len(latest) == 12 and all((failure is not None) == failing for failure, _ in latest):
                return True
            time.sleep(0.02)
        return False

    def leave(self) -> None:
        self._over.set()
        self._pool.shutdown()
        for running in self._running:
            running.result()


@pytest.mark.slow
def test_a_server_killed_slowed_spoilt_and_back_never_holds_up_or_misleads(mortal_server):
    breaker = CircuitBreaker(clock=time.monotonic, cooldown_s=0.1, longest_cooldown_s=0.2)
    crowd = Crowd(client(mortal_server.url, timeout_s=0.4, breaker=breaker), threads=4)
    try:
        assert crowd.comes_to(failing=False)
        mortal_server.kill()
        assert crowd.comes_to(failing=True)
        mortal_server.start()
        assert crowd.comes_to(failing=False)
        for fault in ("slow", "garbage", "nan", "drip_body", "stale"):
            mortal_server.fail(fault)
            assert crowd.comes_to(failing=True), fault
            mortal_server.fail("")
            assert crowd.comes_to(failing=False), fault
    finally:
        crowd.leave()
    assert not any(wrong for _, wrong in crowd.replies)


class StuckTransport:
    """A transport on which nothing ends until it is let go: a name that nobody looks up."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.sent = 0

    @contextmanager
    def send(self, method: str, url: str, **settings: Any) -> Iterator[Any]:
        self.sent += 1
        self.let_go.wait(timeout=60)
        raise TransferError("there is no such host")
        yield

    def close(self) -> None:
        self.let_go.set()


def stuck(timeout_s: float) -> tuple[AskClient, StuckTransport]:
    transport = StuckTransport()
    made = AskClient(
        RemoteModel(server="http://nowhere", model="m", privacy="inputs", timeout_s=timeout_s),
        class_names=CLASSES,
        input_shape=(3, 4, 5),
        preprocessing=PREPROCESSING,
        transport=transport,
        breaker=patient(),
    )
    return made, transport


def test_what_cannot_be_timed_out_holds_nobody_up():
    asked, transport = stuck(timeout_s=0.1)
    assert "no answer came within 0.1 s" in ask(asked).failure
    asked.close()
    assert transport.sent == 1


def test_the_number_of_requests_left_behind_is_bounded():
    asked, transport = stuck(timeout_s=0.05)
    for _ in range(MAX_UNDER_WAY):
        ask(asked)
    assert "still in progress" in ask(asked).failure
    assert transport.sent == MAX_UNDER_WAY
    transport.let_go.set()
    deadline = time.monotonic() + PATIENCE_S
    while "in progress" in ask(asked).failure and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "there is no such host" in ask(asked).failure


@pytest.mark.parametrize(
    ("tensors", "images"),
    [
        (np.zeros((2, 3, 4, 6), np.float32), None),
        (np.full((2, 3, 4, 5), np.nan, np.float32), None),
        (np.zeros((2, 3, 4, 5), np.float32), np.zeros((3, 4, 5, 3), np.uint8)),
        (np.zeros((2, 3, 4, 5), np.float32), np.zeros((2, 4, 5, 3), np.float32)),
        (np.zeros((2, 3, 4, 5), np.float32), np.zeros((2, 4, 5), np.uint8)),
        (np.zeros((2, 3, 4, 5), np.float32), np.zeros((2, 0, 5, 3), np.uint8)),
    ],
)
def test_samples_that_make_no_sense_stay_here_and_are_not_held_against_the_server(faulty_server, tensors, images):
    breaker = CircuitBreaker(clock=time.monotonic, failures=1)
    asked = client(faulty_server.url, breaker=breaker)
    assert asked.answer(tensors, images).failure
    assert faulty_server.asked() == []
    assert breaker.state == "closed"


@pytest.mark.parametrize(
    "settings",
    [{"server": ""}, {"model": ""}, {"privacy": "always"}, {"max_batch": 0}]
    + [{"timeout_s": value} for value in (0, -1, float("nan"), float("inf"))],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(UsageError):
        RemoteModel(**{"server": "http://a", "model": "m", **settings})


def test_an_address_that_nothing_speaks_to_is_refused():
    with pytest.raises(UsageError):
        client("gopher://example.org")


def test_a_token_that_expires_between_two_calls_is_named_and_a_call_with_a_new_one_is_answered(faulty_server):
    asked = client(faulty_server.url, token="old")
    assert ask(asked).failure is None
    faulty_server.fail("expired_token")
    assert "the token has expired" in ask(asked).failure
    faulty_server.fail("")
    assert is_answered(client(faulty_server.url, token="new"))


def test_the_token_is_not_shown():
    assert "secret" not in repr(RemoteModel(server="http://a", model="m", token="secret"))


def test_servers_that_disagree_on_the_classes_get_one_error_that_names_them(faulty_server):
    fitting = client(faulty_server.url)
    other = AskClient(
        RemoteModel(server=faulty_server.url, model="bright", privacy="inputs", timeout_s=PATIENCE_S),
        class_names=("rouge", "vert", "bleu"),
        input_shape=(3, 4, 5),
        preprocessing=PREPROCESSING,
    )
    assert (fitting.misfit(), client("http://127.0.0.1:9").misfit()) == (None, None)
    with pytest.raises(UsageError, match=r"do not agree.*bright: .*classes") as caught:
        ask_servers([fitting, other], None, None, None, None, uplink=None, progress=SilentProgress())
    assert "same classes in the same order" in caught.value.hint
