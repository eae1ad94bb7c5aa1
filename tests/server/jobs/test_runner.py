"""Jobs from the queue to their end, with real processes: the packager is a fake, its workers are not."""

from __future__ import annotations

import shutil
import subprocess
import sys

import msgspec
import pytest

from device_sdk.bundles.bundle import Bundle
from server.errors import ConflictError, UnprocessableError
from server.jobs.folder_claim import FolderClaim
from server.jobs.job_request import JobRequest
from server.jobs.leases import Leases
from server.jobs.processes import mark_of
from server.jobs.publishing import seal
from server.jobs.runner import JobRunner
from server.jobs.store import JobStore, State
from server.settings import Settings
from server.state.database import Database
from server.state.folder_bundles import FolderBundles


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def store(data, clock):
    return JobStore(Database(data / "x.sqlite3"), now=clock)


@pytest.fixture
def leases(store, data, clock):
    """Leases of an earlier server on the data folder."""
    claim = FolderClaim(data / "jobs")
    assert claim.take()
    claim.close()
    return Leases(store.database, claim.name, now=clock)


@pytest.fixture
def runners():
    """All that were made; they are closed when the test ends."""
    made = []
    yield made
    for runner in made:
        runner.close()


@pytest.fixture
def make_runner(store, bundles, data, fake_packager, clock, runners):
    def make(**changes):
        settings = Settings(bundles, data, **{"package_command": fake_packager, **changes})
        runners.append(JobRunner(store, FolderBundles(bundles), settings, now=clock))
        runners[-1].start()
        return runners[-1]

    return make


@pytest.fixture
def add(store, data, job_request, runners):
    numbers = iter(range(100))

    def put(does="makes", *, weights=None, **changes):
        request = msgspec.convert(job_request(does, **changes), JobRequest)
        job_id = f"{next(numbers):016x}"
        (data / "jobs" / job_id).mkdir(parents=True)
        store.add(job_id, request, client="me", weights_sha256=weights, max_queued=100)
        for runner in runners:
            runner.wake()
        return job_id

    return put


@pytest.fixture
def over(store, eventually):
    """Waits until a job is over and returns it."""

    def wait(job_id):
        eventually(lambda: store.find(job_id).state.over)
        return store.find(job_id)

    return wait


@pytest.fixture
def at_work(store, data, eventually):
    """Waits until a job's worker is in the middle of it; returns its process number."""

    def wait(job_id):
        state = data / "jobs" / job_id / "out.work" / "state.pt"
        return int(eventually(lambda: state.exists() and state.read_text()))

    return wait


def test_a_job_ends_as_a_bundle_that_is_not_served(make_runner, add, over, bundles, data):
    runner = make_runner()
    job = over(add())
    assert (job.state, job.version, job.error) == (State.DONE, 1, None)
    assert Bundle.open(runner.workplace(job.id).out).digest == job.digest
    assert {path.name for path in (data / "jobs" / job.id).iterdir()} == {"log", "out"}
    assert not any(bundles.iterdir())
    log = runner.workplace(job.id).read_log(max_bytes=1000)
    assert log.startswith("[2026-05-01T12:00:00+00:00] packaging starts\n")
    assert "asked for zoo:makes with ['steps', '=', '5']" in log


def test_publishing_makes_the_next_version_of_a_name(make_runner, add, over, bundles, data, clock):
    runner = make_runner()
    jobs = [over(add()).id for _ in range(2)]
    clock.forward(hours=1)
    published = [runner.publish(job, name=None, by="boss") for job in jobs]
    assert [job.published_version for job in published] == [1, 2]
    assert (published[0].published_by, published[0].published) == ("boss", "2026-05-01T13:00:00.000+00:00")
    bundle = Bundle.open(bundles / "digits-2")
    bundle.verify()
    assert (bundle.manifest.name, bundle.manifest.version, bundle.digest) == ("digits", 2, published[1].digest)
    assert [path.name for path in (data / "jobs" / jobs[0]).iterdir()] == ["log"]


def test_publishing_signs_and_nothing_before_it_does(make_runner, add, over, bundles, tiny):
    runner = make_runner(signing_key=tiny.private_key)
    job = over(add()).id
    assert not Bundle.open(runner.workplace(job).out).has_signature
    runner.publish(job, name="served", by="boss")
    Bundle.open(bundles / "served-1", trust=tiny.public_key)


def test_publishing_again_changes_nothing_and_under_another_name_is_refused(make_runner, add, over, bundles):
    runner = make_runner()
    job = over(add()).id
    first = runner.publish(job, name="served", by="boss")
    assert runner.publish(job, name=None, by="other") == first
    with pytest.raises(ConflictError, match="published as served 1"):
        runner.publish(job, name="digits", by="boss")
    assert [path.name for path in bundles.iterdir()] == ["served-1"]


def test_only_a_job_that_is_done_is_published_under_a_plain_name(make_runner, add, over, bundles):
    runner = make_runner()
    with pytest.raises(ConflictError, match="the job is failed"):
        runner.publish(over(add("crashes")).id, name=None, by="boss")
    with pytest.raises(UnprocessableError):
        runner.publish(over(add()).id, name="../x", by="boss")
    assert not any(bundles.iterdir())


@pytest.mark.parametrize(
    ("does", "error", "hint"),
    [
        ("fails", "digits#train is wrong", "see out"),
        ("crashes", "the worker ended with status 3", "see its log"),
        ("dies", "the worker was killed by SIGKILL", "possibly out of memory; see its log"),
        (
            "makes_nothing",
            "out is not a bundle: cannot read manifest.json: No such file or directory",
            "a bundle is the folder that pathweave package wrote",
        ),
        ("makes_another", "the worker made other 1 instead of digits 1", None),
    ],
)
def test_a_job_that_fails_says_why_in_one_line(make_runner, add, over, data, bundles, does, error, hint):
    make_runner()
    job = over(add(does))
    assert (job.state, job.error, job.hint) == (State.FAILED, error, hint)
    assert [path.name for path in (data / "jobs" / job.id).iterdir()] == ["log"]
    assert not any(bundles.iterdir())


def test_the_paths_of_the_machine_are_nobodys_business(make_runner, add, over, data, tmp_path):
    data.mkdir(exist_ok=True)
    (data / "data.toml").write_text(f'mine = "{tmp_path}/images.zip#search"\n')
    make_runner()
    assert over(add("fails", data="mine")).error == "mine#search is wrong"
    assert over(add("fails", weights="ab")).error == "weights.safetensors is wrong"


def test_the_worker_does_not_learn_the_token(make_runner, add, over, monkeypatch):
    monkeypatch.setenv("PATHWEAVE_TOKEN", "secret")
    make_runner()
    assert over(add("tells_secrets")).error == "token None"


def test_the_worker_inherits_nothing_but_what_it_needs(make_runner, add, over, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy")
    make_runner()
    names = set(over(add("tells_names")).error.split())
    assert "PATH" in names
    assert names.isdisjoint({"AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY", "PATHWEAVE_TOKEN"})


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"job_minutes": 1e-4}, "took more than 0.0001 minutes"),
        ({"job_memory_bytes": 1_000_000}, "took more than 0.001 GB of memory"),
        ({"job_disk_bytes": 0}, "took more than 0 GB of disk space"),
    ],
)
def test_a_job_that_takes_too_much_is_stopped_and_told_what(make_runner, add, over, limits, said):
    make_runner(**limits)
    job = over(add("waits"))
    assert job.state is State.FAILED
    assert said in job.error
    assert "higher --job-" in job.hint


def test_a_program_that_is_not_there(make_runner, add, over, tmp_path):
    make_runner(package_command=(str(tmp_path / "none"),))
    job = over(add())
    assert (job.state, job.error) == (State.FAILED, "the worker ended with status 1")


def test_data_that_the_operator_took_away(make_runner, add, over):
    make_runner()
    job = over(add(data="gone"))
    assert job.state is State.FAILED
    assert "no longer has data 'gone'" in job.error


def test_data_that_the_operator_broke_fails_the_job_and_not_the_server(make_runner, add, over, data):
    data.mkdir(exist_ok=True)
    (data / "data.toml").write_text("mine =")
    make_runner()
    assert "data.toml is not valid TOML" in over(add()).error
    (data / "data.toml").unlink()
    assert over(add()).state is State.DONE


def test_jobs_wait_for_their_turn(make_runner, add, over, store, at_work, let_go):
    make_runner()
    first, second = add("waits"), add("waits")
    at_work(first)
    assert store.find(second).state is State.QUEUED
    let_go()
    assert [over(first).state, over(second).state] == [State.DONE, State.DONE]


def test_several_run_at_once(make_runner, add, over, store, at_work, let_go):
    make_runner(jobs_at_once=2)
    jobs = [add("waits") for _ in range(3)]
    for job in jobs[:2]:
        at_work(job)
    assert store.find(jobs[2]).state is State.QUEUED
    let_go()
    assert {over(job).state for job in jobs} == {State.DONE}


def test_progress_is_read_while_it_works(make_runner, add, at_work):
    runner, job = make_runner(), add("waits")
    at_work(job)
    report = runner.workplace(job).read_progress()
    assert (report.task, report.share, report.note, report.elapsed_s) == ("tune", 0.25, "loss 0.5", 1.5)


# Cancelling


def test_cancelling_ends_the_worker_and_removes_its_work(make_runner, add, over, at_work, data, bundles):
    runner, job = make_runner(), add("waits")
    pid = at_work(job)
    assert runner.cancel(job).state is State.CANCELLED
    assert mark_of(pid) is None
    assert not (data / "jobs" / job).exists()
    assert not any(bundles.iterdir())
    assert over(add()).state is State.DONE  # the place is free


def test_cancelling_a_job_that_waits_and_twice(make_runner, add, at_work):
    runner, first, second = make_runner(), add("waits"), add("waits")
    at_work(first)
    for _ in range(2):
        assert runner.cancel(second).state is State.CANCELLED


def test_cancelling_what_is_over_changes_nothing(make_runner, add, over):
    runner = make_runner()
    done, failed = over(add()), over(add("crashes"))
    assert runner.cancel(done.id) == done
    assert runner.cancel(failed.id) == failed
    assert runner.workplace(done.id).out.exists()


# Servers that end and begin


def test_a_server_that_ends_ends_its_workers_and_the_next_one_goes_on(make_runner, add, over, store, at_work, let_go):
    first, job = make_runner(), add("waits")
    pid = at_work(job)
    first.close()
    assert mark_of(pid) is None
    assert store.find(job).state is State.RUNNING
    let_go()
    second = make_runner()
    assert (over(job).state, over(job).version) == (State.DONE, 1)
    assert "packaging resumes" in second.workplace(job).read_log(max_bytes=1000)


def test_a_worker_that_outlived_its_server_is_ended_before_its_job_goes_on(make_runner, add, over, store, leases):
    job = add()
    taken, _ = leases.take()
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    store.note_worker(taken, mark_of(orphan.pid))
    make_runner()
    assert orphan.wait(20) == -9
    assert (over(job).state, over(job).version) == (State.DONE, 1)


def test_cancelling_a_job_whose_worker_is_of_an_earlier_server(make_runner, add, store, eventually):
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    runner, job = make_runner(), add("waits")
    eventually(lambda: store.find(job).state is State.RUNNING)
    runner.close()
    store.note_worker(store.find(job), mark_of(orphan.pid))
    make_runner().cancel(job)
    assert orphan.wait(20) == -9
    assert store.find(job).state is State.CANCELLED


def test_a_process_that_has_only_the_number_of_a_worker_is_left_alone(make_runner, add, over, store, leases):
    job = add()
    taken, _ = leases.take()
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        store.note_worker(taken, f"{other.pid} an-earlier-boot/17")
        make_runner()
        assert over(job).state is State.DONE
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_server_killed_between_publishing_and_saying_so(make_runner, add, over, store, bundles):
    runner = make_runner()
    job = over(add()).id
    digest = seal(runner.workplace(job).out, name="served", version=1, signer=None, now_s=0)
    store.note_publication(job, name="served", version=1, digest=digest, by="boss")
    shutil.move(runner.workplace(job).out, bundles / "served-1")
    runner.close()
    runner = make_runner()
    with pytest.raises(ConflictError, match="published as served 1"):
        runner.publish(job, name="digits", by="other")
    again = runner.publish(job, name="served", by="other")
    assert (again.published_version, again.published_by) == (1, "boss")
    assert [path.name for path in bundles.iterdir()] == ["served-1"]


def test_a_server_killed_just_before_publishing(make_runner, add, over, store, bundles):
    runner = make_runner()
    job = over(add()).id
    digest = seal(runner.workplace(job).out, name="served", version=1, signer=None, now_s=0)
    store.note_publication(job, name="served", version=1, digest=digest, by="boss")
    assert runner.publish(job, name="served", by="boss").digest == Bundle.open(bundles / "served-1").digest


def test_folders_of_requests_that_were_cut_short_are_removed(make_runner, add, store, data):
    kept = add("waits")
    (data / "jobs" / "half").mkdir()
    (data / "jobs" / "half" / "part-0").write_text("x")
    make_runner()
    assert {path.name for path in (data / "jobs").iterdir() if path.is_dir()} == {kept}


def test_of_two_servers_with_one_data_folder_one_runs_the_jobs(
    make_runner, add, over, store, at_work, eventually, let_go
):
    first = make_runner()
    second = make_runner()
    job = add("waits")
    pid = at_work(job)
    assert mark_of(pid) is not None
    first.require_ours()
    with pytest.raises(ConflictError, match="another server"):
        second.require_ours()
    with pytest.raises(ConflictError):
        second.cancel(job)
    assert store.find(job).state is State.RUNNING
    let_go()
    assert over(job).state is State.DONE
    first.close()
    eventually(lambda: not raises(second.require_ours))  # it takes over
    assert over(add()).state is State.DONE


def raises(function):
    try:
        function()
    except ConflictError:
        return True
    return False


# Room


def test_old_jobs_are_forgotten_with_their_folders(make_runner, add, over, store, data, eventually):
    make_runner(keep_jobs=2)
    jobs = [over(add("crashes")).id for _ in range(4)]
    eventually(lambda: store.ids() == set(jobs[2:]))
    eventually(lambda: {path.name for path in (data / "jobs").iterdir() if path.is_dir()} == set(jobs[2:]))


def test_a_folder_that_cannot_be_written_fails_the_job(make_runner, add, over, data):
    runner = make_runner()
    runner.close()
    job = add()
    (data / "jobs" / job).rmdir()
    (data / "jobs" / job).write_text("no folder")
    make_runner()
    assert over(job).state is State.FAILED
    assert over(job).error.startswith("the worker could not be started: ")
