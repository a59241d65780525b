"""Small random causal language models of every family, made by transformers: the oracle in tests, never the engine."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY, EOS = 61, 7
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "eos_token_id": EOS,
    "bos_token_id": 1,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.6, "attention_multiplier": 0.3, "logits_scaling": 1.7}
FAMILIES = {
    "llama": ("llama", {"num_key_value_heads": 2}),
    "llama tied, biases": (
        "llama",
        {"num_key_value_heads": 1, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama 3 positions": ("llama", {"num_key_value_heads": 4, "rope_parameters": LLAMA3}),
    "mistral": ("mistral", {"num_key_value_heads": 2, "sliding_window": 4}),
    "qwen2": ("qwen2", {"num_key_value_heads": 2}),
    "qwen2 windows": (
        "qwen2",
        {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"num_key_value_heads": 2, "head_dim": 8}),
    "granite": ("granite", {"num_key_value_heads": 2, "tie_word_embeddings": True, **GRANITE}),
    "gemma": ("gemma", {"num_key_value_heads": 1, "head_dim": 8, "hidden_act": "gelu"}),
    "gemma3": (
        "gemma3_text",
        {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 3, "sliding_window_pattern": 2},
    ),
    "gpt2": ("gpt2", {"n_inner": 50}),
    "gpt_neox": ("gpt_neox", {"rotary_pct": 0.5}),
    "gpt_neox in series": ("gpt_neox", {"use_parallel_residual": False, "tie_word_embeddings": True}),
}


def small_causal(name: str, dtype: torch.dtype = torch.float64):
    """A model of transformers in eval mode, its norms not all ones, which would hide one that is mixed up."""
    kind, more = FAMILIES[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, **more})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype).eval().requires_grad_(False)
    for key, parameter in model.named_parameters():
        if "norm" in key or "ln_" in key or key.endswith("bias"):
            parameter += 0.3 * torch.randn_like(parameter)
    return model
