"""R6: a network that cuts, stalls, drips, damages and resets."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.faults.device import Device
from benchmarks.faults.promise import Findings, Trial
from benchmarks.faults.serving import serving
from benchmarks.faults.small_bundle import NAME, SERVED
from benchmarks.faults.tools.fault_proxy import Fault, FaultProxy, Kind
from device_sdk.delivery.download import fetch_bundle
from device_sdk.delivery.store import BundleStore
from device_sdk.errors import PathweaveError
from device_sdk.offload.remote_model import Privacy, RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import FALLBACK, SERVER
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Ask, MaxConfidence, Plan, RemoteRef, Split
from device_sdk.transports import make_transport
from device_sdk.transports.port import Deadlines

OPEN_S, INFER_S = 0.5, 0.3  # the deadlines that are asked for
SLACK_S = 1.0  # of a busy machine
WHOLE_S = 30.0  # a trial that is given less tries a part of the faults
DELIVERY, INFERENCE = ("manifest.json", "manifest.sig", "blobs/"), ("/v2/models/reference:", "/infer")
PARTS = DELIVERY + INFERENCE
FOR_EVER = 1000  # answers
KINDS: tuple[Kind, ...] = ("cut", "stall", "drip", "flip", "reset", "wrong length")


def no_hang(trial: Trial, findings: Findings) -> None:
    """R6: each fault at each answer that ``open`` and inference wait for, then servers that accept and say nothing."""
    bundles = trial.new_folder("bundles")
    trial.bundle.publish(bundles / NAME, 1)
    ends_s, turn = trial.ends_s(), 0
    with serving(bundles, trial.folder / "server") as server, FaultProxy(server.address[1]) as proxy:
        device = Device(f"{proxy.url}/{SERVED}", trial.folder / "state", trial.bundle.public_key)
        device.open()
        images = trial.random.integers(0, 256, (4, 2, 2, 3), dtype=np.uint8)
        cases = [(kind, part) for kind in KINDS for part in PARTS]
        with AdaptiveModel.open(trial.bundle.folder, state_folder=trial.folder / "model") as model:
            for name, silent in (("silent", _silent), ("never accepting", _never_accepting)):
                with silent() as url:
                    _first_open(url, trial, findings, name)
                    _infer(model, url, images, findings, name)
            while turn < len(cases) or trial.clock() < ends_s:
                if trial.clock() > ends_s and trial.seconds < WHOLE_S:
                    break
                kind, part = cases[_shuffled(turn, len(cases))]
                turn += 1
                trial.bundle.publish(bundles / NAME, 1 + turn)  # something to fetch, at each turn
                what = f"{kind} at {part}"
                with _failing(proxy, part, kind, at=20):
                    if part in INFERENCE:
                        _infer(model, proxy.url, images, findings, what)
                    else:
                        _open(device, findings, what)
                        _first_open(proxy.url, trial, findings, what)
    findings.note(f"deadlines of {OPEN_S} s and {INFER_S} s; {SLACK_S} s more count as kept; {turn} faults at answers")


def _shuffled(number: int, count: int) -> int:
    """The ``number``-th of ``count`` in an order whose beginning has some of everything; 7 does not divide it."""
    return 7 * number % count


@contextlib.contextmanager
def _failing(proxy: FaultProxy, part: str, kind: Kind, *, at: int) -> Iterator[None]:
    proxy.faults[part] = [Fault(kind, at)] * FOR_EVER
    try:
        yield
    finally:
        proxy.faults.clear()


def _timed(findings: Findings, what: str, limit_s: float, call: Callable[[], object]) -> object:
    began_s = time.monotonic()
    found = None
    try:
        found = call()
    except PathweaveError:
        pass
    except Exception as error:
        findings.case(False, f"{what}: {type(error).__name__}: {error}", "crashed")
    took_s = time.monotonic() - began_s
    findings.case(took_s <= limit_s + SLACK_S, f"{what} took {took_s:.1f} s instead of {limit_s} s", "hung")
    return found


def _open(device: Device, findings: Findings, what: str) -> None:
    """There is a last good version, and it opens."""
    found = _timed(findings, f"open, {what}", OPEN_S, lambda: device.open(update_deadline_s=OPEN_S))
    findings.case(found is not None, f"open, {what}: the last good version did not open")


def _first_open(url: str, trial: Trial, findings: Findings, what: str) -> None:
    """Nothing is here: it ends with an error at the deadline, or came whole."""
    store = BundleStore(trial.folder / f"first-{findings.cases}")
    with contextlib.closing(make_transport(url)) as transport:
        _timed(
            findings,
            f"first open, {what}",
            OPEN_S,
            lambda: fetch_bundle(
                f"{url}/{SERVED}",
                store,
                transport,
                trust=trial.bundle.public_key,
                deadlines=Deadlines(idle_s=OPEN_S, total_s=OPEN_S),
            ),
        )


def _infer(model: AdaptiveModel, url: str, images: np.ndarray, findings: Findings, what: str) -> None:
    """Every sample is sent, as images or as activations, and answered in time, by the server or here."""
    original = model.bundle.supernet.original
    asking = Ask(MaxConfidence(UNREACHABLE_CONFIDENCE), RemoteRef(f"{NAME}:images"))
    split = Split(3, (8,), original.edges[3:], RemoteRef(f"{NAME}:tail"))
    model.use(Plan(original))
    local = model(images).output
    ways: tuple[tuple[str, Privacy, Plan], ...] = (
        ("images", "inputs", Plan(original, hard=asking)),
        ("tail", "activations", Plan(original, split=split)),
    )
    for way, privacy, plan in ways:
        model.remote.connect(RemoteModel(server=url, model=f"{NAME}:{way}", privacy=privacy, timeout_s=INFER_S))
        model.use(plan)
        for _ in range(2):
            answer = _timed(findings, f"inference by {way}, {what}", INFER_S, lambda: model(images))
            right = answer is not None and set(answer.source) <= {SERVER, FALLBACK}  # type: ignore[attr-defined]
            findings.case(right, f"inference by {way}, {what}: no answer")
            if right:
                close = np.allclose(answer.output, local, atol=0.1)  # type: ignore[attr-defined]
                findings.case(close, f"inference by {way}, {what}: another answer", "torn")
    model.remote.disconnect()


@contextlib.contextmanager
def _silent() -> Iterator[str]:
    """Accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def _never_accepting() -> Iterator[str]:
    """A full backlog: connections are not even established."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
