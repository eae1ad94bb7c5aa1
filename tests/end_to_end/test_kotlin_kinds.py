"""Bundles of texts, sounds, values, maps and boxes answer in Kotlin as in Python, and are adapted there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="needs the extra: pip install 'pathweave[text]'")

import pathweave
from device_sdk.runtimes.port import Array
from device_sdk.signing import signatures
from device_sdk.supernet.plan import Plan, size_text
from device_sdk.tasks import answer_task
from pathweave.cli import main
from pathweave.server_process import running_server
from tests.device_sdk.tiny_bundle import draw_images
from tests.device_sdk.tiny_segmenter import write_tiny_segmenter
from tests.packager import test_sounds_and_values as others
from tests.packager.small_texts import TOPICS, texts, write_texts

pytestmark = pytest.mark.slow

COUNT = 96


@dataclass(frozen=True)
class Kind:
    """A bundle, samples as ``model(samples)`` takes them and as JSON, and of classifiers the positions of classes."""

    bundle: Path
    samples: Any
    given: dict[str, Any]
    labels: list[int] | None = None


def _rows(answers: Array) -> Array:
    return answers.reshape(len(answers), -1)


def packaged(folder: Path, model: str, training: Path, validation: Path) -> Path:
    arguments = ["package", "--model", model, "--data", str(training), "--val", str(validation)]
    arguments += ["--out", str(folder / "bundle"), "--name", "kind", "--steps", "6", "--exits", "1", "--json"]
    assert main(arguments) == 0
    return folder / "bundle"


def of_texts(folder: Path) -> Kind:
    parts = [write_texts(folder / f"{name}.csv", 160, seed=at) for at, name in enumerate(("training", "validation"))]
    known = [
        *texts(COUNT - 3, 9),
        ("Café–bread, SALT & soup?", "food"),
        ("MOON\u3000月 star", "sky"),
        ("x" * 300, "sport"),
    ]
    bundle = packaged(folder, "tests.packager.small_texts:model", *parts)
    samples, labels = [text for text, _ in known], [list(TOPICS).index(label) for _, label in known]
    return Kind(bundle, samples, {"texts": samples}, labels)


def of_sounds(folder: Path) -> Kind:
    parts = [others._write_sounds(folder / name, 60, seed=at) for at, name in enumerate(("training", "validation"))]
    waves, labels = others._tones(COUNT, 30)
    samples = [(wave / 32_768).astype(np.float32)[: 900 + 2 * at] for at, wave in enumerate(waves)]
    bundle = packaged(folder, "tests.packager.test_sounds_and_values:pitch", *parts)
    return Kind(bundle, samples, {"sounds": [one.tolist() for one in samples]}, labels.tolist())


def of_values(folder: Path) -> Kind:
    for at, name in enumerate(("training", "validation")):
        values, labels = others._values(120, at)
        np.savez(folder / f"{name}.npz", x=values, y=labels)
    bundle = packaged(
        folder,
        "tests.packager.test_sounds_and_values:sensors",
        folder / "training.npz",
        folder / "validation.npz",
    )
    values, labels = others._values(COUNT, 50)
    return Kind(bundle, values, {"values": values.reshape(COUNT, -1).tolist()}, labels.tolist())


def of_images(folder: Path, *, boxes: bool) -> Kind:
    (folder / "key").write_bytes(signatures.new_key_pair()[0])
    write_tiny_segmenter(folder / "bundle", folder / "key", boxes=boxes, added=True)
    samples, _ = draw_images(40, seed=2)
    return Kind(folder / "bundle", samples, {"images": samples.reshape(len(samples), -1).tolist()})


def of_maps(folder: Path) -> Kind:
    return of_images(folder, boxes=False)


def of_boxes(folder: Path) -> Kind:
    return of_images(folder, boxes=True)


@pytest.fixture(
    scope="module", params=[of_texts, of_sounds, of_values, of_maps, of_boxes], ids=lambda make: make.__name__
)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    make: Callable[[Path], Kind] = request.param
    return make(tmp_path_factory.mktemp(make.__name__))


@pytest.fixture(scope="module")
def kotlin(classpath: str, kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("device")
    labels = {} if kind.labels is None else {"labels": kind.labels}
    (folder / "samples.json").write_text(json.dumps(kind.given | labels), "utf-8")
    command = ["java", "-Dfile.encoding=UTF-8", "-cp", classpath, "pathweave.sdk.commands.SamplesCliKt"]
    command += [str(kind.bundle), str(folder / "samples.json"), str(folder / "state"), "5.0"]
    if kind.labels is None:  # models of other tasks are not asked about hard samples
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    else:
        with running_server(kind.bundle.parent, data=folder / "server") as url:
            server = [url, "kind:texts" if "texts" in kind.given else "kind"]
            done = subprocess.run([*command, *server], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_kotlin_answers_as_python_does_at_every_size(kotlin: dict[str, Any], kind: Kind, tmp_path: Path) -> None:
    with pathweave.open(kind.bundle, state_folder=tmp_path) as model:
        supernet = model.bundle.supernet
        expected = {}
        for size in supernet.sizes:
            model.use(Plan(supernet.any_size_original.at(size) if size else supernet.original))
            expected[size_text(size)] = _rows(model(kind.samples).output)
    assert list(kotlin["by_size"]) == list(expected)
    for size, logits in kotlin["by_size"].items():
        np.testing.assert_allclose(logits, expected[size], atol=2e-3, err_msg=f"at {size}")


def test_kotlin_adapts_on_them(kotlin: dict[str, Any], kind: Kind, tmp_path: Path) -> None:
    with pathweave.open(kind.bundle, state_folder=tmp_path) as model:
        full = model(kind.samples).output
        task = answer_task(model.bundle.manifest.task)
    adapted = np.reshape(np.array(kotlin["adapted"], np.float32), full.shape)
    if kind.labels is None:
        # with five times the latency, the full model fits too
        assert task.scores(adapted, task.stand_in(full)).mean() > 0.9
        assert kotlin["expected"] > 0.9
    else:
        assert task.of(adapted, np.array(kind.labels)) > task.of(full, np.array(kind.labels)) - 0.05
    assert kotlin["plan"]


def test_a_server_answers_what_kotlin_sends(kotlin: dict[str, Any], kind: Kind, tmp_path: Path) -> None:
    if kind.labels is None:
        pytest.skip("models of other tasks are not asked about hard samples")
    assert set(kotlin["asked"]["source"]) == {"server"}
    with pathweave.open(kind.bundle, state_folder=tmp_path) as model:
        np.testing.assert_allclose(kotlin["asked"]["logits"], model(kind.samples).output, atol=2e-3)
