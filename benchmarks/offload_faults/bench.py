"""Asking a server that is killed, slowed by 2 s, spoilt and back again, and a network that changes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.offload_faults.faulty_proxy import FaultyProxy, faulty_proxy
from benchmarks.offload_faults.network import follow_network
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.reference_bundles import load_part, package_pretrained
from benchmarks.support.sources import Logits, logits_from
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import FALLBACK, SERVER, SUBNET, Answer
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Ask, MaxConfidence, Plan, RemoteRef
from pathweave.server_process import ServerProcess

TARGETS = {
    "unanswered": Target(maximum=0),
    "late": Target(maximum=0),
    "mismatched": Target(maximum=0),
    "answers_while_well": Target(minimum=0.95),
    "back_after_s_max": Target(maximum=40.0),
    "follow_s_max": Target(maximum=5.0),
    "return_s_max": Target(maximum=5.0),
}
SAMPLES, QUICK_SAMPLES = 10_000, 700
BATCH = 8
TIMEOUT_S = 0.5
FOLLOWING_SAMPLES = 60
SLACK_S = 0.25  # beyond the time-out: running here, threads, the scheduler
PHASE_S, QUICK_PHASE_S = 12.0, 1.0
ASKED = 0.3
TOLERANCE = 1e-3


@dataclass
class Phase:
    """Outcomes of the samples of one phase. ``back_s``: until the server's first answer, None for none."""

    name: str
    sources: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    late: int = 0
    mismatched: int = 0
    longest_ms: float = 0.0
    back_s: float | None = None

    @property
    def samples(self) -> int:
        return sum(self.sources.values()) + self.unanswered

    @property
    def row(self) -> dict[str, object]:
        asked = self.sources[SERVER] + self.sources[FALLBACK]
        return {
            "phase": self.name,
            "samples": self.samples,
            "by_server": self.sources[SERVER],
            "fallbacks": self.sources[FALLBACK],
            "answered_of_asked": self.sources[SERVER] / asked if asked else None,
            "unanswered": self.unanswered,
            "late": self.late,
            "mismatched": self.mismatched,
            "longest_ms": self.longest_ms,
            "back_after_s": self.back_s,
        }


@dataclass(frozen=True)
class Expected:
    """The images and the answers of the device and the server to each: [count, ...]."""

    images: npt.NDArray[np.uint8]
    here: Logits
    there: Logits


def run(options: BenchOptions) -> BenchOutcome:
    """Batches of 8, of which about three in ten samples are hard; the same phases pass over the server twice.

    Mismatched: an answer that is not the one that its source gives to that very sample; late: more than a quarter of a
    second after the time-out. With ``--quick`` the server runs the device's own network.
    """
    small = package_pretrained(options, "resnet8_mlperf_tiny", train=False)
    large = small if options.quick else package_pretrained(options, "resnet56_cifar10", train=False, max_span=1)
    server = _Server(lambda: ServerProcess(large.folder, data=options.work_folder / "server"))
    try:
        with (
            faulty_proxy(server.url) as proxy,
            AdaptiveModel.open(small.folder, state_folder=options.work_folder / "device") as model,
        ):
            remote = RemoteModel(
                server=proxy.url, model=f"{large.model.name}:images", privacy="inputs", timeout_s=TIMEOUT_S
            )
            expected = _expected(model, remote, options)
            threshold = float(np.quantile(confidence(expected.here), ASKED))
            model.remote.connect(remote)
            model.use(Plan(model.bundle.supernet.original, hard=Ask(MaxConfidence(threshold), RemoteRef())))
            phases = _phases(model, expected, server, proxy, options)
            tuning = load_part(options, "calibration", model)
        part = tuning.take(range(FOLLOWING_SAMPLES))
        following, rows = follow_network(
            small.folder,
            options.work_folder / "following",
            server.url,
            f"{large.model.name}:images",
            part,
            rounds=1 if options.quick else 3,
        )
    finally:
        server.process.stop()
    well = [phase for phase in phases if phase.name == "well"]
    asked = sum(phase.sources[SERVER] + phase.sources[FALLBACK] for phase in well)
    figures = {
        "samples": float(sum(phase.samples for phase in phases)),
        "unanswered": float(sum(phase.unanswered for phase in phases)),
        "late": float(sum(phase.late for phase in phases)),
        "mismatched": float(sum(phase.mismatched for phase in phases)),
        "longest_ms": max(phase.longest_ms for phase in phases),
        "answers_while_well": sum(phase.sources[SERVER] for phase in well) / asked,
        "back_after_s_max": max(_back_s(phase) for phase in phases if phase.name == "back"),
    }
    return BenchOutcome(
        figures | following, [*(phase.row for phase in phases), *rows], data="cifar10/test.zip#report, #calibration"
    )


def _back_s(phase: Phase) -> float:
    return float("inf") if phase.back_s is None else phase.back_s


class _Server:
    """The server's process, killed and started again."""

    def __init__(self, start: Callable[[], ServerProcess]) -> None:
        self._start = start
        self.process = start()

    @property
    def url(self) -> str:
        return self.process.url

    def kill(self) -> None:
        self.process.kill()

    def restart(self) -> str:
        self.process = self._start()
        return self.process.url


def _expected(model: AdaptiveModel, remote: RemoteModel, options: BenchOptions) -> Expected:
    images = load_part(options, "report", model).images[: 200 if options.quick else 2000]
    subnet = model.bundle.supernet.original

    asking = Plan(subnet, hard=Ask(MaxConfidence(UNREACHABLE_CONFIDENCE), RemoteRef()))
    here = logits_from(model, Plan(subnet), images, source=SUBNET, batch=BATCH)
    model.remote.connect(RemoteModel(server=remote.server, model=remote.model, privacy="inputs", timeout_s=30.0))
    there = logits_from(model, asking, images, source=SERVER, batch=BATCH)
    return Expected(images, here, there)


def _phases(
    model: AdaptiveModel, expected: Expected, server: _Server, proxy: FaultyProxy, options: BenchOptions
) -> list[Phase]:
    """Well, then killed, back, slow, back, garbage, back; twice, or once in a row for ``--quick``."""
    total, least_s = (QUICK_SAMPLES, QUICK_PHASE_S) if options.quick else (SAMPLES, PHASE_S)
    faults = ["killed", "back", "slow", "back", "garbage", "back"]
    names = ["well", "slow", "killed", "back", "garbage"] if options.quick else ["well", *faults, *faults]
    each = -(-total // (len(names) * BATCH))
    batches = _batches(len(expected.images))
    found: list[Phase] = []
    with options.progress.task("ask a faulty server", len(names)) as task:
        for name in names:
            if name == "killed":
                server.kill()
            elif name == "back" and found[-1].name == "killed":
                proxy.upstream = server.restart()
            proxy.mode = "slow" if name == "slow" else "garbage" if name == "garbage" else "well"
            found.append(_phase(name, model, expected, batches, each, least_s))
            task.advance()
    return found


def _batches(count: int) -> Iterator[npt.NDArray[np.int64]]:
    at = 0
    while True:
        yield np.arange(at, at + BATCH) % count
        at += BATCH


def _phase(
    name: str,
    model: AdaptiveModel,
    expected: Expected,
    batches: Iterator[npt.NDArray[np.int64]],
    each: int,
    least_s: float,
) -> Phase:
    """``each`` batches spread over ``least_s``; in phase ``back`` more until the server answers, at most a minute."""
    phase, began = Phase(name), time.monotonic()
    number = 0
    while number < each or (name == "back" and phase.back_s is None and time.monotonic() - began < 60):
        started = time.monotonic()
        positions = next(batches)
        try:
            answer = model(expected.images[positions])
        except Exception:  # whatever it is: the caller has no answer
            phase.unanswered += len(positions)
        else:
            _judge(phase, answer, positions, expected, time.monotonic() - started)
            if phase.back_s is None and SERVER in answer.source:
                phase.back_s = time.monotonic() - began
        number += 1
        time.sleep(max(0.0, least_s / each - (time.monotonic() - started)))
    return phase


def _judge(phase: Phase, answer: Answer, positions: npt.NDArray[np.int64], expected: Expected, seconds: float) -> None:
    phase.longest_ms = max(phase.longest_ms, 1e3 * seconds)
    phase.late += len(positions) * (seconds > TIMEOUT_S + SLACK_S)
    if len(answer.output) != len(positions):
        phase.unanswered += len(positions)
        return
    phase.sources.update(answer.source)
    for row, source, position in zip(answer.output, answer.source, positions, strict=True):
        right = expected.there if source == SERVER else expected.here
        phase.mismatched += not np.allclose(row, right[position], rtol=TOLERANCE, atol=TOLERANCE)
