"""S1, S2: more requests than a server can answer, and whose answers they get."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.faults.promise import Findings, Trial
from benchmarks.faults.serving import ForkedServer, Serving, forked_server, serving
from benchmarks.faults.small_bundle import NAME
from benchmarks.faults.tools.forked import Forked
from benchmarks.faults.tools.overload import HealthProbe, dripping, open_connections
from device_sdk.fragments.composition import Stretch
from device_sdk.machine import resident_bytes
from device_sdk.offload.open_inference import (
    HEADER_LENGTH,
    InferRequest,
    NamedTensor,
    decode_response,
    encode_request,
)
from device_sdk.runtimes import make_runtime
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime, StopSignal
from server.http.request_reader import Limits
from server.http.serving import SPARE_THREADS

INFER = f"/v2/models/{NAME}:images/infer"
ROW_S = 0.02  # what a row takes: the model's capacity is 50 rows per second, far below that of this machine
OVER = 3  # times the capacity
DEADLINE_S, QUEUE = 2.0, 32
HEALTH_P95_MS, RECOVERY_S = 100.0, 5.0
GROWTH_BYTES = 16_000_000  # of the server between the first third and the last; the queue is full in both
REFUSED = {429, 503}
ADDRESSES, SLOW = 16, 200


@dataclass(frozen=True)
class SlowRuntime:
    """A runtime whose models take ``row_s`` for each row, and no processor."""

    runtime: Runtime
    row_s: float

    @property
    def identity(self) -> str:
        return f"slow-{self.runtime.identity}"

    @property
    def concurrency(self) -> int:
        return 1

    @property
    def waits_for_threads(self) -> bool:
        return False

    def taking_turns(self) -> Runtime:
        return self

    def load(self, stretch: Stretch) -> LoadedStretch:
        return _SlowStretch(self.runtime.load(stretch), self.row_s)


@dataclass(frozen=True)
class _SlowStretch:
    loaded: LoadedStretch
    row_s: float

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        time.sleep(self.row_s * len(inputs[0]))
        return self.loaded.run(inputs)

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        return self.loaded.run_until(inputs, stop)

    def close(self) -> None:
        self.loaded.close()


@dataclass
class _Load:
    """Replies of an open loop: clients send at a rate that does not depend on the replies."""

    accepted_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, status: int, took_s: float) -> None:
        with self.lock:
            self.statuses[status] += 1
            if status == 200:
                self.accepted_s.append(took_s)

    @classmethod
    def read(cls, text: str) -> _Load:
        """From the JSON of ``_send_load``."""
        found = json.loads(text)
        return cls(found["accepted_s"], Counter({int(name): count for name, count in found["statuses"].items()}))


@dataclass(frozen=True)
class _Size:
    """Memory, threads and open files of a server at a moment."""

    resident_bytes: int
    threads: int
    handles: int

    @classmethod
    def of(cls, pid: int) -> _Size:
        process = Path(f"/proc/{pid}")
        threads, handles = (len(os.listdir(process / name)) for name in ("task", "fd"))
        return cls(resident_bytes(pid) or 0, threads, handles)


def open_loop(trial: Trial, findings: Findings) -> None:
    """S1: three times as many requests as the model can answer, from sixteen addresses, and 200 that never end."""
    bundles = trial.new_folder("bundles")
    trial.bundle.copy(bundles / NAME)
    with forked_server(
        bundles,
        trial.folder / "server",
        runtime=SlowRuntime(make_runtime("onnxruntime", threads=1), ROW_S),
        queue_limit=QUEUE,
        infer_timeout_s=DEADLINE_S,
    ) as server:
        body, headers = _images(np.zeros((1, 2, 2, 3), np.uint8))
        calm_s = min(_latency_s(server, body, headers) for _ in range(5))
        report, seconds = trial.folder / "load.json", 0.8 * trial.seconds
        sizes = [_Size.of(server.child.pid)]
        # in a process of its own: else its threads would keep the probe waiting
        with Forked(lambda: report.write_text(_send_load(server, body, headers, seconds))) as load_process:
            with _slow_clients(server), HealthProbe(server.address) as probe:
                for _ in range(round(seconds * 10)):
                    time.sleep(0.1)
                    sizes.append(_Size.of(server.child.pid))
            findings.case(load_process.join(60.0) == 0, "clients do not end", "hung")
        load = _Load.read(report.read_text())
        _judge_load(findings, load, sizes, probe)
        _judge_recovery(findings, server, body, headers, calm_s)


@contextlib.contextmanager
def _slow_clients(server: ForkedServer) -> Iterator[None]:
    """Requests of one more address that arrive byte by byte."""
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n".encode()
    with open_connections(server.address, SLOW, first=head, source="127.0.3.1") as slow, dripping(slow):
        yield


def _send_load(server: ForkedServer, body: bytes, headers: dict[str, str], seconds: float) -> str:
    """Send requests at a constant rate; returns their outcomes as JSON."""
    load, sent = _Load(), 0
    rate_per_s = OVER / ROW_S
    began_s = time.monotonic()

    def send(number: int) -> None:
        asked_s = time.monotonic()
        try:
            source = f"127.0.2.{number % ADDRESSES + 1}"
            status = server.ask(INFER, method="POST", body=body, headers=headers, source=source).status
        except Exception:
            status = 0
        load.add(status, time.monotonic() - asked_s)

    with ThreadPoolExecutor(256) as pool:
        while (passed_s := time.monotonic() - began_s) < seconds:
            while sent < passed_s * rate_per_s:
                pool.submit(send, sent)
                sent += 1
            time.sleep(0.005)
    return json.dumps({"accepted_s": load.accepted_s, "statuses": dict(load.statuses)})


def _judge_load(findings: Findings, load: _Load, sizes: list[_Size], probe: HealthProbe) -> None:
    replies = load.statuses.total()
    p99_s = float(np.percentile(load.accepted_s, 99)) if load.accepted_s else float("inf")
    third = max(1, len(sizes) // 3)
    before, after = (max(one.resident_bytes for one in part) for part in (sizes[third : 2 * third], sizes[-third:]))
    most_threads, most_handles = max(one.threads for one in sizes), max(one.handles for one in sizes)
    findings.cases += replies
    for status, count in load.statuses.items():
        findings.case(status in REFUSED | {200}, f"{count} requests were answered {status}", "crashed")
    findings.case(sum(load.statuses[one] for one in REFUSED) > 0, "nothing was refused: there was no overload")
    findings.case(
        p99_s <= DEADLINE_S, f"p99 of accepted requests is {p99_s:.2f} s, the deadline {DEADLINE_S} s", "hung"
    )
    findings.case(after - before <= GROWTH_BYTES, f"it grew from {before} to {after} bytes under constant load")
    threads = QUEUE + SPARE_THREADS + 16  # inference, routes, and those of the runtime and of sockets
    findings.case(most_threads <= threads, f"it had {most_threads} threads")
    findings.case(most_handles <= Limits().connections + 64, f"it had {most_handles} handles")
    findings.case(probe.p95_ms <= HEALTH_P95_MS, f"/health took {probe.p95_ms:.0f} ms (p95)", "hung")
    counts = dict(sorted(load.statuses.items()))
    findings.note(f"replies {counts}; accepted p99 {1e3 * p99_s:.0f} ms; /health p95 {probe.p95_ms:.0f} ms")
    findings.note(
        f"resident {before / 1e6:.0f} to {after / 1e6:.0f} MB, {most_threads} threads, {most_handles} handles"
    )


def _judge_recovery(
    findings: Findings, server: ForkedServer, body: bytes, headers: dict[str, str], calm_s: float
) -> None:
    """Answers are as quick again as before the load."""
    began_s = time.monotonic()
    took_s = float("inf")
    while time.monotonic() - began_s < RECOVERY_S and took_s > 2 * calm_s + 0.05:
        took_s = _latency_s(server, body, headers)
    recovered_s = time.monotonic() - began_s
    findings.case(took_s <= 2 * calm_s + 0.05, f"after {RECOVERY_S} s an answer takes {took_s:.2f} s", "hung")
    findings.note(f"recovered after {recovered_s:.1f} s")


def _latency_s(server: ForkedServer, body: bytes, headers: dict[str, str]) -> float:
    """Of an answer; infinite for a refusal."""
    began_s = time.monotonic()
    status = server.ask(INFER, method="POST", body=body, headers=headers).status
    return time.monotonic() - began_s if status == 200 else float("inf")


def _images(images: np.ndarray) -> tuple[bytes, dict[str, str]]:
    return encode_request(InferRequest((NamedTensor("image", images),), binary_output=True))


def batches(trial: Trial, findings: Findings) -> None:
    """S2: sixteen clients, each with images of its own in requests of 1 to 5, which the server runs together."""
    bundles = trial.new_folder("bundles")
    trial.bundle.copy(bundles / NAME)
    random = trial.random
    asked = [random.integers(0, 256, (rows, 2, 2, 3), dtype=np.uint8) for rows in random.integers(1, 6, 64)]
    with serving(bundles, trial.folder / "server", queue_limit=64, max_batch=16) as server:
        alone = [_answer(server, images) for images in asked]
        ends_s = trial.ends_s()

        def client(number: int) -> None:
            own = np.random.default_rng([trial.seed, number])
            while trial.clock() < ends_s:
                chosen = int(own.integers(len(asked)))
                found, wanted = _answer(server, asked[chosen]), alone[chosen]
                right = found is not None and wanted is not None and np.allclose(found, wanted, atol=1e-4)
                findings.case(right, f"request {chosen} got {found} instead of {wanted}", "leaked")

        with ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(client, number) for number in range(16)]:
                done.result()
    spread = np.concatenate([one for one in alone if one is not None])
    findings.case(len(np.unique(np.round(spread, 3), axis=0)) > len(spread) // 2, "the answers are too much alike")


def _answer(server: Serving, images: np.ndarray) -> np.ndarray | None:
    body, headers = _images(images)
    reply = server.ask(INFER, method="POST", body=body, headers=headers)
    if reply.status != 200:
        return None
    length = reply.headers.get(HEADER_LENGTH.lower())
    decoded = decode_response(reply.body, header_length=None if length is None else int(length))
    return np.asarray(decoded.outputs[0].data)
