import random
from collections import Counter

import jiwer
import pytest

from sharpen.errors import SharpenError
from sharpen.evaluation.runs.normalisers import normaliser
from sharpen.evaluation.runs.score import (
    Edit,
    ErrorCounts,
    align,
    character_errors,
    labelled,
    recount,
    score,
    word_errors,
)


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of a reference (never empty) and a hypothesis that is often close to it."""
    generator = random.Random(seed)
    words = ["a", "on", "the", "noise", "of", "rain", "über", "日本"]
    pairs = []
    for _ in range(count):
        reference = generator.choices(words, k=generator.randint(1, 12))
        kept = [w for w in reference if generator.random() > 0.2]
        changed = [generator.choice(words) if generator.random() < 0.2 else w for w in kept]
        pairs.append((" ".join(reference), " ".join(changed + generator.choices(words, k=generator.randint(0, 2)))))
    return pairs


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("the cat sat", "the cat sat", ErrorCounts(0, 0, 0, 3)),
        ("the cat sat", "the bat sat", ErrorCounts(1, 0, 0, 3)),
        ("the cat sat", "the sat", ErrorCounts(0, 1, 0, 3)),
        ("the cat sat", "the cat sat down now", ErrorCounts(0, 0, 2, 3)),
        ("the cat sat", "", ErrorCounts(0, 3, 0, 3)),
        ("", "invented words", ErrorCounts(0, 0, 2, 0)),
        ("", "", ErrorCounts(0, 0, 0, 0)),
    ],
)
def test_words_by_hand(reference, hypothesis, expected):
    assert word_errors(reference, hypothesis) == expected


def test_characters_by_hand():
    assert character_errors("ab  cd", " ab cd\n") == ErrorCounts(0, 0, 0, 5)
    assert character_errors("ab cd", "abcd") == ErrorCounts(0, 1, 0, 5)
    assert character_errors("日本語", "日木語") == ErrorCounts(1, 0, 0, 3)


def test_rates_of_empty_references():
    assert word_errors("", "").rate == 0.0
    assert word_errors("", "three invented words").rate == 3.0
    both = score(["", "one two three four"], ["hm", "one two three four"], normaliser("none"))
    assert both.words == ErrorCounts(0, 0, 1, 4)
    assert both.wer == 0.25


def test_the_corpus_rate_is_not_the_mean_of_the_rates():
    result = score(
        ["one", "one two three four five six seven"], ["two", "one two three four five six seven"], normaliser("none")
    )
    assert [u.rate for u in result.utterances] == [1.0, 0.0]
    assert result.wer == 1 / 8


def test_agrees_with_jiwer_over_a_corpus():
    pairs = sentences(300, seed=1)
    references, hypotheses = [r for r, _ in pairs], [h for _, h in pairs]
    result = score(references, hypotheses, normaliser("none"))
    words, characters = jiwer.process_words(references, hypotheses), jiwer.process_characters(references, hypotheses)
    assert result.wer == pytest.approx(words.wer, abs=1e-12)
    assert result.cer == pytest.approx(characters.cer, abs=1e-12)
    assert result.words.errors == words.substitutions + words.deletions + words.insertions
    # How equally good alignments share their edits out is a matter of taste; what they leave over is not.
    assert result.words.deletions - result.words.insertions == words.deletions - words.insertions


def test_alignment_has_the_edits_that_are_counted():
    kinds = {"substitute": "substitutions", "delete": "deletions", "insert": "insertions"}
    for reference, hypothesis in sentences(200, seed=2):
        edits = align(reference, hypothesis)
        counts, found = word_errors(reference, hypothesis), Counter(e.kind for e in edits)
        assert {kind: found[kind] for kind in kinds} == {kind: getattr(counts, field) for kind, field in kinds.items()}
        assert " ".join(e.reference for e in edits if e.reference is not None) == reference
        assert " ".join(e.hypothesis for e in edits if e.hypothesis is not None) == hypothesis


def test_alignment_by_hand():
    assert align("the cat sat", "the bat sat down") == (
        Edit("equal", "the", "the"),
        Edit("substitute", "cat", "bat"),
        Edit("equal", "sat", "sat"),
        Edit("insert", None, "down"),
    )
    assert align("gone", "") == (Edit("delete", "gone", None),)


def test_both_sides_are_normalised_and_the_normaliser_is_named():
    result = score(["Ten colours!"], ["10 colors"], normaliser("whisper-en"))
    assert result.wer == 0.0
    assert result.normaliser == "whisper-en/1"
    assert score(["Ten colours!"], ["10 colors"], normaliser("whisper-basic")).wer == 1.0


def test_a_missing_hypothesis():
    with pytest.raises(SharpenError, match="2 references and 1 hypotheses"):
        score(["a", "b"], ["a"], normaliser("none"))


def test_a_result_is_counted_again_under_its_own_normaliser():
    words, characters = recount("Ten colours!", "10 colors, red", "whisper-en/1")
    assert words == ErrorCounts(0, 0, 1, 2)
    assert characters == ErrorCounts(0, 0, 4, 9)
    assert recount("Ten colours!", "10 colors, red", "none/1")[0] == ErrorCounts(2, 0, 1, 2)


def test_another_version_of_a_normaliser_is_refused():
    assert labelled("whisper-en/1").label == "whisper-en/1"
    with pytest.raises(SharpenError, match="scored with 'whisper-en/0', but this sharpen has whisper-en/1"):
        labelled("whisper-en/0")
    with pytest.raises(SharpenError, match="unknown normaliser 'nonsense'"):
        labelled("nonsense/1")
