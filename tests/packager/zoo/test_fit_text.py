from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from device_sdk.data.kinds.texts import TextPreprocessing
from packager.errors import ModelLoadError, WeightsError
from packager.inputs.model_loader import load_model
from packager.zoo.fit_text import fit_text
from packager.zoo.text_encoder import PARTS, TextClassifier
from packager.zoo.text_folder import TextFolder
from packager.zoo.wordnet import TOPICS as WORDNET_TOPICS
from packager.zoo.wordnet import glosses, write_parts
from tests.packager.small_texts import TOPICS, model, tokenizer, write_texts

pytest.importorskip("tokenizers", reason="the extra text is not installed")

_NAMES = {
    "embeddings.words.weight": "embeddings.word_embeddings.weight",
    "embeddings.positions.weight": "embeddings.position_embeddings.weight",
    "embeddings.norm.weight": "embeddings.LayerNorm.weight",
    "embeddings.norm.bias": "embeddings.LayerNorm.bias",
}


def _published(module: TextClassifier) -> dict[str, torch.Tensor]:
    """The encoder's weights under Hugging Face's names."""
    back = {own: theirs for theirs, own in PARTS.items()}
    found = {"embeddings.token_type_embeddings.weight": module.embeddings.kind.repeat(2, 1)}
    for name, value in module.state_dict().items():
        layer, _, kind = name.removeprefix("layers.").partition(".")
        part, _, last = kind.rpartition(".")
        if name in _NAMES:
            found[_NAMES[name]] = value.clone()
        elif part in back:
            found[f"encoder.layer.{layer}.{back[part]}.{last}"] = value.clone()
    return found


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """An encoder without a classifier, as it is published."""
    folder, known = tmp_path_factory.mktemp("encoder"), model()
    config = {
        "model_type": "bert",
        "vocab_size": known.embeddings.words.num_embeddings,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 32,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes(tokenizer())
    save_file(_published(known), folder / "model.safetensors")
    return folder


def test_a_fitted_classifier_is_loaded_with_its_tokenizer_and_classes(encoder, tmp_path):
    texts = write_texts(tmp_path / "texts.csv", 200, seed=5)
    _, right = fit_text(encoder, str(texts), tmp_path / "fitted", max_tokens=32)
    assert right > 0.8
    found = load_model(f"bert:{tmp_path / 'fitted'}")
    assert found.class_names == tuple(TOPICS)
    assert isinstance(found.preprocessing, TextPreprocessing)
    assert found.input_shape == (2, 32)
    assert list(found.blobs) == [found.preprocessing.tokenizer]
    shorter = load_model(f"bert:{tmp_path / 'fitted'}", input_shape=(16,))
    assert shorter.input_shape == (2, 16)
    assert torch.allclose(found.module(found.noise(2)[..., :16]), shorter.module(found.noise(2)[..., :16]), atol=1e-5)


def test_a_zip_is_read_like_a_folder(encoder, tmp_path):
    with zipfile.ZipFile(tmp_path / "encoder.zip", "w") as archive:
        for path in encoder.iterdir():
            archive.write(path, path.name)
    packed, plain = TextFolder.read(tmp_path / "encoder.zip"), TextFolder.read(encoder)
    assert packed.config == plain.config
    assert packed.weights.keys() == plain.weights.keys()


def test_an_encoder_without_a_classifier_says_how_to_fit_one(encoder):
    with pytest.raises(ModelLoadError, match="no classifier") as caught:
        load_model(f"bert:{encoder}")
    assert "fit_text" in str(caught.value.hint)


def test_other_encoders_and_damaged_files_are_refused(encoder, tmp_path):
    for path in encoder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    with pytest.raises(ModelLoadError, match="the encoder is a gpt2"):
        TextFolder.read(tmp_path).classifier(("a", "b"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(WeightsError, match="not those of the encoder"):
        TextFolder.read(tmp_path).classifier(("a", "b"))
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(WeightsError, match="cannot be read"):
        TextFolder.read(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"no readable tokenizer\.json"):
        TextFolder.read(tmp_path)


def test_glosses_become_texts_of_disjoint_parts(tmp_path):
    numbers = list(WORDNET_TOPICS)
    lines = [
        "  1 This software is provided AS IS",
        *(
            f"{at:08} {numbers[at % len(numbers)]} n 01 word 0 000 | gloss number {at} of this file, long enough"
            for at in range(600 * len(numbers))
        ),
        "00000001 99 n 01 word 0 000 | a gloss of another file of the lexicographers",
    ]
    (tmp_path / "data.noun").write_text("\n".join(lines))
    found = glosses(tmp_path / "data.noun")
    assert {len(texts) for texts in found.values()} == {600}
    write_parts(tmp_path / "data.noun", tmp_path)
    parts = [
        set((tmp_path / f"{name}.csv").read_text().splitlines()[1:]) for name in ("train", "validation", "private")
    ]
    assert [len(part) for part in parts] == [400 * 16, 60 * 16, 60 * 16]
    assert not parts[0] & (parts[1] | parts[2])
