"""A small random Whisper with the real vocabulary, for tests that need the structure and not the knowledge."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.models.weights.assemble import assemble
from sharpen.models.weights.checkpoint import Checkpoint, Dimensions, MelSettings


def small_checkpoint(
    vocab_size: int = 51865, d: int = 32, layers: int = 2, seed: int = 0, added: dict[str, int] | None = None
) -> Checkpoint:
    torch.manual_seed(seed)
    tokenizer = WhisperTokenizer.of_kind(vocab_size)
    if added:
        tokenizer = replace(tokenizer, vocab_size=max(added.values()) + 1, added=added)
    config = WhisperConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=d,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=2 * d,
        decoder_ffn_dim=2 * d,
        init_std=0.3,
        pad_token_id=tokenizer.eot,
        bos_token_id=tokenizer.eot,
        eos_token_id=tokenizer.eot,
        decoder_start_token_id=tokenizer.sot,
        attn_implementation="sdpa",
    )
    model = WhisperForConditionalGeneration(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "layer_norm" in name:  # fresh norms are all ones and zeros, which would hide a norm that is mixed up
            parameter += 0.3 * torch.randn_like(parameter)
    dims = Dimensions(
        vocab_size=tokenizer.vocab_size,
        n_mels=config.num_mel_bins,
        audio_ctx=config.max_source_positions,
        text_ctx=config.max_target_positions,
        state=d,
        audio_heads=4,
        audio_layers=layers,
        audio_ffn=2 * d,
        text_heads=4,
        text_layers=layers,
        text_ffn=2 * d,
    )
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "proj_out.weight"}
    return Checkpoint(
        name="small",
        source="random",
        format="safetensors",
        verified=False,
        dimensions=dims,
        weights=assemble(dims, tensors, "small"),
        tokenizer=tokenizer,
        mel=MelSettings(),
        suppress=(1, 2, 7),
        suppress_first=(220, tokenizer.eot),
        alignment_heads=((layers - 1, 0), (layers - 1, 3)),
    )
