"""Whisper's tokeniser: byte-level BPE and the special tokens that follow the text tokens.

Every released Whisper uses one of two vocabularies, GPT-2's (English-only) or the multilingual one, so they are
shipped here as merge pairs and a checkpoint without a tokeniser (ggml, OpenAI's files) still has one.

A `tokenizer.json` next to the checkpoint is read for its tokens and specials; words that fine-tuning added after the
timestamps are text like any other. Where its tokens are one of the two known vocabularies, the merges are ours: the
copy that travels with many multilingual checkpoints has lost its first merge, "Ġ t", and so splits " the" in two tokens
the model has never seen together.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sharpen.errors import WeightsError
from sharpen.models.languages import LANGUAGES, language_code

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["LANGUAGES", "WhisperTokenizer", "language_code"]

TIMESTAMPS = 1501  # <|0.00|> ... <|30.00|>
SECONDS_PER_TIMESTAMP = 0.02
ENGLISH, MULTILINGUAL, V3 = 51864, 51865, 51866  # vocabulary sizes: the three kinds of Whisper
_ENGLISH_EOT = 50256

_TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")
_CONTROL = re.compile(r"<\|.*\|>")
_TASKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
_OLDER_NAMES = {"<|nocaptions|>": "<|nospeech|>", "<|iw|>": "<|he|>"}
_REQUIRED = ("<|endoftext|>", "<|startoftranscript|>", *_TASKS)

# What annotates speech instead of being spoken: brackets, quotes, speaker dashes, music. OpenAI's list.
_SYMBOLS = [*'"#()*+/:;<=>@[\\]^_`{|}~「」『』']
_SYMBOLS += ["<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"]
_SYMBOLS += ["[[", "]]", "{{", "}}", "♪♪", "♪♪♪"]
_MUSIC = [*"♩♪♫♬♭♮♯"]  # their first byte-level token is suppressed even where they take several


def _byte_symbols() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    symbols = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in symbols:
            symbols[byte] = chr(256 + len(symbols) - len(printable))
    return [symbols[byte] for byte in range(256)]


SYMBOL_OF_BYTE = _byte_symbols()
BYTE_OF_SYMBOL = {symbol: byte for byte, symbol in enumerate(SYMBOL_OF_BYTE)}
BYTE_TOKENS = tuple(bytes([BYTE_OF_SYMBOL[symbol]]) for symbol in sorted(SYMBOL_OF_BYTE))  # tokens 0 ... 255


@dataclass(frozen=True, eq=False)
class WhisperTokenizer:
    pieces: tuple[bytes, ...] = field(repr=False)  # text token id -> its bytes; empty where it is not text
    merges: NDArray[np.uint32] = field(repr=False)  # (N, 2) token ids, the most urgent first
    specials: Mapping[str, int] = field(repr=False)  # "<|endoftext|>" -> id; timestamps are not listed
    vocab_size: int
    added: Mapping[str, int] = field(default_factory=dict, repr=False)  # whole words that fine-tuning added

    @classmethod
    def of_kind(cls, vocab_size: int, where: str = "the model") -> "WhisperTokenizer":
        """The tokeniser of a released Whisper, by its vocabulary size; `where` is for the error message."""
        if vocab_size not in (ENGLISH, MULTILINGUAL, V3):
            raise WeightsError(
                f"{where}: a vocabulary of {vocab_size} tokens is not one of Whisper's (English-only {ENGLISH}, "
                f"multilingual {MULTILINGUAL}, large-v3 {V3}); put the model's tokenizer.json next to its weights"
            )
        languages = list(LANGUAGES) if vocab_size == V3 else list(LANGUAGES)[:-1]
        names = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in languages), *_TASKS]
        first = _ENGLISH_EOT if vocab_size == ENGLISH else _ENGLISH_EOT + 1
        pieces, merges = vocabulary("english" if vocab_size == ENGLISH else "multilingual")
        return cls(pieces, merges, {name: first + i for i, name in enumerate(names)}, vocab_size)

    @classmethod
    def from_json(cls, path: Path, vocab_size: int) -> "WhisperTokenizer":
        """The tokeniser of a Hugging Face `tokenizer.json` for a model of `vocab_size` tokens."""
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            pieces, specials, added = _parse_tokens(tree)
            kinds = ("english", "multilingual")
            known = (vocabulary(kind) for kind in (kinds if len(pieces) <= _ENGLISH_EOT else kinds[::-1]))
            ours = next((merges for tokens, merges in known if tokens == pieces[: len(tokens)]), None)
            merges = _parse_merges(tree) if ours is None else ours
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
            raise WeightsError(
                f"{path}: not a byte-level BPE tokenizer.json ({type(error).__name__}: {error}); "
                "restore the file that came with the checkpoint, or remove it to use Whisper's own vocabulary"
            ) from error
        missing = [name for name in _REQUIRED if name not in specials]
        if missing:
            raise WeightsError(f"{path}: not a Whisper tokeniser: it lacks {', '.join(missing)}")
        last_timestamp = specials["<|notimestamps|>"] + TIMESTAMPS
        needed = max(*specials.values(), *added.values(), last_timestamp, len(pieces) - 1) + 1
        if needed > vocab_size:
            raise WeightsError(
                f"{path}: this tokeniser needs {needed} tokens and the model has {vocab_size}; use the tokenizer.json "
                "that belongs to this checkpoint"
            )
        return cls(pieces, merges, specials, vocab_size, added)

    def encode(self, text: str) -> list[int]:
        """Text to tokens. Special tokens written out in the text stay text: a prompt cannot inject one."""
        return [int(token) for token in self._engine.encode(text, add_special_tokens=False).ids]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Tokens to text; bytes that are not UTF-8 (a character cut in half) become U+FFFD."""
        text = b"".join(self.token_bytes(token) for token in ids if self.is_text(token) or not skip_special)
        return text.decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token writes; for a special token its name, such as b"<|en|>" or b"<|1.28|>"."""
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        if token in self._names:
            return self._names[token]
        if token in self._added:
            return self._added[token]
        if self.is_timestamp(token):
            return b"<|%.2f|>" % (SECONDS_PER_TIMESTAMP * (token - self.timestamp_begin))
        return self.pieces[token] if token < len(self.pieces) else b""

    def is_text(self, token: int) -> bool:
        return token < self.eot or token in self._added or (token < len(self.pieces) and self.pieces[token] != b"")

    def text_mask(self) -> NDArray[np.bool_]:
        """Which tokens are text: (vocab_size,)."""
        mask = np.zeros(self.vocab_size, dtype=np.bool_)
        mask[: self.eot] = True
        mask[[token for token in range(self.eot, len(self.pieces)) if self.is_text(token)]] = True
        mask[list(self._added)] = True
        return mask

    def is_timestamp(self, token: int) -> bool:
        return self.timestamp_begin <= token < self.timestamp_end

    def time(self, token: int) -> float | None:
        """Seconds from the start of the window, for a timestamp token; None for any other."""
        return SECONDS_PER_TIMESTAMP * (token - self.timestamp_begin) if self.is_timestamp(token) else None

    def suppressed(self) -> tuple[int, ...]:
        """What OpenAI's decoder never emits: symbols that are not speech, and the special tokens of the prompt."""
        # A dash or an apostrophe may stand inside a word, not at its start.
        tokens = {self.encode(" -")[0], self.encode(" '")[0]}
        for symbol in [*_SYMBOLS, *_MUSIC]:
            for encoded in (self.encode(symbol), self.encode(" " + symbol)):
                if len(encoded) == 1 or symbol in _MUSIC:
                    tokens.add(encoded[0])
        return tuple(sorted(tokens | self.prompt_specials))

    @property
    def prompt_specials(self) -> frozenset[int]:
        """Special tokens that belong in a prompt and never in an output."""
        return frozenset((self.sot, self.translate, self.transcribe, self.sot_lm, self.sot_prev, self.no_speech))

    def suppressed_first(self) -> tuple[int, ...]:
        """What an output may not start with: a blank, or EOS."""
        return (self.encode(" ")[0], self.eot)

    @property
    def eot(self) -> int:
        return self.specials["<|endoftext|>"]

    @property
    def sot(self) -> int:
        return self.specials["<|startoftranscript|>"]

    @property
    def translate(self) -> int:
        return self.specials["<|translate|>"]

    @property
    def transcribe(self) -> int:
        return self.specials["<|transcribe|>"]

    @property
    def sot_lm(self) -> int:
        return self.specials["<|startoflm|>"]

    @property
    def sot_prev(self) -> int:
        return self.specials["<|startofprev|>"]

    @property
    def no_speech(self) -> int:
        return self.specials["<|nospeech|>"]

    @property
    def no_timestamps(self) -> int:
        return self.specials["<|notimestamps|>"]

    @property
    def timestamp_begin(self) -> int:
        return self.no_timestamps + 1

    @property
    def timestamp_end(self) -> int:
        """The first token after the timestamps."""
        return self.timestamp_begin + TIMESTAMPS

    @property
    def multilingual(self) -> bool:
        return self.eot != _ENGLISH_EOT

    @cached_property
    def languages(self) -> dict[str, int]:
        """Language code -> its token. Empty for English-only models: they carry the tokens, untrained."""
        if not self.multilingual:
            return {}
        return {code: self.specials[f"<|{code}|>"] for code in LANGUAGES if f"<|{code}|>" in self.specials}

    @cached_property
    def _names(self) -> dict[int, bytes]:
        return {token: name.encode() for name, token in self.specials.items()}

    @cached_property
    def _added(self) -> dict[int, bytes]:
        return {token: text.encode() for text, token in self.added.items()}

    @cached_property
    def _engine(self) -> "Tokenizer":
        from tokenizers import AddedToken, Tokenizer  # here, because transcribing seldom encodes text
        from tokenizers.models import BPE
        from tokenizers.pre_tokenizers import ByteLevel

        symbols = ["".join(SYMBOL_OF_BYTE[byte] for byte in piece) for piece in self.pieces]
        vocab = {symbol: token for token, symbol in enumerate(symbols) if symbol} | dict(self.added)
        engine = Tokenizer(BPE(vocab, [(symbols[left], symbols[right]) for left, right in self.merges.tolist()]))
        engine.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
        engine.add_tokens([AddedToken(text, normalized=False) for text in self.added])
        return engine


@cache
def vocabulary(kind: str) -> tuple[tuple[bytes, ...], NDArray[np.uint32]]:
    """The shipped text tokens of "english" or "multilingual": their bytes, and their merges (N, 2)."""
    with files("sharpen.models").joinpath("assets/vocabularies.npz").open("rb") as file:
        merges: NDArray[np.uint32] = np.load(file, allow_pickle=False)[kind].astype(np.uint32)
    pieces = list(BYTE_TOKENS)
    for left, right in zip(*merges.T.tolist(), strict=True):
        pieces.append(pieces[left] + pieces[right])
    return tuple(pieces), merges


def _parse_tokens(tree: dict[str, Any]) -> tuple[tuple[bytes, ...], dict[str, int], dict[str, int]]:
    """The text tokens' bytes, the special tokens without the timestamps, and the text that was added later."""
    vocab: dict[str, int] = tree["model"]["vocab"]
    specials, added = dict[str, int](), dict[str, int]()
    for entry in tree["added_tokens"]:
        name, token = str(entry["content"]), _token(entry["id"])
        if entry.get("special", True) or _CONTROL.fullmatch(name):
            specials[_OLDER_NAMES.get(name, name)] = token
        elif name not in vocab:
            added[name] = token
    not_text = set(specials.values())
    specials = {name: token for name, token in specials.items() if not _TIMESTAMP.fullmatch(name)}
    of_text = {symbols: _token(token) for symbols, token in vocab.items() if token not in not_text}
    unknown = set("".join(of_text)) - BYTE_OF_SYMBOL.keys()
    if unknown:
        raise ValueError(f"{min(unknown)!r} stands for no byte")
    bytes_of = str.maketrans({symbol: chr(byte) for symbol, byte in BYTE_OF_SYMBOL.items()})
    pieces = [b""] * (max(of_text.values()) + 1)
    for symbols, token in of_text.items():
        pieces[token] = symbols.translate(bytes_of).encode("latin-1")
    return tuple(pieces), specials, added


def _parse_merges(tree: dict[str, Any]) -> NDArray[np.uint32]:
    vocab: dict[str, int] = tree["model"]["vocab"]
    split = [pair.split(" ") if isinstance(pair, str) else pair for pair in tree["model"]["merges"]]
    return np.array([(vocab[left], vocab[right]) for left, right in split], dtype=np.uint32).reshape(-1, 2)


def _token(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**20:
        raise ValueError(f"{value!r} is not a token id")
    return value
