"""Model cards: front matter that the Hub reads, and what packaging found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.manifest import Manifest
from packager.errors import PackagingError
from packager.output.model_card import model_card, write_card
from packager.output.ownership import require_bundle

REFERENCE = Path(__file__).parents[2] / "contract" / "bundle"


@pytest.fixture
def manifest() -> Manifest:
    return Bundle.open(REFERENCE).manifest


def front_matter(card: str) -> dict[str, object]:
    empty, matter, _ = card.split("---\n", 2)
    assert empty == ""
    return yaml.safe_load(matter)


def with_licence(manifest: Manifest, licence: str | None) -> Manifest:
    provenance = msgspec.structs.replace(manifest.provenance, licence=licence)
    return msgspec.structs.replace(manifest, provenance=provenance)


@pytest.mark.parametrize(
    ("licence", "hub", "name"),
    [
        ("BSD-3-Clause", "bsd-3-clause", None),
        ("apache-2.0", "apache-2.0", None),
        ("BSD-3-Clause (architecture)", "other", "BSD-3-Clause (architecture)"),
        (None, "unknown", None),
    ],
)
def test_a_licence_is_the_hubs_id_or_other_with_its_name(
    manifest: Manifest, licence: str | None, hub: str, name: str | None
) -> None:
    matter = front_matter(model_card(with_licence(manifest, licence)))
    assert (matter["license"], matter.get("license_name")) == (hub, name)


def test_the_hubs_own_reader_finds_the_full_models_accuracy(manifest: Manifest) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra: pip install 'pathweave[huggingface]'")
    data = hub.ModelCard(model_card(manifest)).data
    [result] = data.eval_results
    assert (result.task_type, result.metric_type) == ("image-classification", "accuracy")
    assert result.metric_value == pytest.approx(manifest.metrics.original_accuracy, abs=1e-6)
    assert (data.library_name, data.pipeline_tag, data.model_name) == ("pathweave", "image-classification", "reference")


def test_accuracies_provenance_and_notes_are_told(manifest: Manifest) -> None:
    card = model_card(msgspec.structs.replace(manifest, notes=("block 3 was not merged",)))
    assert "| the full model, unchanged | 100 % |" in card
    assert card.count("| mean of ") == len(manifest.metrics.range_accuracy)
    assert manifest.provenance.source in card
    assert "* block 3 was not merged" in card


def test_a_card_may_be_replaced_with_its_bundle_and_another_readme_may_not(manifest: Manifest, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes((REFERENCE / "manifest.json").read_bytes())
    card = write_card(tmp_path, manifest)
    require_bundle(tmp_path)
    card.write_text("# Mine\n" + card.read_text())
    with pytest.raises(PackagingError, match=r"README\.md"):
        require_bundle(tmp_path)
