"""Our wav2vec 2.0 and HuBERT against transformers', from the same weights."""

import pytest
import torch
from models.test_ctc import KINDS, options, small, waves

from sharpen.errors import WeightsError
from sharpen.models.ctc import adapt_ctc
from sharpen.models.wav2vec2 import AcousticConfig, acoustic_model

OURS = [kind for kind in KINDS if kind != "wavlm"]


def both(kind, **settings):
    theirs = small(kind, **settings).eval()
    return acoustic_model(theirs.config.to_dict(), theirs.state_dict(), torch.float64), theirs


@pytest.mark.parametrize("settings", [{}, {"conv_bias": True, "positions": 5}])
@pytest.mark.parametrize("kind", OURS)
def test_logits(kind, settings):
    ours, theirs = both(kind, **settings)
    for x in waves(200, 333):
        with torch.no_grad():
            expected = theirs(x[None]).logits
            torch.testing.assert_close(ours(x[None]).logits, expected, rtol=1e-9, atol=1e-9)
        assert int(ours._get_feat_extract_output_lengths(torch.tensor(len(x)))) == expected.shape[1]


@pytest.mark.parametrize("objective", ["frames", "collapse"])
@pytest.mark.parametrize("kind", OURS)
def test_an_episode(kind, objective):
    """The same norms adapt, along the same gradient."""
    (mine,), (other,) = (adapt_ctc(model, waves(200), options(objective=objective, steps=2)) for model in both(kind))
    assert (mine.source, mine.output, list(mine.parameters)) == (other.source, other.output, list(other.parameters))
    torch.testing.assert_close(mine.log_p, other.log_p, rtol=1e-7, atol=1e-7)
    assert not torch.equal(mine.log_p, mine.source_log_p)


def test_old_names_and_what_is_for_training():
    theirs = small("wav2vec2").eval()
    old = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    tensors = theirs.state_dict()
    for now, before in old.items():
        tensors = {name.replace(now, before): tensor for name, tensor in tensors.items()}
    tensors["wav2vec2.masked_spec_embed"] = torch.ones(16)
    assert any(name.endswith("weight_g") for name in tensors)
    ours = acoustic_model(theirs.config.to_dict(), tensors, torch.float64)
    (x,) = waves(200)
    with torch.no_grad():
        torch.testing.assert_close(ours(x[None]).logits, theirs(x[None]).logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "wavlm"}, "model_type is 'wavlm': expected one of wav2vec2, hubert"),
        ({"add_adapter": True}, "add_adapter is True"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"conv_pos_batch_norm": True}, "conv_pos_batch_norm"),
        ({"feat_extract_norm": "batch"}, "feat_extract_norm is 'batch'"),
        ({"vocab_size": None}, "no vocab_size"),
        ({"num_hidden_layers": 3}, "not those that config.json describes"),
        ({"num_hidden_layers": 1}, "not those that config.json describes"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(changes, message):
    theirs = small("wav2vec2")
    with pytest.raises(WeightsError, match=message):
        acoustic_model({**theirs.config.to_dict(), **changes}, theirs.state_dict(), torch.float64)


def test_the_defaults_are_those_of_hugging_face():
    from transformers import Wav2Vec2Config

    usual = Wav2Vec2Config().to_dict()
    assert AcousticConfig.of(usual) == AcousticConfig(vocab_size=32)
    assert AcousticConfig.of({"model_type": "wav2vec2", "vocab_size": 32}) == AcousticConfig(vocab_size=32)
