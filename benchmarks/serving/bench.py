"""Serving: one ONNX model over /v2 at 1, 8 and 64 clients against LitServe, with raw ONNX Runtime as the ceiling."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.serving.load import LoadResult, WireRequest, send_load
from benchmarks.support.bundles import CHECKOUT, adapted_bundle
from device_sdk.bundles.bundle import Bundle
from device_sdk.fragments.composition import compose
from device_sdk.machine import usable_cores
from device_sdk.offload.open_inference import InferRequest, NamedTensor, encode_request
from pathweave.server_process import running_server

CLIENTS = (1, 8, 64)
TARGETS = {f"vs_litserve_{clients}": Target(minimum=1.0) for clients in CLIENTS} | {"added_ms_1": Target(maximum=2.0)}
ROUNDS, QUICK_ROUNDS = 5, 1
SECONDS, QUICK_SECONDS = 6.0, 2.0  # of each load in each round
RAW_RUNS, QUICK_RAW_RUNS = 400, 100
MAX_BATCH, QUEUE = 64, 128
THREADS = usable_cores()
_START_S = 60.0
_OURS, _PEER = "pathweave", "litserve"


def run(options: BenchOptions) -> BenchOutcome:
    """ResNet-56 for CIFAR images, one image per request. Both servers stay up; their loads alternate.

    LitServe's workers poll while they are idle, so its processes are paused while the other server is under load.
    """
    folder = adapted_bundle(options)
    bundle = Bundle.open(folder)
    path = options.work_folder / "model.onnx"
    path.write_bytes(compose(bundle.stretch(bundle.supernet.original.edges)))
    shape = bundle.manifest.cut_points[0].tensors[0].shape
    image = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    raw_ms = _raw_ms(path, image, options)
    serve_options = ("--threads", str(THREADS), "--max-batch", str(MAX_BATCH), "--queue", str(QUEUE))
    with (
        running_server(folder, data=options.work_folder / "server", options=serve_options) as url,
        _peer(path, shape) as peer,
    ):
        requests = {_OURS: _our_request(url, bundle, image)}
        if peer is not None:
            requests[_PEER] = _peer_request(peer.url, image)
        loads = _loads(requests, peer, options)
    raw_after_ms = _raw_ms(path, image, options)
    return _outcome(loads, raw_ms, raw_after_ms, {name: len(request.body) for name, request in requests.items()})


def _raw_ms(path: Path, image: np.ndarray, options: BenchOptions) -> float:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = THREADS, 1
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: image[None]}
    times = []
    for _ in range(QUICK_RAW_RUNS if options.quick else RAW_RUNS):
        began = time.perf_counter()
        session.run(None, feed)
        times.append((time.perf_counter() - began) * 1e3)
    return float(np.median(times))


def _our_request(url: str, bundle: Bundle, image: np.ndarray) -> WireRequest:
    name = bundle.manifest.name
    public = bundle.manifest.public_names.inputs
    tensor = NamedTensor(public[0] if public else bundle.manifest.cut_points[0].tensors[0].name, image[None])
    body, headers = encode_request(InferRequest((tensor,)))
    return WireRequest(f"{url}/v2/models/{name}/infer", body, headers)


def _peer_request(url: str, image: np.ndarray) -> WireRequest:
    boundary = "pathweave"
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="tensor"; filename="t"\r\n\r\n'.encode()
    body = head + image.tobytes() + f"\r\n--{boundary}--\r\n".encode()
    return WireRequest(f"{url}/predict", body, {"Content-Type": f"multipart/form-data; boundary={boundary}"})


@dataclass(frozen=True)
class _Peer:
    """LitServe's URL, and the group of its processes."""

    url: str
    group: int

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Its processes take no processor time in here."""
        os.killpg(self.group, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.group, signal.SIGCONT)


@contextlib.contextmanager
def _peer(path: Path, shape: tuple[int, ...]) -> Iterator[_Peer | None]:
    """LitServe in a separate process; None if it is not installed."""
    if any(importlib.util.find_spec(module) is None for module in (_PEER, "python_multipart")):
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [str(path), str(port), str(THREADS), str(MAX_BATCH), *map(str, shape)]
    command = [sys.executable, "-m", "benchmarks.serving.litserve_peer", *arguments]
    with (path.parent / "litserve.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(port, process)
        yield _Peer(f"http://127.0.0.1:{port}", process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)  # its workers too
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise RuntimeError("LitServe did not start")


def _loads(
    requests: Mapping[str, WireRequest], peer: _Peer | None, options: BenchOptions
) -> dict[tuple[str, int], list[LoadResult]]:
    """The loads of each server at each number of clients, one per round; the order changes from round to round."""
    seconds = QUICK_SECONDS if options.quick else SECONDS
    loads: dict[tuple[str, int], list[LoadResult]] = {(name, n): [] for name in requests for n in CLIENTS}
    for request in requests.values():
        send_load(request, clients=2, seconds=1.0)  # loads the model
    for round_number in range(QUICK_ROUNDS if options.quick else ROUNDS):
        for clients in CLIENTS:
            order = list(requests)[:: -1 if round_number % 2 else 1]
            for name in order:
                waits = peer.paused() if peer is not None and name == _OURS else contextlib.nullcontext()
                with waits:
                    loads[name, clients].append(send_load(requests[name], clients=clients, seconds=seconds))
    return loads


def _outcome(
    loads: Mapping[tuple[str, int], list[LoadResult]], raw_ms: float, raw_after_ms: float, wire_bytes: dict[str, int]
) -> BenchOutcome:
    per_s = {key: float(np.median([one.per_s for one in results])) for key, results in loads.items()}
    latencies = {key: np.concatenate([one.latencies_ms for one in results]) for key, results in loads.items()}
    figures = {"raw_ms_before": raw_ms, "raw_ms_after": raw_after_ms}
    figures["added_ms_1"] = float(np.median(latencies[_OURS, 1])) - (raw_ms + raw_after_ms) / 2
    for clients in CLIENTS:
        if (_PEER, clients) in per_s:
            figures[f"vs_litserve_{clients}"] = per_s[_OURS, clients] / per_s[_PEER, clients]
    rows: list[dict[str, object]] = []
    for (name, clients), results in loads.items():
        figures[f"{name}_per_s_{clients}"] = per_s[name, clients]
        p50_ms, p99_ms = (float(value) for value in np.percentile(latencies[name, clients], [50, 99]))
        figures[f"{name}_p99_ms_{clients}"] = p99_ms
        row: dict[str, object] = {"server": name, "clients": clients, "per_s": per_s[name, clients]}
        row |= {"least_per_s": min(one.per_s for one in results), "most_per_s": max(one.per_s for one in results)}
        row |= {"p50_ms": p50_ms, "p99_ms": p99_ms, "failed": sum(one.failed for one in results)}
        rows.append(row | {"wire_bytes": wire_bytes[name]})
    note = (
        ""
        if (_PEER, 1) in per_s
        else "; LitServe is left out: the packages litserve and python-multipart are not installed"
    )
    return BenchOutcome(figures, rows, data=f"random images; {THREADS} threads, batches up to {MAX_BATCH}{note}")
