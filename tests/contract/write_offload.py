"""Writes offload.json: messages of the Open Inference Protocol, what a device sends to which model, for which samples,
when it leaves a server alone, how answers are pooled, what it takes the network for, and the plans that it then takes.

Times are dyadic, so that sums are exact; fits and costs agree to 1e-9.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
import numpy as np

from device_sdk.data.kinds.texts import TextPreprocessing
from device_sdk.data.preprocessing import Preprocessing, prepare, unprepare
from device_sdk.errors import ProtocolError, UsageError
from device_sdk.offload.agreement import TEXT_CONTENT, agree, fill
from device_sdk.offload.client import ModelMetadata, TensorMetadata, request_overhead_bytes
from device_sdk.offload.link_estimate import LinkEstimate
from device_sdk.offload.open_inference import (
    BYTES,
    DATATYPES,
    InferRequest,
    InferResponse,
    NamedTensor,
    RequestedOutput,
    decode_response,
    encode_request,
    encode_response,
)
from device_sdk.offload.remote_calls import CircuitBreaker
from device_sdk.offload.remote_model import AskedShare, LogarithmicPool
from device_sdk.policies.planning.front import Offer, PlanFront, Way
from device_sdk.random_source import SplitMix64
from device_sdk.supernet.cost import Power, Uplink
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import Ask, Edge, Margin, MaxConfidence, Plan, RemoteRef, Split, Subnet

Json = dict[str, Any]
CLASSES = ("red", "green", "blue")
PREPROCESSING = Preprocessing(scale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))


def main(target: Path) -> None:
    """One case a line."""
    random = SplitMix64(0)
    parts: dict[str, list[Json]] = {
        "requests": requests(),
        "responses": responses(),
        "overheads": [
            {"model": name, "bytes": request_overhead_bytes(name)} for name in ("r56", "r56:tail", "a b/ü@x")
        ],
        "agreements": agreements(),
        "texts": of_texts(),
        "inputs": inputs(random),
        "pools": [pool(random) for _ in range(8)],
        "shares": [share(random, wanted) for wanted in (0.0, 0.125, 0.5, 1.0)],
        "breakers": [breaker(random) for _ in range(24)],
        "links": [link(random) for _ in range(40)],
        "fronts": [front(random) for _ in range(24)],
    }
    texts = [f'"{name}": [\n' + ",\n".join(json.dumps(one) for one in cases) + "\n]" for name, cases in parts.items()]
    target.write_text("{\n" + ",\n".join(texts) + "\n}\n")


# messages


def described(tensor: NamedTensor) -> Json:
    if tensor.datatype == BYTES:
        data = b"".join(len(one).to_bytes(4, "little") + one for one in tensor.data)
    else:
        data = tensor.data.astype(DATATYPES[tensor.datatype]).tobytes()
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.data.shape), "data": data.hex()}


def every_type() -> list[NamedTensor]:
    """A tensor of each type, with values that every language writes alike in JSON."""
    found = []
    for name, dtype in DATATYPES.items():
        values = [0, 1] if name == "BOOL" else [0, 1, 100] if dtype.kind == "u" else [-100, 0, 1]
        data = np.array([values], dtype=dtype)
        found.append(NamedTensor(f"of {name}", data / 4 if dtype.kind == "f" else data))
    return found


def requests() -> list[Json]:
    one = every_type()
    image = NamedTensor("image", np.arange(24, dtype=np.uint8).reshape(1, 2, 4, 3))
    both = (RequestedOutput("logits", True), RequestedOutput('ünï "coded"', False))
    cases = [
        InferRequest((image,), (RequestedOutput("logits", True),), id="0123456789abcdef"),
        InferRequest((image,)),
        InferRequest(tuple(one), both, id="é/\\\n", binary_output=True),
        InferRequest((NamedTensor("none", np.zeros((1, 0), np.uint8)),), both[:1], id="1"),
    ]
    strings = np.empty(3, object)
    strings[:] = [b"\xff\xd8 first", b"", b"third"]
    jpegs = InferRequest((NamedTensor("image", strings),), both[:1], id="2")
    written = []
    for case in [*cases, jpegs]:
        for binary in (True,) if case is jpegs else (True, False):
            body, headers = encode_request(case, binary=binary)
            written.append(
                {
                    "inputs": [described(tensor) for tensor in case.inputs],
                    "outputs": [[output.name, output.binary] for output in case.outputs],
                    "id": case.id,
                    "binary_output": case.binary_output,
                    "binary": binary,
                    "body": body.hex(),
                    "headers": headers,
                }
            )
    return written


def responses() -> list[Json]:
    """Replies as they are written, and what of them is refused."""
    tensors = tuple(every_type())
    names = {tensor.name for tensor in tensors}
    bodies: list[tuple[bytes, int | None]] = []
    for binary in (set(), names, {"of FP32", "of BOOL", "of UINT64"}):
        body, headers = encode_response(InferResponse("r56", tensors, "1", "7"), binary=binary)
        length = headers.get("Inference-Header-Content-Length")
        bodies.append((body, None if length is None else int(length)))
    logits = NamedTensor("logits", np.array([[1.5, -2.25, 1e-3]], np.float32))
    whole, headers = encode_response(InferResponse("r56", (logits,), None, "7"), binary={"logits"})
    length = int(headers["Inference-Header-Content-Length"])
    bodies += [(whole, length), (whole, None), (whole, length - 1), (whole, len(whole) + 1), (whole[:-1], length)]
    bodies += [(whole + b"\0", length), (b"", None), (b"[]", None), (b"<html>", None), (b'{"outputs": []}', None)]
    bodies += [(text(change), None) for change in json_changes()]
    return [response(body, length) for body, length in bodies]


def text(change: Callable[[Json, Json], object]) -> bytes:
    tensor: Json = {"name": "logits", "datatype": "FP32", "shape": [2, 2], "data": [1.5, 2, -0.25, 1e-3]}
    message: Json = {"model_name": "r56", "id": "7", "outputs": [tensor]}
    change(message, tensor)
    return json.dumps(message).encode()


def json_changes() -> list[Callable[[Json, Json], object]]:
    """Changes of a reply in JSON; each is alone."""
    fields: list[Json] = [
        *(
            {"data": value}
            for value in ([[1, 2], [3, 4]], [[1, 2, 3, 4]], [[1], [2, 3, 4]], [1, 2, 3], [[[1, 2], [3, 4]]])
        ),
        *(
            {"data": value}
            for value in (None, "1 2 3 4", [1, 2, 3, "4"], [1, 2, 3, None], [1, 2, 3, True], [1, 2, 3, 1e39])
        ),
        *(
            {"data": value, "datatype": "INT8"}
            for value in ([1, 2, 3, -128], [1, 2, 3, 128], [1, 2, 3, 1.5], [1, 2, 3, 1.0])
        ),
        *({"data": value, "datatype": "UINT64"} for value in ([0, 1, 2, 2**64 - 1], [0, 1, 2, 2**64], [0, 1, 2, -1])),
        *({"data": value, "datatype": "INT64"} for value in ([0, 1, 2, -(2**63)], [0, 1, 2, 2**63])),
        *({"data": value, "datatype": "BOOL"} for value in ([True, False, True, True], [1, 0, 1, 1])),
        {"data": [1, 2, 3, 70000], "datatype": "FP16"},
        *({"datatype": value} for value in ("FP64", "FP16", "BF16", "BYTES", "fp32", 5, None)),
        *({"shape": value} for value in ([4], [2, -1], [2, 2.0], "2", [2] * 17, [1] * 16, [], [0], [2**31, 0])),
        {"shape": [0, 5], "data": []},
        *({"parameters": value} for value in (None, {}, {"binary_data_size": None}, {"binary_data_size": 16}, [], 3)),
        *({"parameters": {"shared_memory_region": value}} for value in (None, "a", {})),
        *({"name": value} for value in ("", 7, None)),
        {"unknown": 1},
    ]
    changes: list[Callable[[Json, Json], object]] = [
        lambda message, tensor, field=field: tensor.update(field) for field in fields
    ]
    whole: list[Json] = [{"id": None}, {"id": 7}, {"model_version": "2"}, {"model_name": None}, {"outputs": None}]
    changes += [lambda message, tensor, field=field: message.update(field) for field in [*whole, {"outputs": []}]]
    changes += [
        lambda message, tensor: message["outputs"].append(tensor),
        lambda message, tensor: message.pop("id"),
        lambda message, tensor: message.pop("model_name"),
        lambda message, tensor: tensor.pop("data"),
        lambda message, tensor: tensor.pop("shape"),
    ]
    return changes


def response(body: bytes, length: int | None) -> Json:
    case: Json = {"body": body.hex(), "header_length": length, "read": None}
    try:
        read = decode_response(body, header_length=length)
    except ProtocolError:
        return case
    outputs = [described(tensor) for tensor in read.outputs]
    return case | {"read": {"model": read.model_name, "version": read.model_version, "id": read.id, "outputs": outputs}}


# what is sent


def agreements() -> list[Json]:
    image, tensor = ("UINT8", [-1, 4, 5, 3]), ("FP32", [-1, 3, 4, 5])
    ends = [image, tensor, ("UINT8", [-1, -1, -1, -1]), ("UINT8", [1, 4, 5, 3]), ("UINT8", [-1, 4, 5, 1])]
    ends += [("UINT8", [-1, 2000, 5, 3]), ("FP32", [-1, 3, 8, 5]), ("FP32", [-1, -1, -1, -1]), ("FP16", [-1, 3, 4, 5])]
    ends += [("BYTES", [-1]), ("UINT8", [-1, 0, 5, 3])]
    known: Json = {"output": ["FP32", [-1, 3]], "classes": list(CLASSES), "task": "classification", "inputs": 1}
    known |= {"content": None, "binary": True}
    cases: list[Json] = [known | {"input": [kind, shape]} for kind, shape in ends]
    others: list[Json] = [{"output": ["FP32", [-1, 4]]}, {"output": ["INT64", [-1, 3]]}, {"output": ["FP64", [-1, 3]]}]
    others += [{"output": ["FP32", [1, 3]]}, {"output": ["FP16", [-1, -1]]}, {"classes": None}, {"task": None}]
    jpegs: Json = {"input": ["BYTES", [-1]], "content": "image/jpeg"}
    others += [
        jpegs,
        jpegs | {"content": "image/png"},
        jpegs | {"binary": False},
        jpegs | {"input": ["BYTES", [-1, 1]]},
    ]
    others += [{"classes": ["red", "green"]}, {"task": "segmentation"}, {"inputs": 2}, {"inputs": 0}]
    cases += [known | {"input": list(image)} | other for other in others]
    return [case | {"sends": sends(case)} for case in cases]


def of_texts() -> list[Json]:
    """What a device of texts sends, and how: text, or its tokens."""
    known: Json = {"output": ["FP32", [-1, 3]], "classes": list(CLASSES), "task": "classification", "inputs": 1}
    known |= {"content": None, "binary": True, "texts": ["a text", "Grüße, 世界 😀"], "tokens": list(range(32))}
    strings: Json = {"input": ["BYTES", [-1]], "content": TEXT_CONTENT}
    others: list[Json] = [strings, strings | {"binary": False}, strings | {"content": "image/jpeg"}]
    others += [{"input": ["INT64", [-1, 2, 8]]}, {"input": ["INT64", [-1, 2, 9]]}, {"input": ["FP32", [-1, 2, 8]]}]
    cases = []
    for case in (known | other for other in others):
        try:
            agreement = agree(
                metadata(case), class_names=CLASSES, input_shape=(2, 8), input_type="int64", of_texts=True
            )
        except UsageError:
            cases.append(case | {"sends": None, "filled": None})
            continue
        tokens = np.reshape(np.array(case["tokens"], np.int64), (2, 2, 8))
        filled = fill(agreement, tokens, case["texts"], preprocessing=TextPreprocessing("0" * 64, 1, 8, pad_id=5))
        cases.append(case | {"sends": agreement.sends, "filled": described(filled)})
    return cases


def metadata(case: Json) -> ModelMetadata:
    [kind, shape], [output, extents] = case["input"], case["output"]
    classes = None if case["classes"] is None else tuple(case["classes"])
    return ModelMetadata(
        (TensorMetadata("in", kind, tuple(shape)),) * case["inputs"],
        (TensorMetadata("out", output, tuple(extents)),),
        (),
        classes,
        None,
        case.get("binary", True),
        case.get("content"),
        case["task"],
    )


def sends(case: Json) -> str | None:
    try:
        return agree(metadata(case), class_names=CLASSES, input_shape=(3, 4, 5)).sends
    except UsageError:
        return None


def inputs(random: SplitMix64) -> list[Json]:
    """Images as a server's model takes them: as they are, recovered from tensors, and resized."""
    cases = []
    for shape in ([-1, 4, 5, 3], [-1, 8, 10, 3], [-1, 3, -1, 3]):
        pixels = np.array([random.below(256) for _ in range(2 * 4 * 5 * 3)], np.uint8).reshape(2, 4, 5, 3)
        case = {"output": ["FP32", [-1, 3]], "classes": None, "task": None, "inputs": 1, "input": ["UINT8", shape]}
        agreement = agree(metadata(case), class_names=CLASSES, input_shape=(3, 4, 5))
        tensors = prepare(pixels, PREPROCESSING, input_shape=(3, 4, 5))
        assert np.array_equal(unprepare(tensors, PREPROCESSING), pixels)
        filled = fill(agreement, tensors, None, preprocessing=PREPROCESSING)
        cases.append(case | {"pixels": pixels.tobytes().hex(), "filled": described(filled)})
    return cases


# for which samples, and how answers are pooled


def logits(random: SplitMix64, samples: int) -> list[list[float]]:
    return [[random.below(129) / 16 - 4 for _ in CLASSES] for _ in range(samples)]


def pool(random: SplitMix64) -> Json:
    weights = [random.below(9) / 4, random.below(8) / 4 + 0.25]
    device, server = logits(random, 3), logits(random, 3)
    pooled = LogarithmicPool(*weights).pooled(np.array(device, np.float32), np.array(server, np.float32))
    return {"weights": weights, "device": device, "server": server, "pooled": pooled.tolist()}


def share(random: SplitMix64, wanted: float) -> Json:
    """Batches that become harder; the last are decided by another decider, and one sample is no answer."""
    keeper = AskedShare(wanted)
    steps: list[Json] = []
    for number in range(40):
        decider = MaxConfidence(0.75) if number < 30 else Margin(0.25)
        found = logits(random, 1 + random.below(16))
        found = [[value / (1 + number // 10) for value in row] for row in found]
        if number == 20:
            found[0][0] = math.inf
        hard = keeper.hard(decider, np.array(found, np.float32))
        rows = [[None if math.isinf(value) else value for value in row] for row in found]
        steps.append({"margin": number >= 30, "logits": rows, "hard": hard.tolist()})
    return {"share": wanted, "steps": steps}


# when nothing is sent, and what the network is taken for


def breaker(random: SplitMix64) -> Json:
    """Calls and what comes of them, with a clock that is set back now and then."""
    now_s = 64.0
    found = CircuitBreaker(clock=lambda: now_s, failures=2, cooldown_s=4.0, longest_cooldown_s=16.0)
    steps = []
    for _ in range(40):
        now_s += random.choice([0.0, 0.25, 1.0, 4.0, 8.0, 16.0]) if random.below(12) else -random.choice([1.0, 64.0])
        what = random.choice(["allows", "allows", "failed", "failed", "succeeded", "trip", "end_cooldown"])
        allowed = getattr(found, what)()
        steps.append([now_s, what, allowed, found.state, found.retry_in_s])
    return {"failures": 2, "cooldown_s": 4.0, "longest_cooldown_s": 16.0, "steps": steps}


def link(random: SplitMix64) -> Json:
    """Requests over a link that changes, of one size or of several; some fail, some are long ago."""
    known = Uplink(random.choice([0.5, 8.0, 64.0]), random.choice([0.0, 4.0, 64.0]))
    now_s = 8.0
    found = LinkEstimate(known, clock=lambda: now_s)
    sizes = random.choice([[4096], [1, 4096], [1, 512, 32768]])
    mbps, trip_ms = known.mbps, known.round_trip_ms
    steps = []
    for _ in range(16):
        now_s += random.choice([0.125, 0.25, 0.5, 2.0])
        if random.below(8) == 0:
            mbps, trip_ms = mbps * random.choice([0.125, 0.5, 4.0]), random.choice([1.0, 16.0, 128.0])
        if random.below(6) == 0:
            found.failed()
            sent = None
        else:
            size = random.choice(sizes)
            server_ms = random.choice([0.0, 2.0])
            noise = (56 + random.below(16)) / 64
            seconds = (Uplink(mbps, trip_ms).transfer_ms(size) * noise + server_ms) / 1e3
            sent = [size, seconds, server_ms]
            found.record(*sent)
        uplink = found.uplink
        estimate = None if uplink is None else [uplink.mbps, uplink.round_trip_ms]
        steps.append({"at_s": now_s, "sent": sent, "uplink": estimate, "quiet_s": found.quiet_s})
    return {"known": [known.mbps, known.round_trip_ms], "steps": steps}


def front(random: SplitMix64) -> Json:
    """A front, and its best plan on several networks."""
    requirement = random.choice(
        [
            Requirement(latency_ms=32.0, coverage=0.75),
            Requirement(optimise="latency_ms", accuracy=0.5, certainty=0.875),
            Requirement(optimise="energy_mj", p95_latency_ms=64.0, peak_bytes=2_000_000),
            Requirement(optimise="bytes_sent", accuracy=0.75, bytes_sent=0.0, energy_mj=512.0),
        ]
    )
    power = random.choice([None, Power(active_w=2.0, radio_w=1.5, waiting_w=0.5)])
    offers = tuple(offer(random, number) for number in range(1 + random.below(6)))
    samples = sum(way.samples for way in offers[0].ways)
    found = PlanFront(requirement, power, Uplink(8.0, 4.0), 3072, 1.5, samples, offers)
    networks = [Uplink(mbps, trip) for mbps in (0.03125, 1.0, 64.0) for trip in (0.0, 8.0, 256.0)]
    best = []
    for uplink in (None, *networks):
        choice = found.best(uplink)
        best.append(
            {
                "uplink": None if uplink is None else [uplink.mbps, uplink.round_trip_ms],
                "offer": [one.plan for one in offers].index(choice.plan),
                "costs": [costs(one, uplink, power) for one in offers],
                "misses": {name: None if value == float("inf") else value for name, value in choice.misses.items()},
            }
        )
    return {"json": msgspec.json.encode(found).decode(), "best": best}


def costs(one: Offer, uplink: Uplink | None, power: Power | None) -> list[float | None]:
    cost = one.cost(uplink, power)
    return [cost.latency_ms, cost.p95_latency_ms, cost.bytes_sent, cost.energy_mj, cost.coverage]


def offer(random: SplitMix64, number: int) -> Offer:
    path = Subnet((Edge(f"b{number}"), Edge("c", "int8")))
    server = RemoteRef("big:images", "ab" * 32)
    plan = random.choice(
        [
            Plan(path),
            Plan(path, split=Split(1, (4,), (Edge("c"),), RemoteRef("r56:tail", "cd" * 32))),
            Plan(path, hard=Ask(MaxConfidence(0.75), server)),
            Plan(path, split=Split(0, (), (), server)),
        ]
    )
    sent = 0 if plan == Plan(path) else 1 + random.below(65536)
    ways = [Way(1 + random.below(64), (1 + random.below(512)) / 8)]
    if sent:
        ways.append(
            Way(1 + random.below(64), random.below(512) / 8, sent, random.below(64) / 8 - 4, random.below(64) / 8)
        )
    accuracy = None if random.below(8) == 0 else (32 + random.below(32)) / 64
    shares = [random.below(16) / 64 for _ in range(3)]
    return Offer(plan, accuracy, 500_000 * (1 + random.below(6)), *shares, tuple(ways))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("offload.json"))
