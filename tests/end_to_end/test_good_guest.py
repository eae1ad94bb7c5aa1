"""Opening, adapting, running and serving reach nobody, and write nothing outside their own folders.

Two witnesses: an audit hook in every Python process (``sys.addaudithook``), which does not see what a library does in
machine code, and ``strace``, which sees everything. Either way the home folder is listed afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")

from device_sdk.signing import signatures
from tests.device_sdk.tiny_bundle import write_tiny_bundle

ROOT = Path(__file__).parents[2]

HOOK = """
import os, sys
out = os.open(os.environ["GUEST_NOTES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        os.write(out, f"network {event} {arguments[-1 if event == 'socket.connect' else 0]!r}\\n".encode())
    elif event == "open" and isinstance(arguments[0], (str, bytes)) and (
        (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    ):
        os.write(out, f"write {os.path.abspath(os.fsdecode(arguments[0]))}\\n".encode())
    elif event in ("os.mkdir", "os.rename", "os.link", "os.symlink", "sqlite3.connect"):
        os.write(out, f"write {os.path.abspath(os.fsdecode(arguments[event == 'os.rename']))}\\n".encode())
sys.addaudithook(note)
"""

USE = """
import sys
from pathlib import Path
import numpy as np
from pathweave import AdaptiveModel, Goal
folder = Path(sys.argv[1])
images = np.random.default_rng(0).integers(0, 256, (40, 20, 20, 3), np.uint8)
with AdaptiveModel.open(folder, threads=2) as model:
    found = model.adapt(images, Goal(latency_ms=1000), labels=np.arange(40) % 3)
    for _ in range(30):
        model(images[0])
    print(found.subnet if hasattr(found, "subnet") else "adapted")
"""


class Guest:
    """A machine of its own for a command: home, folder for temporary files, state, and notes of what it did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundle = folder / "bundles" / "tiny"
        self.home, self.state, self.temporary = folder / "home", folder / "state", folder / "tmp"
        for made in (self.home, self.temporary, folder / "hook"):
            made.mkdir()
        (folder / "key").write_bytes(signatures.new_key_pair()[0])
        write_tiny_bundle(self.bundle, folder / "key")
        (folder / "hook" / "sitecustomize.py").write_text(HOOK)
        self.notes = folder / "notes"
        self.trace = folder / "trace"

    def start(self, *arguments: str, traced: bool) -> subprocess.Popen[str]:
        """Nothing of the test's own environment is passed on: a continuous-integration run has no telemetry anyway."""
        calls = "trace=connect,sendto,sendmsg,sendmmsg,open,openat,openat2,creat,mkdir,mkdirat"
        tracer = ["strace", "-f", "-qq", "-y", "-e", calls, "-o", str(self.trace)] if traced else []
        path = [str(self.folder / "hook")] * (not traced) + [str(ROOT)]
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "PATHWEAVE_STATE": str(self.state),
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "GUEST_NOTES": str(self.notes),
        }
        return subprocess.Popen(
            [*tracer, sys.executable, *arguments], cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True
        )

    def sent(self, *, traced: bool) -> list[str]:
        """Look-ups, connections and packets to anything but this process's own loopback sockets."""
        if not traced:
            numeric = re.compile(r"network socket\.getaddrinfo b?'[0-9a-f.:]+'")  # nobody is asked
            return [line for line in self._noted() if line.startswith("network ") and not numeric.fullmatch(line)]
        wanted = re.compile(r"(connect|sendto|sendmsg|sendmmsg)\(.*(AF_INET|<(?:TCP|UDP)|<socket:)")
        return [line for line in self._traced() if wanted.search(line)]

    def written(self, *, traced: bool) -> set[Path]:
        """Files and folders that were made or opened to be written, outside the state folder and the system's own."""
        if traced:
            made = re.compile(r"(?:open\w*|creat|mkdir\w*)\((?:AT_FDCWD(?:<[^>]*>)?, )?\"([^\"]+)\"")
            lines = [line for line in self._traced() if re.search(r"O_WRONLY|O_RDWR|O_CREAT|creat\(|mkdir", line)]
            paths = {Path(found[1]) for line in lines if not line.endswith(")") and (found := made.search(line))}
        else:
            paths = {Path(line.removeprefix("write ")) for line in self._noted() if line.startswith("write ")}
        own = (self.state, Path("/dev"), Path("/proc"), self.folder / "notes")
        return {path for path in paths if not any(path.is_relative_to(folder) for folder in own)}

    def left(self) -> list[Path]:
        """Files in the home folder and the one for temporary files."""
        return [path for folder in (self.home, self.temporary) for path in folder.rglob("*") if path.is_file()]

    def _noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def _traced(self) -> list[str]:
        lines = self.trace.read_text(errors="replace").splitlines()
        return [line for line in lines if " = -1 E" not in line or "EINPROGRESS" in line]


@pytest.fixture
def guest(tmp_path):
    return Guest(tmp_path)


@pytest.fixture(params=["audit hook", "strace"])
def traced(request):
    if request.param == "strace" and shutil.which("strace") is None:
        pytest.skip("needs strace")
    return request.param == "strace"


def test_the_witnesses_see_what_a_bad_guest_does(guest, traced):
    code = """
    import socket
    from pathlib import Path
    Path("diary").write_text("seen")
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("127.0.0.1", 9))
    Path.home().joinpath("id").write_text("7")
    """
    assert guest.start("-c", textwrap.dedent(code), traced=traced).wait(timeout=100) == 0
    assert [line for line in guest.sent(traced=traced) if "connect" in line]
    assert "diary" in {path.name for path in guest.written(traced=traced)}
    assert [path.name for path in guest.left()] == ["id"]


def test_opening_adapting_and_running_reach_nobody_and_write_their_state_alone(guest, traced):
    process = guest.start("-c", USE, str(guest.bundle), traced=traced)
    output, _ = process.communicate(timeout=250)
    assert process.returncode == 0
    assert output.strip()
    assert guest.sent(traced=traced) == []
    assert guest.written(traced=traced) == set()
    assert guest.left() == []
    assert any(guest.state.rglob("*.json*"))


def test_serving_reaches_nobody_and_writes_beside_its_bundles_alone(guest, traced):
    process = guest.start("-m", "pathweave", "serve", "bundles", "--port", "0", "--json", traced=traced)
    try:
        found = re.search(r"http://[^\"]+", process.stdout.readline())
        assert found is not None
        with urllib.request.urlopen(f"{found[0]}/v2/models/tiny", timeout=60) as reply:
            assert reply.status == 200
    finally:
        _end(process, traced=traced)
    asked = ("connect", "getaddrinfo", "gethostbyname")
    assert [line for line in guest.sent(traced=traced) if any(call in line for call in asked)] == []
    assert {path for path in guest.written(traced=traced) if not path.is_relative_to(guest.folder / "bundles")} == set()
    assert guest.left() == []


def _end(process, *, traced):
    """strace passes no signal on: its child is the server."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    server = int(children.read_text().split()[0]) if traced else process.pid
    os.kill(server, signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    process.stdout.close()
