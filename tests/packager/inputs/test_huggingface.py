"""Folders of Hugging Face as models: what is read from them, and what is refused before anything of it runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from device_sdk.data.kinds.sounds import SoundPreprocessing
from device_sdk.data.kinds.texts import TextPreprocessing
from device_sdk.errors import UsageError
from packager.errors import ModelLoadError, WeightsError
from packager.inputs.model_loader import load_model
from packager.inputs.pixels import Pixels, parse_normalisation
from packager.tracing.traced_model import trace
from pathweave.cli import main
from tests.packager.small_texts import tokenizer

transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'pathweave[huggingface]'")

SIDE = 32
NAMES = {0: "cat", 1: "crane", 2: "crane"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ResNet with its processor and a model card, as save_pretrained and the Hub leave them."""
    folder = tmp_path_factory.mktemp("models") / "cranes"
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        hidden_sizes=[8, 12], depths=[2, 2], embedding_size=8, layer_type="basic", id2label=NAMES
    )
    transformers.ResNetForImageClassification(config).save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    transformers.ViTImageProcessor(size=size, image_mean=[0.5, 0.4, 0.3], image_std=[0.5] * 3).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\ntags: [birds]\n---\n# Cranes\n")
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    copied = tmp_path / "cranes"
    copied.mkdir()
    for file in saved.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    return copied


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_folder_gives_logits_pixels_classes_and_licence(saved: Path) -> None:
    model = load_model(f"hf:{saved}")
    whole = transformers.AutoModelForImageClassification.from_pretrained(saved, local_files_only=True)
    images = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.module(images), whole.eval()(pixel_values=images).logits)
    assert model.input_shape == (3, SIDE, SIDE)
    assert model.preprocessing.mean == (0.5, 0.4, 0.3)
    assert model.class_names == ("cat", "crane (1)", "crane (2)")
    assert (model.name, model.licence) == ("cranes", "apache-2.0")
    assert model.source.startswith("ResNetForImageClassification of transformers ")


def test_what_channels_a_processor_turns_round_the_model_turns_back(tmp_path: Path) -> None:
    sizes = {"hidden_sizes": [8, 12, 16], "neck_hidden_sizes": [4, 4, 8, 8, 12, 16, 16], "num_attention_heads": 2}
    config = transformers.MobileViTConfig(image_size=SIDE, num_labels=2, **sizes)
    whole = transformers.MobileViTForImageClassification(config).eval()
    whole.save_pretrained(tmp_path)
    size = {"height": SIDE, "width": SIDE}
    transformers.MobileViTImageProcessor(size={"shortest_edge": 36}, crop_size=size).save_pretrained(tmp_path)
    model = load_model(f"hf:{tmp_path}")
    images = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.module(images), whole(pixel_values=images.flip(1)).logits)
    assert model.class_names is None  # LABEL_0 and LABEL_1 name nothing


def test_pixels_that_are_given_take_the_place_of_a_processor(folder: Path) -> None:
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"has no preprocessor_config\.json") as caught:
        load_model(f"hf:{folder}")
    assert caught.value.hint is not None
    assert "--preprocessing" in caught.value.hint
    model = load_model(f"hf:{folder}", input_shape=(3, 40, 40), pixels=Pixels(parse_normalisation("imagenet")))
    assert (model.input_shape, model.preprocessing.std) == ((3, 40, 40), (0.229, 0.224, 0.225))


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_code_of_the_folder_is_refused_and_never_run(folder: Path, file: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (folder / "code.py").write_text(f"open({str(ran)!r}, 'w')\n")
    change(folder / file, auto_map={"AutoConfig": "code.Config", "AutoImageProcessor": "code.Images"})
    with pytest.raises(ModelLoadError, match="code of its own"):
        load_model(f"hf:{folder}")
    assert not ran.exists()


def test_weights_in_pickles_are_refused_unopened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin, which is not opened"):
        load_model(f"hf:{folder}")


@pytest.mark.parametrize("shard", ["../model.safetensors", "model.bin", "absent.safetensors"])
def test_shards_outside_the_folder_or_of_another_kind_are_refused(folder: Path, shard: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(WeightsError, match=r"no safetensors file of the folder|lacks absent"):
        load_model(f"hf:{folder}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["BertForQuestionAnswering"]}, "holds BertForQuestionAnswering; only classification"),
        ({"architectures": None}, "a model without a task"),
        ({"architectures": ["ResNetForImageClassification"], "quantization_config": {"bits": 4}}, "quantised"),
        ({"model_type": "no-such-network"}, "cannot be loaded"),
    ],
)
def test_other_models_are_refused_in_a_line(folder: Path, changes: dict[str, object], said: str) -> None:
    change(folder / "config.json", **changes)
    with pytest.raises(ModelLoadError, match=said) as caught:
        load_model(f"hf:{folder}")
    assert "\n" not in str(caught.value)


def test_weights_that_lack_tensors_are_refused(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    head = next(name for name in tensors if name.endswith("weight") and "classifier" in name)
    tensors.pop(head)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=head):
        load_model(f"hf:{folder}")


def test_damaged_files_and_absent_folders_are_lines(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="is no folder"):
        load_model("hf:org/name")
    (folder / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        load_model(f"hf:{folder}")
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ModelLoadError, match="is not a JSON object"):
        load_model(f"hf:{folder}")


def test_classes_cannot_be_set(saved: Path) -> None:
    with pytest.raises(UsageError, match="cannot be set"):
        load_model(f"hf:{saved}", classes=4)


def test_a_folder_becomes_a_bundle_with_a_model_card(saved: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra: pip install 'pathweave[packager]'")
    generator = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in ("cat", "crane (1)", "crane (2)"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(4):
                pixels = generator.integers(0, 256, (40, 36, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{number}.png")
    data = ["--data", str(tmp_path / "train"), "--val", str(tmp_path / "val")]
    command = ["package", "--model", f"hf:{saved}", *data, "--out", str(tmp_path / "bundle")]
    options = ["--steps", "2", "--exits", "0", "--card"]
    assert main([*command, *options]) == 0
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: pathweave\nlicense: apache-2.0\n")
    assert main([*command, *options, "--restart"]) == 0  # a card is no foreign file
    (tmp_path / "bundle" / "README.md").write_text("my own notes")
    assert main([*command, *options, "--restart"]) == 1
    assert (tmp_path / "bundle" / "README.md").read_text() == "my own notes"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A small BERT with a tokenizer, as save_pretrained leaves them."""
    pytest.importorskip("tokenizers", reason="needs the extra: pip install 'pathweave[text]'")
    folder = tmp_path / "topics"
    torch.manual_seed(0)
    size = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=60, max_position_embeddings=48, num_labels=3, **size)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer())
    return folder


def test_a_folder_with_a_tokenizer_takes_texts(texts: Path) -> None:
    model = load_model(f"hf:{texts}", input_shape=(2, 16))
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(texts, local_files_only=True).eval()
    rows = model.noise(3)
    with torch.no_grad():
        expected = whole(input_ids=rows[:, 0], attention_mask=rows[:, 1]).logits
        torch.testing.assert_close(model.module(rows), expected, atol=1e-5, rtol=1e-4)
    assert (model.input_shape, len(model.blobs), model.weights_inside) == ((2, 16), 1, True)
    assert isinstance(model.preprocessing, TextPreprocessing)


def test_without_a_number_of_tokens_a_text_may_be_as_long_as_the_model_takes(texts: Path) -> None:
    assert load_model(f"hf:{texts}").input_shape == (2, 48)
    (texts / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 40}))
    assert load_model(f"hf:{texts}").input_shape == (2, 40)
    with pytest.raises(UsageError, match="at most 40 tokens"):
        load_model(f"hf:{texts}", input_shape=(2, 48))


@pytest.mark.parametrize("kind", ["Bert", "Electra"])
def test_a_model_of_tokens_answers_for_each_and_not_for_padding(texts: Path, kind: str) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = getattr(transformers, f"{kind}Config")(vocab_size=64, max_position_embeddings=20, id2label=NAMES, **sizes)
    getattr(transformers, f"{kind}ForTokenClassification")(config).save_pretrained(texts)
    model = load_model(f"hf:{texts}")
    whole = transformers.AutoModelForTokenClassification.from_pretrained(texts, local_files_only=True).eval()
    mask = (torch.arange(20) < torch.tensor([20, 6])[:, None]).long()
    ids = torch.randint(4, 40, (2, 20), generator=torch.Generator().manual_seed(0)) * mask
    with torch.no_grad():
        wanted = (whole(input_ids=ids, attention_mask=mask).logits * mask[:, :, None]).transpose(1, 2)
        assert torch.allclose(model.module(torch.stack([ids, mask], 1)), wanted, atol=1e-5)
    assert isinstance(model.preprocessing, TextPreprocessing)


def test_texts_without_a_tokenizer_are_refused_with_how_to_get_one(texts: Path) -> None:
    (texts / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"has no tokenizer\.json") as caught:
        load_model(f"hf:{texts}")
    assert "save_pretrained" in caught.value.hint


RATE = 4_000


@pytest.fixture(scope="module", params=["Wav2Vec2", "Hubert"])
def sounds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of raw sound with its feature extractor."""
    folder = tmp_path_factory.mktemp("models") / request.param
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    sizes |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16}
    layers = {"conv_dim": (16, 16, 16), "conv_stride": (5, 4, 4), "conv_kernel": (10, 8, 4)}
    layers |= {"num_feat_extract_layers": 3}
    torch.manual_seed(0)
    config = getattr(transformers, f"{request.param}Config")(**sizes, **layers, id2label={0: "yes", 1: "no", 2: "up"})
    getattr(transformers, f"{request.param}ForSequenceClassification")(config).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(sampling_rate=RATE).save_pretrained(folder)
    return folder


def test_a_folder_with_a_feature_extractor_takes_sounds_as_it_does(sounds: Path) -> None:
    model = load_model(f"hf:{sounds}")
    whole = transformers.AutoModelForAudioClassification.from_pretrained(sounds, local_files_only=True).eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(sounds, local_files_only=True)
    windows = 0.3 + 0.1 * torch.randn(2, RATE, generator=torch.Generator().manual_seed(0))
    features = extractor(list(windows.numpy()), sampling_rate=RATE, return_tensors="pt").input_values
    with torch.no_grad():
        assert torch.allclose(model.module(windows[:, None]), whole(input_values=features).logits, atol=1e-5)
    assert model.preprocessing == SoundPreprocessing(RATE, RATE)
    assert model.class_names == ("yes", "no", "up")
    assert any("windows of 1 s" in note for note in model.notes)
    longer = load_model(f"hf:{sounds}", input_shape=(1, 6_000))
    assert longer.preprocessing.window_samples == 6_000
    assert not any("windows of" in note for note in longer.notes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"feature_extractor_type": "WhisperFeatureExtractor"}, "the features of WhisperFeatureExtractor"),
        ({"feature_extractor_type": "ASTFeatureExtractor", "num_mel_bins": 0}, "frames of 0 bands"),
        ({"feature_extractor_type": "ASTFeatureExtractor", "std": 0}, "no mean and deviation"),
        ({"feature_size": 80}, "which devices do not compute"),
        ({"sampling_rate": 0}, "the sampling rate 0"),
        ({"sampling_rate": "16k"}, "the sampling rate 16k"),
    ],
)
def test_other_features_of_sound_are_refused(
    sounds: Path, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    for file in sounds.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    change(tmp_path / "preprocessor_config.json", **changes)
    with pytest.raises(ModelLoadError, match=said):
        load_model(f"hf:{tmp_path}")


@pytest.mark.parametrize("samples", [None, 12_000])
def test_a_spectrogram_transformer_takes_sounds_as_its_extractor_does(tmp_path: Path, samples: int | None) -> None:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = transformers.ASTConfig(**sizes, max_length=96, num_mel_bins=32, id2label={0: "yes", 1: "no"})
    torch.manual_seed(0)
    transformers.ASTForAudioClassification(config).save_pretrained(tmp_path)
    extractor = transformers.ASTFeatureExtractor(max_length=96, num_mel_bins=32)
    extractor.save_pretrained(tmp_path)
    model = load_model(f"hf:{tmp_path}", input_shape=None if samples is None else (1, samples))
    whole = transformers.AutoModelForAudioClassification.from_pretrained(tmp_path, local_files_only=True).eval()
    window = model.preprocessing.window_samples
    assert window == (samples or 400 + 160 * 95)
    sounds = 0.2 * torch.randn(3, window, generator=torch.Generator().manual_seed(0))
    sounds[1] *= 0.01
    sounds[2, : window // 2] = 0  # which a device puts in front of a short sound
    features = extractor(list(sounds[:2].numpy()), sampling_rate=16_000, return_tensors="pt").input_values
    with torch.no_grad():
        assert torch.allclose(model.module(sounds[:2, None]), whole(input_values=features).logits, atol=1e-4)
        assert torch.isfinite(model.module(sounds[2:, None])).all()
    traced = trace(model.module, sounds[:, None])
    assert len(traced.blocks) > 4


def test_a_window_has_one_channel(sounds: Path) -> None:
    with pytest.raises(UsageError, match="the shape of a sound is 1 x samples"):
        load_model(f"hf:{sounds}", input_shape=(2, 4_000))
