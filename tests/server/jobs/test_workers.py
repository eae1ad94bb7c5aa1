"""Jobs of a fleet: servers that take them, and machines, each a process of its own, that run them and are lost."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from server.settings import Settings
from tests.server.conftest import PATIENCE_S, Fleet, _run
from tests.server.engines import MissingEngineError, postgres_process
from tests.server.jobs.conftest import eventually
from tests.server.jobs.test_routes import form, post_form

ROOT = Path(__file__).parents[3]
LEASE_S, POLL_S, CHECKPOINT_S = 1.5, 0.1, 0.1

# As `pathweave worker`, with settings that have no option: another packager, and less patience.
MACHINE = """
import json, sys
from pathlib import Path
from device_sdk.commands.command_line import log_to_stderr
from server.settings import Settings
from server.worker_command import run_worker
log_to_stderr(verbose=False)
settings = json.loads(sys.argv[1])
bundles = settings.pop("bundles")
run_worker(
    Settings(
        bundles if "://" in bundles else Path(bundles),
        Path(settings.pop("data")),
        package_command=tuple(settings.pop("command")),
        job_tags=tuple(settings.pop("tags")),
        **settings,
    ),
    as_json=True,
)
"""


@dataclass
class Machine:
    """A worker process with its data folder."""

    process: subprocess.Popen[str]
    data: Path
    name: str

    def kill(self) -> None:
        """As a machine that loses its power, but for its disk."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def log(self) -> str:
        return (self.data / "stderr").read_text()

    def packagers(self) -> list[int]:
        """The process ids of running packagers."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                line = (path / "cmdline").read_bytes()
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(self.data / "jobs").encode() in line and state not in "ZX":
                found.append(int(path.name))
        return found


@dataclass
class Yard:
    """A fleet of two servers that run no jobs, and the machines that do."""

    folder: Path
    bundles: str
    database: str
    command: tuple[str, ...]
    stack: ExitStack
    servers: Fleet = field(init=False)

    def __post_init__(self) -> None:
        place = self.bundles if "://" in self.bundles else Path(self.bundles)
        replicas = []
        for number in range(2):
            settings = Settings(
                place, self.folder / f"server-{number}", database=self.database, jobs_at_once=0, cache_bytes=0
            )
            replicas.append(_run(settings, None, 1.0, None))
            self.stack.callback(replicas[-1].stop)
        self.servers = Fleet.of(replicas)

    def machine(self, name: str, **changes: object) -> Machine:
        """Start one."""
        data = self.folder / name
        data.mkdir(exist_ok=True)
        settings = {
            "bundles": self.bundles,
            "database": self.database,
            "data": str(data),
            "command": self.command,
            "tags": [],
            "job_lease_s": LEASE_S,
            "job_checkpoint_s": CHECKPOINT_S,
            "job_poll_s": POLL_S,
            **changes,
        }
        with (data / "stderr").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", MACHINE, json.dumps(settings)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.stack.callback(_end, process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (data / "stderr").read_text()
        return Machine(process, data, json.loads(line)["worker"])

    def add(self, request: dict[str, object]) -> str:
        reply = self.servers.post("/v1/jobs", request)
        assert reply.status == 202, reply.body
        return f"/v1/jobs/{reply.json()['id']}"

    def told(self, address: str) -> dict[str, object]:
        return self.servers.ask(address).json()

    def state(self, address: str, state: str) -> dict[str, object]:
        """What a server says of a job once it is in a state."""

        def found() -> dict[str, object] | None:
            told = self.told(address)
            assert told["state"] in ("queued", "running", state), told
            return told if told["state"] == state else None

        return eventually(found, patience_s=60)

    def log(self, address: str) -> str:
        return self.servers.ask(f"{address}/log").body.decode()

    def owner(self, address: str) -> str | None:
        return self.servers.services.jobs.find(address.rpartition("/")[2]).owner

    def has_checkpoint(self, address: str) -> bool:
        """True once the tenth step is stored."""
        store = self.servers.services.jobs
        stored = json.loads(store.checkpoint_of(address.rpartition("/")[2]) or "[]")
        return any(one["path"] == "state.pt" and one["size"] == 2 for one in stored)

    def stored(self, address: str) -> set[str]:
        """The digests of a job's stored files."""
        return self.servers.services.runner._files._objects.digests(address.rpartition("/")[2])

    def stored_jobs(self) -> set[str]:
        """The jobs that have files in the store."""
        return self.servers.services.runner._files._objects.job_ids()


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture(params=["s3", "folder"])
def yard(request, tmp_path, fake_packager, postgres):
    """Servers on PostgreSQL with an object store, or with a folder that all have mounted."""
    if request.param == "s3":
        bundles = request.getfixturevalue("s3").new()
    else:
        (tmp_path / "shared").mkdir()
        bundles = str(tmp_path / "shared")
    with ExitStack() as stack:
        yield Yard(tmp_path, bundles, postgres.new(), fake_packager, stack)


def test_a_job_is_shown_and_published_by_any_server_wherever_it_ran(yard, job_request, let_go):
    machine = yard.machine("a")
    address = yard.add(job_request("waits"))
    eventually(lambda: yard.told(address)["progress"])
    assert yard.told(address)["progress"] == {"task": "tune", "share": 0.25, "note": "loss 0.5", "elapsed_s": 1.5}
    eventually(lambda: "asked for zoo:waits" in yard.log(address))
    let_go()
    told = yard.state(address, "done")
    assert told["progress"] is None
    assert str(yard.folder) not in yard.log(address)
    replies = [yard.servers.post(f"{address}/publish", {"name": "served"}) for _ in range(2)]
    assert [reply.status for reply in replies] == [200, 200]
    assert {reply.json()["version"] for reply in replies} == {1}
    eventually(lambda: yard.servers.ask("/v1/bundles/served").status == 200)
    assert yard.stored_jobs() == set()
    assert "packaging starts" in yard.log(address)
    assert [path.name for path in (machine.data / "jobs").iterdir()] == [".claim"]
    assert "done" in machine.log()


def test_when_a_machine_is_lost_another_goes_on_from_what_was_saved(yard, job_request, let_go):
    first = yard.machine("a")
    address = yard.add(job_request("counts"))
    eventually(lambda: yard.has_checkpoint(address))
    second = yard.machine("b")
    first.kill()
    eventually(lambda: yard.owner(address) == second.name, patience_s=30)
    eventually(lambda: "goes on after step 10" in yard.log(address))
    let_go()
    yard.state(address, "done")
    log = yard.log(address)
    assert [log.count(f"goes on after step {step}") for step in (0, 10)] == [1, 1]
    assert "packaging resumes" in log


def test_weights_reach_each_machine_that_has_the_job(yard, job_request, safetensors_bytes, let_go):
    weights = safetensors_bytes({"w": ("F32", [200_000], bytes(800_000))})
    job = json.dumps(job_request("counts")).encode()
    reply = post_form(yard.servers, form(("job", None, job), ("weights", "w", weights)))
    address = reply.headers["location"]
    for name in "ab":
        machine = yard.machine(name)
        eventually(lambda machine=machine: yard.owner(address) == machine.name, patience_s=30)
        eventually(lambda: yard.has_checkpoint(address))
        [folder] = eventually(lambda machine=machine: list(machine.data.glob("jobs/[0-9a-f]*")))
        assert (folder / "weights.safetensors").read_bytes() == weights
        eventually(lambda: len(yard.stored(address)) == 2)  # weights, and one saved state: what it replaced is gone
        machine.kill()
    let_go()
    yard.machine("c")
    yard.state(address, "done")
    eventually(lambda: hashlib.sha256(weights).hexdigest() not in yard.stored(address))


def test_a_job_that_kills_its_machines_fails(yard, job_request):
    address = yard.add(job_request("counts"))
    for name in "abc":
        machine = yard.machine(name, job_lease_s=0.5)
        eventually(lambda machine=machine: yard.owner(address) == machine.name and machine.packagers(), patience_s=30)
        machine.kill()
    yard.machine("d")
    assert "3 machines in a row" in yard.state(address, "failed")["error"]
    eventually(lambda: yard.stored_jobs() == set())


def test_a_machine_that_stops_hands_its_job_over_at_once(yard, job_request, let_go):
    first = yard.machine("a", job_lease_s=600.0, job_checkpoint_s=600.0)
    address = yard.add(job_request("counts"))
    eventually(lambda: any(first.data.glob("jobs/*/out.work/state.pt")))
    assert first.stop() == 0
    assert first.packagers() == []
    assert "given back" in first.log()
    assert yard.told(address)["state"] == "queued"
    let_go()
    yard.machine("b", job_lease_s=600.0)
    yard.state(address, "done")
    assert "goes on after step 0" in yard.log(address)
    assert yard.log(address).count("goes on after") == 2


def test_cancelling_ends_the_process_on_another_machine(yard, job_request):
    machine = yard.machine("a")
    address = yard.add(job_request("counts"))
    eventually(lambda: yard.has_checkpoint(address) and machine.packagers())
    assert yard.servers.ask(address, method="DELETE").json()["state"] == "cancelled"
    eventually(lambda: not machine.packagers(), patience_s=6)
    eventually(lambda: not any(path.is_dir() for path in (machine.data / "jobs").iterdir()))
    eventually(lambda: yard.stored_jobs() == set())
    other = yard.add(job_request())
    yard.state(other, "done")  # the place is free


def test_a_machine_that_wakes_up_after_its_lease_stops_and_writes_nothing(yard, job_request, let_go):
    first = yard.machine("a")
    address = yard.add(job_request("counts"))
    eventually(lambda: yard.has_checkpoint(address))
    os.killpg(first.process.pid, signal.SIGSTOP)
    second = yard.machine("b")
    eventually(lambda: yard.owner(address) == second.name, patience_s=30)
    eventually(lambda: "goes on after step 10" in yard.log(address))
    os.killpg(first.process.pid, signal.SIGCONT)
    eventually(lambda: not first.packagers())
    assert yard.owner(address) == second.name
    assert "another machine's" in first.log()
    let_go()
    yard.state(address, "done")
    assert yard.servers.post(f"{address}/publish", {}).json()["version"] == 1


def test_a_machine_that_is_started_again_goes_on_with_its_own_job(yard, job_request, let_go):
    first = yard.machine("a", job_lease_s=600.0, job_checkpoint_s=600.0)
    address = yard.add(job_request("counts"))
    eventually(lambda: any(path.read_text() == "10" for path in first.data.glob("jobs/*/out.work/state.pt")))
    first.kill()
    let_go()
    again = yard.machine("a", job_lease_s=600.0)
    assert again.name == first.name
    yard.state(address, "done")
    assert "goes on after step 10" in yard.log(address)  # from its own disk: nothing was stored


def test_of_many_machines_one_runs_a_job(yard, job_request):
    machines = [yard.machine(name) for name in "abc"]
    addresses = [yard.add(job_request()) for _ in range(6)]
    for address in addresses:
        yard.state(address, "done")
        assert yard.log(address).count("packaging starts") == 1
    taken = [line for machine in machines for line in machine.log().splitlines() if "taken, attempt" in line]
    assert len(taken) == len(addresses)


def test_a_job_waits_for_a_machine_with_its_tags(yard, job_request):
    plain = yard.machine("a")
    address = yard.add(job_request(needs=["gpu"]))
    yard.state(yard.add(job_request()), "done")
    assert yard.told(address)["state"] == "queued"
    assert "no machine that runs now has the tags gpu" in yard.told(address)["waits"]
    assert "no machine that runs now has the tags gpu" in yard.servers.ask("/page/jobs").body.decode()
    tagged = yard.machine("b", tags=["gpu"])
    assert yard.state(address, "done")["waits"] is None
    assert address.rpartition("/")[2] not in plain.log()
    assert "done" in tagged.log()


def test_data_that_only_a_machine_has_can_be_named(yard, job_request):
    refused = yard.servers.post("/v1/jobs", job_request(data="faces"))
    assert refused.status == 422
    (yard.folder / "a").mkdir()
    (yard.folder / "a" / "data.toml").write_text('faces = "/srv/faces.zip"\n')
    yard.machine("a")
    eventually(lambda: "faces" in yard.servers.ask("/v1/jobs").json()["data"])
    address = yard.add(job_request(data="faces"))
    yard.state(address, "done")


def test_the_command_checks_a_machine_runs_and_stops(yard, tmp_path):
    def run(*options):
        command = [sys.executable, "-m", "pathweave", "worker", "--bundles", yard.bundles, "--data", tmp_path / "m"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATHWEAVE_DATABASE_URL": yard.database}
        return subprocess.Popen(
            [*map(str, command), *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    checked = run("--check", "--json")
    found = json.loads(checked.communicate(timeout=60)[0].splitlines()[-1])
    assert set(found) == {"ok", "database", "bundles", "packager", "data"}
    assert found["database"]["ok"]
    assert found["bundles"]["ok"]
    assert "digits#train" in found["data"]["found"]
    (tmp_path / "m" / "data.toml").write_text('faces = "/none/faces.zip"\n')
    checked = run("--check")
    assert "data faces cannot be read" in checked.communicate(timeout=60)[0]
    assert checked.returncode == 1
    process = run("--tag", "gpu", "--json")
    yard.stack.callback(process.kill)
    assert json.loads(process.stdout.readline())["tags"] == ["gpu"]
    eventually(lambda: "faces" in yard.servers.ask("/v1/jobs").json()["data"])
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.slow
def test_when_postgresql_restarts_no_job_is_lost(tmp_path, fake_packager, job_request, let_go):
    with ExitStack() as stack:
        try:
            process, postgres = stack.enter_context(postgres_process())
        except MissingEngineError as error:
            pytest.skip(str(error))
        (tmp_path / "shared").mkdir()
        yard = Yard(tmp_path, str(tmp_path / "shared"), postgres.empty(), fake_packager, stack)
        machine = yard.machine("a", job_lease_s=20.0)
        running, waiting = yard.add(job_request("counts")), yard.add(job_request())
        eventually(lambda: yard.has_checkpoint(running))
        process.stop()
        let_go()
        eventually(lambda: "next attempt" in machine.log(), patience_s=30)
        process.start()
        for address in (running, waiting):
            yard.state(address, "done")
            assert yard.log(address).count("packaging starts") == 1
        assert "goes on after step 0" in yard.log(running)
        assert "resumes" not in yard.log(running)
