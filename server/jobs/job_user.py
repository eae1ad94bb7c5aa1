"""A system user of its own for packaging jobs: a worker may touch its job's folder and nothing of the server's.

Only a server that runs as root can give its workers another user. Unix only.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from device_sdk.errors import UsageError
from device_sdk.files.atomic import storage_errors
from server.errors import PublishError
from server.jobs.workplace import remove_entry
from server.settings import Settings, database_path

_PASSABLE = 0o711  # who knows the name of what is inside gets there; nothing can be listed
_PRIVATE = 0o700


@dataclass(frozen=True)
class JobUser:
    """A user of the system, with its group; it belongs to no other group while a job runs."""

    name: str
    uid: int
    gid: int

    @classmethod
    def named(cls, name: str) -> JobUser:
        """The user of this name.

        Raises:
            UsageError: this server may not change users, there is no such user, or it is root.
        """
        try:
            import pwd
        except ImportError as error:
            raise UsageError("this system has no users for jobs", hint="leave out --job-user") from error
        if os.geteuid() != 0:
            raise UsageError("only root can run jobs as another user", hint="start the server as root, or as that user")
        try:
            found = pwd.getpwnam(name)
        except KeyError as error:
            raise UsageError(f"there is no user {name}", hint=f"useradd --system {name}") from error
        if found.pw_uid == 0:
            raise UsageError(f"{name} may do everything", hint="name a user without rights, and of no other use")
        return cls(name, found.pw_uid, found.pw_gid)

    def open_way(self, data_folder: Path, jobs_folder: Path, private: Path) -> None:
        """Let the user pass through the server's folders to those of jobs, and read none of ``private``."""
        with storage_errors(data_folder):
            jobs_folder.mkdir(parents=True, exist_ok=True)
            for folder in (data_folder, jobs_folder):
                folder.chmod(_PASSABLE)
            for file in private.parent.glob(f"{private.name}*"):
                file.chmod(0o600)

    def give(self, folder: Path) -> None:
        """Make the user the owner of a job's folder and of all in it.

        Raises:
            StorageError: it cannot be changed.
        """
        with storage_errors(folder):
            for path in (folder, *_entries(folder)):
                os.chown(path, self.uid, self.gid, follow_symlinks=False)
            folder.chmod(_PRIVATE)

    def end_processes(self) -> None:
        """Kill all processes of the user, also those that left the worker's group: it is for one job at a time."""
        # It becomes the user itself, who need not be able to run this interpreter; on some systems it is killed too.
        lines = f"import os; os.setgroups([]); os.setgid({self.gid}); os.setuid({self.uid}); os.kill(-1, 9)"
        subprocess.run([sys.executable, "-I", "-c", lines], check=False, stderr=subprocess.DEVNULL)

    def take_back(self, folder: Path) -> None:
        """Make the server the owner again, from the outside in, once the user's last process has ended.

        Raises:
            PublishError: the worker left something other than files and folders, such as a link.
            StorageError: it cannot be changed.
        """
        self.end_processes()
        with storage_errors(folder):
            os.chown(folder, os.geteuid(), os.getegid(), follow_symlinks=False)
            for path in _entries(folder):
                state = path.lstat()
                plain = stat.S_ISREG(state.st_mode) and state.st_nlink == 1  # a hard link could lead outside the job
                if not (plain or stat.S_ISDIR(state.st_mode)):
                    remove_entry(path)
                    raise PublishError(f"the worker left {path.name}, which is neither a file of its own nor a folder")
                os.chown(path, os.geteuid(), os.getegid(), follow_symlinks=False)


def user_of(settings: Settings) -> JobUser | None:
    """The user of packaging jobs, whose way to their folders is open; None: the server's own.

    Raises:
        UsageError: there is no such user, or several jobs of it would run at once.
    """
    if settings.job_user is None:
        return None
    user = JobUser.named(settings.job_user)
    if settings.jobs_at_once > 1:
        raise UsageError("jobs of one user could read each other's folders", hint="leave out --jobs, or --job-user")
    if settings.jobs_at_once:
        data = settings.data_folder
        user.open_way(data, data / "jobs", database_path(data))
    return user


def _entries(folder: Path) -> Iterator[Path]:
    """All below a folder, each folder before what is in it; links are not followed."""
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _entries(path)
