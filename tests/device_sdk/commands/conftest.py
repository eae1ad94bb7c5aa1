from __future__ import annotations

import pytest
from PIL import Image

from pathweave.cli import main


@pytest.fixture(scope="module")
def pictures(tiny_bundle, tmp_path_factory):
    """The images of the tiny bundle as PNG files, a folder per class."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, (image, label) in enumerate(zip(tiny_bundle.images, tiny_bundle.labels, strict=True)):
        place = folder / ("blue", "green", "red")[label]
        place.mkdir(exist_ok=True)
        Image.fromarray(image).save(place / f"{number:03d}.png")
    return folder


@pytest.fixture
def pathweave(capsys):
    """Runs a command line; gives its exit status, standard output and lines on standard error."""

    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return run
