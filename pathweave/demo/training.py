"""The packager's side of the demo: train a small network, then package and sign it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional

from device_sdk.data.datasets import ImageDataset, load_dataset
from device_sdk.files.atomic import write_atomically
from device_sdk.progress import Progress
from device_sdk.signing.signatures import new_key_pair
from packager.data.batches import BatchSource
from packager.inputs.job import Job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.model_loader import load_model
from packager.inputs.recipe import Recipe
from packager.pipeline import package

TRAINING, VALIDATION = "digits#train", "digits#calibration"
EPOCHS = 10
BATCH = 64
HIGHEST_RATE = 2e-3
CROP = 0.125  # shifts by one pixel
MAX_SPAN = 5  # with shorter spans few subnets reach a third of the full latency
PACKAGING_STEPS = 450


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread in this context.

    For a model this small, synchronisation dominates: two threads gain a third on an idle machine, and lose a factor of
    10 to 30 on a busy one. Results also become independent of the number of cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def train_full_model(*, seed: int, progress: Progress) -> LoadedModel:
    """The zoo's network for digits, trained from its fixed random weights; batches depend on ``seed``."""
    model = load_model("zoo:resnet_digits")
    dataset = load_dataset(TRAINING)
    source = BatchSource(dataset, model.preprocessing, batch=BATCH, seed=seed, crop=CROP)
    steps = EPOCHS * (len(dataset) // BATCH)
    optimizer = torch.optim.AdamW(model.module.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=HIGHEST_RATE, total_steps=steps, pct_start=0.2)
    model.module.train()
    with progress.task("train the full model", steps) as task:
        for step in range(steps):
            images, labels = source.batch(step)
            loss = functional.cross_entropy(model.module(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            task.advance()
            task.note(f"loss {loss.item():.4f}")
    model.module.eval()
    return replace(model, source=f"{model.source}, trained by the demo (seed {seed})")


def save_weights(model: LoadedModel, path: Path) -> Path:
    """Save the trained weights as a safetensors file."""
    from safetensors.torch import save

    write_atomically(path, save({name: tensor.contiguous() for name, tensor in model.module.state_dict().items()}))
    return path


def make_keys(folder: Path) -> tuple[Path, Path]:
    """Write a new key pair to ``folder``: (private key file, public key file)."""
    private_path, public_path = folder / "demo.key", folder / "demo.pub"
    private, public = new_key_pair()
    write_atomically(private_path, private, mode=0o600)
    write_atomically(public_path, public)
    return private_path, public_path


def package_and_sign(model: LoadedModel, out: Path, *, private_key: Path, seed: int, progress: Progress) -> Path:
    """Make the bundle ``out`` of ``model``."""
    recipe = Recipe(
        max_span=MAX_SPAN,
        steps=PACKAGING_STEPS,
        distil_share=0.15,
        exit_share=0.15,
        batch=BATCH,
        flip=False,  # a mirrored digit is not a digit
        crop=CROP,
        seed=seed,
    )
    job = Job(
        model=model,
        training=_for_model(TRAINING, model),
        training_reference=TRAINING,
        validation=_for_model(VALIDATION, model),
        validation_reference=VALIDATION,
        recipe=recipe,
        name="digits",
    )
    return package(job, out, private_key=private_key, progress=progress).folder


def _for_model(reference: str, model: LoadedModel) -> ImageDataset:
    dataset = load_dataset(reference)
    return dataset if model.class_names is None else dataset.relabelled(model.class_names)
