from __future__ import annotations

import pytest

COMMANDS = [
    ["run", "--data", "photos"],
    ["adapt", "--data", "photos", "--latency-ms", "5"],
    ["adapt", "--consider", "split", "--uplink-mbps", "3", "--privacy", "activations"],
    ["profile"],
    ["fetch"],
    ["logs"],
]
NOWHERE = "http://127.0.0.1:1/v1/bundles/tiny"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_asks_whom_to_trust_at_an_address(pathweave, tmp_path, command):
    name, *options = command
    status, _, err = pathweave(name, NOWHERE, *options, "--state", tmp_path)
    assert status == 2
    assert err[0].startswith(f"error: who signed the bundle at {NOWHERE}? Give trust")
    assert "--no-trust" in err[1]


def test_a_key_and_nobody_cannot_both_be_trusted(pathweave, tmp_path, tiny_bundle):
    status, _, err = pathweave("logs", NOWHERE, "--trust", tiny_bundle.public_key, "--no-trust", "--state", tmp_path)
    assert (status, err[0]) == (2, "error: give --trust or --no-trust, not both")


def test_with_no_trust_the_address_is_asked(pathweave, tmp_path):
    status, _, err = pathweave("profile", NOWHERE, "--no-trust", "--state", tmp_path)
    assert status == 1
    assert "no connection" in err[0]
