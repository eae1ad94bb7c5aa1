"""``python -m benchmarks.faults.fuzz PARSER BUNDLE SECONDS SEED CORPUS``: atheris on one parser, instrumented.

It exits with 0 if nothing but errors of ours was raised; the number of executions is on standard error.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

INPUT_S, MEMORY_MB = 5, 2048  # an input that takes more is a failure
MAX_BYTES = 100_000


def main(arguments: list[str]) -> None:
    """Fuzz until the time is over; does not return."""
    import atheris

    name, folder, seconds, seed, corpus = arguments
    with atheris.instrument_imports(include=["device_sdk", "server"]):
        from benchmarks.faults.parsers import parsers
    parser = parsers(Path(folder))[name]
    for number, data in enumerate(parser.seeds):
        (Path(corpus) / f"seed-{number}").write_bytes(data)

    def try_one(data: bytes) -> None:
        with contextlib.suppress(*parser.documented):
            parser.read(data)

    limits = [f"-max_total_time={round(float(seconds))}", f"-timeout={INPUT_S}", f"-rss_limit_mb={MEMORY_MB}"]
    more = [f"-seed={int(seed) + 1}", f"-max_len={MAX_BYTES}", f"-artifact_prefix={corpus}/", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *limits, *more, corpus], try_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
