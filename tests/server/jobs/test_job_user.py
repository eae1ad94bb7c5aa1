"""Workers as another user: needs root, as a server with ``--job-user`` does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import msgspec
import pytest

from device_sdk.errors import UsageError
from server.errors import PublishError
from server.jobs.job_request import JobRequest
from server.jobs.job_user import JobUser
from server.jobs.runner import JobRunner
from server.jobs.store import JobStore, State
from server.settings import Settings
from server.state.database import Database
from server.state.folder_bundles import FolderBundles
from tests.server.jobs.conftest import FAKE, eventually

SYSTEM_PYTHON = Path("/usr/bin/python3")
NOBODY = "nobody"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
system_python = pytest.mark.skipif(not SYSTEM_PYTHON.exists(), reason="needs a Python that every user can run")


@pytest.fixture
def place():
    """A folder that other users may pass through."""
    folder = Path(tempfile.mkdtemp(prefix="pathweave-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def user():
    return JobUser.named(NOBODY)


@pytest.mark.parametrize(("name", "message"), [("no-such-user", "there is no user"), ("root", "may do everything")])
@as_root
def test_a_user_that_is_not_there_or_is_root_is_refused(name, message):
    with pytest.raises(UsageError, match=message):
        JobUser.named(name)


@pytest.mark.skipif(os.geteuid() == 0, reason="needs another user than root")
def test_only_root_can_give_jobs_a_user():
    with pytest.raises(UsageError, match="only root"):
        JobUser.named(NOBODY)


@as_root
def test_what_is_given_belongs_to_the_user_and_comes_back(place, user):
    (place / "out").mkdir()
    (place / "out" / "manifest.json").write_text("{}")
    user.give(place)
    assert {path.stat().st_uid for path in (place, *place.rglob("*"))} == {user.uid}
    assert place.stat().st_mode & 0o777 == 0o700
    user.take_back(place)
    assert {path.stat().st_uid for path in (place, *place.rglob("*"))} == {0}


@pytest.mark.parametrize("kind", ["link", "folder link", "hard link", "pipe"])
@as_root
def test_a_link_or_a_pipe_that_a_worker_left_is_removed_and_refused(place, user, kind):
    secret = place / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    job = place / "job"
    (job / "out").mkdir(parents=True)
    trap = job / "out" / "manifest.json"
    {
        "link": lambda: trap.symlink_to(secret / "key"),
        "folder link": lambda: trap.symlink_to(secret),
        "hard link": lambda: trap.hardlink_to(secret / "key"),
        "pipe": lambda: os.mkfifo(trap),
    }[kind]()
    with pytest.raises(PublishError, match=r"manifest\.json"):
        user.take_back(job)
    assert not trap.exists()
    assert (secret / "key").read_text() == "secret"


@as_root
def test_a_process_that_left_the_workers_group_ends_before_its_files_are_taken(place, user):
    command = f"import os; os.setgroups([]); os.setgid({user.gid}); os.setuid({user.uid}); import time; time.sleep(60)"
    with subprocess.Popen([SYSTEM_PYTHON, "-c", command], start_new_session=True) as stray:
        eventually(lambda: Path(f"/proc/{stray.pid}").stat().st_uid == user.uid)
        user.take_back(place)
        assert stray.wait(10) == -signal.SIGKILL


@pytest.fixture
def runner(place, tiny, user, clock):
    """A runner whose worker is a fake one, as nobody; and its store, data folder and served folder."""
    tiny.copy_to(place / "made" / "tiny")
    shutil.copy(FAKE, place / "fake_packager.py")
    bundles, data = place / "bundles", place / "data"
    for folder in (bundles, data / "jobs"):
        folder.mkdir(parents=True)
    database = Database(data / "server.sqlite3")
    user.open_way(data, data / "jobs", data / "server.sqlite3")
    store = JobStore(database, now=clock)
    made = JobRunner(
        store,
        FolderBundles(bundles),
        Settings(
            bundles,
            data,
            package_command=(str(SYSTEM_PYTHON), str(place / "fake_packager.py"), str(place / "made" / "tiny")),
        ),
        now=clock,
        user=user,
    )
    made.start()
    yield made, store, data
    made.close()


def add(runner, store, request):
    """Queue a job, as the server does."""
    runner.workplace("0" * 16).folder.mkdir()
    store.add("0" * 16, msgspec.convert(request, JobRequest), client="me", weights_sha256=None, max_queued=1)
    runner.wake()
    return "0" * 16


def ended(store, job_id):
    return eventually(lambda: (job := store.find(job_id)).state in (State.DONE, State.FAILED) and job)


@as_root
@system_python
def test_a_job_is_packaged_as_the_user_and_its_bundle_is_the_servers(runner, job_request):
    made, store, _ = runner
    job = ended(store, add(made, store, job_request("makes")))
    assert job.state is State.DONE, job.error
    folder = made.workplace(job.id).folder
    assert {path.stat().st_uid for path in folder.rglob("*")} == {0}


@as_root
@system_python
def test_a_worker_reads_neither_the_database_nor_other_jobs(runner, job_request):
    made, store, data = runner
    (data / "jobs" / "other").mkdir(mode=0o700)  # as the intake makes it
    (data / "jobs" / "other" / "weights.safetensors").write_text("private")
    job = ended(store, add(made, store, job_request("looks_around")))
    assert job.state is State.DONE, job.error
    seen = (made.workplace(job.id).log).read_text()
    assert "uid 0" not in seen
    assert "groups []" in seen
    assert seen.count("Permission denied") == 3
