"""Split plans: predicted against measured end-to-end latency over a slow uplink, with a real server process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.support.reference_bundles import Made, load_part, package_pretrained
from device_sdk.offload.packing import Activations, pack, packet_bytes
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.policies.split_decision import SplitDecision, with_split
from device_sdk.policies.splitting import SplitCost
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER
from device_sdk.supernet.plan import Plan
from pathweave.bench import BenchOptions, BenchOutcome, Target
from pathweave.server_process import running_server
from pathweave.throttled_proxy import ThrottledProxy, slow_uplink

TARGETS = {
    "split_predicted_error": Target(maximum=0.15),
    "split_worst_error": Target(maximum=0.15),
    "predicted_error_p95": Target(maximum=0.10),
    "split_agreement": Target(minimum=0.99),
    "split_packet_bytes_error": Target(minimum=0, maximum=0),
}
UPLINK_MBPS = 3.0
SAMPLES, QUICK_SAMPLES = 40, 8  # timed at each cut point
COMPARED, QUICK_COMPARED = 1000, 100  # answered with and without the split
BATCH = 50
TIMEOUT_S = 30.0
PARTS = ("device", "packing", "transfer", "handling", "unpacking", "server")


def run(options: BenchOptions) -> BenchOutcome:
    """ResNet-56 at 3 Mbit/s, measured by the device: every cut point is timed."""
    made = package_pretrained(options, "resnet56_cifar10", train=False, max_span=1)
    with (
        running_server(made.folder, data=options.work_folder / "server") as server,
        AdaptiveModel.open(made.folder, state_folder=options.work_folder / "device") as model,
    ):
        rows, decision, best = _timed(model, server, made, options)
        agreement = _agreement(model, server, decision, best, options)
        bytes_error = max(abs(len(packet) - expected) for packet, expected in _packets(model, decision))
    errors = {int(str(row["position"])): abs(float(str(row["error"]))) for row in rows if row["what"] == "split"}
    alone = next(float(str(row["measured_ms"])) for row in rows if row["what"] == "device alone")
    figures = {
        "split_vs_device_alone": min(float(str(row["measured_ms"])) for row in rows if row["what"] == "split") / alone,
        "split_predicted_error": errors[best.position],
        "split_worst_error": max(errors.values()),
        "predicted_error_p95": float(np.percentile(list(errors.values()), 95)),
        "split_agreement": agreement,
        "split_packet_bytes_error": float(bytes_error),
    }
    return BenchOutcome(figures, rows, data="test.zip#report")


def _remote(server: str, made_name: str) -> RemoteModel:
    return RemoteModel(server=server, model=f"{made_name}:tail", privacy="activations", timeout_s=TIMEOUT_S)


def _timed(
    model: AdaptiveModel, server: str, made: Made, options: BenchOptions
) -> tuple[list[dict[str, object]], SplitDecision, SplitCost]:
    """Predicted and measured medians at several cut points; the decision, and the best split inside the network."""
    images = load_part(options, "report", model).images[: QUICK_SAMPLES if options.quick else SAMPLES]
    with slow_uplink(server, mbps=UPLINK_MBPS) as (address, proxy):
        decision = model.split(_remote(address, made.model.name), progress=options.progress)
        inner = [cost for cost in decision.costs if 0 < cost.position < decision.costs[-1].position]
        best = min(inner, key=lambda cost: cost.latency_ms)
        timed = [*inner[::4], best] if options.quick else inner
        chosen = {cost.position: cost for cost in timed}
        rows = [_row(model, cost, decision, images, proxy) for _, cost in sorted(chosen.items())]
        rows.append(_alone(model, decision, images))
    alone_ms = float(str(rows[-1]["measured_ms"]))
    for row in rows:
        row["fastest"] = "device alone" if float(str(row["measured_ms"])) >= alone_ms else "split"
    return rows, decision, best


def _row(
    model: AdaptiveModel, cost: SplitCost, decision: SplitDecision, images: np.ndarray, proxy: ThrottledProxy
) -> dict[str, object]:
    model.use(with_split(model.bundle, Plan(decision.plan.subnet), cost, decision.server))
    model(images[0])
    before = proxy.uplink_bytes
    answers = [model(image) for image in images]
    assert all(answer.source == (SERVER,) for answer in answers), "the server did not answer everything"
    measured = [answer.latency_ms for answer in answers]
    median_ms = float(np.median(measured))
    return {
        "what": "split",
        "position": cost.position,
        "predicted_ms": cost.latency_ms,
        "measured_ms": median_ms,
        "p95_ms": float(np.percentile(measured, 95)),
        "error": cost.latency_ms / median_ms - 1,
        **{f"{part}_ms": getattr(cost, f"{part}_ms") for part in PARTS},
        "uplink_mbps": decision.uplink.mbps,
        "predicted_bytes": cost.bytes_sent,
        "bytes_on_the_line": (proxy.uplink_bytes - before) / len(images),
    }


def _alone(model: AdaptiveModel, decision: SplitDecision, images: np.ndarray) -> dict[str, object]:
    """The whole subnet on the device: what a split has to beat."""
    model.use(Plan(decision.plan.subnet))
    model(images[0])
    measured = [model(image).latency_ms for image in images]
    predicted_ms, median_ms = decision.on_device.latency_ms, float(np.median(measured))
    return {
        "what": "device alone",
        "position": decision.on_device.position,
        "predicted_ms": predicted_ms,
        "measured_ms": median_ms,
        "error": predicted_ms / median_ms - 1,
    }


def _agreement(
    model: AdaptiveModel, server: str, decision: SplitDecision, best: SplitCost, options: BenchOptions
) -> float:
    """The share of samples that get the same class with the best inner split as without any."""
    images = load_part(options, "report", model).images[: QUICK_COMPARED if options.quick else COMPARED]
    model.split(_remote(server, model.bundle.manifest.name), uplink_mbps=UPLINK_MBPS)
    plans = (Plan(decision.plan.subnet), with_split(model.bundle, Plan(decision.plan.subnet), best, decision.server))
    found = []
    for plan in plans:
        model.use(plan)
        answers = [model(images[at : at + BATCH]) for at in range(0, len(images), BATCH)]
        assert all(set(answer.source) == {SERVER if plan.split else "subnet"} for answer in answers)
        found.append(np.concatenate([answer.output.argmax(axis=1) for answer in answers]))
    return float((found[0] == found[1]).mean())


def _packets(model: AdaptiveModel, decision: SplitDecision) -> Iterator[tuple[bytes, int]]:
    """A packet of three samples at every cut point, and its expected length."""
    supernet, subnet = model.bundle.supernet, decision.plan.subnet
    random = np.random.default_rng(0)
    for cost in decision.costs[:-1]:
        tail = tuple(edge for edge, block in supernet.walk(subnet) if block.start >= cost.position)
        cut = supernet.cut_points[cost.position]
        tensors = tuple(random.normal(size=(3, *spec.shape)).astype(np.float32) for spec in cut.tensors)
        packet = pack(Activations(model.bundle.digest, cost.position, tail, tensors))
        yield packet, packet_bytes(cut, tail, batch=3)
