"""What an NPU takes of a model, before any training."""

from __future__ import annotations

import subprocess
import sys

import pytest

from device_sdk.supernet.blocks import CompiledFor, RefusedNodes
from packager.doctor.npu import NpuBlock, NpuFindings, npu_findings
from packager.doctor.verdicts import npu
from packager.npu.chips import CHIPS

ACOS = RefusedNodes("Acos", 1, "unknown")
# Without the compiler: the module cannot be imported, as if the extra were not installed.
WITHOUT = """
import sys
sys.modules["onnxruntime_qnn"] = None
from packager.npu.compiler import Compiler
from device_sdk.errors import MissingExtraError
try:
    Compiler()
except MissingExtraError as error:
    print(error, "|", error.hint)
"""


def record(chip: str, nodes: int, *refused: RefusedNodes) -> CompiledFor:
    return CompiledFor(chip, "QNNExecutionProvider", "onnxruntime-qnn 2.7.0", nodes, refused)


FOUND = NpuFindings(
    ("v73", "v68"),
    (
        NpuBlock("o0", 60, "8 bits", 0.001, (record("v73", 4), record("v68", 3, ACOS))),
        NpuBlock("o1", 40, "16 bits", 0.3, (record("v73", 4), record("v68", 4)), "its error would be 0.3"),
    ),
)


def test_a_block_counts_by_its_macs_and_its_share_of_nodes_and_one_without_rendition_not_at_all():
    assert FOUND.macs_share("v73") == pytest.approx(0.6)
    assert FOUND.macs_share("v68") == pytest.approx(0.45)


def test_the_verdict_names_the_share_of_each_chip_and_the_reasons_are_listed():
    verdict = npu(FOUND)
    assert verdict.possible
    assert verdict.says == "v73 takes 60%, v68 takes 45% of the MACs; 3 reasons for the rest below"
    assert FOUND.refusals("v68") == ["  1 Acos in o0: unknown", "  o1: its error would be 0.3"]


def test_without_blocks_the_verdict_says_why():
    verdict = npu(NpuFindings(("v73",), note="not compiled for NPUs: no reason"))
    assert (verdict.possible, verdict.says) == (False, "not compiled for NPUs: no reason")


def test_a_missing_extra_is_named_with_what_installs_it():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60)
    assert done.stdout == "this needs onnxruntime_qnn, which is not installed | pip install 'pathweave[qnn]'\n"


def test_all_blocks_of_a_small_network_are_taken(qnn, tiny_traced, noise):
    found = npu_findings(tiny_traced, noise(8, 1, 8, 8), [CHIPS["v73"]])
    assert [block.id for block in found.blocks] == [f"o{at}" for at in range(len(tiny_traced.blocks))]
    assert found.macs_share("v73") == 1.0
    described = found.described()
    assert described["chips"] == {"v73": {"macs_share": 1.0}}
    assert described["blocks"][0]["chips"]["v73"] == {"share": 1.0, "refused": []}
