"""Small random encoder-decoders on disk: a BART with a tokeniser of bytes, a T5 with one of words that begin with ▁."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

START, END = 256, 257


def write_bart(folder: Path, **generation) -> Path:
    torch.manual_seed(0)
    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("ffn_dim", 40))}
    config = BartConfig(
        vocab_size=258, d_model=24, encoder_attention_heads=2, decoder_attention_heads=2, init_std=0.3, **sizes,
        max_position_embeddings=64, eos_token_id=END, bos_token_id=START, pad_token_id=1, decoder_start_token_id=END,
        forced_eos_token_id=END,
    )  # fmt: skip
    model = BartForConditionalGeneration(config)
    model.final_logits_bias[0, END] += 3.0
    for key, value in generation.items():
        setattr(model.generation_config, key, value)
    model.save_pretrained(folder)
    tok = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tok.add_special_tokens(["<s>", "</s>"])
    tok.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", START), ("</s>", END)])
    tok.enable_truncation(4)
    tok.save(str(folder / "tokenizer.json"))
    return folder


def write_t5(folder: Path) -> Path:
    words = ["<pad>", "</s>", "<unk>", "▁one", "▁two", "▁three", "▁four", "ty", "teen"]
    config = T5Config(
        vocab_size=12, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3, decoder_start_token_id=0, pad_token_id=0,
        eos_token_id=1,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    torch.manual_seed(4)  # one that does not end at once
    for parameter in model.parameters():
        parameter.data = 0.5 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    tok = Tokenizer(models.Unigram([(word, -1.0) for word in words], unk_id=2))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tok.add_special_tokens(words[:3])
    tok.post_processor = processors.TemplateProcessing("$A </s>", None, [("</s>", 1)])
    tok.save(str(folder / "tokenizer.json"))
    return folder
