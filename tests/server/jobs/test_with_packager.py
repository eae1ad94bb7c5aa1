"""Jobs with all that is real: a server process, the packager in its workers, bundles that a device opens."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'pathweave[packager]'")
pytest.importorskip("safetensors", reason="needs the extra: pip install 'pathweave[packager]'")

import torch
from safetensors.torch import save_file

from device_sdk.session.adaptive_model import AdaptiveModel
from server.jobs.processes import mark_of

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120
JSON_TYPE = {"Content-Type": "application/json"}
TINY = {
    "steps": 8,
    "gamma": 0.5,  # few blocks: their export takes longest
    "max_span": 2,
    "exit_positions": 0,
    "batch": 16,
    "checkpoint_seconds": 0,
    "flip": False,
}
REQUEST = {
    "name": "digits",
    "model": "zoo:resnet_digits",
    "data": "digits#search",
    "validation": "digits#calibration",
    "recipe": TINY,
}


@dataclass
class ServerProcess:
    """``pathweave serve`` as a process of its own."""

    process: subprocess.Popen[str]
    url: str

    def ask(self, path, *, method="GET", body=None, headers=None):
        host, port = self.url.removeprefix("http://").split(":")
        with closing(http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)) as connection:
            connection.request(method, path, body=body, headers=headers or {})
            reply = connection.getresponse()
            return reply.status, reply.read()

    def add(self, **changes):
        """Ask for a job; returns its address."""
        status, body = self.ask("/v1/jobs", method="POST", body=json.dumps({**REQUEST, **changes}), headers=JSON_TYPE)
        assert status == 202, body
        return f"/v1/jobs/{json.loads(body)['id']}"

    def told(self, address):
        return json.loads(self.ask(address)[1])

    def watch(self, address, until):
        """What the server says of a job, again and again until ``until`` is true of it; returns all that it said."""
        told, end = [self.told(address)], time.monotonic() + PATIENCE_S
        while not until(told[-1]):
            assert told[-1]["state"] in ("queued", "running"), told[-1]
            assert time.monotonic() < end, told[-1]
            time.sleep(0.02)
            told.append(self.told(address))
        return told

    def over(self, address):
        return self.watch(address, lambda told: told["state"] not in ("queued", "running"))[-1]


@pytest.fixture
def start(bundles):
    """Starts servers of one folder."""
    started = []

    def one(*options, program=("-m", "pathweave"), **environment):
        process = subprocess.Popen(
            [sys.executable, *program, "serve", bundles, "--port", "0", "--json", *map(str, options)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return ServerProcess(process, json.loads(process.stdout.readline())["url"])

    yield one
    for process in started:
        process.terminate()
        process.communicate()


@pytest.mark.slow
def test_a_job_killed_with_the_server_halfway_ends_as_a_bundle_that_a_device_opens(
    start, bundles, tiny, tmp_path, eventually
):
    server = start("--key", tiny.private_key)
    address = server.add(recipe={**TINY, "steps": 30})
    server.watch(address, lambda told: (told["progress"] or {}).get("task") == "tune")
    work = bundles / ".pathweave-server" / "jobs" / address.rpartition("/")[2] / "out.work"
    [worker] = [int(path.name) for path in Path("/proc").glob("[0-9]*") if works_in(path, work.parent)]
    server.process.kill()
    server.process.wait()
    eventually(lambda: mark_of(worker) is None)  # its worker went with it
    saved = torch.load(work / "state.pt", weights_only=True)
    assert saved["phase"] == "tune"
    torch.save(saved | {"seconds": saved["seconds"] + 1000}, work / "state.pt")

    server = start("--key", tiny.private_key)
    told = server.watch(address, lambda told: told["state"] == "done")
    tasks = {one["progress"]["task"] for one in told if one["progress"]}
    assert "trace and expand" in tasks
    assert "distil" not in tasks  # that had been done
    status, body = server.ask(f"{address}/publish", method="POST", body="{}", headers=JSON_TYPE)
    assert status == 200, body
    published = bundles / "digits-1"
    assert json.loads((published / "packaging.json").read_bytes())["seconds"] > 1000  # it went on from what was saved
    log = server.ask(f"{address}/log")[1].decode()
    assert "packaging starts" in log
    assert "packaging resumes" in log

    url = f"{server.url}/v1/bundles/digits"
    with AdaptiveModel.open(url, trust=tiny.public_key, state_folder=tmp_path / "state") as model:
        metrics = model.bundle.manifest.metrics
        assert model.bundle.digest == json.loads(body)["digest"]
        assert metrics.distil_steps + metrics.tune_steps == 30
    assert [path.name for path in bundles.iterdir() if not path.name.startswith(".")] == ["digits-1"]
    assert str(tmp_path) not in (published / "manifest.json").read_text()


def works_in(process, folder):
    try:
        return str(folder).encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False


def weights_of(tmp_path, change):
    from packager.inputs.model_loader import load_model

    state = load_model("zoo:resnet_digits").module.state_dict()
    save_file(change(state), tmp_path / "w.safetensors")
    return (tmp_path / "w.safetensors").read_bytes()


@pytest.mark.slow
def test_what_the_packager_finds_wrong_is_the_jobs_error(start, tmp_path):
    server = start("--jobs", 2)
    other = weights_of(tmp_path, lambda state: dict(list(state.items())[1:]))
    form = b"".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"; filename="f"\r\n\r\n'.encode() + data + b"\r\n"
        for name, data in (("job", json.dumps(REQUEST).encode()), ("weights", other))
    )
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    status, body = server.ask("/v1/jobs", method="POST", body=form + b"--x--\r\n", headers=headers)
    assert status == 202, body
    expected = {
        f"/v1/jobs/{json.loads(body)['id']}": "weights.safetensors does not fit the model",
        server.add(recipe={"steps": 1, "gamma": "much"}): "`$.gamma`",
    }
    for address, words in expected.items():
        told = server.over(address)
        assert told["state"] == "failed"
        assert words in told["error"]
        assert "\n" not in told["error"]
        assert str(tmp_path) not in told["error"]


@pytest.mark.slow
def test_a_full_disk_fails_the_job_and_not_the_server(start, bundles):
    folder = bundles / ".pathweave-server" / "jobs"
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", "size=100k", "tmpfs", str(folder)]
    if subprocess.run(["mount", *options], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        server = start()
        told = server.over(server.add())
        assert told["state"] == "failed"
        assert "No space left on device" in told["error"]
        assert server.ask("/health")[0] == 200
        server.process.terminate()
        server.process.wait()
    finally:
        subprocess.run(["umount", str(folder)], check=True)


WITHOUT_TORCH = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from pathweave.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_the_packager_a_job_is_refused_with_what_to_install(start):
    server = start(program=("-c", WITHOUT_TORCH))
    status, body = server.ask("/v1/jobs", method="POST", body=json.dumps(REQUEST), headers=JSON_TYPE)
    assert status == 501
    assert json.loads(body)["hint"] == "pip install 'pathweave[packager]'"
    assert server.ask("/v1/jobs")[0] == 200


def test_a_key_that_cannot_sign_is_told_at_the_start(bundles, tmp_path):
    (tmp_path / "no.key").write_text("no key")
    done = subprocess.run(
        [sys.executable, "-m", "pathweave", "serve", bundles, "--port", "0", "--key", tmp_path / "no.key"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert "is not a private key" in done.stderr
