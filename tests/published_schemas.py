"""JSON schemas as they are published, whatever the version of the library that wrote them."""

from __future__ import annotations

import inspect
import json
from typing import Any


def published(schema: Any) -> Any:
    """``schema`` as JSON, its descriptions without the indentation that they have in the code: msgspec ≥ 0.23."""
    return json.loads(json.dumps(schema), object_hook=_without_indentation)


def _without_indentation(entry: dict[str, Any]) -> dict[str, Any]:
    text = entry.get("description")
    return entry | {"description": inspect.cleandoc(text)} if isinstance(text, str) else entry
