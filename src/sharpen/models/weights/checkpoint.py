"""What a loaded checkpoint is: the values that the readers of weights hand out. Torch is not imported."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharpen.errors import WeightsError
from sharpen.models.tokenizer import WhisperTokenizer

if TYPE_CHECKING:
    from sharpen.models.weights.tensors import WhisperWeights

GET_AGAIN = "download the file again (`sharpen models fetch NAME` does for known models)"


@dataclass(frozen=True)
class MelSettings:
    n_mels: int = 80  # 128 from large-v3 on
    n_fft: int = 400  # samples
    hop_length: int = 160  # samples, 10 ms
    sampling_rate: int = 16000  # Hz
    seconds: int = 30  # length of a window


@dataclass(frozen=True)
class Dimensions:
    vocab_size: int
    n_mels: int
    audio_ctx: int  # encoder positions, 1500 for 30 s
    text_ctx: int  # decoder positions, 448
    state: int  # features d of both encoder and decoder
    audio_heads: int
    audio_layers: int
    audio_ffn: int
    text_heads: int
    text_layers: int
    text_ffn: int

    def check(self, where: str) -> None:
        """Refuse sizes that no Whisper has, before anything is allocated."""
        for name, value in vars(self).items():
            if not 0 < value <= (256 if name.endswith("layers") else 2**20):
                raise WeightsError(f"{where}: {name} = {value} is not a size of a Whisper model; {GET_AGAIN}")
        for heads in (self.audio_heads, self.text_heads):
            if self.state % heads:
                raise WeightsError(f"{where}: {self.state} features do not divide into {heads} heads; {GET_AGAIN}")

    @property
    def parameters(self) -> int:
        """How many numbers the model has; the output projection is the token embedding and counts once."""
        d = self.state
        norm = 2 * d
        attention = 4 * d * d + 3 * d  # the key projection has no bias
        audio_layer = attention + 2 * d * self.audio_ffn + self.audio_ffn + d + 2 * norm
        text_layer = 2 * attention + 2 * d * self.text_ffn + self.text_ffn + d + 3 * norm
        convolutions = 3 * d * self.n_mels + d + 3 * d * d + d
        embeddings = (self.audio_ctx + self.text_ctx + self.vocab_size) * d
        layers = self.audio_layers * audio_layer + self.text_layers * text_layer
        return convolutions + embeddings + layers + 2 * norm


@dataclass(frozen=True, eq=False)
class Checkpoint:
    name: str  # as asked for, "base"
    source: str  # where it was found, for people: a path, or a package name and version
    format: str  # "safetensors" | "openai" | "ctranslate2" | "ggml" | "onnx"
    verified: bool  # its checksum is a known one
    dimensions: Dimensions
    weights: "WhisperWeights"  # in the file's number format; a policy converts what it uses
    tokenizer: WhisperTokenizer
    mel: MelSettings
    suppress: tuple[int, ...]  # removed from pi at every step
    suppress_first: tuple[int, ...]  # also removed at the first step: blank and EOS
    alignment_heads: tuple[tuple[int, int], ...]  # (layer, head) of the decoder's that follow the speech
    bits: int | None = None  # of a number in its matrices, where they are quantised

    @property
    def note(self) -> str:
        """What a user should know about these weights; empty where there is nothing."""
        return quantised_note(self.bits)


def quantised_note(bits: int | None) -> str:
    return "" if bits is None else f"weights were {bits}-bit: results differ slightly from the original"
