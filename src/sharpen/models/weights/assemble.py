"""From parsed weights to one `WhisperForConditionalGeneration`, whatever file they came from."""

import math

import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration

from sharpen.errors import WeightsError
from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.models.weights.stored import FLOATS, GET_AGAIN, Dimensions, Parsed, Stored

_TIED = "proj_out.weight"


def assemble(parsed: Parsed, tokenizer: WhisperTokenizer, where: str) -> WhisperForConditionalGeneration:
    """A frozen float32 model in eval mode; every tensor is expected, of the right shape, and none is missing."""
    with torch.device("meta"):  # shapes only: the weights are assigned, not copied over random ones
        # sdpa, because a packed tree needs it: the eager path adds a boolean mask instead of applying it.
        config = whisper_config(parsed.dimensions, tokenizer)
        model: WhisperForConditionalGeneration = WhisperForConditionalGeneration._from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation="sdpa"
        )
    _check({name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, parsed, where)
    state = {name: _float32(stored) for name, stored in parsed.tensors.items()}
    state[_TIED] = state["model.decoder.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    model.tie_weights()
    model.requires_grad_(False)
    model.train(False)
    return model


def whisper_config(dims: Dimensions, tokenizer: WhisperTokenizer) -> WhisperConfig:
    return WhisperConfig(
        vocab_size=dims.vocab_size,
        num_mel_bins=dims.n_mels,
        max_source_positions=dims.audio_ctx,
        max_target_positions=dims.text_ctx,
        d_model=dims.state,
        encoder_attention_heads=dims.audio_heads,
        encoder_layers=dims.audio_layers,
        encoder_ffn_dim=dims.audio_ffn,
        decoder_attention_heads=dims.text_heads,
        decoder_layers=dims.text_layers,
        decoder_ffn_dim=dims.text_ffn,
        bos_token_id=tokenizer.eot,
        eos_token_id=tokenizer.eot,
        pad_token_id=tokenizer.eot,
        decoder_start_token_id=tokenizer.sot,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )


def _check(expected: dict[str, tuple[int, ...]], parsed: Parsed, where: str) -> None:
    found = {name: stored.shape for name, stored in parsed.tensors.items()}
    expected = {name: shape for name, shape in expected.items() if name != _TIED}
    missing, foreign = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing:
        raise WeightsError(f"{where}: {len(missing)} tensors are missing, {missing[0]} first; {GET_AGAIN}")
    if foreign:
        raise WeightsError(f"{where}: {len(foreign)} tensors have no place in Whisper, {foreign[0]} first")
    for name, shape in expected.items():
        if found[name] != shape:
            raise WeightsError(f"{where}: {name} has shape {found[name]}, expected {shape}; {GET_AGAIN}")
    for name, stored in parsed.tensors.items():
        if stored.dtype not in FLOATS:
            raise WeightsError(f"{where}: {name} is {stored.dtype}, expected one of {', '.join(FLOATS)}")


def _float32(stored: Stored) -> Tensor:
    dtype: torch.dtype = getattr(torch, stored.dtype)
    flat = torch.frombuffer(stored.data, dtype=dtype, count=math.prod(stored.shape))
    return flat.reshape(stored.shape).to(torch.float32, copy=True)  # copy: the file may go away
