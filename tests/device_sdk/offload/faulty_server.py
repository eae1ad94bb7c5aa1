"""A server of the Open Inference Protocol that misbehaves as it is told. Its own process, so that it can be killed.

``python faulty_server.py PORT`` prints the port (0 picks one) once it listens. ``POST /control`` with {"fault": NAME}
chooses how the next requests go wrong ("" not at all); ``GET /control`` tells what was asked so far.

Two models answer with three logits, the mean of each channel: ``bright:images`` takes UINT8 [-1, 4, 5, 3], ``bright``
FP32 [-1, 3, 4, 5]. ``tiny:images`` does the same for the images and classes of the tiny bundle.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from device_sdk.offload.open_inference import (
    HEADER_LENGTH,
    InferRequest,
    InferResponse,
    NamedTensor,
    decode_request,
    encode_response,
)

CLASS_NAMES = ["red", "green", "blue"]
TINY_CLASS_NAMES = ["blue", "green", "red"]
INPUTS = {
    "bright": {"name": "input", "datatype": "FP32", "shape": [-1, 3, 4, 5]},
    "bright:images": {"name": "image", "datatype": "UINT8", "shape": [-1, 4, 5, 3]},
    "tiny:images": {"name": "image", "datatype": "UINT8", "shape": [-1, 20, 20, 3]},
}
Reply = tuple[int, dict[str, str], bytes]


def _class_names(model: str) -> list[str]:
    return TINY_CLASS_NAMES if model.startswith("tiny") else CLASS_NAMES


def describe(model: str, fault: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": model,
        "versions": ["1"],
        "platform": "test",
        "inputs": [deepcopy(INPUTS[model])],
        "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}],
        "pathweave": {"bundle": "0" * 64, "class_names": _class_names(model)},
    }
    if fault == "classes":
        described["pathweave"]["class_names"] = ["red", "green", "yellow"]
    elif fault == "foreign":  # a server that does not know what Pathweave is
        del described["pathweave"], described["versions"]
    elif fault == "class_count":
        del described["pathweave"]
        described["outputs"][0]["shape"] = [-1, 4]
    elif fault == "two_inputs":
        described["inputs"] *= 2
    elif fault == "text_input":
        described["inputs"][0]["datatype"] = "BYTES"
    elif fault == "fixed_batch":
        described["inputs"][0]["shape"][0] = 1
    elif fault == "large_input":
        described["inputs"][0]["shape"][1:3] = [100_000, 100_000]
    elif fault == "twice_the_size":
        described["inputs"][0]["shape"][1:3] = [8, 10]
    elif fault == "another_model":
        described["name"] = "dark"
    return described


def answer(model: str, request: InferRequest) -> InferResponse:
    data = request.inputs[0].data
    axes = (1, 2) if data.dtype == np.uint8 else (2, 3)
    logits = data.mean(axis=axes, dtype=np.float64).astype(np.float32)
    if _class_names(model) == TINY_CLASS_NAMES:
        logits = logits[:, ::-1]
    return InferResponse(model, (NamedTensor("logits", logits),), "1", request.id)


def spoil(response: InferResponse, fault: str, previous: InferResponse | None) -> InferResponse:
    """The reply as ``fault`` wants it: well-formed, and wrong."""
    name, logits = response.outputs[0].name, response.outputs[0].data
    changes: dict[str, Callable[[], Any]] = {
        "wrong_shape": lambda: logits.T,
        "one_more_class": lambda: np.concatenate([logits, logits[:, :1]], axis=1),
        "one_more_sample": lambda: np.concatenate([logits, logits[:1]]),
        "wrong_datatype": lambda: logits.astype(np.float64),
        "nan": lambda: np.where(np.arange(3) == 1, np.nan, logits).astype(np.float32),
        "infinity": lambda: np.full_like(logits, np.inf),
    }
    id_, model, version = response.id, response.model_name, response.model_version
    if fault == "stale" and previous is not None:
        return previous
    if fault in ("no_id", "wrong_id"):
        id_ = None if fault == "no_id" else "7"
    elif fault == "wrong_name":
        name = "other"
    elif fault == "wrong_model":
        model = "dark"
    elif fault == "wrong_version":
        version = "2"
    data = changes[fault]() if fault in changes else logits
    return InferResponse(model, (NamedTensor(name, data),), version, id_)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    fault = ""
    previous: InferResponse | None = None

    def __init__(self, port: int) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", port), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes
    server: Server

    def do_GET(self) -> None:
        if self.path == "/control":
            self.give(200, {}, json.dumps({"asked": self.server.asked}).encode())
            return
        self.server.asked.append(f"GET {self.path}")
        fault = self.server.fault
        if fault == "slow_metadata":
            self.hold(fault)
        if self.path == "/v2":
            extensions = [] if fault == "json_only" else ["binary_tensor_data"]
            self.give(200, {}, json.dumps({"name": "faulty", "extensions": extensions}).encode())
            return
        model = self.path.removeprefix("/v2/models/").replace("%3A", ":")
        if model not in INPUTS:
            self.give(404, {}, b'{"error": "there is no such model"}')
        elif fault == "html_metadata":
            self.give(200, {"Content-Type": "text/html"}, b"<html>Welcome to our hotel's network</html>")
        else:
            self.give(200, {}, json.dumps(describe(model, fault)).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/control":
            self.server.fault = json.loads(body)["fault"]
            self.server.asked.clear()
            self.give(200, {}, b"{}")
            return
        self.server.asked.append(f"POST {self.path} {len(body)}")
        fault = self.server.fault
        self.close_connection = fault not in ("", "slow", "stale")
        length = self.headers.get(HEADER_LENGTH)
        request = decode_request(body, header_length=None if length is None else int(length))
        response = answer(self.path.split("/")[3].replace("%3A", ":"), request)
        previous, self.server.previous = self.server.previous, response
        binary = ["logits"] if any(output.binary for output in request.outputs) else []
        data, headers = encode_response(spoil(response, fault, previous), binary=binary)
        self.break_connection(fault, data, headers)

    def break_connection(self, fault: str, data: bytes, headers: dict[str, str]) -> None:
        replies: dict[str, Reply] = {
            "garbage": (200, headers, np.random.default_rng(7).bytes(400)),
            "empty": (200, {}, b""),
            "not_json": (200, {}, b"<html>Welcome to our hotel's network</html>"),
            "html_500": (500, {"Content-Type": "text/html"}, b"<html><h1>Oops</h1></html>"),
            "busy": (503, {"Retry-After": "1"}, b'{"error": "the queue is full"}'),
            "expired_token": (401, {}, b'{"error": "the token has expired"}'),
            "redirect": (302, {"Location": "http://127.0.0.1:9/"}, b""),
            "cut_json": (200, headers, data[:30]),
            "trailing": (200, headers, data + b"\0\0\0\0"),
            "header_length": (200, headers | {HEADER_LENGTH: "-5"}, data),
            "huge": (200, {}, b" " * 20_000_000 + data),
        }
        if fault == "slow":
            self.hold(fault)
        if fault == "hang_up":
            self.connection.close()
        elif fault == "not_http":
            self.wfile.write(b"\x16\x03\x01" * 40)
        elif fault == "drip_head":
            self.drip(b"HTTP/1.1 200 OK\r\n" + b"X-Slow: 1\r\n" * 10, fault)
        elif fault == "drip_body":
            self.wfile.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode())
            self.drip(data, fault)
        elif fault == "cut_connection":
            self.wfile.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data[:20])
        else:
            self.give(*replies.get(fault, (200, headers, data)))

    def drip(self, data: bytes, fault: str) -> None:
        for byte in data[:-1]:
            self.wfile.write(bytes([byte]))
            time.sleep(0.05)
        self.hold(fault)
        self.wfile.write(data[-1:])

    def hold(self, fault: str) -> None:
        """Write nothing until the server is told to fail otherwise, or not at all."""
        while self.server.fault == fault:
            time.sleep(0.01)

    def give(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        own = {"Content-Length": str(len(body)), "Connection": "close" if self.close_connection else "keep-alive"}
        for name, value in {"Content-Type": "application/json", **headers, **own}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client has gone, as it should
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep quiet."""


if __name__ == "__main__":
    with Server(int(sys.argv[1])) as started:
        print(started.server_address[1], flush=True)
        started.serve_forever()
