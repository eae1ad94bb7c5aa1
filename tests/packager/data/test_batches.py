from __future__ import annotations

import numpy as np
import pytest
import torch

from device_sdk.data.preprocessing import prepare
from packager.data.batches import WHOLE, BatchSource, Share

SIZE = 372  # of digits#search


@pytest.fixture(scope="module")
def search(digits):
    return digits("search")


@pytest.fixture
def make_source(search, digits_preprocessing):
    def make(**choices) -> BatchSource:
        return BatchSource(search, digits_preprocessing, **({"batch": 50, "seed": 0} | choices))

    return make


def as_rows(images: torch.Tensor) -> list[bytes]:
    return [image.numpy().tobytes() for image in images]


@pytest.mark.parametrize("choices", [{}, {"flip": True, "crop": 0.25}])
def test_a_batch_depends_on_seed_and_step_alone(make_source, choices):
    source = make_source(**choices)
    in_order = [source.batch(step) for step in range(20)]
    again = make_source(**choices)
    for step in (19, 3, 8, 3, 0, 14):  # as a run that was interrupted, and in any order
        for found, expected in zip(again.batch(step), in_order[step], strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("choices", [{}, {"flip": True, "crop": 0.25, "variants": 2}])
@pytest.mark.parametrize("count", [2, 3])
def test_the_shares_of_several_processes_are_the_batch(make_source, choices, count):
    whole = make_source(**choices)
    shares = [Share(rank, count) for rank in range(count)]
    sources = [make_source(share=share, **choices) for share in shares]
    for step in (0, 5, 9):
        images, labels = whole.batch(step)
        for share, source in zip(shares, sources, strict=True):
            mine, of_mine = source.batch(step)
            assert len(mine) == share.of(50)
            assert torch.equal(mine, images[share.rank :: count])
            assert torch.equal(of_mine, labels[share.rank :: count])
            assert (source.batch_size, source.key(step)) == (50, whole.key(step))


def test_shares_of_any_batch_add_up():
    for batch in range(12):
        assert WHOLE.of(batch) == batch
        assert sum(Share(rank, 5).of(batch) for rank in range(5)) == batch


def test_another_seed_gives_other_batches(make_source):
    assert not torch.equal(make_source(seed=1).batch(0)[0], make_source(seed=2).batch(0)[0])


@pytest.mark.parametrize("seed", [0, -1, 20_231_002, 2**63 - 1, 10**30])
def test_any_whole_number_is_a_seed(make_source, seed):
    images, labels = make_source(seed=seed, flip=True, crop=0.125).batch(1_000_000_000)
    assert images.shape[0] == labels.shape[0] == 50


def test_an_epoch_shows_every_sample_at_most_once_and_the_next_in_another_order(make_source, search):
    source = make_source(batch=62)
    known = as_rows(source.plain(0, SIZE)[0])
    epochs = []
    for epoch in range(2):
        batches = [source.batch(epoch * 6 + step) for step in range(6)]
        epochs.append([row for images, _ in batches for row in as_rows(images)])
        assert sorted(epochs[-1]) == sorted(known)
        assert sorted(torch.cat([labels for _, labels in batches]).tolist()) == sorted(search.labels.tolist())
    assert epochs[0] != epochs[1]


def test_images_keep_their_labels(make_source):
    source = make_source()
    images, labels = source.plain(0, SIZE)
    label_of = dict(zip(as_rows(images), labels.tolist(), strict=True))
    shuffled, found = source.batch(4)
    assert [label_of[row] for row in as_rows(shuffled)] == found.tolist()


def test_plain_samples_are_prepared_as_on_the_device(make_source, search, digits_preprocessing):
    images, labels = make_source(flip=True, crop=0.5).plain(7, 20)
    expected = prepare(search.images[7:27], digits_preprocessing, input_shape=(1, 8, 8))
    np.testing.assert_allclose(images.numpy(), expected, rtol=1e-6, atol=1e-6)
    assert labels.tolist() == search.labels[7:27].tolist()


@pytest.mark.parametrize("choices", [{"flip": True}, {"crop": 0.125}, {"crop": 2.0}, {"flip": True, "crop": 0.25}])
def test_augmented_batches_keep_shape_and_type(make_source, choices):
    images, labels = make_source(**choices).batch(3)
    assert (images.shape, images.dtype) == ((50, 1, 8, 8), torch.float32)
    assert (labels.shape, labels.dtype) == ((50,), torch.int64)


def test_flipping_mirrors_about_half_of_the_images(make_source):
    plain, flipped = make_source().batch(0)[0], make_source(flip=True).batch(0)[0]
    mirrored = [torch.equal(a, b.flip(2)) for a, b in zip(flipped, plain, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(flipped, plain, strict=True)]
    assert all(a or b for a, b in zip(mirrored, kept, strict=True))
    assert 15 <= sum(mirrored) <= 35


def test_cropping_shifts_by_at_most_the_share_of_the_side(make_source, digits_preprocessing):
    plain, cropped = make_source().batch(0)[0], make_source(crop=0.125).batch(0)[0]  # an eighth of 8 pixels: 1
    black = -digits_preprocessing.mean[0] / digits_preprocessing.std[0]
    padded = torch.nn.functional.pad(plain, [1] * 4, value=black)
    corners = [(row, column) for row in range(3) for column in range(3)]
    used = set()
    for image, around in zip(cropped, padded, strict=True):
        fitting = [(r, c) for r, c in corners if torch.allclose(image, around[:, r : r + 8, c : c + 8], atol=1e-6)]
        assert fitting
        used.add(fitting[0])
    assert len(used) > 4


def test_a_batch_is_never_larger_than_the_data(make_source):
    source = make_source(batch=10_000)
    for step in range(3):
        assert len(source.batch(step)[1]) == len(source) == SIZE


def test_variants_come_round_in_the_same_batches_in_another_order(make_source):
    source = make_source(batch=62, variants=2, flip=True, crop=0.25)  # 6 batches in each edition
    seen = {}
    turns = []
    for step in range(36):
        key, images = source.key(step), source.batch(step)[0]
        assert torch.equal(seen.setdefault(key, images), images)
        turns.append(key)
    assert {edition for edition, _ in turns} == {0, 1}
    assert all(sorted(turns[at : at + 6]) == [(at // 6 % 2, number) for number in range(6)] for at in range(0, 36, 6))
    assert turns[:6] != turns[12:18]
    assert not torch.equal(seen[0, 0], seen[1, 0])


def test_without_variants_no_batch_comes_twice(make_source):
    source = make_source(batch=62)
    assert len({source.key(step) for step in range(60)}) == 60
