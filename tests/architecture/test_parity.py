"""docs/parity.md says what is there in Python, in Kotlin or in both: it moves with either."""

from __future__ import annotations

import subprocess
import sys
from difflib import unified_diff
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "contract" / "write_parity.py"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    target = tmp_path_factory.mktemp("parity") / "parity.md"
    subprocess.run([sys.executable, SCRIPT, target], check=True, timeout=60)
    return target.read_text().splitlines()


def test_the_table_is_what_the_sources_say(written):
    committed = (ROOT / "docs" / "parity.md").read_text().splitlines()
    moved = [line for line in unified_diff(committed, written, "docs/parity.md", "the sources", n=0, lineterm="")]
    hint = "one side moved: mirror it in the other, or say so with `python tests/contract/write_parity.py`"
    assert not moved, "\n".join([hint, *moved])


def test_what_the_contract_holds_together_is_in_both(written):
    held = {line.split("`")[1]: line.split("|")[-2].strip() for line in written if line.startswith("| `")}
    for name, vectors in [
        ("SplitMix64", "vectors"),
        ("Subnet", "vectors"),
        ("SearchProblem", "searches"),
        ("find_subnets", "searches"),
        ("make_strategy", "adaptations"),
        ("search_positions", "adaptations"),
    ]:
        assert vectors in held[name], name


def test_members_of_one_side_alone_are_found(written):
    line = next(line for line in written if line.startswith("| `AdaptiveModel`"))
    assert "warmUp" in line.split("Kotlin:")[0]  # Python's alone
    assert "adaptBlocking" in line.split("Kotlin:")[1]
    assert " adapt," not in line
