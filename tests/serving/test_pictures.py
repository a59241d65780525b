"""What the events of a stream hold for a page."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sharpen.method.network import Alternative
from sharpen.method.tree import HypothesisTree
from sharpen.models.tokenizer import MULTILINGUAL, WhisperTokenizer
from sharpen.serving.events import SourceTold, WindowReport, WindowTold
from sharpen.serving.pictures import Pictures, changes
from sharpen.serving.ticket import Ticket
from sharpen.speech.answers import Decoded
from sharpen.speech.longform import Segment
from sharpen.speech.words import Word


@pytest.fixture(scope="module")
def tokenizer():
    return WhisperTokenizer.of_kind(MULTILINGUAL)


def segment(tokenizer, text, entropy=lambda i: 0.1):
    tokens = tuple(tokenizer.encode(text))
    n = len(tokens)
    said = tuple(Word(f" {w}", i, i + 1, 0.5) for i, w in enumerate(text.split()))
    entropies = tuple(entropy(i) for i in range(n))
    return Segment(0, 0, 0.0, 9.0, text, tokens, 0.0, -0.1, 1.0, 0.0, (-0.1,) * n, entropies, said)


def tree(tokenizer, texts):
    """A tree of texts with their log-probabilities."""
    sequences = [[*tokenizer.encode(" " + text), tokenizer.eot] for text in texts]
    grown = HypothesisTree.of(sequences, tokenizer.eot)
    shares = [[value / len(y)] * len(y) for value, y in zip(texts.values(), sequences, strict=True)]
    return grown.rescored([1.0] * len(grown), shares)


def shown(found):
    return [(part["source"].strip(), "".join(word["word"] for word in part["words"]).strip()) for part in found]


def test_the_words_of_an_answer_lie_in_the_stretches_that_changed(tokenizer):
    found = changes("the night Barry do you leaves", [segment(tokenizer, " the night ferry"),
                    segment(tokenizer, " leaves late")], tokenizer)  # fmt: skip
    assert shown(found) == [("the night", "the night"), ("Barry do you", "ferry"), ("leaves", "leaves"), ("", "late")]
    assert [part["changed"] for part in found] == [False, True, False, True]
    assert found[1]["words"][0] | {"start": 2, "end": 3, "probability": 0.5} == found[1]["words"][0]


def test_a_word_has_the_highest_entropy_of_its_tokens(tokenizer):
    text = " Aberdeenshire is far"
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode(text)]
    assert pieces[-2:] == [" is", " far"]
    assert len(pieces) > 3
    (part,) = changes(text, [segment(tokenizer, text, lambda i: i + 1.0)], tokenizer)
    n = len(pieces)
    assert [word["entropy"] for word in part["words"]] == [n - 2, n - 1, n]
    assert [word["word"] for word in part["words"]] == [" Aberdeenshire", " is", " far"]
    assert part["words"][0]["level"] == ("e5" if n - 2 < 3 else "e6")


def test_a_drawing_has_its_reading_beside_the_one_before(tokenizer):
    pictures = Pictures(tokenizer)
    decoded = Decoded((), (), (), "the ferry", "en", 0.0, -0.1, 0.0, 1.0)
    first = tree(tokenizer, {"the ferry": math.log(0.5), "the berry": math.log(0.5)})
    told = pictures.of(SourceTold(0.0, 3.0, decoded, first))
    assert told["drawing"].startswith('<svg class="tree"')
    assert told["reading"] == [{"before": "the ferry", "after": "the ferry", "changed": False}]
    last = tree(tokenizer, {"the ferry": math.log(0.9), "a ferry": math.log(0.1)})
    report = WindowReport(0.0, 3.0, "adapted", 1, "", "")
    found = pictures.of(WindowTold(report, (segment(tokenizer, " the ferry"),), "the berry", "the ferry", last))
    assert shown(found["changes"]) == [("the", "the"), ("berry", "ferry")]


def test_a_word_has_its_alternatives(tokenizer):
    other = Word(" night", math.nan, math.nan, 0.5, confidence=0.7, alternatives=(Alternative("knight", 0.2),))
    one = replace(segment(tokenizer, " night"), words=(other,))
    (part,) = changes("night", [one], tokenizer)
    assert part["words"][0]["alternatives"] == [{"word": "knight", "probability": 0.2}]


def test_the_sources_text_ends_where_the_next_window_begins(tokenizer):
    """Else it would seem that adapting had removed the rest."""
    at = [tokenizer.timestamp_begin + round(seconds / 0.02) for seconds in (0, 2, 2, 4)]
    one, two = tokenizer.encode(" one two"), tokenizer.encode(" three")
    tokens = (at[0], *one, at[1], at[2], *two, at[3])
    numbers = (0.0,) * len(tokens)
    decoded = Decoded(tokens, numbers, numbers, "one two three", "en", 0.0, -0.1, 0.0, 1.0)
    ticket = Ticket("a", SimpleNamespace(speech=SimpleNamespace(tokenizer=tokenizer)), print)
    assert ticket._used(decoded, 4.0) == "one two three"
    assert ticket._used(decoded, 2.0) == "one two"


def test_silence_has_no_words(tokenizer):
    report = WindowReport(0.0, 3.0, "silence", 0, "", "")
    assert Pictures(tokenizer).of(WindowTold(report, (), "", ""))["changes"] == []
