"""Measures ways over a shaped link: real requests to a real server process, one after another."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import numpy as np
import numpy.typing as npt

from benchmarks.split.ways import FLOAT_BITS, Way, plan_of, subnet_of
from device_sdk.data.image_files import encode_jpeg
from device_sdk.data.preprocessing import fit_image
from device_sdk.execution.workspace import Workspace
from device_sdk.offload.packing import Activations, pack
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER, SUBNET
from device_sdk.session.samples import SampleChecker
from pathweave.throttled_proxy import ThrottledProxy

TIMEOUT_S = 60.0
LEAST_REQUESTS = 3  # of a turn, however long they take

Image = npt.NDArray[np.uint8]


@dataclass
class Measured:
    """``latencies_ms`` end to end, as many ``own_ms`` of the device's part, and bytes on the line per request."""

    latencies_ms: list[float] = field(default_factory=list)
    own_ms: list[float] = field(default_factory=list)
    bytes_sent: float = 0.0

    def latency_ms(self, factor: float) -> float:
        """The median for a device ``factor`` times slower: its part's measured time is scaled."""
        return median(self.latencies_ms) + (factor - 1) * median(self.own_ms)

    def error_ms(self, factor: float) -> float:
        """Two standard errors of that median, from the spread of the middle half."""
        spread = [float(np.subtract(*np.percentile(values, (75, 25)))) for values in (self.latencies_ms, self.own_ms)]
        deviation = (spread[0] + (factor - 1) * spread[1]) / 1.349
        return 2 * 1.253 * deviation / math.sqrt(len(self.latencies_ms))


@dataclass(frozen=True)
class Turns:
    """Length of the measurement of a way: ``requests`` in each of two turns, fewer where they exceed ``limit_s``."""

    requests: int
    limit_s: float


def measure(
    model: AdaptiveModel,
    workspace: Workspace,
    ways: Sequence[Way],
    images: Sequence[Image],
    link: ThrottledProxy,
    mbps: float,
    address: str,
    turns: Turns,
) -> dict[Way, Measured]:
    """All ``ways`` in order, then in reverse order, so that a drift of the machine is shared out.

    Activations in float32 cross as 8 bits over a link that is slower by the ratio of the bytes: the codec has no more.
    """
    found = {way: Measured() for way in ways}
    for way in (*ways, *reversed(ways)):
        connect(model, way, address)
        model.use(plan_of(model.bundle, way))
        model(images[0])  # opens the connection, loads the server's part
        with _own_part(workspace, way) as own:
            ratio = _ratio(model, way, images[0], link)
            link.limit(mbps / ratio)
            _turn(model, way, images, link, own, found[way], turns, ratio)
            link.limit(mbps)
    return found


def connect(model: AdaptiveModel, way: Way, address: str) -> None:
    """To the server's model that ``way`` needs."""
    split = plan_of(model.bundle, way).split
    if split is not None:
        remote = RemoteModel(server=address, model=split.server.model, privacy="inputs", timeout_s=TIMEOUT_S)
        model.remote.connect(remote)


def _turn(
    model: AdaptiveModel,
    way: Way,
    images: Sequence[Image],
    link: ThrottledProxy,
    own: Callable[[Image], float] | None,
    found: Measured,
    turns: Turns,
    ratio: float,
) -> None:
    expected = (SUBNET,) if way.sends == "nothing" else (SERVER,)
    before, started_s = link.uplink_bytes, time.monotonic()
    for number in range(turns.requests):
        image = images[number % len(images)]
        answer = model(image)
        assert answer.source == expected, f"{way.title} was answered by {answer.source}"
        found.latencies_ms.append(answer.latency_ms)
        found.own_ms.append(answer.latency_ms if own is None else own(image))
        if number + 1 >= LEAST_REQUESTS and time.monotonic() - started_s > turns.limit_s:
            break
    found.bytes_sent = ratio * (link.uplink_bytes - before) / (number + 1)


def _ratio(model: AdaptiveModel, way: Way, image: Image, link: ThrottledProxy) -> float:
    """Ratio of the bytes in the bits of ``way`` to those that are sent."""
    if way.bits != FLOAT_BITS:
        return 1.0
    before = link.uplink_bytes
    model(image)
    sent = link.uplink_bytes - before
    values = sum(spec.size for spec in model.bundle.supernet.cut_points[way.position].tensors)
    return (sent + 3 * values) / sent


@contextlib.contextmanager
def _own_part(workspace: Workspace, way: Way) -> Iterator[Callable[[Image], float] | None]:
    """Times the computation of the device for an image, apart from the request; None: everything."""
    manifest = workspace.bundle.manifest
    channels, height, width = manifest.cut_points[0].tensors[0].shape
    if way.sends == "nothing":
        yield None
    elif way.sends == "activations" and way.position:
        walk = workspace.supernet.walk(subnet_of(workspace.bundle, way))
        head = tuple(edge for edge, block in walk if block.end <= way.position)
        with contextlib.closing(workspace.load_stretch(head, batch=1)) as stretch:
            prepare = SampleChecker(manifest).prepare
            bits = (min(way.bits, 8),) * len(workspace.supernet.cut_points[way.position].tensors)
            packed = partial(pack, bits=bits, per_channel=way.per_channel, compress=way.compress)

            def timed(image: Image) -> float:
                inputs = [prepare(image)]
                started = time.perf_counter()
                tensors = tuple(stretch.run(inputs))
                packed(Activations(workspace.bundle.digest, way.position, way.tail, tensors))
                return (time.perf_counter() - started) * 1e3

            timed(np.zeros((height, width, channels), np.uint8))
            yield timed
    elif way.sends == "jpeg":
        yield partial(
            _coding_ms, fit=partial(fit_image, preprocessing=manifest.preprocessing.of_images(), size=(height, width))
        )
    else:
        yield lambda image: 0.0


def _coding_ms(image: Image, *, fit: Callable[[Image], Image]) -> float:
    started = time.perf_counter()
    encode_jpeg(fit(image))
    return (time.perf_counter() - started) * 1e3
