"""Stands in for ``pathweave package``: its options, its answers, its files. The model's name says what it does.

Run as ``fake_packager.py TINY_BUNDLE OPTIONS``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

PATIENCE_S = 60


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", type=Path)
    for option in ("--model", "--data", "--val", "--name"):
        parser.add_argument(option, required=True)
    for option in ("--out", "--recipe", "--weights"):
        parser.add_argument(option, type=Path)
    parser.add_argument("--version", type=int)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    print(f"asked for {asked.model} with {asked.recipe.read_text().split()}", file=sys.stderr, flush=True)
    return BEHAVIOUR[asked.model.removeprefix("zoo:")](asked)


def makes(asked: argparse.Namespace) -> int:
    """A bundle."""
    shutil.copytree(asked.bundle, asked.out)
    manifest = json.loads((asked.out / "manifest.json").read_bytes())
    manifest |= {"name": asked.name, "version": asked.version}
    (asked.out / "manifest.json").write_text(json.dumps(manifest))
    (asked.out / "manifest.sig").unlink()
    print(json.dumps({"bundle": str(asked.out)}))
    return 0


def looks_around(asked: argparse.Namespace) -> int:
    """A bundle, after it tried to read what is not its own."""
    print(f"uid {os.getuid()} groups {os.getgroups()}", file=sys.stderr)
    jobs = asked.out.parent.parent
    for look in (
        lambda: (jobs.parent / "server.sqlite3").read_bytes(),
        lambda: list(jobs.iterdir()),
        lambda: (jobs / "other" / "weights.safetensors").read_bytes(),
    ):
        try:
            look()
        except OSError as error:
            print(error.strerror, file=sys.stderr)
    return makes(asked)


def makes_another(asked: argparse.Namespace) -> int:
    """A bundle with another name than was asked for."""
    asked.name = "other"
    return makes(asked)


def waits(asked: argparse.Namespace) -> int:
    """Nothing, until it may: when there is a file ``go`` in the bundle's folder. Then a bundle."""
    report = {"task": "tune", "share": 0.25, "note": "loss 0.5", "elapsed_s": 1.5}
    Path(os.environ["PATHWEAVE_PROGRESS_FILE"]).write_text(json.dumps(report))
    asked.out.with_name("out.work").mkdir(exist_ok=True)
    (asked.out.with_name("out.work") / "state.pt").write_text(str(os.getpid()))
    return waits_only(asked)


def counts(asked: argparse.Namespace) -> int:
    """Steps, each saved; after the tenth, nothing until it may. It goes on after the last one that was saved."""
    work = asked.out.with_name("out.work")
    work.mkdir(exist_ok=True)
    state = work / "state.pt"
    first = int(state.read_text()) if state.exists() else 0
    print(f"goes on after step {first}", file=sys.stderr, flush=True)
    for step in range(first + 1, 11):
        new = work / ".state.pt.tmp"
        new.write_text(str(step))
        os.replace(new, state)
        time.sleep(0.02)
    return waits_only(asked)


def waits_only(asked: argparse.Namespace) -> int:
    end = time.monotonic() + PATIENCE_S
    while not (asked.bundle.parent / "go").exists() and time.monotonic() < end:
        time.sleep(0.01)
    return makes(asked)


def makes_nothing(_: argparse.Namespace) -> int:
    """A success without a bundle."""
    return 0


def fails(asked: argparse.Namespace) -> int:
    """A typed error that names paths."""
    error = {"type": "DataError", "message": f"{asked.weights or asked.data} is wrong", "hint": f"see {asked.out}"}
    print(json.dumps({"error": error}))
    return 1


def crashes(_: argparse.Namespace) -> int:
    """A status, and nothing else."""
    return 3


def dies(_: argparse.Namespace) -> int:
    """The end that a kernel gives to those who take all memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def tells_names(asked: argparse.Namespace) -> int:
    """The names in its environment."""
    print(json.dumps({"error": {"message": " ".join(sorted(os.environ)), "hint": None}}))
    return 1


def tells_secrets(_: argparse.Namespace) -> int:
    """What it knows from its environment."""
    print(json.dumps({"error": {"message": f"token {os.environ.get('PATHWEAVE_TOKEN')}", "hint": None}}))
    return 1


BEHAVIOUR = {
    behaviour.__name__: behaviour
    for behaviour in (
        makes,
        looks_around,
        makes_another,
        makes_nothing,
        waits,
        counts,
        fails,
        crashes,
        dies,
        tells_secrets,
        tells_names,
    )
}

if __name__ == "__main__":
    sys.exit(main())
