"""Make src/sharpen/models/assets/vocabularies.npz from two `tokenizer.json` files.

    python scripts/make_vocabularies.py ENGLISH/tokenizer.json MULTILINGUAL/tokenizer.json

The asset holds two arrays, "english" and "multilingual", each (50000, 2) uint16: row k says that text token 256 + k is
token left + token right, in the order in which the merges apply. Tokens 0 to 255 are the single bytes.

The `tokenizer.json` of the packages behind `sharpen[tiny-en]` and `sharpen[base]` were used. The multilingual one has
lost its first merge, "Ġ t" (token 256); the vocabulary still holds the token, so the merge is put back here. Apart
from that every token has exactly one merge, and the merges are in the order of their tokens; the script checks it.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sharpen.models.tokenizer import BYTE_TOKENS, SYMBOL_OF_BYTE

ASSET = Path(__file__).parents[1] / "src" / "sharpen" / "models" / "assets" / "vocabularies.npz"
TOKENS = 50256  # text tokens of both vocabularies


def merge_pairs(path: Path) -> NDArray[np.uint16]:
    model = json.loads(path.read_text(encoding="utf-8"))["model"]
    vocab: dict[str, int] = model["vocab"]
    first = [SYMBOL_OF_BYTE[token[0]] for token in BYTE_TOKENS]
    if [vocab[symbol] for symbol in first] != list(range(256)):
        raise SystemExit(f"{path}: tokens 0 to 255 are not the single bytes in GPT-2's order")

    pairs: dict[int, tuple[int, int]] = {}
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        pairs[vocab[left + right]] = (vocab[left], vocab[right])
    if list(pairs) != sorted(pairs) or len(pairs) != len(model["merges"]):
        raise SystemExit(f"{path}: the merges are not in the order of their tokens, one for each")
    pairs.setdefault(256, (vocab["Ġ"], vocab["t"]))

    missing = set(range(256, TOKENS)) - set(pairs)
    if missing or len(pairs) != TOKENS - 256:
        raise SystemExit(f"{path}: no merge makes the tokens {sorted(missing)[:5]}")
    return np.array([pairs[token] for token in range(256, TOKENS)], dtype=np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("english", type=Path)
    parser.add_argument("multilingual", type=Path)
    arguments = parser.parse_args()
    ASSET.parent.mkdir(exist_ok=True)
    np.savez_compressed(ASSET, english=merge_pairs(arguments.english), multilingual=merge_pairs(arguments.multilingual))
    print(f"wrote {ASSET.name}, {ASSET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
