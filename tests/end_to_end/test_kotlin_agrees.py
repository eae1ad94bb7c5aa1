"""The Kotlin core and the Python SDK make the same of one bundle: answers, counts, samples."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.runnable import golden_inputs
from device_sdk.fragments.composition import Stretch
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.blocks import CutPoint
from device_sdk.supernet.paths import architecture_count, k_cheapest, sample_uniformly, subnet_count
from device_sdk.supernet.plan import ExitChoice, size_text

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FAMILY = ROOT / "tests" / "packager" / "family" / "networks.py"
SEED, COUNT = 2**64 - 1, 20


@pytest.fixture(scope="module", params=["one network", "family"])
def signed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A bundle's folder and the key that it is signed with: the demo's, and one of two networks."""
    if request.param == "one network":
        demo: Path = request.getfixturevalue("demo_folder")
        return demo / "bundles" / "digits", demo / "demo.pub"
    folder = tmp_path_factory.mktemp("family")
    shutil.copy(FAMILY, folder / "users_family.py")
    key = folder / "me"
    pathweave("sign", "key", "new", key, folder=folder)
    networks = ("--model", "users_family:large", "--member", "users_family:small")
    data = ("--data", "digits#train", "--val", "digits#search", "--rendition", "int8", "--steps", 0)
    pathweave("package", *networks, *data, "--out", "bundle", "--key", f"{key}.key", folder=folder)
    return folder / "bundle", folder / "me.pub"


def pathweave(*arguments: object, folder: Path) -> None:
    command = [sys.executable, "-m", "pathweave", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def kotlin(classpath: str, signed: tuple[Path, Path]) -> dict[str, Any]:
    bundle, trusted = signed
    options = ["--trust", str(trusted), "--seed", str(SEED), "--count", str(COUNT)]
    command = ["java", "-cp", classpath, "pathweave.sdk.commands.CliKt", str(bundle), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def bundle(signed: tuple[Path, Path]) -> Bundle:
    return Bundle.open(signed[0])


def test_all_golden_inputs_get_the_same_classes(kotlin: dict[str, Any], bundle: Bundle) -> None:
    runtime, supernet = OnnxRuntime(threads=1), bundle.supernet

    def argmax(stretch: Stretch, start: CutPoint) -> list[int]:
        tested = bundle.manifest.self_test
        output = runtime.load(stretch).run(golden_inputs(start, seed=tested.seed, batch=tested.batch))[-1]
        return output.reshape(len(output), -1).argmax(axis=1).tolist()

    cuts = supernet.cut_points
    expected = {
        f"block {edge}": argmax(bundle.stretch((edge,)), cuts[supernet.block(edge.block).start])
        for edge in supernet.edges
        if not edge.input_size
    }
    expected |= {
        f"exit {one.id}": argmax(bundle.stretch((), ExitChoice(one.id, 1.0)), cuts[one.position])
        for one in supernet.exits
    }
    expected["the original path"] = argmax(bundle.stretch(supernet.original.edges), cuts[0])
    for one in supernet.input_sizes:
        path = bundle.stretch(supernet.any_size_original.at(one.size).edges)
        expected[f"the original path at {size_text(one.size)}"] = argmax(path, supernet.cut_points_at(one.size)[0])
    assert kotlin["self_test_passed"] is True
    assert kotlin["argmax"] == expected


def test_counts_samples_and_cheapest_subnets_are_the_same(kotlin: dict[str, Any], bundle: Bundle) -> None:
    supernet = bundle.supernet
    assert kotlin["architecture_count"] == str(architecture_count(supernet))
    assert kotlin["subnet_count"] == str(subnet_count(supernet))
    sampled = sample_uniformly(supernet, count=COUNT, random=SplitMix64(SEED))
    assert kotlin["samples"] == [str(subnet) for subnet in sampled]
    cheapest = k_cheapest(supernet, lambda edge: float(supernet.block(edge.block).macs), k=COUNT)
    assert kotlin["cheapest_by_macs"] == [str(subnet) for _, subnet in cheapest]


def test_a_bundle_that_another_key_signed_is_refused_in_kotlin_too(
    classpath: str, demo_folder: Path, tmp_path: Path
) -> None:
    from device_sdk.signing.signatures import new_key_pair

    stranger = tmp_path / "stranger.pub"
    stranger.write_bytes(new_key_pair()[1])
    bundle = demo_folder / "bundles" / "digits"
    command = ["java", "-cp", classpath, "pathweave.sdk.commands.CliKt", str(bundle), "--trust", str(stranger)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "signature" in done.stderr
