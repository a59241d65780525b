"""Small random encoder-decoder text models of every family, made by transformers: the oracle in tests."""

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

VOCABULARY, EOS, PAD = 61, 7, 0
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 44,
    "max_position_embeddings": 64,
    "init_std": 0.3,
    "eos_token_id": EOS,
    "forced_eos_token_id": EOS,
    "bos_token_id": 1,
    "pad_token_id": PAD,
    "decoder_start_token_id": 2,
}
MARIAN = {**BART, "activation_function": "silu", "decoder_start_token_id": PAD, "scale_embedding": True}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 7,
    "d_ff": 40,
    "num_heads": 3,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "relative_attention_num_buckets": 8,  # few and near: small texts reach the last one
    "relative_attention_max_distance": 12,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
}
FAMILIES = {
    "bart": ("bart", BART),
    "bart scaled, forced start": ("bart", {**BART, "scale_embedding": True, "forced_bos_token_id": 1}),
    "marian": ("marian", MARIAN),
    "marian, two vocabularies": (
        "marian",
        {**MARIAN, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 53, "tie_word_embeddings": False},
    ),
    "t5": ("t5", T5),
    "t5 1.1": ("t5", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("mt5", {**T5, "feed_forward_proj": "gated-gelu"}),
}
GENERATION = {"marian": {"bad_words_ids": [[PAD]]}, "marian, two vocabularies": {"bad_words_ids": [[PAD]]}}


def small_seq2seq(name: str, dtype: torch.dtype = torch.float64):
    """A model of transformers in eval mode; its norms are not all ones, and its biases not all zero."""
    kind, settings = FAMILIES[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **settings)
    model = AutoModelForSeq2SeqLM.from_config(config).to(dtype).eval().requires_grad_(False)
    for key, parameter in model.named_parameters():
        if "norm" in key or key.endswith("bias") or "relative_attention_bias" in key:
            parameter += 0.3 * torch.randn_like(parameter)
        elif kind in ("t5", "mt5") and "layer_norm" not in key:
            parameter *= 0.7 if "shared" in key else 1.6
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias += torch.randn_like(model.final_logits_bias)
    for key in ("max_length", "max_new_tokens", "num_beams"):
        setattr(model.generation_config, key, None)
    for key, value in GENERATION.get(name, {}).items():
        setattr(model.generation_config, key, value)
    return model
