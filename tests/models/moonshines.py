"""Small random Moonshine models of transformers, saved as the formats that are read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from models.weights import onnx_writer as write
from transformers import MoonshineConfig, MoonshineForConditionalGeneration

PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁the", "▁night", "fer", "ry", "▁é"]
VOCAB = len(PIECES) + 3  # and three more specials


def random_moonshine(seed: int = 0, layers: int = 2) -> MoonshineForConditionalGeneration:
    """Heads of 12 features of which 10 rotate, and norms that are not all ones."""
    torch.manual_seed(seed)
    config = MoonshineConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=64,
        encoder_num_hidden_layers=layers,
        decoder_num_hidden_layers=layers,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        initializer_range=0.3,
        attn_implementation="sdpa",
    )
    model = MoonshineForConditionalGeneration(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def write_tokenizer(folder: Path) -> None:
    specials = [*PIECES[:3], "<<ST_0>>", "<<ST_1>>", "<<ST_2>>"]
    ids = [0, 1, 2, *range(len(PIECES), VOCAB)]
    tree = {
        "model": {"type": "BPE", "vocab": {piece: i for i, piece in enumerate(PIECES)}, "merges": []},
        "added_tokens": [{"id": i, "content": name, "special": True} for i, name in zip(ids, specials, strict=True)],
    }
    (folder / "tokenizer.json").write_text(json.dumps(tree))


def write_directory(model: MoonshineForConditionalGeneration, folder: Path) -> Path:
    """A Hugging Face directory."""
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_files(model: MoonshineForConditionalGeneration, folder: Path) -> Path:
    """The two ONNX files of the first release, with its names of modules and no configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    sides: dict[str, dict[str, torch.Tensor]] = {"encoder": {}, "decoder": {}}
    for name, value in model.state_dict().items():
        if name != "proj_out.weight":
            side = name.split(".")[1]
            old = name.replace("o_proj", "dense")
            if side == "decoder":
                old = old.replace("mlp.fc1", "mlp.up_proj").replace("mlp.fc2", "mlp.down_proj")
            sides[side][old.removeprefix("model.encoder.")] = value
    norm = {kind: sides["encoder"].pop(f"groupnorm.{kind}").numpy()[:, None] for kind in ("weight", "bias")}
    nodes, tensors = write.exported(sides["encoder"], "", "")
    nodes.append(write.node("Mul", "/groupnorm/Mul", ["/groupnorm/Reshape_output", "onnx::Mul_1"]))
    nodes.append(write.node("Add", "/groupnorm/Add", ["/groupnorm/Mul_output", "onnx::Add_2"]))
    tensors |= {"onnx::Mul_1": norm["weight"], "onnx::Add_2": norm["bias"]}
    audio = write.graph_input("input_values", ["batch", "samples"])
    (folder / "encoder_model.onnx").write_bytes(write.model(write.graph(nodes, tensors, [audio])))
    nodes, tensors = write.exported(sides["decoder"], "_merged_0", "")
    branch = write.field(5, write.field(1, "then_branch") + write.field(6, write.graph(nodes, {})))
    cache = write.graph_input("past_key_values.0.decoder.key", ["batch", 4, "past", 12])
    inner = write.graph([write.node("If", "optimum::if", ["use_cache_branch"], branch)], tensors, [cache])
    (folder / "decoder_model_merged.onnx").write_bytes(write.model(inner))
    write_tokenizer(folder)
    return folder


def clips(*seconds: float) -> list[np.ndarray]:
    return [
        np.random.default_rng(i).standard_normal(round(16000 * s)).astype(np.float32) for i, s in enumerate(seconds)
    ]
