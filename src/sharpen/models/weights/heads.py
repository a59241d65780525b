"""The cross-attention heads whose weights follow the speech: by them words get their times.

The table is a fact about the released models, from openai-whisper 20250625 (`_ALIGNMENT_HEADS` in `__init__.py`).
"""

from typing import Any

from sharpen.models.weights.checkpoint import Dimensions

Heads = tuple[tuple[int, int], ...]  # (layer, head) each

_LAYERS_AND_HEADS = {"tiny": (4, 6), "base": (6, 8), "small": (12, 12), "medium": (24, 16), "large": (32, 20)}
_TURBO = (4, 20)
_V3_MELS = 128
_RELEASED = {  # layer.head
    "tiny.en": "1.0 2.0 2.5 3.0 3.1 3.2 3.3 3.4",
    "tiny": "2.2 3.0 3.2 3.3 3.4 3.5",
    "base.en": "3.3 4.7 5.1 5.5 5.7",
    "base": "3.1 4.2 4.3 4.7 5.1 5.2 5.4 5.6",
    "small.en": "6.6 7.0 7.3 7.8 8.2 8.5 8.7 9.0 9.4 9.8 9.10 10.0 10.1 10.2 10.3 10.6 10.11 11.2 11.4",
    "small": "5.3 5.9 8.0 8.4 8.7 8.8 9.0 9.7 9.9 10.5",
    "medium.en": "11.4 14.1 14.12 14.14 15.4 16.0 16.4 16.9 17.12 17.14 18.7 18.10 18.15 20.0 20.3 20.9 20.14 21.12",
    "medium": "13.15 15.4 15.15 16.1 20.0 23.4",
    "large-v1": "9.19 11.2 11.4 11.17 22.7 22.11 22.17 23.2 23.15",
    "large-v2": "10.12 13.17 16.11 16.12 16.13 17.15 17.16 18.4 18.11 18.19 19.11 21.2 21.3 22.3 22.9 22.12 23.5 23.7 "
    "23.13 25.5 26.1 26.12 27.15",
    "large-v3": "7.0 10.17 12.18 13.12 16.1 17.14 19.11 21.4 24.1 25.6",
    "large-v3-turbo": "2.4 2.11 3.3 3.6 3.11 3.14",
}


def stored_heads(value: Any, dims: Dimensions) -> Heads | None:
    """The `alignment_heads` of a checkpoint's configuration; None where it has none.

    Some distilled models have kept their teacher's. A list with a head that the model lacks is taken for none.
    """
    pairs = value if isinstance(value, list) else []
    fits = [
        isinstance(pair, list)
        and len(pair) == 2
        and all(isinstance(number, int) for number in pair)
        and 0 <= pair[0] < dims.text_layers
        and 0 <= pair[1] < dims.text_heads
        for pair in pairs
    ]
    return tuple((layer, head) for layer, head in pairs) if pairs and all(fits) else None


def usual_heads(dims: Dimensions, multilingual: bool, name: str) -> Heads:
    """Those of the released model of the same shape; of any other model all heads in the decoder's upper half.

    large-v1 and large-v2 have one shape: there the name of the file must say which it is.
    """
    fitting = [
        size for size in _RELEASED if _shape(size) == (dims.text_layers, dims.text_heads, multilingual, dims.n_mels)
    ]
    if len(fitting) > 1:
        fitting = [size for size in fitting if size in name]
    if len(fitting) == 1:
        pairs = [pair.split(".") for pair in _RELEASED[fitting[0]].split()]
        return tuple((int(layer), int(head)) for layer, head in pairs)
    upper = range(dims.text_layers // 2, dims.text_layers)
    return tuple((layer, head) for layer in upper for head in range(dims.text_heads))


def _shape(size: str) -> tuple[int, int, bool, int]:
    """Layers, heads, whether multilingual, and mel bands."""
    layers, heads = _TURBO if size.endswith("turbo") else _LAYERS_AND_HEADS[size.removesuffix(".en").partition("-")[0]]
    return layers, heads, not size.endswith(".en"), _V3_MELS if "-v3" in size else 80
