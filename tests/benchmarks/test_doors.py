from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'pathweave[packager]'")

import torch
from torch import nn

from benchmarks.doors import bench, check, files


def row(network: str, file: str, *, exported: bool = True, passed: bool = True) -> dict[str, object]:
    return {"network": network, "file": file, "exported": exported, "passed": passed}


def test_a_network_counts_if_all_of_its_files_pass():
    table = [
        *(row("a", "pt2"), row("a", "pt2"), row("b", "pt2"), row("b", "pt2", passed=False)),
        *(row("a", "onnx"), row("b", "onnx")),
    ]

    figures = bench._shares(table, ["a", "b"])

    assert (figures["pt2_share"], figures["pt2_files_share"]) == (0.5, 0.75)
    assert figures["onnx_share"] == 1.0


def test_a_network_that_no_exporter_writes_does_not_count_as_passed():
    table = [row("a", "onnx", exported=False, passed=False), row("b", "onnx"), row("b", "onnx", exported=False)]

    assert bench._shares(table, ["a", "b"])["onnx_share"] == 0.5


def test_every_opset_from_13_to_21_and_both_exporters_are_tried():
    made = [export for name in files.NETWORKS for export in files.exports_of(name) if export.kind == "onnx"]

    assert {export.opset for export in made} == set(range(13, 22))
    assert {export.exporter for export in made} == {"dynamo", "torchscript"}
    assert len(files.NETWORKS) == 35
    assert set(files.QUICK_NETWORKS) <= set(files.NETWORKS)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.first(images)))).mean((2, 3)))


def test_files_of_a_network_pass_and_say_how_far_they_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    torch.manual_seed(0)
    model, name = Small().eval(), files.NETWORKS[0]
    monkeypatch.setattr(check, "MODELS", {name: lambda: (model, torch.randn(4, 3, 8, 8))})

    rows = check.check(name)

    assert all(one["passed"] for one in rows), rows
    assert all(float(str(one["difference"])) < 1e-4 for one in rows)
