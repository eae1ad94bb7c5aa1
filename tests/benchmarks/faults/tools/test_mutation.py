from __future__ import annotations

from itertools import islice

from benchmarks.faults.tools.mutation import MAX_BYTES, mutations

SEEDS = (b'{"a": [1, 2.5], "b": "text"}', b"\x01\x02\x03\x04" * 20)


def test_a_seed_gives_the_same_inputs_again_and_another_one_others():
    first, again, other = (list(islice(mutations(SEEDS, seed=seed), 200)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_inputs_differ_from_each_other_and_are_bounded():
    found = list(islice(mutations(SEEDS, seed=0), 2000))
    assert len(set(found)) > 1500
    assert max(map(len, found)) <= MAX_BYTES
    assert any(b"9223372036854775808" in data for data in found)
