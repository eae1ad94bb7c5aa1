"""The data sets that jobs can refer to by name. Their paths are configured on the server, never in a request."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from device_sdk.supernet.blocks import IDENTIFIER
from server.errors import ConfigurationError

BUILT_IN = ("digits#train", "digits#search", "digits#calibration", "digits#report")
_DIGITS = "digits"


def data_references(path: Path) -> dict[str, str]:
    """References by name: built-in ones, and those in the TOML file ``path`` if it exists.

    ``NAME = "/folder/of/images"``, ``"/images.zip#search"`` or ``"digits#train"``; relative paths start at the file's
    folder.

    Raises:
        ConfigurationError: the file cannot be read or is invalid.
    """
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        entries = {}
    except OSError as error:
        raise ConfigurationError(f"the server's {path.name} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the server's {path.name} is not valid TOML: {error}") from error
    return {name: name for name in BUILT_IN} | {name: _reference(name, value, path) for name, value in entries.items()}


def _reference(name: str, value: object, path: Path) -> str:
    if not IDENTIFIER.fullmatch(name) or not isinstance(value, str) or not value.partition("#")[0]:
        raise ConfigurationError(
            f"{name[:80]} in the server's {path.name} is wrong", hint='write NAME = "/path/to/images#part"'
        )
    location, separator, part = value.partition("#")
    if location == _DIGITS:
        return value
    return f"{path.parent.absolute() / location}{separator}{part}"


def locations(references: Mapping[str, str]) -> dict[str, str]:
    """Name by path, for messages that must not reveal paths."""
    found = {reference.partition("#")[0]: name for name, reference in references.items()}
    return {location: name for location, name in found.items() if location != _DIGITS}
