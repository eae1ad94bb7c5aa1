"""Events that Kotlin writes to the adaptation log have the fields of the schema that servers read them by."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
KOTLIN = ROOT / "android_demo" / "core" / "src" / "main" / "kotlin"
JUDGED = {  # what rollouts judge a version by (server/rollouts/signals.py)
    "adapted",
    "infeasible",
    "out_of_reach",
    "plan_chosen",
    "profiled",
    "refused",
    "switch_failed",
    "switched",
}

_EVENT = re.compile(r'event\(\s*"(\w+)",(.*?)\n(?: {4})?\)', re.S)
_FIELD = re.compile(r'"(\w+)" to ')


def written() -> dict[str, list[str]]:
    """The fields of each event, in their order."""
    texts = [path.read_text() for path in sorted(KOTLIN.rglob("*.kt"))]
    return {name: _FIELD.findall(fields) for text in texts for name, fields in _EVENT.findall(text)}


def stated() -> dict[str, list[str]]:
    """The same of the schema."""
    kinds = json.loads((ROOT / "docs" / "adaptation_log.schema.json").read_text())["$defs"].values()
    events = [kind["properties"] for kind in kinds if "enum" in kind.get("properties", {}).get("event", {})]
    return {fields["event"]["enum"][0]: [name for name in fields if name != "event"] for fields in events}


def test_every_event_has_the_fields_of_the_schema() -> None:
    schema = stated()
    assert {name: schema.get(name) for name in written()} == written()


def test_events_that_rollouts_judge_by_are_among_them() -> None:
    assert written().keys() >= JUDGED
