"""Records of a manifest, summed up."""

from __future__ import annotations

import msgspec
import pytest

from device_sdk.supernet.blocks import Block, CompiledFor, Golden, RefusedNodes, Rendition
from packager.npu.records import chip_records, outdated

MISH = RefusedNodes("Mish", 1, "unknown")


def block(name: str, macs: int, *compiled: CompiledFor, kind: str = "original") -> Block:
    renditions = (
        Rendition("fp32", "onnxruntime", "0" * 64, 1, Golden((), 0.0)),
        Rendition("htp", "onnxruntime", "1" * 64, 1, Golden((), 0.0), compiled=compiled),
    )
    return Block(name, 0, 1, kind, 0, macs, renditions)


def compiled(chip: str, nodes: int, *refused: RefusedNodes, version: str = "2.7.0") -> CompiledFor:
    return CompiledFor(chip, "QNNExecutionProvider", f"onnxruntime-qnn {version}", nodes, refused)


BLOCKS = [
    block("o0", 30, compiled("v73", 4), compiled("v68", 4)),
    block("o1", 50, compiled("v73", 3, MISH), compiled("v68", 0, MISH)),
    block("o2", 20, compiled("v73", 5)),
    block("m0-2", 10, compiled("v73", 4), kind="merged"),
]


def test_a_chip_takes_its_share_of_the_original_path_alone():
    v73, v68 = chip_records(BLOCKS)
    assert v73.macs_share == pytest.approx(0.3 + 0.5 * 0.75 + 0.2)
    assert (v73.blocks, v73.without) == (4, ())
    assert v68.macs_share == pytest.approx(0.3)
    assert v68.without == ("o1", "o2")


def test_each_operator_and_reason_has_one_line_with_its_blocks():
    blocks = [*BLOCKS, block("o3", 0, compiled("v73", 1, MISH, RefusedNodes("Det", 2, "other")))]
    assert chip_records(blocks)[0].lines() == [
        "v73 (onnxruntime-qnn 2.7.0): takes 88% of the MACs of the original path",
        "  2 Mish in o1, o3: unknown",
        "  2 Det in o3: other",
    ]
    assert chip_records(BLOCKS)[1].lines()[0].endswith("30% of the MACs of the original path, none of o1, o2")


@pytest.mark.parametrize(
    ("version", "installed", "old"),
    [
        ("2.6.0", "onnxruntime-qnn 2.7.0", True),
        ("2.7.0", "onnxruntime-qnn 2.10.0", True),
        ("2.7.0", "onnxruntime-qnn 2.7.0", False),
        ("2.8.0", "onnxruntime-qnn 2.7.0", False),
        ("2.6.0", "another 2.7.0", False),
        ("2.6.0", None, False),
        ("no version", "onnxruntime-qnn 2.7.0", True),
    ],
)
def test_a_record_of_an_older_compiler_than_the_installed_one_is_named_in_one_line(version, installed, old):
    records = chip_records([block("o0", 1, compiled("v73", 1, version=version))])
    said = outdated(records, installed)
    if not old:
        assert said is None
    else:
        name = f"onnxruntime-qnn {version}"
        assert said == f"compiled for v73 by {name}; {installed} is installed: package again"


def test_a_bundle_without_records_says_nothing():
    assert chip_records([block("o0", 1)]) == ()
    assert outdated((), "onnxruntime-qnn 2.7.0") is None


@pytest.mark.parametrize(
    "record",
    [
        {"chip": "v" * 129},
        {"nodes": -1},
        {"refused": [{"operator": "Mish", "count": 1, "reason": "r"}] * 65},
        {"refused": [{"operator": "Mish", "count": 0, "reason": "r"}]},
        {"refused": [{"operator": "Mish", "count": 1, "reason": "r" * 401}]},
    ],
)
def test_records_of_a_manifest_are_bounded(record):
    whole = {"chip": "v73", "provider": "p", "compiler": "c 1", "nodes": 1, "refused": []}
    assert msgspec.convert(whole, CompiledFor).share == 1.0
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(whole | record, CompiledFor)
