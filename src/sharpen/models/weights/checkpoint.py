"""What a loaded checkpoint is: the values that leave the reading of weights."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharpen.models.tokenizer import WhisperTokenizer

if TYPE_CHECKING:
    from transformers import WhisperForConditionalGeneration


@dataclass(frozen=True)
class MelSettings:
    n_mels: int = 80  # 128 from large-v3 on
    n_fft: int = 400  # samples
    hop_length: int = 160  # samples, 10 ms
    sampling_rate: int = 16000  # Hz
    seconds: int = 30  # length of a window


@dataclass(frozen=True, eq=False)
class Checkpoint:
    name: str  # as asked for, "base"
    source: str  # where it came from, for people: a path, or a package name and version
    format: str  # "safetensors" | "openai" | "ctranslate2" | "ggml"
    verified: bool  # its checksum is known to us and equal
    model: "WhisperForConditionalGeneration"  # eval(), float32 on the CPU, nothing requires a gradient, sdpa attention
    tokenizer: WhisperTokenizer
    mel: MelSettings
    suppress: tuple[int, ...]  # removed from pi at every step
    suppress_first: tuple[int, ...]  # removed at the first step as well: blank and EOS
