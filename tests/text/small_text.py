"""A small random Llama with a tokeniser of bytes, on disk and in memory."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from sharpen.text.generate import LanguageModel, load_text

END, USER = 256, 257
TEMPLATE = "<|user|>{{ messages[0]['content'] }}"


def write_model(folder: Path) -> Path:
    """A Hugging Face directory; its answers end with <|end|> about one time in ten."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        tie_word_embeddings=False,
        initializer_range=0.4,
        eos_token_id=END,
    )
    model = LlamaForCausalLM(config)
    model.lm_head.weight.data *= 0.7
    model.lm_head.weight.data[END] *= 3.0
    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tok.add_special_tokens(["<|end|>", "<|user|>"])
    tok.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def small_text(folder: Path) -> LanguageModel:
    return load_text(write_model(folder))
