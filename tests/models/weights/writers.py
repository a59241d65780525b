"""Writers of the formats, made from the formats' descriptions and not from our readers."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from models.weights.quantisers import by_row, ggml
from transformers import WhisperConfig, WhisperForConditionalGeneration

from sharpen.models.tokenizer import WhisperTokenizer

GGML_FILES = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9}
GGML_TENSORS = {"q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}
CODES = {torch.float32: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.float16: 4, torch.bfloat16: 5}


def small_model(
    vocab_size: int = 51864, n_mels: int = 80, seed: int = 0, d: int = 16
) -> WhisperForConditionalGeneration:
    """A random model whose every number is a float16, so that nothing is lost in any of the float formats."""
    torch.manual_seed(seed)
    config = WhisperConfig(
        vocab_size=vocab_size,
        num_mel_bins=n_mels,
        d_model=d,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=2,
        encoder_ffn_dim=4 * d,
        decoder_ffn_dim=4 * d,
        bos_token_id=50256,
        eos_token_id=50256,
        pad_token_id=50256,
        decoder_start_token_id=50257,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter + 0.02 * torch.randn_like(parameter)).half().float())
    return model


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def openai_state(model: WhisperForConditionalGeneration) -> dict[str, torch.Tensor]:
    state = {}
    for name, tensor in model.state_dict().items():
        if name == "proj_out.weight":
            continue
        for hugging_face, openai in (
            ("model.", ""),
            ("layers.", "blocks."),
            ("self_attn_layer_norm", "attn_ln"),
            ("encoder_attn_layer_norm", "cross_attn_ln"),
            ("self_attn", "attn"),
            ("encoder_attn", "cross_attn"),
            ("q_proj", "query"),
            ("k_proj", "key"),
            ("v_proj", "value"),
            ("out_proj", "out"),
            ("final_layer_norm", "mlp_ln"),
            ("fc1", "mlp.0"),
            ("fc2", "mlp.2"),
            ("encoder.layer_norm", "encoder.ln_post"),
            ("decoder.layer_norm", "decoder.ln"),
            ("embed_tokens", "token_embedding"),
            ("embed_positions.weight", "positional_embedding"),
        ):
            name = name.replace(hugging_face, openai)
        state[name] = tensor
    return state


def openai_sizes(model: WhisperForConditionalGeneration) -> dict[str, int]:
    config = model.config
    return {
        "n_mels": config.num_mel_bins,
        "n_vocab": config.vocab_size,
        "n_audio_ctx": config.max_source_positions,
        "n_audio_state": config.d_model,
        "n_audio_head": config.encoder_attention_heads,
        "n_audio_layer": config.encoder_layers,
        "n_text_ctx": config.max_target_positions,
        "n_text_state": config.d_model,
        "n_text_head": config.decoder_attention_heads,
        "n_text_layer": config.decoder_layers,
    }


def write_openai(model: WhisperForConditionalGeneration, path: Path, dtype: torch.dtype = torch.float16) -> Path:
    state = {name: tensor.to(dtype) for name, tensor in openai_state(model).items()}
    torch.save({"dims": openai_sizes(model), "model_state_dict": state}, path)
    return path


def write_ggml(
    model: WhisperForConditionalGeneration,
    path: Path,
    file_type: int = 1,
    pieces: list[bytes] | None = None,
    quantised: str = "",
) -> Path:
    """With `quantised` ("q5_0") the matrices are stored so, as whisper.cpp's own quantiser does it."""
    return write_ggml_tensors(openai_state(model), openai_sizes(model), path, file_type, pieces, quantised)


def write_ggml_tensors(
    state: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
    path: Path,
    file_type: int = 1,
    pieces: list[bytes] | None = None,
    quantised: str = "",
) -> Path:
    if quantised:
        file_type = 2000 + GGML_FILES[quantised]
    order = (
        "n_vocab n_audio_ctx n_audio_state n_audio_head n_audio_layer n_text_ctx n_text_state n_text_head n_text_layer"
    )
    out = [struct.pack("<I", 0x67676D6C), struct.pack("<10i", *(sizes[name] for name in [*order.split(), "n_mels"]))]
    out.append(struct.pack("<i", file_type))
    out.append(struct.pack("<2i", sizes["n_mels"], 201) + np.zeros((sizes["n_mels"], 201), "<f4").tobytes())
    pieces = list(WhisperTokenizer.of_kind(sizes["n_vocab"]).pieces) if pieces is None else pieces
    out.append(struct.pack("<i", len(pieces)))
    out += [struct.pack("<I", len(piece)) + piece for piece in pieces]
    for name, tensor in state.items():
        if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
            tensor = tensor[:, None]
        half = file_type != 0 and tensor.ndim > 1 and not name.endswith(("bias", "positional_embedding"))
        blocks = quantised and half and tensor.ndim == 2
        out.append(struct.pack("<3i", tensor.ndim, len(name), GGML_TENSORS[quantised] if blocks else int(half)))
        out.append(struct.pack(f"<{tensor.ndim}i", *reversed(tensor.shape)))
        out.append(name.encode())
        out.append(ggml(tensor.numpy(), quantised) if blocks else raw(tensor.half() if half else tensor.float()))
    path.write_bytes(b"".join(out))
    return path


def ctranslate2_variables(model: WhisperForConditionalGeneration) -> dict[str, torch.Tensor]:
    """The variables that CTranslate2's converter makes: attention projections fused, a zero bias for the keys."""
    state = model.state_dict()
    out = {"decoder/embeddings/weight": state["model.decoder.embed_tokens.weight"]}
    for flag, value in {"activation": 3, "alibi": 0, "pre_norm": 1, "scale_embeddings": 0}.items():
        out[f"decoder/{flag}"] = torch.tensor(value, dtype=torch.int8)
    for side in ("encoder", "decoder"):
        config = model.config
        heads = config.encoder_attention_heads if side == "encoder" else config.decoder_attention_heads
        out[f"{side}/num_heads"] = torch.tensor(heads, dtype=torch.int16)
        out[f"{side}/position_encodings/encodings"] = state[f"model.{side}.embed_positions.weight"]
        _add_norm(out, f"{side}/layer_norm", state, f"model.{side}.layer_norm")
        for index in range(config.encoder_layers if side == "encoder" else config.decoder_layers):
            here, there = f"{side}/layer_{index}", f"model.{side}.layers.{index}"
            _add_attention(out, f"{here}/self_attention", state, f"{there}.self_attn", (("q", "k", "v"),))
            if side == "decoder":
                _add_attention(out, f"{here}/attention", state, f"{there}.encoder_attn", (("q",), ("k", "v")))
            _add_norm(out, f"{here}/ffn/layer_norm", state, f"{there}.final_layer_norm")
            for number, linear in enumerate(("fc1", "fc2")):
                for leaf in ("weight", "bias"):
                    out[f"{here}/ffn/linear_{number}/{leaf}"] = state[f"{there}.{linear}.{leaf}"]
    for layer in ("conv1", "conv2"):
        for leaf in ("weight", "bias"):
            out[f"encoder/{layer}/{leaf}"] = state[f"model.encoder.{layer}.{leaf}"]
    return dict(sorted(out.items()))


def int8_variables(variables: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same with their matrices as int8 and a scale for each row."""
    out = dict(variables)
    for name, tensor in variables.items():
        if name.endswith("/weight"):
            q, factors = by_row(tensor.numpy())
            out[name], out[f"{name}_scale"] = torch.from_numpy(q), torch.from_numpy(factors)
    return dict(sorted(out.items()))


def write_ctranslate2(
    variables: Mapping[str, torch.Tensor], path: Path, dtype: torch.dtype = torch.float16, version: int = 6
) -> Path:
    out = [struct.pack("<I", version), _text("WhisperSpec"), struct.pack("<II", 3, len(variables))]
    for name, tensor in variables.items():
        tensor = tensor.to(dtype) if tensor.is_floating_point() and not name.endswith("_scale") else tensor
        data = raw(tensor.reshape(1) if tensor.ndim == 0 else tensor)
        out.append(_text(name) + struct.pack(f"<B{tensor.ndim}I", tensor.ndim, *tensor.shape))
        out.append(struct.pack("<BI", CODES[tensor.dtype], len(data)) + data)
    scales = ["_scale"] if "decoder/embeddings/weight_scale" in variables else []
    out.append(struct.pack("<I", 1 + len(scales)))
    for end in ["", *scales]:
        out.append(_text(f"decoder/projection/weight{end}") + _text(f"decoder/embeddings/weight{end}"))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(out))
    return path


def _text(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def _add_norm(out: dict[str, torch.Tensor], here: str, state: Mapping[str, torch.Tensor], there: str) -> None:
    out[f"{here}/gamma"], out[f"{here}/beta"] = state[f"{there}.weight"], state[f"{there}.bias"]


def _add_attention(
    out: dict[str, torch.Tensor],
    here: str,
    state: Mapping[str, torch.Tensor],
    there: str,
    groups: tuple[tuple[str, ...], ...],
) -> None:
    _add_norm(out, f"{here}/layer_norm", state, f"{there}_layer_norm")
    for number, group in enumerate([*groups, ("out",)]):
        weights = [state[f"{there}.{letter}_proj.weight"] for letter in group]
        zeros = torch.zeros(weights[0].shape[0])
        biases = [state.get(f"{there}.{letter}_proj.bias", zeros) for letter in group]
        out[f"{here}/linear_{number}/weight"] = torch.cat(weights)
        out[f"{here}/linear_{number}/bias"] = torch.cat(biases)
