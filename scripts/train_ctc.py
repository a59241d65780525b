"""Train the small CTC model of the tests: a wav2vec 2.0 of 200 thousand parameters that knows twenty spoken words.

    PYTHONPATH=src python scripts/train_ctc.py tests/models/small_ctc

About ten minutes on one thread. Needs flite and espeak-ng. Writes config.json, preprocessor_config.json, vocab.json and
model.safetensors (float16), as Hugging Face lays out a `Wav2Vec2ForCTC`.
"""

import argparse
import json
import sys
import time
import wave
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from spoken_words import RATE, SEEN, WORDS, draws, noisy, sequence, spoken

from sharpen.method.ctc import greedy
from sharpen.models.wav2vec2 import AcousticConfig, AcousticForCTC

LETTERS = sorted(set("".join(WORDS)))
VOCABULARY = {symbol: i for i, symbol in enumerate(["<pad>", "<unk>", "|", *LETTERS])}
SIZES = AcousticConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=80,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=160,
    feat_extract_norm="layer",
    do_stable_layer_norm=True,
    conv_dim=(64, 64, 80),
    conv_kernel=(160, 8, 4),
    conv_stride=(20, 4, 4),
    conv_bias=True,
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
)
BATCH, MOST = 16, 3  # sequences, and words in each
CLIP = ("four", "green", "left")
LR, WARM_UP, REPORT = 2e-3, 50, 50
QUIET = (25.0, 45.0)  # dB of signal over the little noise that training has


@torch.no_grad()
def tune(model: AcousticForCTC) -> None:
    """The first filters begin as short tones on the mel scale, of random phase: minutes are too few to find them."""
    weight = model.base_model.feature_extractor.conv_layers[0].conv.weight  # (filters, 1, samples)
    filters, _, size = weight.shape
    mel = torch.linspace(150.0, 2700.0, filters)
    hertz = 700 * (10 ** (mel / 2595) - 1)
    phase = 2 * torch.pi * (hertz[:, None] * torch.arange(size) / RATE + torch.rand(filters, 1))
    weight[:, 0] = phase.sin() * torch.hann_window(size) / size**0.5


def batch(number: int) -> tuple[torch.Tensor, list[str]]:
    """Sequences of one to three words, filled up with silence to the longest: the model learns that it is blank."""
    rng = draws("train", number)
    made = [sequence(rng, SEEN, int(rng.integers(1, MOST + 1))) for _ in range(BATCH)]
    longest = max(len(samples) for _, samples in made)
    rows = [noisy(rng, np.pad(x, (0, longest - len(x))), rng.uniform(*QUIET)) for _, x in made]
    return torch.stack([normal(row) for row in rows]), [text for text, _ in made]


def normal(samples: np.ndarray) -> torch.Tensor:
    """As `do_normalize` of a preprocessor_config.json asks."""
    x = torch.from_numpy(samples)
    return (x - x.mean()) / (x.var(correction=0) + 1e-7).sqrt()


def symbols(text: str) -> list[int]:
    return [VOCABULARY["|" if letter == " " else letter] for letter in text]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, default=800)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = AcousticForCTC(SIZES)
    tune(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)
    start = time.monotonic()
    for number in range(args.batches):
        waves, texts = batch(number)
        rate = LR * min(1.0, (number + 1) / WARM_UP, 1.02 - number / args.batches)
        for group in optimiser.param_groups:
            group["lr"] = rate
        logits = model(waves).logits
        targets = [symbols(text) for text in texts]
        frames = torch.full((BATCH,), logits.shape[1])
        lengths = torch.tensor([len(target) for target in targets])
        flat = torch.tensor([symbol for target in targets for symbol in target])
        loss = F.ctc_loss(logits.log_softmax(-1).transpose(0, 1), flat, frames, lengths, blank=0)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if number % REPORT == 0:
            right = sum(tuple(t) == y for t, y in zip(targets, greedy(logits, frames.tolist(), 0), strict=True))
            print(f"batch {number}: loss {loss.item():.3f}, {right} of {BATCH} right", file=sys.stderr, flush=True)
    write(args.folder, model)
    write_clip(args.folder / "clip.wav")
    minutes = (time.monotonic() - start) / 60
    print(f"{args.batches} batches of {BATCH} in {minutes:.1f} minutes, last loss {loss.item():.3f}")
    return 0


def write(folder: Path, model: AcousticForCTC) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = {**asdict(model.config), "architectures": ["Wav2Vec2ForCTC"], "made_by": "scripts/train_ctc.py"}
    preprocessor = {"sampling_rate": RATE, "do_normalize": True, "feature_extractor_type": "Wav2Vec2FeatureExtractor"}
    for name, content in (("config", config), ("preprocessor_config", preprocessor), ("vocab", VOCABULARY)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    save_file({k: v.detach().half().contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors")


def write_clip(path: Path) -> None:
    """Three words that tests transcribe where flite is not installed."""
    pause = np.zeros(RATE // 6, dtype=np.float32)
    parts = [part for word in CLIP for part in (pause, spoken(word, SEEN[0], 1.0))]
    samples = noisy(draws("clip"), np.concatenate([*parts, pause]), QUIET[1])
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, len(samples), "NONE", ""))
        file.writeframes((samples * 32768).round().clip(-32768, 32767).astype("<i2").tobytes())


if __name__ == "__main__":
    sys.exit(main())
