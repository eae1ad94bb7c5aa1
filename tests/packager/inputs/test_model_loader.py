from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from device_sdk.data.preprocessing import Preprocessing
from device_sdk.errors import UsageError
from packager.errors import ModelLoadError, WeightsError
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.model_loader import load_model
from packager.inputs.pixels import Pixels

REPOSITORY = Path(__file__).resolve().parents[3]

USER_MODULE = """
from torch import nn
from device_sdk.data.preprocessing import Preprocessing

def build():
    layers = nn.Conv2d(2, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    return nn.Sequential(*layers).double().train()

def described():
    module = build()
    module.input_shape = [2, 9, 9]
    module.preprocessing = Preprocessing(scale=1.0, mean=(1.0, 2.0), std=(3.0, 4.0), channels=2)
    module.class_names = tuple("abcde")
    return module

def number():
    return 7

def failing():
    raise RuntimeError("no disk\\nand more")

constant = 7
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch) -> str:
    """A module in the current directory, under a name that no other test has imported."""
    name = f"user_module_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(USER_MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def assert_ready(model: LoadedModel) -> None:
    assert not model.module.training
    assert {parameter.dtype for parameter in model.module.parameters()} == {torch.float32}
    assert {parameter.device.type for parameter in model.module.parameters()} == {"cpu"}


def answer(model: LoadedModel) -> torch.Tensor:
    with torch.no_grad():
        return model.module(torch.zeros(1, *model.input_shape))


# The zoo


def test_a_zoo_model_with_weights_names_both_as_its_source(shared_data):
    weights = shared_data / "pretrained" / "resnet20_cifar10.safetensors"
    model = load_model("zoo:resnet20_cifar10", weights=weights)
    assert_ready(model)
    assert model.source == "github akamaster/pytorch_resnet_cifar10, weights from resnet20_cifar10.safetensors"
    assert (model.name, model.licence, model.input_shape) == ("resnet20_cifar10", "BSD-2-Clause", (3, 32, 32))


def test_random_weights_are_seeded_and_said_so():
    state = torch.random.get_rng_state()
    first, second = load_model("zoo:resnet_digits"), load_model("zoo:resnet_digits")
    assert torch.equal(answer(first), answer(second))
    assert "random weights (seed 0)" in first.source
    assert torch.equal(torch.random.get_rng_state(), state)


def test_another_number_of_classes_drops_the_names():
    model = load_model("zoo:resnet_digits", classes=4)
    assert answer(model).shape == (1, 4)
    assert model.class_names is None


def test_fewer_than_two_classes_are_refused():
    with pytest.raises(UsageError, match="two classes or more, not 0"):
        load_model("zoo:resnet_digits", classes=0)


def test_the_weights_of_another_model_are_refused(shared_data):
    with pytest.raises(WeightsError, match=r"keys are unexpected \(layer1\.3\.bn1\.bias, "):
        load_model("zoo:resnet20_cifar10", weights=shared_data / "pretrained" / "resnet32_cifar10.safetensors")


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ModelLoadError, match="zoo has no model 'resnet20_cifar'") as caught:
        load_model("zoo:resnet20_cifar")
    assert "resnet20_cifar10" in str(caught.value.hint)


def test_a_shape_that_the_model_does_not_take_is_refused():
    with pytest.raises(ModelLoadError, match=r"does not take inputs of shape \(1, 32, 32\)"):
        load_model("zoo:resnet20_cifar10", input_shape=(1, 32, 32))


def test_a_fully_convolutional_model_takes_other_sizes():
    assert load_model("zoo:resnet20_cifar10", input_shape=(3, 24, 40)).input_shape == (3, 24, 40)


# torchvision and timm


@pytest.mark.parametrize(
    ("name", "side", "resized", "mean"),
    [("squeezenet1_1", 224, 256, 0.485), ("googlenet", 224, 256, 0.5), ("inception_v3", 299, 342, 0.5)],
)
def test_torchvision_models_come_with_their_preprocessing(name, side, resized, mean):
    pytest.importorskip("torchvision")
    model = load_model(f"torchvision:{name}")
    assert_ready(model)
    assert model.input_shape == (3, side, side)
    assert model.preprocessing.resize == (side, side)
    assert model.preprocessing.mean[0] == mean
    assert (model.preprocessing.interpolation, model.preprocessing.crop) == ("bilinear", pytest.approx(side / resized))
    assert len(model.class_names or ()) == 1000
    assert answer(model).shape == (1, 1000)


def test_torchvision_weights_are_loaded_from_a_file(tmp_path):
    pytest.importorskip("torchvision")
    first = load_model("torchvision:squeezenet1_1", classes=3)
    with torch.no_grad():
        first.module.classifier[1].bias.fill_(0.25)
    torch.save(first.module.state_dict(), tmp_path / "w.pth")
    second = load_model("torchvision:squeezenet1_1", classes=3, weights=tmp_path / "w.pth")
    assert torch.equal(answer(first), answer(second))
    assert second.class_names is None


def test_the_auxiliary_heads_in_published_files_are_left_out(tmp_path):
    models = pytest.importorskip("torchvision.models")
    whole = models.googlenet(weights=None, init_weights=False, num_classes=2)
    torch.save(whole.state_dict(), tmp_path / "w.pth")
    model = load_model("torchvision:googlenet", classes=2, weights=tmp_path / "w.pth")
    assert torch.equal(model.module.fc.weight, whole.fc.weight)


def test_timm_models_come_with_their_preprocessing():
    pytest.importorskip("timm")
    model = load_model("timm:mobilenetv3_small_050", classes=7)
    assert_ready(model)
    assert model.preprocessing.resize == model.input_shape[1:] == (224, 224)
    assert answer(model).shape == (1, 7)


def test_timm_models_come_with_their_crop_and_interpolation():
    pytest.importorskip("timm")
    own = load_model("timm:tf_efficientnet_lite0").preprocessing
    assert (own.mean, own.std) == ((0.5,) * 3, (0.5,) * 3)
    assert (own.interpolation, own.crop) == ("bicubic", 0.875)
    squashed = load_model("timm:tf_efficientnet_lite0", pixels=Pixels(crop="whole")).preprocessing
    assert (squashed.interpolation, squashed.crop) == ("bicubic", None)


def test_timm_models_take_other_channels():
    pytest.importorskip("timm")
    model = load_model("timm:mobilenetv3_small_050", input_shape=(1, 64, 64))
    assert model.preprocessing.channels == len(model.preprocessing.mean) == 1
    assert answer(model).shape == (1, 1000)


@pytest.mark.parametrize(
    ("specification", "suggestion"),
    [
        ("torchvision:resnet19", "resnet1"),
        ("torchvision:fasterrcnn_resnet50_fpn", ""),
        ("timm:mobilenetv3_smal_050", "mobilenetv3_small_050"),
        ("timm:hf-hub:someone/something", ""),
    ],
)
def test_unknown_models_of_a_library_are_refused(specification, suggestion):
    pytest.importorskip(specification.partition(":")[0])
    with pytest.raises(ModelLoadError, match="has no model") as caught:
        load_model(specification)
    assert suggestion in str(caught.value.hint)


def load_with_broken_torchvision(tmp_path: Path, error: str) -> str:
    """What a fresh process says where ``import torchvision`` raises ``error``."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(f"raise {error}\n")
    program = (
        "from packager.inputs.model_loader import load_model\n"
        "try:\n"
        "    load_model('torchvision:resnet18')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error, error.hint, sep=' | ')\n"
    )
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


def test_a_missing_torchvision_says_how_to_install_it(tmp_path):
    said = load_with_broken_torchvision(tmp_path, "ModuleNotFoundError('none', name='torchvision')")
    assert said.startswith("MissingExtraError | this needs torchvision")
    assert said.endswith("pip install 'pathweave[vision]'")


def test_a_torchvision_built_for_another_torch_says_why(tmp_path):
    said = load_with_broken_torchvision(tmp_path, "RuntimeError('operator torchvision::nms does not exist')")
    assert said.startswith("ModelLoadError | torchvision cannot be imported: operator torchvision::nms")
    assert "install a build of torchvision for torch" in said


# Callables


def test_a_callable_is_found_in_the_current_directory(user_module):
    path = list(sys.path)
    unit = Pixels(normalisation=((0.0,), (1.0,)))
    model = load_model(f"{user_module}:build", input_shape=(2, 8, 8), pixels=unit)
    assert_ready(model)
    assert model.preprocessing == Preprocessing(scale=1 / 255, mean=(0.0,) * 2, std=(1.0,) * 2, channels=2)
    assert (model.class_names, model.licence, model.source) == (None, None, f"{user_module}:build")
    assert sys.path == path


def test_a_callable_that_does_not_say_how_it_wants_its_pixels_is_refused(user_module):
    with pytest.raises(ModelLoadError, match=r"the preprocessing of .* is unknown") as caught:
        load_model(f"{user_module}:build", input_shape=(2, 8, 8), pixels=Pixels(crop="whole"))
    assert "--preprocessing imagenet" in str(caught.value.hint)


def test_a_module_may_describe_itself(user_module):
    model = load_model(f"{user_module}:described")
    assert model.input_shape == (2, 9, 9)
    assert model.preprocessing.std == (3.0, 4.0)
    assert model.class_names == tuple("abcde")


def test_weights_are_loaded_into_what_a_callable_built(user_module, tmp_path):
    first = load_model(f"{user_module}:described")
    with torch.no_grad():
        first.module[3].bias.fill_(0.5)
    torch.save(first.module.state_dict(), tmp_path / "w.pt")
    second = load_model(f"{user_module}:described", weights=tmp_path / "w.pt")
    assert torch.equal(answer(first), answer(second))
    assert second.source.endswith("weights from w.pt")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bild", "has no callable 'bild'"),
        ("constant", "has no callable 'constant'"),
        ("number", "returned a int, not an nn.Module"),
        ("failing", "cannot be built: no disk$"),
        ("build", "the input shape of .* is unknown"),
    ],
)
def test_a_callable_that_gives_no_model_is_refused(user_module, name, message):
    with pytest.raises(ModelLoadError, match=message):
        load_model(f"{user_module}:{name}")


def test_a_misspelt_callable_suggests_the_nearest(user_module):
    with pytest.raises(ModelLoadError) as caught:
        load_model(f"{user_module}:bild")
    assert "build" in str(caught.value.hint)


def test_a_callable_with_the_wrong_shape_is_refused(user_module):
    with pytest.raises(ModelLoadError, match=r"does not take inputs of shape \(3, 8, 8\)"):
        load_model(f"{user_module}:build", input_shape=(3, 8, 8))


def test_a_module_that_fails_at_import_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_at_import.py").write_text("import a_library_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match="broken_at_import cannot be imported: No module named 'a_library"):
        load_model("broken_at_import:build")


def test_the_number_of_classes_of_a_callable_is_its_own(user_module):
    with pytest.raises(UsageError, match="number of classes"):
        load_model(f"{user_module}:build", classes=3)


@pytest.mark.parametrize("specification", ["resnet20", "zoo:", ":x", ""])
def test_a_text_that_names_no_model_is_refused(specification):
    with pytest.raises(ModelLoadError, match="does not name a model") as caught:
        load_model(specification)
    assert "zoo:NAME" in str(caught.value.hint)


def test_an_unknown_scheme_names_the_known_ones():
    with pytest.raises(ModelLoadError, match="'nowhere' is neither a scheme nor a module") as caught:
        load_model("nowhere:resnet20")
    assert "zoo:NAME" in str(caught.value.hint)


def test_a_misspelt_scheme_suggests_the_nearest():
    with pytest.raises(ModelLoadError) as caught:
        load_model("torchvison:resnet18")
    assert caught.value.hint == "did you mean torchvision?"


def saved_program(path: Path, **extra: str) -> str:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()
    free = ({0: torch.export.Dim("batch", min=1, max=64)},)
    program = torch.export.export(layers, (torch.zeros(4, 3, 9, 9),), dynamic_shapes=free)
    torch.export.save(program, path, extra_files={f"{name}.json": text for name, text in extra.items()})
    return str(path)


def test_an_exported_program_is_loaded_by_its_path(tmp_path):
    file = saved_program(tmp_path / "net.pt2")

    model = load_model(file, pixels=Pixels(normalisation=((0.5,), (0.5,))))

    assert_ready(model)
    assert (model.name, model.source, model.input_shape) == ("net", "net.pt2", (3, 9, 9))
    assert model.weights_inside
    assert answer(model).shape[1] == 5


def test_a_file_says_its_own_preprocessing_and_classes(tmp_path):
    file = saved_program(tmp_path / "net.pt2", preprocessing='{"mean": [0, 0, 0], "std": 1}', class_names='["a", "b"]')

    model = load_model(file)

    assert model.class_names == ("a", "b")
    assert model.preprocessing.mean == (0.0, 0.0, 0.0)


def test_a_file_without_preprocessing_asks_for_it(tmp_path):
    with pytest.raises(ModelLoadError, match="the preprocessing of net"):
        load_model(saved_program(tmp_path / "net.pt2"))


def test_weights_beside_a_file_that_holds_them_are_refused(tmp_path):
    file = saved_program(tmp_path / "net.pt2")

    with pytest.raises(UsageError, match="holds its weights"):
        load_model(file, weights=Path(file))


def test_a_scheme_goes_before_a_suffix():
    with pytest.raises(ModelLoadError, match="has no model"):
        load_model("zoo:../net.onnx")
