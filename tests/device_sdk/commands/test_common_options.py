"""Options of several commands are spelled alike: the same choices, type and default wherever a name stands."""

from __future__ import annotations

import importlib
from collections import defaultdict

import click
import pytest

from pathweave.cli import COMMANDS


def commands() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}

    def add(name: str, command: click.Command) -> None:
        found[name] = command
        if isinstance(command, click.Group):
            for inner, one in command.commands.items():
                add(f"{name} {inner}", one)

    for name, home in COMMANDS.items():
        module, _, attribute = home.partition(":")
        add(name, getattr(importlib.import_module(module), attribute))
    return found


@pytest.mark.parametrize("option", ["privacy", "server_model", "threads", "token", "memory_mb", "latency_ms"])
def test_an_option_means_the_same_in_every_command(option: str) -> None:
    spellings = defaultdict(list)
    for name, command in commands().items():
        for parameter in command.params:
            if parameter.name == option and isinstance(parameter, click.Option):
                kind = parameter.type
                choices = tuple(kind.choices) if isinstance(kind, click.Choice) else ()
                spellings[parameter.opts[0], kind.name, choices].append(name)
    assert len(spellings) == 1, dict(spellings)
