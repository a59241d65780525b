"""The attention of single heads against transformers', and what is made of it against its definition."""

import numpy as np
import pytest
import torch
from models.small import small_checkpoint
from transformers.modeling_outputs import BaseModelOutput

from sharpen.benchmarks.stock import stock_model
from sharpen.method.norms import Affine
from sharpen.models.attention import WIDTH, consensus
from sharpen.models.whisper_speech import WhisperSpeech


@pytest.fixture(scope="module")
def speech():
    return WhisperSpeech(small_checkpoint())


def clips(*seconds):
    return [
        np.random.default_rng(i).standard_normal(round(16000 * s)).astype(np.float32) for i, s in enumerate(seconds)
    ]


def test_the_weights_are_those_of_transformers(speech):
    model = stock_model(speech.checkpoint)
    model.set_attn_implementation("eager")
    prepared = speech.prepare(clips(2.0))
    heads = [(0, 2), (1, 0), (1, 3)]
    tokens = [*speech.prompt("en", (), "transcribe", False), 400, 500, 600, speech.tokenizer.eot]
    with torch.no_grad():
        states = BaseModelOutput(last_hidden_state=speech.policy.encoder_states(prepared))
        out = model(encoder_outputs=states, decoder_input_ids=torch.tensor([tokens]), output_attentions=True)
        ours = speech.policy.cross_attention(speech.policy.encode(prepared), 0, tokens, heads).softmax(-1)
    for weights, (layer, head) in zip(ours, heads, strict=True):
        torch.testing.assert_close(weights, out.cross_attentions[layer][0, head], atol=1e-5, rtol=1e-3)


def test_more_tokens_than_positions_are_no_error(speech):
    encoded = speech.policy.encode(speech.prepare(clips(1.0)))
    assert speech.policy.cross_attention(encoded, 0, [400] * 449, [(0, 0)]).shape == (1, 449, 1500)


def defined(logits):
    """Head by head and frame by frame, as the definition says."""
    heads = []
    for head in logits.softmax(-1).double().numpy():
        z = (head - head.mean(0)) / head.std(0)
        around = np.pad(z, ((0, 0), (WIDTH // 2, WIDTH // 2)), mode="reflect")
        heads.append(np.stack([np.median(around[:, t : t + WIDTH], axis=1) for t in range(z.shape[1])], axis=1))
    return np.mean(heads, axis=0)


def test_what_the_heads_agree_on():
    logits = 3 * torch.randn(4, 6, 40, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(consensus(logits).numpy(), defined(logits), atol=1e-4)


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_a_moment_of_audio_gives_numbers(frames):
    found = consensus(torch.randn(2, 5, frames))
    assert found.shape == (5, frames)
    assert found.isfinite().all()


@pytest.mark.parametrize("padding", ["full", "condensed"])
def test_windows_of_a_batch_listen_as_each_alone(speech, padding):
    """Also with norms of their own; only frames within the audio are looked at."""
    some, texts, seconds = clips(3.0, 1.0), [[400, 500], [600]], [3.0, 1.0]
    norms = speech.policy.norms()
    own = {n.name: Affine(n.weight * torch.tensor([[1.5], [0.7]]), n.bias.expand(2, -1)) for n in norms}
    view = speech.policy.adapted(own)
    with torch.no_grad():
        together = view.encode(speech.prepare(some, padding))
        found = speech.attention(view, together, texts, ["en", "de"], "transcribe", seconds)
        for b in range(2):
            alone = speech.policy.adapted({name: affine.row(b) for name, affine in own.items()})
            encoded = alone.encode(speech.prepare(some[b : b + 1], padding))
            (expected,) = speech.attention(
                alone, encoded, texts[b : b + 1], [["en", "de"][b]], "transcribe", seconds[b:][:1]
            )
            np.testing.assert_allclose(found[b].weights, expected.weights, atol=1e-3)
            assert found[b].weights.shape == (len(texts[b]) + 2, round(50 * seconds[b]))
            assert found[b].times.tolist() == pytest.approx([0.02 * t for t in range(round(50 * seconds[b]))])
