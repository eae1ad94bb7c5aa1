"""Models of maps and boxes from the command line: packaged, adapted and run on folders of images with targets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from pathweave.cli import main

SIDE, CELLS = 32, 4
COLOURS = ((220, 30, 30), (30, 220, 30), (30, 30, 220))
NAMES = "red\ngreen\nblue\n"


class Painter(nn.Module):
    """Tells the colour of each pixel of a quarter of the resolution: two convolutions, then one of 1×1."""

    preprocessing = {"scale": 1 / 255, "mean": [0.5] * 3, "std": [0.25] * 3}  # noqa: RUF012
    input_shape = (3, SIDE, SIDE)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.third = nn.Conv2d(8, 8, 3, 1, 1)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images [n, 3, rows, columns] → logits [n, 3, rows / 4, columns / 4]."""
        features = self.second(self.first(images).relu()).relu()
        return self.head((self.third(features) + features).relu())


class Finder(Painter):
    """The same with a box of the size of an eighth around each cell."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(8, 3 + 4, 1)
        nn.init.constant_(self.head.bias[3:], float(np.log(1 / 8)))
        nn.init.zeros_(self.head.weight[3:])


def painter() -> nn.Module:
    """Trained on squares of one colour."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, (images, maps) = Painter(), _squares(40, 0)
        inputs = torch.from_numpy((images / 255 - 0.5) / 0.25).float().permute(0, 3, 1, 2)
        small = torch.from_numpy(maps[:, 2::4, 2::4].astype(np.int64))
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs), small).backward()
            optimizer.step()
        return module.eval().requires_grad_(False)


def finder() -> nn.Module:
    """Untrained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Finder().eval().requires_grad_(False)


def _squares(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [count, side, side, 3] of four squares each, and the number of each pixel's colour."""
    chance = np.random.default_rng(seed)
    maps = chance.integers(0, 3, (count, 2, 2)).repeat(SIDE // 2, 1).repeat(SIDE // 2, 2).astype(np.uint8)
    noise = chance.normal(0, 12, (count, SIDE, SIDE, 3))
    return (np.array(COLOURS)[maps] + noise).clip(0, 255).astype(np.uint8), maps


def _write(root: Path, count: int, seed: int, *, boxes: bool) -> Path:
    for number, (image, map_) in enumerate(zip(*_squares(count, seed), strict=True)):
        for folder in ("images", "labels"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / "images" / f"{number:02}.png")
        if boxes:
            (root / "labels" / f"{number:02}.txt").write_text(f"{map_[0, 0]} 0.25 0.25 0.5 0.5\n")
        else:
            Image.fromarray(map_).save(root / "labels" / f"{number:02}.png")
    return root


@pytest.fixture(scope="module", params=["segmentation", "detection"])
def made(request, tmp_path_factory):
    """The task, its private data and its bundle."""
    found, boxes = tmp_path_factory.mktemp(request.param), request.param == "detection"
    data = [str(_write(found / name, 24, seed, boxes=boxes)) for seed, name in enumerate(("train", "val", "private"))]
    (found / "names.txt").write_text(NAMES)
    model = f"tests.packager.test_targets:{'finder' if boxes else 'painter'}"
    arguments = [
        "package",
        "--model",
        model,
        "--task",
        request.param,
        "--classes",
        str(found / "names.txt"),
        "--steps",
        "0",
    ]
    arguments += ["--data", data[0], "--val", data[1], "--rendition", "int8", "--input-size", "24x24"]
    assert main([*arguments, "--out", str(found / "bundle"), "--json"]) == 0
    return request.param, data[2], found / "bundle"


def _printed(capsys, *arguments) -> dict:
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_device_adapts_to_maps_and_boxes_of_files_and_is_judged_on_them(made, tmp_path, capsys):
    task, private, bundle = made
    state = ("--state", tmp_path)
    name = {"segmentation": "mIoU", "detection": "boxes found"}[task]
    before = _printed(capsys, "run", bundle, "--data", private, *state)
    assert (before["samples"], before["score_name"]) == (24, name)
    found = _printed(capsys, "adapt", bundle, "--data", private, "--latency-ratio", "2", *state)
    assert found["plan"]
    after = _printed(capsys, "run", bundle, "--data", private, *state)
    assert 0 <= after["score"] <= 1
    if task == "segmentation":
        assert before["score"] > 0.8
        assert after["score"] > before["score"] - 0.1


def test_one_image_is_answered_in_words_and_numbers(made, tmp_path, capsys):
    task, private, bundle = made
    image = Path(private) / "images" / "00.png"
    answer = _printed(capsys, "run", bundle, image, "--state", tmp_path)["answers"][0]
    if task == "segmentation":
        assert sum(one["share"] for one in answer["found"]) == pytest.approx(1, abs=0.02)
        assert {one["label"] for one in answer["found"]} <= {"red", "green", "blue"}
    else:
        assert all(set(one) == {"label", "left", "top", "right", "bottom"} for one in answer["found"])
    assert main(["run", str(bundle), str(image), "--state", str(tmp_path)]) == 0


def test_maps_need_class_names(made, tmp_path, capsys):
    task, private, _ = made
    out = ("--out", str(tmp_path / "bundle"))
    model = f"tests.packager.test_targets:{'painter' if task == 'segmentation' else 'finder'}"
    status = main(
        ["package", "--model", model, "--task", task, "--data", private, "--val", private, "--steps", "0", *out]
    )
    assert status != 0
    assert "--classes FILE" in capsys.readouterr().err
