"""wav2vec 2.0 and HuBERT with a CTC head, from Hugging Face's weights: what `models.ctc` adapts without transformers.

Modules have the names that the files have. Nothing is dropped out or masked: the model answers, it is not pre-trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from sharpen.errors import WeightsError

KINDS = {"wav2vec2": "wav2vec2", "hubert": "hubert"}  # model types, and what their files call the encoder
NORMED = "conv.parametrizations.weight.original0", "conv.parametrizations.weight.original1"  # _g and _v in old files
REFUSED = {
    "add_adapter": False,
    "adapter_attn_dim": None,
    "conv_pos_batch_norm": False,
    "feat_proj_layer_norm": True,
    "quantization_config": None,
    "hidden_act": "gelu",
    "feat_extract_activation": "gelu",
}


@dataclass(frozen=True)
class AcousticConfig:
    """The fields of a `config.json` that say what the model computes; the defaults are Hugging Face's."""

    vocab_size: int
    model_type: str = "wav2vec2"
    pad_token_id: int = 0  # the blank
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    layer_norm_eps: float = 1e-5
    feat_extract_norm: str = "group"  # of the first convolution, over time; "layer": of each, over channels
    conv_dim: tuple[int, ...] = (512,) * 7
    conv_stride: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    conv_kernel: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    conv_bias: bool = False
    num_conv_pos_embeddings: int = 128
    num_conv_pos_embedding_groups: int = 16
    do_stable_layer_norm: bool = False  # norms before attention and MLP, not after

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> AcousticConfig:
        kind = config.get("model_type")
        if kind not in KINDS:
            raise WeightsError(f"model_type is {kind!r}: expected one of {', '.join(KINDS)}")
        for key, usual in REFUSED.items():
            if config.get(key, usual) != usual:
                raise WeightsError(f"{key} is {config[key]!r} in this {kind}, which is not supported")
        if config.get("feat_extract_norm", "group") not in ("group", "layer"):
            raise WeightsError(f"feat_extract_norm is {config['feat_extract_norm']!r}: expected group or layer")
        own: dict[str, Any] = {f.name: config[f.name] for f in fields(cls) if config.get(f.name) is not None}
        if "vocab_size" not in own:
            raise WeightsError("config.json has no vocab_size; get the checkpoint again")
        own |= {name: tuple(value) for name, value in own.items() if isinstance(value, list)}
        return cls(**own)


@dataclass(frozen=True)
class FrameLogits:
    """What a call returns, under transformers' name."""

    logits: Tensor  # (B, frames, symbols)


class AcousticForCTC(nn.Module):
    """Waveforms (B, samples) to the logits of each frame."""

    def __init__(self, config: AcousticConfig) -> None:
        super().__init__()
        self.config = config
        self.base_model_prefix = KINDS[config.model_type]
        self.add_module(self.base_model_prefix, _Encoder(config))
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)

    @property
    def base_model(self) -> _Encoder:
        return getattr(self, self.base_model_prefix)  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head.weight.dtype

    def forward(self, samples: Tensor) -> FrameLogits:
        return FrameLogits(self.lm_head(self.base_model(samples)))

    def _get_feat_extract_output_lengths(self, samples: Tensor) -> Tensor:
        for kernel, stride in zip(self.config.conv_kernel, self.config.conv_stride, strict=True):
            samples = (samples - kernel) // stride + 1
        return samples


class _Encoder(nn.Module):
    def __init__(self, config: AcousticConfig) -> None:
        super().__init__()
        self.feature_extractor = _Convolutions(config)
        self.feature_projection = _Projection(config)
        self.encoder = _Layers(config)

    def forward(self, samples: Tensor) -> Tensor:
        return self.encoder(self.feature_projection(self.feature_extractor(samples).transpose(1, 2)))  # type: ignore[no-any-return]


class _Convolutions(nn.Module):
    def __init__(self, c: AcousticConfig) -> None:
        super().__init__()
        sizes = zip((1, *c.conv_dim[:-1]), c.conv_dim, c.conv_kernel, c.conv_stride, strict=True)
        self.conv_layers = nn.ModuleList(_Convolution(c, i, *size) for i, size in enumerate(sizes))

    def forward(self, samples: Tensor) -> Tensor:
        x = samples[:, None]
        for layer in self.conv_layers:
            x = layer(x)
        return x  # (B, channels, frames)


class _Convolution(nn.Module):
    def __init__(self, c: AcousticConfig, i: int, into: int, out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(into, out, kernel, stride, bias=c.conv_bias)
        self.layer_norm: nn.Module | None = None
        if c.feat_extract_norm == "layer":
            self.layer_norm = nn.LayerNorm(out)
        elif i == 0:
            self.layer_norm = nn.GroupNorm(out, out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if isinstance(self.layer_norm, nn.LayerNorm):
            x = self.layer_norm(x.transpose(1, 2)).transpose(1, 2)
        elif self.layer_norm is not None:
            x = self.layer_norm(x)
        return F.gelu(x)


class _Projection(nn.Module):
    def __init__(self, c: AcousticConfig) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(c.conv_dim[-1], eps=c.layer_norm_eps)
        self.projection = nn.Linear(c.conv_dim[-1], c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(self.layer_norm(x))  # type: ignore[no-any-return]


class _Layers(nn.Module):
    def __init__(self, c: AcousticConfig) -> None:
        super().__init__()
        self.before = c.do_stable_layer_norm
        self.pos_conv_embed = _Positions(c)
        self.layer_norm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)
        self.layers = nn.ModuleList(_Layer(c) for _ in range(c.num_hidden_layers))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pos_conv_embed(x)
        x = x if self.before else self.layer_norm(x)
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x) if self.before else x


class _Positions(nn.Module):
    """A wide convolution over time tells the layers where they are."""

    def __init__(self, c: AcousticConfig) -> None:
        super().__init__()
        k, groups = c.num_conv_pos_embeddings, c.num_conv_pos_embedding_groups
        self.even = k % 2 == 0
        self.conv = weight_norm(nn.Conv1d(c.hidden_size, c.hidden_size, k, padding=k // 2, groups=groups), dim=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x.transpose(1, 2))
        return F.gelu(x[..., :-1] if self.even else x).transpose(1, 2)


class _Layer(nn.Module):
    def __init__(self, c: AcousticConfig) -> None:
        super().__init__()
        self.before = c.do_stable_layer_norm
        self.attention = _Attention(c)
        self.layer_norm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)
        self.feed_forward = _FeedForward(c)
        self.final_layer_norm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            x = x + self.attention(self.layer_norm(x))
            return x + self.feed_forward(self.final_layer_norm(x))  # type: ignore[no-any-return]
        x = self.layer_norm(x + self.attention(x))
        return self.final_layer_norm(x + self.feed_forward(x))  # type: ignore[no-any-return]


class _Attention(nn.Module):
    def __init__(self, c: AcousticConfig) -> None:
        super().__init__()
        self.heads = c.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(c.hidden_size, c.hidden_size) for _ in "qkvo")

    def forward(self, x: Tensor) -> Tensor:
        B, n, _ = x.shape
        q, k, v = (f(x).view(B, n, self.heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class _FeedForward(nn.Module):
    def __init__(self, c: AcousticConfig) -> None:
        super().__init__()
        self.intermediate_dense = nn.Linear(c.hidden_size, c.intermediate_size)
        self.output_dense = nn.Linear(c.intermediate_size, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.output_dense(F.gelu(self.intermediate_dense(x)))  # type: ignore[no-any-return]


def acoustic_model(config: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype) -> AcousticForCTC:
    """The model of a checkpoint, in eval mode; a WeightsError names tensors that are missing or that nothing uses."""
    model = AcousticForCTC(AcousticConfig.of(config)).to(dtype)
    own = {}
    for name, tensor in tensors.items():
        if not name.endswith("masked_spec_embed"):  # for training
            own[name.replace("conv.weight_g", NORMED[0]).replace("conv.weight_v", NORMED[1])] = tensor.to(dtype)
    try:
        model.load_state_dict(own)
    except RuntimeError as error:
        raise WeightsError(f"the weights are not those that config.json describes: {error}") from error
    return model.eval().requires_grad_(False)
