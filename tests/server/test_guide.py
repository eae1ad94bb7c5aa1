"""docs/guide/run_the_server.md says what is there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from pathweave.cli import load_command
from server.app import create_app
from server.settings import Settings

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "run_the_server.md").read_text()


def test_its_commands_have_the_options_that_it_names():
    lines = re.findall(r"^pathweave (serve|admin|worker) (.*?)(?:#.*)?$", GUIDE, flags=re.MULTILINE)
    assert len(lines) >= 6
    for name, rest in lines:
        command, words = load_command(name), iter(rest.split())
        while isinstance(command, click.Group):
            command = command.commands[next(words)]
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known, rest


def test_the_options_in_its_table_of_limits_exist():
    known = {option for parameter in load_command("serve").params for option in parameter.opts}
    named = set(re.findall(r"`(--[a-z-]+)`", GUIDE)) - {"--token", "--device"}
    assert {"--queue", "--max-batch", "--drain-s"} <= named <= known


def test_its_addresses_lead_somewhere(server):
    app = create_app(server.services.settings, services=server.services)
    adapter = app.url_map.bind("x")
    addresses = set(re.findall(r"(?:127\.0\.0\.1:8000|`)(/[a-zA-Z0-9_./:-]*)", GUIDE))
    assert len(addresses) >= 12
    for address in addresses:
        if address != "/v2/health/":  # stands for what lies below it
            assert adapter.allowed_methods(address.rstrip("/") or "/"), address


def test_its_defaults_are_the_servers(tmp_path):
    settings = Settings(tmp_path, tmp_path)
    rows = {cells[1].strip(): cells[2].strip() for line in GUIDE.splitlines() if len(cells := line.split("|")) > 3}
    assert rows["infer requests at once (`--queue`)"] == str(settings.queue_limit)
    assert rows["samples that run together (`--max-batch`)"] == str(settings.max_batch)
    assert rows["loaded models"] == str(settings.max_models)
    assert rows["JSON in an infer request"] == f"{settings.max_json_bytes // 2**20} MiB"
    assert f"the {settings.keep_log_lines:,} that arrived last are kept" in GUIDE


@pytest.mark.parametrize("field", ["status", "version", "bundles", "broken_bundles", "queue_length"])
def test_the_fields_of_health(server, field):
    assert f"`{field}`" in GUIDE
    assert field in server.ask("/health").json()
