"""tests/contract/tokenizers.json, which holds Kotlin's tokenizers to the library's, is what the library says here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_sdk.data.kinds.texts import TextTokenizer

pytest.importorskip("tokenizers", reason="needs the extra: pip install 'pathweave[text]'")

VECTORS = json.loads((Path(__file__).parents[3] / "contract" / "tokenizers.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", VECTORS["tokenizers"], ids=lambda case: case["name"])
def test_the_library_gives_the_tokens_of_the_vectors(case):
    tokenizer = TextTokenizer(json.dumps(case["tokenizer"]).encode(), max_tokens=VECTORS["max_tokens"])
    assert [one.ids.tolist() for one in tokenizer.encode(VECTORS["texts"])] == case["ids"]
