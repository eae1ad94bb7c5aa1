"""S6: places where secrets turn up."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.faults.promise import Findings, Trial
from benchmarks.faults.serving import Serving, serving
from benchmarks.faults.small_bundle import NAME, SERVED
from device_sdk.delivery.log_upload import upload_log
from device_sdk.offload.open_inference import InferRequest, NamedTensor, encode_request
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Ask, MaxConfidence, Plan, RemoteRef
from device_sdk.transports import make_transport
from server.access.scopes import Scope

SAMPLE = b"SampleCanary"  # a whole image: 2 × 2 pixels of three colours
PASSWORD = "PasswordCanary7319"
NOWHERE = "127.0.0.1:9"


@dataclass
class _Secrets:
    """Secrets by name, in all the forms in which they may turn up; and the texts in ``said``: replies and errors."""

    forms: dict[str, list[bytes]] = field(default_factory=dict)
    said: list[tuple[str, bytes]] = field(default_factory=list)

    def add(self, name: str, secret: bytes) -> None:
        # in base64 the first and last characters depend on what stands beside
        forms = [secret, secret.hex().encode()] + [base64.b64encode(bytes(n) + secret)[4:-4] for n in range(3)]
        self.forms[name] = [form for form in forms if len(form) >= 8]

    def add_sample(self, sample: bytes) -> None:
        self.add("sample", sample)
        numbers = [str(value) for value in sample[:6]]
        self.forms["sample"] += [", ".join(numbers).encode(), ",".join(numbers).encode(), " ".join(numbers).encode()]

    def tell(self, where: str, data: bytes) -> None:
        self.said.append((where, data))

    def attempt(self, where: str, call: Callable[[], object]) -> None:
        """Run ``call``, and record the message, hint and traceback of its error, if any."""
        try:
            call()
        except Exception as error:
            text = f"{error} {error!r} {getattr(error, 'hint', '')} {''.join(traceback.format_exception(error))}"
            self.tell(where, text.encode())


def nothing_told(trial: Trial, findings: Findings) -> None:
    """S6: tokens, a code, a key, an address's password and a sample are used rightly and wrongly, then looked for."""
    logging.getLogger().setLevel(logging.DEBUG)
    secrets = _Secrets()
    secrets.add_sample(SAMPLE)
    secrets.add("password in an address", PASSWORD.encode())
    key = trial.bundle.private_key.read_bytes()
    secrets.add("private key", b"".join(line for line in key.splitlines() if not line.startswith(b"-"))[-40:])
    bundles = trial.new_folder("bundles")
    trial.bundle.copy(bundles / NAME).edit(lambda manifest: manifest.update(input_sizes=[]))
    fixed = "OperatorCanary58217364"
    secrets.add("fixed token", fixed.encode())
    with serving(bundles, trial.folder / "server", token=fixed, signing_key=trial.bundle.private_key) as server:
        token = server.services.tokens.new("a", days=1, device="device-a")
        admin = server.services.tokens.new("admin", days=1, scope=Scope.ADMIN)
        code = server.services.enrolments.new_code(device="device-b", minutes=5, days=1)
        for name, secret in (("device's token", token), ("admin's token", admin), ("enrolment code", code)):
            secrets.add(name, secret.encode())
        _use_device(server, token, trial, secrets)
        _misuse_device(server, token, trial, secrets)
        _ask_everything(server, (fixed, admin, token), code, secrets)
    _look_everywhere(trial, secrets, findings)


def _images() -> np.ndarray:
    return np.frombuffer(SAMPLE * 40, np.uint8).reshape(40, 2, 2, 3).copy()


def _use_device(server: Serving, token: str, trial: Trial, secrets: _Secrets) -> None:
    """Open, answer, adapt, ask the server, send the log."""
    url, images = f"{server.url}/{SERVED}", _images()
    state = trial.folder / "state"
    with AdaptiveModel.open(url, trust=trial.bundle.public_key, token=token, state_folder=state) as model:
        model(images)
        goal, settings = Goal(latency_ms=5.0, memory_mb=100.0), AdaptationSettings(keep_samples=True)
        model.adapt(images, goal, labels=np.arange(40) % 3, settings=settings)
        model.remote.connect(RemoteModel(server=server.url, model=f"{NAME}:images", token=token, privacy="inputs"))
        asking = Ask(MaxConfidence(UNREACHABLE_CONFIDENCE), RemoteRef(f"{NAME}:images"))
        model.use(Plan(model.bundle.supernet.original, hard=asking))
        model(images[:3])
        log = model.log.path
    with contextlib.closing(make_transport(server.url, token=token)) as transport:
        upload_log(log, server.url, transport, device="device-a")
    secrets.tell("the adaptation log", log.read_bytes())


def _misuse_device(server: Serving, token: str, trial: Trial, secrets: _Secrets) -> None:
    """Wrong tokens, servers that are not there, addresses with a password, images that do not fit."""
    state, key, images = trial.folder / "misused", trial.bundle.public_key, _images()

    def open_at(url: str, token: str | None) -> Callable[[], object]:
        return lambda: AdaptiveModel.open(url, trust=key, token=token, state_folder=state).close()

    for url in (
        f"http://user:{PASSWORD}@{NOWHERE}/{SERVED}",
        f"http://{PASSWORD}@{server.address[0]}:{server.address[1]}/{SERVED}",
        f"ftp://user:{PASSWORD}@{NOWHERE}/{SERVED}",
        f"http://user:{PASSWORD}@[::1/{SERVED}",
        f"http://user:{PASSWORD}@{NOWHERE}:x/{SERVED}",
    ):
        secrets.attempt("an address with a password", open_at(url, token))
        secrets.attempt("a remote model with a password", lambda url=url: RemoteModel(server=url, model=""))  # type: ignore[misc]
    secrets.attempt("a server that is not there", open_at(f"http://{NOWHERE}/{SERVED}", token))
    secrets.attempt("a token for another server", open_at(f"{server.url}/v1/bundles/none", token))
    secrets.attempt("a token with a line", open_at(f"{server.url}/{SERVED}", token + "\n"))
    secrets.tell("a remote model", repr(RemoteModel(server=server.url, model="x", token=token)).encode())
    with AdaptiveModel.open(trial.bundle.folder, state_folder=state) as model:
        for wrong in (images.reshape(40, 4, 3), images.astype(np.int64), images[:, :1], images.tobytes()):
            secrets.attempt("images that do not fit", lambda wrong=wrong: model(wrong))  # type: ignore[misc]
            secrets.attempt("tensors that do not fit", lambda wrong=wrong: model.infer(wrong))  # type: ignore[misc]
        secrets.attempt("labels that do not fit", lambda: model.adapt(images, Goal(latency_ms=1.0), labels=images))


def _ask_everything(server: Serving, tokens: tuple[str, ...], code: str, secrets: _Secrets) -> None:
    """Requests with secrets in good and in bad bodies, and every page that an administrator sees."""
    good, headers = encode_request(InferRequest((NamedTensor("image", _images()),)))
    bodies = (
        (good, headers),
        (good[:-7], headers),
        (good + SAMPLE, headers),
        (SAMPLE * 3, {}),
        *((_as_json(data), {}) for data in (list(SAMPLE), [SAMPLE.decode()], SAMPLE.decode(), {SAMPLE.decode(): 1})),
        (json.dumps({"code": code + "x", "device": "device-b"}).encode(), {"Content-Type": "application/json"}),
        (SAMPLE + b"\n" + SAMPLE, {"Pathweave-Device": "device-a"}),
    )
    posts = (f"/v2/models/{NAME}:images/infer", f"/v2/models/{NAME}/infer", "/v1/logs", "/v1/jobs", "/v1/enrolments")
    for token in (*tokens, "wrong"):
        for path in (*posts, "/v1/enrolment-codes", "/v1/placements"):
            for body, more in bodies:
                heads = {"Authorization": f"Bearer {token}", **more}
                reply = server.ask(path, method="POST", body=body, headers=heads)
                if body is good and reply.status == 200:
                    continue  # the answer
                made = reply.status == 201  # a new code or token, which is its purpose
                secrets.tell(f"POST {path}: {reply.status}", b"" if made else reply.body)
        for path in ("/", "/health", "/metrics", "/v1/devices", "/v1/tokens", "/v1/jobs", "/page/jobs", "/v2"):
            reply = server.ask(path, headers={"Authorization": f"Bearer {token}"})
            secrets.tell(f"GET {path}", reply.body + repr(reply.headers).encode())
    enrolled = server.ask(
        "/v1/enrolments",
        method="POST",
        body=json.dumps({"code": code, "device": "device-b"}).encode(),
        headers={"Content-Type": "application/json"},
    )
    if enrolled.status == 201:
        secrets.add("enrolled token", enrolled.json()["token"].encode())


def _as_json(data: object) -> bytes:
    """A request with invalid values."""
    tensor = {"name": "image", "datatype": "UINT8", "shape": [1, 2, 2, 2], "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


def _look_everywhere(trial: Trial, secrets: _Secrets, findings: Findings) -> None:
    """Replies, errors, the log of the process, and every file of the device's and the server's folders."""
    places = list(secrets.said)
    places.append(("the log of the process", trial.log_path.read_bytes()))
    for folder in ("state", "misused", "server", "bundles"):
        for path in sorted((trial.folder / folder).rglob("*")):
            if path.is_file():
                places.append((str(path.relative_to(trial.folder)), path.read_bytes()))
    for where, data in places:
        for name, forms in secrets.forms.items():
            findings.case(not any(form in data for form in forms), f"the {name} is in: {where}", "leaked")
    findings.note(f"{len(secrets.forms)} secrets, {len(places)} places: replies, errors, logs at debug level, files")
    findings.case(_finds_itself(trial, secrets), "a secret that was written is not found")


def _finds_itself(trial: Trial, secrets: _Secrets) -> bool:
    """True if the search works: each secret is found where it was put."""
    path = trial.folder / "put"
    for forms in secrets.forms.values():
        path.write_bytes(b"x" + forms[0] + b"y")
        if not any(form in path.read_bytes() for form in forms):
            return False
    return True
