"""Moonshine against transformers, on random weights and, where the package can be fetched, on real ones."""

import json

import numpy as np
import pytest
import torch
from models.moonshines import PIECES, VOCAB, clips, random_moonshine, write_directory, write_files
from transformers import MoonshineConfig, MoonshineForConditionalGeneration

from sharpen.errors import SharpenError, WeightsError
from sharpen.method.adapt import adapt
from sharpen.method.adaptation import Adaptation
from sharpen.method.conformance import check_policy
from sharpen.method.norms import affine, initial
from sharpen.method.search import beam, greedy
from sharpen.method.tree import HypothesisTree, pack
from sharpen.models.load import load_speech
from sharpen.models.moonshine import HOP, SHORTEST
from sharpen.models.moonshine_speech import MoonshineSpeech
from sharpen.models.weights import catalog, moonshine, onnx
from sharpen.models.weights.formats import identify
from sharpen.models.weights.load import find_checkpoint, load_checkpoint
from sharpen.speech.audio import Audio, read_audio
from sharpen.speech.longform import quiet_end
from sharpen.speech.transcribe import Model

EXAMPLE = "examples/ferry.flac"


@pytest.fixture(scope="module")
def reference():
    return random_moonshine()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    return write_directory(reference, tmp_path_factory.mktemp("moonshine"))


@pytest.fixture(scope="module")
def exact(reference):
    return random_moonshine().double()


@pytest.fixture(scope="module")
def speech(folder):
    return MoonshineSpeech(find_checkpoint(folder).load(), dtype=torch.float64)


@pytest.fixture(scope="module")
def real(fetched_package):
    return load_speech(fetched_package("moonshine-tiny", "onnx").parent, "cpu", "float32")


def padded_logits(model, samples, sequences):
    """transformers' logits after the start token, for rows of one length: (rows, n, V)."""
    rows = torch.tensor([[1, *sequence] for sequence in sequences])
    audio = torch.from_numpy(samples).to(model.dtype).expand(len(rows), -1)
    return model(input_values=audio, decoder_input_ids=rows).logits


def trees_of(sequences):
    return HypothesisTree.of([[*sequence, 2] for sequence in sequences], 2)


def test_packed_trees_equal_padded_rows_in_logits_and_gradient(speech, exact):
    samples, sequences = clips(0.9)[0], [[259, 260, 5, 6], [259, 260, 7, 8], [261, 9, 9, 9]]
    policy, prepared = speech.policy, speech.prepare([samples])
    theta = initial(policy.norms(), 1).requires_grad_()
    view = policy.adapted(affine(policy.norms(), theta))
    tree = trees_of(sequences)
    hidden = view.score(view.encode(prepared), pack([tree]))[0]  # (N, d)
    ours = hidden @ policy.vocabulary.T
    names = {id(p): n for n, p in exact.named_parameters()}
    norms = [p for n, p in exact.named_parameters() if "norm.weight" in n and "groupnorm" not in n]
    norms += [p for n, p in exact.named_parameters() if "layernorm.weight" in n]
    for parameter in norms:
        parameter.requires_grad_()
    theirs = padded_logits(exact, samples, sequences)
    loss_ours, loss_theirs = 0, 0
    for i, y in enumerate(tree.hypotheses):
        for t, node in enumerate(y.nodes):
            assert torch.allclose(ours[node], theirs[i, t], atol=1e-9)
            loss_ours = loss_ours + ours[node].log_softmax(-1)[y.tokens[t]]
            loss_theirs = loss_theirs + theirs[i, t].log_softmax(-1)[y.tokens[t]]
    (gradient,) = torch.autograd.grad(loss_ours, theta)
    expected = dict(zip((names[id(p)] for p in norms), torch.autograd.grad(loss_theirs, norms), strict=True))
    found = {f"model.{name}.weight": one.weight[0] for name, one in affine(policy.norms(), gradient).items()}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-8), name
        assert value.abs().max() > 1e-3


def test_greedy_is_token_identical_to_transformers(speech, exact):
    windows = clips(1.3, 0.6, 0.9)
    found = greedy(speech.policy, speech.policy.encode(speech.prepare(windows)), [12] * 3)
    allowed = ~speech.policy.forbidden[0]
    for samples, tree in zip(windows, found, strict=True):
        tokens: list[int] = []
        with torch.no_grad():
            while len(tokens) < 12 and tokens[-1:] != [2]:
                logits = padded_logits(exact, samples, [tokens])[0, -1]
                tokens.append(int(logits.masked_fill(~allowed, -torch.inf).argmax()))
        assert list(tree.hypotheses[0].tokens) == tokens


def test_the_policy_conforms(speech, folder):
    check_policy(speech.policy, speech.prepare(clips(1.3, 0.6)))
    single = MoonshineSpeech(find_checkpoint(folder).load())
    check_policy(single.policy, single.prepare(clips(1.3, 0.6)))


def test_a_batch_is_its_utterances_one_by_one(speech):
    windows, options = clips(1.4, 0.5, 0.9), Adaptation(method="em-tok-b", steps=3, samples=3)
    together = adapt(speech.policy, speech.prepare(windows), options, ids=list("abc"), limits=[8] * 3)
    for b, window in enumerate(windows):
        alone = adapt(speech.policy, speech.prepare([window]), options, ids=["abc"[b]], limits=[8])
        for name, one in alone.norms.items():
            assert torch.allclose(together.norms[name].weight[b], one.weight[0], atol=1e-8), name
            assert one.bias is None
        both = [beam(speech.policy, speech.policy.encode(speech.prepare(some)), [8] * len(some), 4)[i]
                for some, i in ((windows, b), ([window], 0))]  # fmt: skip
        assert [y.tokens for y in both[0].hypotheses] == [y.tokens for y in both[1].hypotheses]


def test_the_lower_layers_can_be_computed_ahead(speech):
    prepared = speech.prepare(clips(1.0, 0.6))
    norms = [norm.name for norm in speech.policy.norms() if norm.layer > 0 or norm.side == "decoder"]
    ahead = speech.policy.ahead(prepared, norms)
    assert (prepared.layers, ahead.layers) == (0, 1)
    one, other = speech.policy.encode(prepared), speech.policy.encode(ahead)
    real = ~speech.frame_times(prepared).isnan()  # filling is never looked at
    for (keys, _), (same, _) in zip(one.cross, other.cross, strict=True):
        assert torch.allclose(keys.transpose(1, 2)[real], same.transpose(1, 2)[real], atol=1e-9)


def test_both_formats_give_the_same_model(reference, folder, tmp_path):
    files = find_checkpoint(write_files(reference, tmp_path / "onnx")).load()
    directory = find_checkpoint(folder).load()
    assert (files.format, directory.format) == ("onnx", "safetensors")
    assert files.dimensions == directory.dimensions
    assert directory.dimensions.parameters == sum(p.numel() for p in reference.parameters())
    window = clips(0.7)
    states = [
        MoonshineSpeech(one).policy.encoder_states(MoonshineSpeech(one).prepare(window)) for one in (files, directory)
    ]
    assert torch.allclose(states[0], states[1], atol=1e-5)
    with pytest.raises(WeightsError, match="a Moonshine model, expected Whisper"):
        load_checkpoint(folder)


def test_what_is_missing_or_another_model_is_refused(reference, folder, tmp_path):
    write_directory(reference, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, message in [
        ({"hidden_size": None}, "no number for hidden_size"),
        ({"encoder_num_hidden_layers": 3}, "tensors are missing"),
        ({"encoder_num_hidden_layers": 1}, "not part of Moonshine"),
        ({"decoder_num_key_value_heads": 2}, "share keys and values"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"decoder_num_attention_heads": 5}, "heads"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn'"),
    ]:
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(WeightsError, match=message):
            find_checkpoint(tmp_path).load()
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(WeightsError, match=r"no tokenizer\.json"):
        find_checkpoint(tmp_path).load()


def test_text_of_tokens(speech):
    words = speech.tokenizer
    tokens = [PIECES.index(piece) for piece in ("▁the", "▁night", "fer", "ry", "<0xC3>", "<0xA9>")]
    assert words.decode([1, *tokens, 2]) == " the nightferryé"
    assert [words.is_text(token) for token in (0, 1, 2, 3, 259, VOCAB - 1)] == [False] * 3 + [True] * 2 + [False]
    assert words.token_bytes(PIECES.index("▁é")) == " é".encode()
    assert words.time(5) is None
    assert speech.policy.forbidden[0].nonzero()[:, 0].tolist() == [0, 1, *range(len(PIECES), VOCAB)]


def test_what_it_cannot_do_is_said_before_it_starts(folder):
    model = Model(load_speech(folder, "cpu", "float32"))
    for settings, message in [
        ({"language": "de"}, "transcribes English"),
        ({"task": "translate"}, "cannot translate"),
        ({"word_timestamps": True}, "word timestamps need a Whisper model"),
        ({"initial_prompt": "hello"}, "takes no text"),
    ]:
        with pytest.raises(SharpenError, match=message):
            model.transcribe(clips(1.0)[0], **settings)


def test_any_length_is_taken(speech):
    for samples in (1, SHORTEST, SHORTEST + HOP - 1, SHORTEST + HOP):
        prepared = speech.prepare([np.zeros(samples, np.float32)])
        assert prepared.stem.shape[1] == (2 if samples == SHORTEST + HOP else 1)
    times = speech.frame_times(speech.prepare(clips(1.0, 0.5)))
    assert times[0, -1] < 1.0
    assert times[1].isnan().any()


def test_a_long_recording_is_cut_where_it_is_quiet(folder):
    rate, samples = 16000, np.concatenate([clips(3.0)[0], np.zeros(8000, np.float32), clips(1.5)[0]])
    assert 3.0 * rate < quiet_end(samples[: 4 * rate], rate) < 3.5 * rate
    model = Model(load_speech(folder, "cpu", "float32"))
    model.speech.seconds = 4.0
    job = model.job(Audio(samples), model.transcribe(samples, effort="plain").info.options)
    first = job.window()
    assert 3.0 * rate < len(first.samples) < 3.5 * rate
    text = model.transcribe(samples, effort="plain")
    ends = [segment.end for segment in text.segments]
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(5.0)


def test_real_weights_equal_transformers_and_transcribe(real, fetched_package):
    files = identify(fetched_package("moonshine-tiny", "onnx").parent).weights
    state = {name: stored.tensor() for name, stored in moonshine._onnx_tensors(onnx.open_graphs(files)).items()}
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    model = MoonshineForConditionalGeneration(MoonshineConfig()).eval()
    model.load_state_dict(state, strict=True)
    assert real.checkpoint.verified
    (package,) = catalog.packages_of("moonshine-tiny")
    assert real.checkpoint.dimensions.parameters == package.parameters == sum(p.numel() for p in model.parameters())
    samples = read_audio(EXAMPLE).samples
    policy, tokens = real.policy, [450, 4646, 7735, 719]
    with torch.no_grad():
        tree = trees_of([tokens])
        ours = policy.logits(policy.score(policy.encode(real.prepare([samples])), pack([tree]))[0])
        theirs = padded_logits(model, samples, [tokens])[0]
        assert torch.allclose(ours, theirs, atol=1e-3)
        rows = model.generate(input_values=torch.from_numpy(samples)[None], max_new_tokens=40, do_sample=False)
        found = greedy(policy, policy.encode(real.prepare([samples])), [40])[0].hypotheses[0]
    assert [1, *found.tokens] == rows[0].tolist()
    text = Model(real).transcribe(EXAMPLE, effort="plain").text
    assert "to Aberdeen leaves at half" in text
    adapted = Model(real).transcribe(EXAMPLE, adapt=Adaptation(method="em-tok-b", steps=1, samples=2))
    assert "Aberdeen" in adapted.text
    assert adapted.adapted[0][1].trace.steps
