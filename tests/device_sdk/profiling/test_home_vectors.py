from __future__ import annotations

import json
from pathlib import Path

from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[2] / "contract"
VECTORS = json.loads((CONTRACT / "homes.json").read_text())


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    assert not differences_from_frozen("homes", tmp_path, relative=1e-7), "python tests/contract/write_homes.py"


def test_paths_mix_homes_keep_refused_blocks_away_and_keep_limits_of_threads():
    housed = [case["housed"] for case in VECTORS["housed"]]
    assert any("~cpu-2t" in one and "~qnn-1t" in one for one in housed)
    assert not any("o2~qnn-1t" in one or "o0@int8~qnn-1t" in one for one in housed)
    assert not any("cpu-2t" in case["housed"] for case in VECTORS["housed"] if case["threads"] == 1)
