"""Sources of images: telling their kind, and a report of what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from device_sdk.data.file_names import is_image
from device_sdk.data.records import (
    Records,
    digit_records,
    folder_records,
    hub_records,
    listed_records,
    shard_records,
    single_record,
    some_of,
    split_reference,
    zip_records,
)
from device_sdk.errors import DataError

MAX_CORRUPT_SHARE = 0.1  # of a set; more are refused instead of left out
_NAMED = 3  # images named in a message


@dataclass(frozen=True)
class SourceReport:
    """``seen``: images of the part that was read; ``used``: of these. ``corrupt``: reasons why images were left out, by
    name; ``others``: sentences on other files there that were left out.
    """

    location: str
    seen: int
    corrupt: Mapping[str, str]
    others: tuple[str, ...] = ()

    @classmethod
    def of(cls, records: Records, corrupt: Mapping[int, str]) -> SourceReport:
        """``corrupt``: reasons by position in ``records``."""
        reasons = {records.names[position]: corrupt[position] for position in sorted(corrupt)}
        return cls(records.location, len(records), reasons, records.left_out)

    @property
    def used(self) -> int:
        """The number of images that are used."""
        return self.seen - len(self.corrupt)

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence on each kind of file that was left out."""
        if not self.corrupt:
            return self.others
        left_out = f"{len(self.corrupt)} of {self.seen} images are corrupt and were left out"
        return (f"{left_out}: {some_of(list(self.corrupt))}", *self.others)

    def require_few_corrupt(self) -> None:
        """Refuse a set of which more than a tenth is corrupt.

        Raises:
            DataError: it is; names the first few, with the reasons.
        """
        if len(self.corrupt) > MAX_CORRUPT_SHARE * self.seen:
            raise DataError(
                f"{len(self.corrupt)} of the {self.seen} images of {self.location} are corrupt,"
                f" more than {MAX_CORRUPT_SHARE:.0%}: {'; '.join(list(self.corrupt.values())[:_NAMED])}",
                hint="replace or delete them",
            )


def open_records(reference: str, *, labelled: bool = True) -> Records:
    """The images at ``LOCATION`` or ``LOCATION#part``: of their own splits where they have some, else of ours.

    Not ``labelled``: all images of a folder or zip, wherever they lie, or those of a list, or one file; without labels.

    Raises:
        DataError: missing, empty, or invalid data; an unknown or empty part.
        MissingExtraError: a Hugging Face data set or ``digits`` without the library.
    """
    location, part = split_reference(reference)
    path = Path(location)
    if location == "digits":
        records = digit_records()
    elif path.is_dir() and ((path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists()):
        records, taken = hub_records(path, part)
        part = None if taken else part
    else:
        records = _at(path, location, labelled=labelled)
    records = records if labelled else replace(records, labels=(), indexed=False)
    return records if part is None else records.part(part)


def _at(path: Path, location: str, *, labelled: bool) -> Records:
    """The images of a folder or file."""
    if not path.exists():
        raise DataError(
            f"there is no data at {location}",
            hint="give a folder, a .zip, a .csv, .tar shards, a data set on disk, or digits",
        )
    if path.is_dir():
        shards = sorted(path.glob("*.tar"))
        return shard_records(location, shards) if shards else folder_records(path, labelled=labelled)
    if path.suffix.lower() == ".csv":
        return listed_records(path)
    if path.suffix.lower() == ".tar":
        return shard_records(location, [path])
    if is_image(PurePosixPath(path.name)) and not labelled:
        return single_record(path)
    return zip_records(path, labelled=labelled)
