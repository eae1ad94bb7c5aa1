"""Opens images wherever they are, for the packager and for devices alike, by the same rules.

Folders and zips with one folder per class or none, lists in CSV files, WebDataset shards (tar files), Hugging Face
``datasets`` on disk, scikit-learn's digits, and single files. A new kind is a function that returns ``Records`` and a
line in here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

from device_sdk.data.archive_records import shard_records, zip_records
from device_sdk.data.file_names import is_image
from device_sdk.data.file_records import folder_records, listed_records, single_record
from device_sdk.data.library_records import digit_records, hub_records
from device_sdk.data.records import Records, split_reference
from device_sdk.errors import DataError


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
