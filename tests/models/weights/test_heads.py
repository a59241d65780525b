from dataclasses import replace

import pytest

from sharpen.models.weights.catalog import SIZES
from sharpen.models.weights.checkpoint import Dimensions
from sharpen.models.weights.heads import _RELEASED, stored_heads, usual_heads
from sharpen.models.weights.load import load_checkpoint

LARGE = Dimensions(51865, 80, 1500, 448, 1280, 20, 32, 5120, 20, 32, 5120)
# How many heads each released model has, counted in openai-whisper's own masks.
COUNTS = {
    "tiny.en": 8,
    "tiny": 6,
    "base.en": 5,
    "base": 8,
    "small.en": 19,
    "small": 10,
    "medium.en": 18,
    "medium": 6,
    "large-v1": 9,
    "large-v2": 23,
    "large-v3": 10,
    "large-v3-turbo": 6,
}


def shaped(layers, heads, mels=80):
    return replace(LARGE, text_layers=layers, text_heads=heads, n_mels=mels)


def test_every_size_has_its_heads():
    assert {name: len(heads.split()) for name, heads in _RELEASED.items()} == COUNTS
    assert set(COUNTS) == set(SIZES)


@pytest.mark.parametrize("name", ["base", "tiny.en"])
def test_the_table_is_what_installed_checkpoints_say(name, package_files):
    package_files(name)
    loaded = load_checkpoint(name)
    assert loaded.alignment_heads == usual_heads(loaded.dimensions, loaded.tokenizer.multilingual, "x")
    assert len(loaded.alignment_heads) == 8


@pytest.mark.parametrize(
    ("dims", "multilingual", "name", "first", "count"),
    [
        (shaped(4, 6), True, "a.bin", (2, 2), 6),
        (shaped(4, 6), False, "a.bin", (1, 0), 8),
        (shaped(12, 12), True, "a.bin", (5, 3), 10),
        (shaped(24, 16), False, "a.bin", (11, 4), 18),
        (LARGE, True, "models/large-v1.pt", (9, 19), 9),
        (LARGE, True, "ggml-large-v2.bin", (10, 12), 23),
        (shaped(32, 20, 128), True, "a.bin", (7, 0), 10),
        (shaped(4, 20, 128), True, "a.bin", (2, 4), 6),
        (LARGE, True, "large.pt", (16, 0), 16 * 20),  # either of two
        (shaped(2, 20, 128), True, "distilled", (1, 0), 20),
        (shaped(1, 4), True, "smallest", (0, 0), 4),
    ],
)
def test_the_shape_says_which(dims, multilingual, name, first, count):
    found = usual_heads(dims, multilingual, name)
    assert (found[0], len(found)) == (first, count)
    assert all(layer < dims.text_layers and head < dims.text_heads for layer, head in found)


def test_a_list_in_the_checkpoint_comes_first_if_the_model_has_those_heads():
    assert stored_heads([[1, 0], [3, 5]], shaped(4, 6)) == ((1, 0), (3, 5))
    for wrong in (None, [], [[4, 0]], [[0, 6]], [[0]], [["0", 1]], "1.0", [[-1, 0]], [1, 0]):
        assert stored_heads(wrong, shaped(4, 6)) is None
