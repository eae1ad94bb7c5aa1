"""``pathweave fetch`` and ``inspect`` on a device that may hold a part only, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from PIL import Image

from device_sdk.supernet.plan import encode_plan
from tests.device_sdk.tiny_bundle import draw_images
from tests.end_to_end.heads.conftest import HEAD_BLOCKS


@pytest.fixture
def pathweave(tmp_path, served):
    def run(command, *arguments, address=served.address, trust=("--trust", str(served.key))):
        done = subprocess.run(
            [sys.executable, "-m", "pathweave", command, address, *trust, "--state", "state", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done

    return run


def test_a_plan_in_a_file_says_what_is_fetched_and_inspect_says_what_is_here(served, pathweave, tmp_path):
    (tmp_path / "plan.json").write_bytes(encode_plan(served.plan("exit")))
    done = pathweave("fetch", "--plan", "plan.json", "--json")
    assert done.returncode == 0, done.stderr
    fetched = json.loads(done.stdout)
    assert (fetched["position"], fetched["fallback"], fetched["whole"]) == (3, "exit", False)
    assert fetched["blobs"] == len(list((tmp_path / "state" / "store" / "blobs").iterdir()))
    assert fetched["blobs"] + fetched["absent_blobs"] == len(served.bundle.manifest.blobs())
    held = json.loads(pathweave("inspect", "--json").stdout)["held"]
    assert held["blocks"] == list(HEAD_BLOCKS)
    assert (held["absent_blobs"], held["absent_bytes"]) == (fetched["absent_blobs"], fetched["absent_bytes"])
    shown = pathweave("inspect", "--brief").stdout
    assert "a part: the blocks up to cut point 3 (o0, o1, o2)" in " ".join(shown.split())
    whole = json.loads(pathweave("fetch", "--whole", "--json").stdout)
    assert whole["absent_blobs"] == 0


def test_a_split_is_chosen_by_the_servers_profile_and_only_its_head_is_fetched(served, pathweave, tmp_path):
    done = pathweave("fetch", "--memory-mb", "0.05", "--json")
    assert done.returncode == 1 or done.returncode == 2
    assert "no part of the model fits 0.05 MB" in done.stderr
    assert not list((tmp_path / "state" / "store").glob("blobs/*"))
    done = pathweave("fetch", "--fallback", "abstain", "--device-factor", "50", "--uplink-mbps", "100")
    assert done.returncode == 0, done.stderr
    assert "the device's profile: the server's, 50 times slower" in done.stdout
    assert "without the server there is no answer" in done.stdout
    again = json.loads(pathweave("fetch", "--json").stdout)
    assert again["absent_blobs"] > 0
    assert again["fallback"] == "abstain"


def test_run_answers_with_the_tail_at_the_server_and_without_it_as_the_plan_says(served, pathweave, tmp_path):
    (tmp_path / "plan.json").write_bytes(encode_plan(served.plan("exit")))
    assert pathweave("fetch", "--plan", "plan.json").returncode == 0
    Image.fromarray(draw_images(1, seed=5)[0][0]).save(tmp_path / "image.png")
    for server, source in ((("--server", served.url, "--privacy", "activations"), "server"), ((), "fallback")):
        done = pathweave("run", "image.png", *server, "--timeout-s", "5", "--json")
        assert done.returncode == 0, done.stderr
        [answer] = json.loads(done.stdout)["answers"]
        assert answer["source"] == source


@pytest.mark.parametrize(
    ("written", "said"),
    [(None, "cannot be read"), (b"{}", "of the first format"), (b"\xff", "this is no plan")],
)
def test_a_file_that_is_no_plan_is_refused_in_one_line(pathweave, tmp_path, written, said):
    if written is not None:
        (tmp_path / "plan.json").write_bytes(written)
    done = pathweave("fetch", "--plan", "plan.json")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_two_ways_to_say_what_is_fetched_are_one_too_many(pathweave):
    done = pathweave("fetch", "--whole", "--memory-mb", "2")
    assert done.returncode == 2
    assert "one of them" in done.stderr
