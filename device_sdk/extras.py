"""Optional dependencies: asked for where they are used, explained where they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from device_sdk.errors import MissingExtraError


def require(module: str, *, extra: str) -> ModuleType:
    """Import ``module``, or say which extra of the distribution ``pathweave`` brings it.

    Raises:
        MissingExtraError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.split(".")[0] == error.name.split(".")[0]:
            raise MissingExtraError(module, extra=extra) from error
        raise
