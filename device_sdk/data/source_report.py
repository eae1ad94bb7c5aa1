"""Report on a source of images: images seen, used and left out, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from device_sdk.data.records import Records, some_of
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
