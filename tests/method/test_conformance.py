"""What a policy must do is checked, and every way to do it wrong that would not show is found."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch

from sharpen.errors import SharpenError
from sharpen.method.adapt import adapt
from sharpen.method.adaptation import Adaptation
from sharpen.method.conformance import check_policy
from sharpen.method.enumerable import EnumerablePolicy, FirstState, Vectors
from sharpen.method.norms import Affine, Norm
from sharpen.method.policy import generator
from sharpen.method.search import sample


class WithBias(EnumerablePolicy):
    """A head with a bias."""

    bias = torch.linspace(-1, 1, 7, dtype=torch.float64)

    def project(self, hidden):
        return super().project(hidden) + self.bias


class SoftCap(EnumerablePolicy):
    def project(self, hidden):
        return 3 * torch.tanh(super().project(hidden) / 3)


class WrongParent(EnumerablePolicy):
    def extend(self, state, parents, tokens):
        return super().extend(state, parents.clamp(max=0), tokens)


class BatchMeets(EnumerablePolicy):
    def encode(self, prepared):
        h = super().encode(prepared).h
        return FirstState(h - h.mean(0))


class NormNotUsed(EnumerablePolicy):
    def adapted(self, norms):
        return super().adapted({name: own for name, own in norms.items() if name != "encoder"})


class AheadAppliesTheNorm(EnumerablePolicy):
    def ahead(self, prepared, norms):
        return Vectors(self._norms["encoder"].apply(prepared.x))


class EncoderBorrowsANorm(EnumerablePolicy):
    def encode(self, prepared):
        return FirstState(self._norm("decoder", super().encode(prepared).h[:, None])[:, 0])


class CutOff(EnumerablePolicy):
    def encode(self, prepared):
        return super().encode(prepared).detach()


class HalfCutOff(EnumerablePolicy):
    def score(self, encoded, trees):
        hidden = super().score(encoded, trees)
        return hidden.detach() * 0.5 + hidden * 0.5


class BiasNotUsed(EnumerablePolicy):
    def _norm(self, name, x):
        norm, own = self._norms[name], self._own.get(name)
        return norm.apply(x, own and Affine(own.weight, norm.bias.expand_as(own.weight)))


class OneInputLearns(EnumerablePolicy):
    def score(self, encoded, trees):
        hidden = super().score(encoded, trees)
        return torch.cat([hidden[:1], hidden[1:].detach()])


class WritesItself(EnumerablePolicy):
    def adapted(self, norms):
        self._own = norms
        return self


class KeepsTheLast(EnumerablePolicy):
    """Views that look into one drawer."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self._drawer = {}

    def adapted(self, norms):
        self._drawer.update(norms)
        view = copy.copy(self)
        view._own = self._drawer
        return view


class ForgetsTheOthers(EnumerablePolicy):
    def adapted(self, norms):
        view = copy.copy(self)
        view._own = norms
        return view


class WritesTheModel(EnumerablePolicy):
    def adapted(self, norms):
        for name, own in norms.items():
            self._norms[name].weight.copy_(own.weight[0].detach())
        return super().adapted(norms)


class SelectsTheFirst(EnumerablePolicy):
    @dataclass(frozen=True)
    class Encoded(FirstState):
        def detach(self):
            return type(self)(self.h.detach())

        def select(self, inputs):
            return type(self)(self.h[: len(inputs)])

    def encode(self, prepared):
        return self.Encoded(super().encode(prepared).h)


class NoEnd(EnumerablePolicy):
    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.eos = [0]


class MasksOfAnotherShape(EnumerablePolicy):
    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.forbidden = self.forbidden[0]


class JoinsBackwards(EnumerablePolicy):
    @dataclass(frozen=True)
    class Encoded(FirstState):
        def detach(self):
            return type(self)(self.h.detach())

        def select(self, inputs):
            return type(self)(self.h[list(inputs)])

        @classmethod
        def join(cls, parts):
            return cls(torch.cat([part.h for part in reversed(parts)]))

    def encode(self, prepared):
        return self.Encoded(super().encode(prepared).h)


class Dropout(EnumerablePolicy):
    def score(self, encoded, trees):
        return torch.nn.functional.dropout(super().score(encoded, trees), 0.1)


class NotFinite(EnumerablePolicy):
    def score(self, encoded, trees):
        return super().score(encoded, trees) / 0


class DecoderOnly(EnumerablePolicy):
    """One norm for the prompt, which `encode` reads, and for the output."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self._norms = {"all": replace(self._norms["decoder"], name="all")}

    def _norm(self, name, x):
        return super()._norm("all", x)


def policy(kind, dtype=torch.float64):
    made = kind(vocabulary=7, seed=2, forbidden=(5,), forbidden_first=(0,))
    for name in ("A", "W", "E", "vocabulary", "bias"):
        if hasattr(made, name):
            setattr(made, name, getattr(made, name).to(dtype))
    made.inputs = Vectors(made.inputs.x.to(dtype))
    made._norms = {k: replace(n, weight=n.weight.to(dtype), bias=n.bias.to(dtype)) for k, n in made._norms.items()}
    return made


@pytest.mark.parametrize("kind", [EnumerablePolicy, WithBias, DecoderOnly])
@pytest.mark.parametrize("inputs", [[0], [0, 1, 2]])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_right_policy_passes(kind, inputs, dtype):
    right = policy(kind, dtype)
    check_policy(right, right.inputs.select(inputs))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (SoftCap, r"project is not h W\^T"),
        (WrongParent, "extend and score disagree about log pi after 2 tokens"),
        (BatchMeets, "input 0 has different hidden states alone"),
        (NormNotUsed, "the weight of norm 'encoder' has no effect"),
        (BiasNotUsed, "the bias of norm 'encoder' has no effect"),
        (OneInputLearns, "input 1 has a different gradient alone"),
        (WritesItself, "does adapted write the policy"),
        (KeepsTheLast, "changed when the next one was made"),
        (ForgetsTheOthers, "a view of a view must keep both"),
        (WritesTheModel, "adapted wrote the model's norms"),
        (SelectsTheFirst, "select of an Encoded differs"),
        (NoEnd, r"eos is \[0\]: expected one of the 7 tokens"),
        (MasksOfAnotherShape, r"forbidden is torch.bool of shape \(7,\): expected bool of shape \(masks, 7\)"),
        (JoinsBackwards, "join of Encoded inputs differs"),
        (EncoderBorrowsANorm, "encode depends on norms with side 'decoder'"),
        (AheadAppliesTheNorm, "ahead applies norm .encoder."),
        (CutOff, "no gradient reaches the weight of norm 'encoder'"),
        (HalfCutOff, "score's gradient is wrong"),
        (Dropout, "set the model to eval mode"),
        (NotFinite, "not finite"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_wrong_policy_is_told_what_is_wrong(kind, message, dtype):
    wrong = policy(kind, dtype)
    with pytest.raises(SharpenError, match=message):
        check_policy(wrong, wrong.inputs)


def test_nothing_is_written_and_no_input_is_an_error():
    right = policy(EnumerablePolicy)
    before = copy.deepcopy(right.__dict__)
    check_policy(right, right.inputs)
    assert all(torch.equal(before[name], getattr(right, name)) for name in ("A", "W", "E", "vocabulary"))
    with pytest.raises(SharpenError, match="no inputs"):
        check_policy(right, right.inputs.select([]))


def test_a_decoder_only_model_reads_its_prompt_again_at_every_step():
    """With the prompt read once, under the source's norms, the norms found are not the ones the answer comes from."""
    model = DecoderOnly(vocabulary=7, seed=6)
    options = Adaptation(method="em-tok", steps=20, samples=16, lr=0.05)
    episode = adapt(model, model.inputs, options, limits=[5] * 3)
    view = model.adapted(episode.norms)
    draws = [generator(1, str(b)) for b in range(3)]
    trees = sample(view, view.encode(model.inputs), [5] * 3, 500, draws)
    fresh = [-sum(y.logprob for y in tree.hypotheses) / 500 for tree in trees]
    assert fresh == pytest.approx([trace.steps[-1].H_tok for trace in episode.traces], abs=0.3)
    assert sum(fresh) < 0.3 * sum(trace.steps[0].H_tok for trace in episode.traces)


def test_norms_of_one_name_or_of_two_axes_are_refused():
    model = policy(EnumerablePolicy)
    weight = torch.ones(5, dtype=torch.float64)
    for norms, message in (
        ([Norm("a", "decoder", "layer", 1e-5, weight)] * 2, "two norms are named 'a'"),
        ([Norm("a", "decoder", "layer", 1e-5, weight[None])], r"parameters of shape \(1, 5\); expected \(d,\)"),
    ):
        model.norms = lambda norms=norms: norms
        with pytest.raises(SharpenError, match=message):
            adapt(model, model.inputs, Adaptation(method="em-tok"))
