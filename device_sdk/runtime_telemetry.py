"""Telemetry of ONNX Runtime: off, before anything imports it.

From 1.29 on, importing it on Linux, macOS or Android starts an uploader, and leaves a device identifier and a queue of
events below ``~/.cache``. It looks at the environment once, while it is imported, and later calls stop only a part of
the events. On Windows it writes trace events that stay on the machine unless a trace session collects them;
``OnnxRuntime`` switches those off by a call.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, MutableMapping

VARIABLE = "ORT_DISABLE_TELEMETRY"
_OFF = "1"
_SENDS_FROM = (1, 29)
_MEANS_OFF = ("1", "true", "yes", "on", "y")

_log = logging.getLogger(__name__)


def disable_runtime_telemetry(environment: MutableMapping[str, str], *, imported: Mapping[str, object]) -> None:
    """Set ``environment`` so that ONNX Runtime, here and in child processes, sends and keeps nothing.

    ``imported``: the modules that are imported already, by name; where the runtime is one of them and its telemetry was
    on, only a warning remains.
    """
    if environment.get(VARIABLE, "").strip().lower() in _MEANS_OFF:
        return
    if _sends(imported.get("onnxruntime")):
        _log.warning(
            "onnxruntime was imported before pathweave, and may have begun to send telemetry: import pathweave first, "
            "or set %s=1",
            VARIABLE,
        )
    environment[VARIABLE] = _OFF


def _sends(runtime: object) -> bool:
    """True if an imported ``runtime`` is of a version with telemetry."""
    version = re.match(r"(\d+)\.(\d+)", str(getattr(runtime, "__version__", "")))
    return version is not None and (int(version[1]), int(version[2])) >= _SENDS_FROM
