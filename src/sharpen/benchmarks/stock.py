"""transformers' own Whisper with a checkpoint's weights: the oracle of tests, the reference of the benchmark.

The only file that imports transformers, which is an extra: nothing that transcribes needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.models.weights.checkpoint import Checkpoint
from sharpen.models.weights.tensors import Convolution, LayerNorm, LayerWeights, Linear, WhisperWeights, numbers


def import_transformers() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise SharpenError(
            f"the reference of the benchmark needs transformers ({error}): pip install 'sharpen[transformers]'"
        ) from error
    return transformers


def stock_model(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> Any:
    """A frozen `WhisperForConditionalGeneration` in eval mode, on the CPU."""
    transformers = import_transformers()
    dims, tokenizer = checkpoint.dimensions, checkpoint.tokenizer
    config = transformers.WhisperConfig(
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
    with torch.device("meta"):  # shapes only: the weights are assigned, not copied over random ones
        # sdpa, because a packed tree needs it: the eager path adds a boolean mask instead of applying it.
        model = transformers.WhisperForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    state = {name: tensor.to(dtype, copy=True) for name, tensor in named_tensors(checkpoint.weights)}
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    model.tie_weights()
    return model.requires_grad_(False).eval()


def named_tensors(weights: WhisperWeights) -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its name in transformers' Whisper, except the output matrix, which is the embedding."""
    yield from _pair("model.encoder.conv1", weights.encoder.conv1)
    yield from _pair("model.encoder.conv2", weights.encoder.conv2)
    yield "model.decoder.embed_tokens.weight", numbers(weights.decoder.tokens)
    for side, half in (("encoder", weights.encoder), ("decoder", weights.decoder)):
        yield f"model.{side}.embed_positions.weight", half.positions
        yield from _pair(f"model.{side}.layer_norm", half.norm)
        for i, layer in enumerate(half.layers):
            yield from _layer(f"model.{side}.layers.{i}", layer)


def _layer(name: str, layer: LayerWeights) -> Iterator[tuple[str, Tensor]]:
    own, cross = layer.attention, layer.cross
    yield from _pair(f"{name}.self_attn_layer_norm", own.norm)
    yield from _linear(f"{name}.self_attn", ("q_proj", "k_proj", "v_proj"), own.qkv)
    yield from _linear(f"{name}.self_attn", ("out_proj",), own.out)
    if cross is not None:
        yield from _pair(f"{name}.encoder_attn_layer_norm", cross.norm)
        yield from _linear(f"{name}.encoder_attn", ("q_proj",), cross.query)
        yield from _linear(f"{name}.encoder_attn", ("k_proj", "v_proj"), cross.kv)
        yield from _linear(f"{name}.encoder_attn", ("out_proj",), cross.out)
    yield from _pair(f"{name}.final_layer_norm", layer.norm)
    yield from _linear(name, ("fc1",), layer.fc1)
    yield from _linear(name, ("fc2",), layer.fc2)


def _pair(name: str, module: LayerNorm | Convolution) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", numbers(module.weight)
    yield f"{name}.bias", module.bias


def _linear(name: str, parts: tuple[str, ...], linear: Linear) -> Iterator[tuple[str, Tensor]]:
    for part, weight, bias in zip(parts, linear.weights, linear.biases, strict=True):
        yield f"{name}.{part}.weight", numbers(weight)
        if bias is not None:
            yield f"{name}.{part}.bias", bias
