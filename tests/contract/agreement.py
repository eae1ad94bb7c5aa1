"""Frozen vectors against what their script writes here: the same but for the last digits of floats.

Kernels of numpy and BLAS add in an order of their own on every processor, and their exponentials differ in the last
bits. Numbers that must not differ stand in the vectors as integers, as text, or as the hexadecimal digits of their
bits.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONTRACT = Path(__file__).parent
ABSOLUTE = 1e-12  # what is left of a difference of nearly equal numbers
LIMIT_S = 240  # for a script on a busy machine; alone, none takes more than 15


def differences_from_frozen(
    name: str, folder: Path, *, relative: float = 1e-9, absolute: float = ABSOLUTE
) -> list[str]:
    """Where the vectors that ``write_<name>.py`` writes to ``folder`` differ from ``<name>.json``; empty: nowhere.

    A float differs when it is further away than both limits allow (``math.isclose``).
    """
    again = folder / f"{name}.json"
    subprocess.run([sys.executable, CONTRACT / f"write_{name}.py", again], check=True, timeout=LIMIT_S)
    frozen = json.loads((CONTRACT / again.name).read_text("utf-8"))
    return list(differences(frozen, json.loads(again.read_text("utf-8")), relative=relative, absolute=absolute))


def differences(frozen: Any, again: Any, *, relative: float, absolute: float = ABSOLUTE, at: str = "") -> Iterator[str]:
    """The places where two JSON documents differ; the order of keys counts, the last digits of floats do not."""
    if isinstance(frozen, dict) and isinstance(again, dict) and list(frozen) == list(again):
        pairs = [(f"{at}/{key}", frozen[key], again[key]) for key in frozen]
    elif isinstance(frozen, list) and isinstance(again, list) and len(frozen) == len(again):
        pairs = [(f"{at}/{number}", *pair) for number, pair in enumerate(zip(frozen, again, strict=True))]
    else:
        if not _same(frozen, again, relative, absolute):
            yield f"{at}: {frozen!r} is frozen, {again!r} was written"
        return
    for place, one, other in pairs:
        yield from differences(one, other, relative=relative, absolute=absolute, at=place)


def _same(frozen: Any, again: Any, relative: float, absolute: float) -> bool:
    if isinstance(frozen, float) and isinstance(again, float):
        return math.isclose(frozen, again, rel_tol=relative, abs_tol=absolute)
    return type(frozen) is type(again) and not isinstance(frozen, dict | list) and frozen == again
