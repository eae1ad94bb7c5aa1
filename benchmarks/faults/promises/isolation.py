"""S4: isolation of two devices, and of two packagers, from each other."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.faults.promise import Findings, Trial
from benchmarks.faults.serving import Serving, serving
from benchmarks.faults.small_bundle import NAME
from device_sdk.delivery.log_upload import upload_log
from device_sdk.logs.adaptation_log import AdaptationLog, Opened
from device_sdk.transports import make_transport
from server.access.scopes import Scope
from server.app import create_app
from server.jobs.job_request import JobRequest

OTHERS, OWN = "canary-device-a", "device-b"
MARK = "canary-of-device-a"  # in what the other device sent
JOB = "canaryjob0123456"


@dataclass(frozen=True)
class _Clients:
    """Bearer tokens by whom they are for."""

    operator: str
    others_device: str
    others_packager: str
    device: str
    packager: str


def two_devices(trial: Trial, findings: Findings) -> None:
    """S4: on every route, with every method, a device and a packager look for data of others."""
    bundles = trial.new_folder("bundles")
    trial.bundle.copy(bundles / NAME)
    ends_s = trial.ends_s()
    with serving(bundles, trial.folder / "server", jobs_at_once=0) as server:
        clients = _others_have(server, trial)
        app = create_app(server.services.settings, services=server.services)
        rules = [rule for rule in app.url_map.iter_rules() if rule.endpoint != "static"]
        before = _state(server, clients)
        turns = 0
        while turns == 0 or trial.clock() < ends_s:
            turns += 1
            for rule in rules:
                for path in _paths(rule.rule, findings):
                    for method in sorted((rule.methods or set()) - {"OPTIONS"}):
                        for token in (clients.device, clients.packager):
                            _look(server, path, method, token, findings)
            findings.case(_state(server, clients) == before, "what the other device has was changed", "leaked")
        findings.note(f"{len(rules)} routes, {turns} times")
    _counted(trial, findings)


def _others_have(server: Serving, trial: Trial) -> _Clients:
    """The other device has sent its log, the other packager has submitted a job."""
    tokens = server.services.tokens
    clients = _Clients(
        operator=tokens.new("operator", days=1, scope=Scope.ADMIN),
        others_device=tokens.new("canary-token-a", days=1, device=OTHERS),
        others_packager=tokens.new("canary-packager-a", days=1, scope=Scope.PACKAGE),
        device=tokens.new("token-b", days=1, device=OWN),
        packager=tokens.new("packager-b", days=1, scope=Scope.PACKAGE),
    )
    path = trial.folder / "log.jsonl"
    AdaptationLog(path, bundle="0" * 64, runtime="none").write(Opened(subnet=MARK, restored=False))
    with contextlib.closing(make_transport(server.url, token=clients.others_device)) as transport:
        upload_log(path, server.url, transport, device=OTHERS)
    request = JobRequest(name="canary-bundle", model="zoo:resnet_digits", data="digits", validation="digits")
    server.services.jobs.add(JOB, request, client="canary-packager-a", weights_sha256=None, max_queued=10)
    return clients


VALUES = {
    "job_id": (JOB, "no-such-job-0000"),
    "name": ("canary-token-a", NAME),
    "model": (NAME, f"{NAME}:images"),
    "version": ("1",),
    "number": ("1",),
    "rollout_number": ("1",),
    "device": (OTHERS,),
    "blob": ("0" * 64,),
}


def _paths(rule: str, findings: Findings) -> Iterator[str]:
    """The route's addresses, with names and ids of the other client as arguments."""
    paths = [rule]
    for argument in re.findall(r"<(?:[^:<>]*:)?([^<>]+)>", rule):
        known = argument in VALUES
        findings.case(known, f"{rule} has an argument that this trial does not know: give it a value in VALUES")
        values = VALUES.get(argument, ("x",))
        paths = [re.sub(rf"<(?:[^:<>]*:)?{argument}>", value, path) for path in paths for value in values]
    yield from paths


def _look(server: Serving, path: str, method: str, token: str, findings: Findings) -> None:
    """Nothing of the other client is in the reply, apart from what the request itself had; nothing is accepted."""
    bodies: tuple[tuple[bytes | None, dict[str, str]], ...] = ((None, {}),)
    if method in ("POST", "PUT", "PATCH"):
        line = json.dumps({"device": OTHERS}).encode()
        bodies = ((line, {"Content-Type": "application/json"}), (line + b"\n", {"Pathweave-Device": OTHERS}))
    for body, headers in bodies:
        headers = {"Authorization": f"Bearer {token}", **headers}
        reply = server.ask(path, method=method, body=body, headers=headers)
        text = f"{reply.body.decode('latin-1')} {dict(reply.headers)}"
        for asked in (path, path.rsplit("/", 1)[-1], JOB if JOB in path else path):
            text = text.replace(asked, "")
        mentions = "canary" in text and not (method == "POST" and f"device {OTHERS}" in text)
        findings.case(not mentions, f"{method} {path} tells of another client: {text[:200]}", "leaked")
        refused = reply.status >= 400 or not any(word in path for word in (JOB, "canary"))
        findings.case(refused, f"{method} {path} is answered {reply.status}", "leaked")


def _state(server: Serving, clients: _Clients) -> tuple[Any, ...]:
    """Devices, jobs and token states of the other clients, as an operator sees them."""
    admin = {"Authorization": f"Bearer {clients.operator}"}
    devices = [one for one in server.ask("/v1/devices", headers=admin).json()["devices"] if one["device"] == OTHERS]
    jobs = [one for one in server.ask("/v1/jobs", headers=admin).json()["jobs"] if one["id"] == JOB]
    tokens = [one for one in server.ask("/v1/tokens", headers=admin).json()["tokens"] if "canary" in one["name"]]
    states = [(one["name"], one["state"]) for one in tokens]
    return devices, jobs, states


def _counted(trial: Trial, findings: Findings) -> None:
    """Compare the replies to a device and a packager with and without data of others: they must be the same."""
    replies = []
    for others in (False, True):
        folder = trial.folder / f"counted-{others}"
        with serving(trial.folder / "bundles", folder, jobs_at_once=0) as server:
            tokens = server.services.tokens
            own = tokens.new("token-b", days=1, device=OWN)
            packager = tokens.new("packager-b", days=1, scope=Scope.PACKAGE)
            if others:
                (trial.folder / "log.jsonl").unlink()
                _others_have_more(server, trial)
            heads = [{"Authorization": f"Bearer {token}"} for token in (own, packager)]
            paths = ("/v1/bundles", "/v1/jobs", f"/v1/bundles/{NAME}", "/v2", f"/v2/models/{NAME}", "/health")
            replies.append([(path, server.ask(path, headers=head).body) for path in paths for head in heads])
    for (path, alone), (_, among) in zip(*replies, strict=True):
        findings.case(alone == among, f"{path} tells that others are there", "leaked")


def _others_have_more(server: Serving, trial: Trial) -> None:
    token = server.services.tokens.new("canary-token-a", days=1, device=OTHERS)
    path = trial.folder / "log.jsonl"
    log = AdaptationLog(path, bundle="0" * 64, runtime="none")
    for _ in range(20):
        log.write(Opened(subnet=MARK, restored=False))
    with contextlib.closing(make_transport(server.url, token=token)) as transport:
        upload_log(path, server.url, transport, device=OTHERS)
    request = JobRequest(name="canary-bundle", model="zoo:resnet_digits", data="digits", validation="digits")
    for number in range(3):
        server.services.jobs.add(f"{number}{JOB}", request, client="a", weights_sha256=None, max_queued=10)
