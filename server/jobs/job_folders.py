"""The folders of jobs in a data folder, the data that jobs may name, and what paths are called outside."""

from __future__ import annotations

import contextlib

from device_sdk.errors import PathweaveError
from server.jobs.data_sets import data_references, locations
from server.jobs.workplace import Workplace
from server.settings import Settings

DATA_FILE = "data.toml"


class JobFolders:
    """``settings.data_folder`` with a folder for each job, and ``data.toml``."""

    def __init__(self, settings: Settings) -> None:
        self._data_folder, self._served = settings.data_folder.absolute(), settings.folder
        self.jobs = self._data_folder / "jobs"

    def workplace(self, job_id: str) -> Workplace:
        """The folder of a job."""
        return Workplace(self.jobs / job_id)

    def references(self) -> dict[str, str]:
        """Data references by name (ConfigurationError if ``data.toml`` is invalid)."""
        return data_references(self._data_folder / DATA_FILE)

    def names_of_paths(self, job_id: str) -> dict[str, str]:
        """Replacements for paths of this machine in messages to clients."""
        folders = [self.workplace(job_id).folder, self._data_folder]
        if self._served is not None:
            folders.append(self._served.absolute())
        names = {f"{folder}/": "" for folder in folders}
        with contextlib.suppress(PathweaveError):
            names |= locations(self.references())
        return names
