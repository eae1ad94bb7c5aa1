"""The real packager on two machines: the second one goes on with what the first one had saved."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'pathweave[packager]'")

import torch

from device_sdk.bundles.bundle import Bundle
from tests.server.jobs.conftest import eventually
from tests.server.jobs.test_with_packager import REQUEST, TINY
from tests.server.jobs.test_workers import Yard


@pytest.mark.slow
def test_training_goes_on_on_another_machine(tmp_path, postgres):
    (tmp_path / "shared").mkdir()
    with ExitStack() as stack:
        command = (sys.executable, "-m", "pathweave", "package")
        yard = Yard(tmp_path, str(tmp_path / "shared"), postgres.new(), command, stack)
        first = yard.machine("a")
        address = yard.add({**REQUEST, "recipe": {**TINY, "steps": 30}})
        saved = eventually(lambda: saved_in(yard, address, tmp_path / "copy", "tune"), patience_s=120)
        first.kill()
        second = yard.machine("b")
        assert "distil" not in tasks_until_done(yard, address, second.name)
        assert "packaging resumes" in yard.log(address)
        yard.servers.post(f"{address}/publish", {})
        bundle = Bundle.open(tmp_path / "shared" / "digits-1")
        bundle.verify()
        assert bundle.manifest.metrics.distil_steps + bundle.manifest.metrics.tune_steps == 30
        seconds = json.loads((tmp_path / "shared" / "digits-1" / "packaging.json").read_bytes())["seconds"]
        assert seconds > saved["seconds"]


def tasks_until_done(yard, address, owner):
    """The tasks that a machine reports."""
    tasks = set()

    def is_done():
        told = yard.told(address)
        if told["progress"] and yard.owner(address) == owner:
            tasks.add(told["progress"]["task"])
        assert told["state"] in ("queued", "running", "done"), told
        return told["state"] == "done"

    eventually(is_done, patience_s=120)
    assert "trace and expand" in tasks
    return tasks


def saved_in(yard, address, path, phase):
    """The stored training state, once it is of a phase."""
    job_id = address.rpartition("/")[2]
    files = json.loads(yard.servers.services.jobs.checkpoint_of(job_id) or "[]")
    digests = [one["digest"] for one in files if one["path"] == "state.pt"]
    if not digests:
        return None
    try:
        yard.servers.services.runner._files._objects.fetch(job_id, digests[0], path)
    except Exception:
        return None  # it was replaced meanwhile
    state = torch.load(path, weights_only=True)
    return state if state.get("phase") == phase else None
