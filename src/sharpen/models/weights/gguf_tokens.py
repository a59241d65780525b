"""The tokeniser in a GGUF file's metadata, as the `tokenizers` library has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sharpen.errors import WeightsError
from sharpen.models.weights.checkpoint import GET_AGAIN
from sharpen.models.weights.pieces import SPACE, byte_pairs

_UNKNOWN, _CONTROL, _OWN, _UNUSED = 2, 3, 4, 5  # types of tokens; 1 is an ordinary one, 6 a byte
_QWEN2 = (  # what is cut apart before pairs are merged
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer(metadata: Mapping[str, Any], where: str) -> Any:
    """A byte-level tokeniser as GPT-2's, or a SentencePiece one as Llama's and Gemma's."""
    from tokenizers import AddedToken, processors

    if metadata.get("tokenizer.ggml.add_eos_token"):
        raise WeightsError(f"{where}: its tokeniser ends every text with the end token; a prompt must not end so")
    kind, before = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    tokens, types = _vocabulary(metadata, where)
    if kind == "llama":
        tok = _sentence_piece(metadata, tokens, types, where)
    elif (kind, before) in {("gpt2", "smollm"), ("gpt2", "gpt-2"), ("gpt2", "qwen2")}:
        tok = _byte_level(metadata, tokens, str(before))
    else:
        raise WeightsError(
            f"{where}: a tokeniser {kind!r} with {before!r}; expected 'llama', or 'gpt2' with 'smollm', 'gpt-2' or "
            "'qwen2'"
        )
    # Found in a text before anything else is done to it.
    named = [(token, type) for token, type in zip(tokens, types, strict=True) if type in (_UNKNOWN, _CONTROL, _OWN)]
    tok.add_tokens([AddedToken(token, normalized=False) for token, type in named if type == _OWN])
    tok.add_special_tokens([AddedToken(token, special=True) for token, type in named if type != _OWN])
    if metadata.get("tokenizer.ggml.add_bos_token", kind == "llama"):
        bos = metadata.get("tokenizer.ggml.bos_token_id")
        if bos is None:
            raise WeightsError(f"{where}: its texts begin with a BOS token, and none is named; {GET_AGAIN}")
        special = (tokens[bos], bos)
        tok.post_processor = processors.TemplateProcessing(single=[tokens[bos], "$A"], special_tokens=[special])
    return tok


def ends(metadata: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """The tokens that end an output: of a text, of a turn, and padding, which no output contains.

    Qwen's files name <|endoftext|> as padding alone, and the model writes it where a text ends.
    """
    found = [metadata.get(f"tokenizer.ggml.{part}_token_id") for part in ("eos", "eot", "padding")]
    if found[0] is None:
        raise WeightsError(f"{where}: there is no tokenizer.ggml.eos_token_id; {GET_AGAIN}")
    return tuple(dict.fromkeys(token for token in found if token is not None))


def words(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a chat template may name."""
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    numbers = {f"{part}_token": metadata.get(f"tokenizer.ggml.{part}_token_id") for part in ("bos", "eos")}
    return {key: tokens[number] for key, number in numbers.items() if number is not None}


def _vocabulary(metadata: Mapping[str, Any], where: str) -> tuple[Sequence[str], Sequence[int]]:
    """All tokens and their types, without unused ones at the end, which only fill the matrix."""
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if not tokens or len(types) != len(tokens):
        raise WeightsError(f"{where}: damaged: {len(tokens)} tokens and {len(types)} types of tokens; {GET_AGAIN}")
    last = max((i for i, type in enumerate(types) if type != _UNUSED), default=-1)
    return tokens[: last + 1], types[: last + 1]


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], before: str) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
    tok = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    first: list[Any] = []
    if before == "smollm":
        first = [pre_tokenizers.Digits(individual_digits=True)]
    if before == "qwen2":
        tok.normalizer = normalizers.NFC()
        first = [pre_tokenizers.Split(Regex(_QWEN2), "isolated")]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=before != "qwen2")
    tok.pre_tokenizer = pre_tokenizers.Sequence([*first, last])
    tok.decoder = decoders.ByteLevel()
    return tok


def _sentence_piece(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], where: str) -> Any:
    from tokenizers import Tokenizer, decoders, normalizers

    scores = metadata.get("tokenizer.ggml.scores", ())
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    if len(scores) < len(tokens) or unknown is None:
        raise WeightsError(
            f"{where}: {len(tokens)} tokens, {len(scores)} scores and {unknown} as the unknown token: expected a score "
            f"for every token; {GET_AGAIN}"
        )
    number = {token: i for i, token in enumerate(tokens)}
    ordinary = {tokens[i]: scores[i] for i, type in enumerate(types) if type == 1}
    tok = Tokenizer(byte_pairs(number, ordinary, tokens[unknown]))
    spaces = [normalizers.Prepend(SPACE)] if metadata.get("tokenizer.ggml.add_space_prefix", True) else []
    tok.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", SPACE)])
    tok.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tok
