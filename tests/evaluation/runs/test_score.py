import random
from collections import Counter

import jiwer
import pytest

from sharpen.errors import SharpenError
from sharpen.evaluation.runs.score import (
    Edit,
    ErrorCounts,
    align,
    character_errors,
    labelled,
    recount,
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
    both = word_errors("", "hm") + word_errors("one two three four", "one two three four")
    assert both == ErrorCounts(0, 0, 1, 4)
    assert both.rate == 0.25


def test_the_corpus_rate_is_not_the_mean_of_the_rates():
    utterances = [
        word_errors("one", "two"),
        word_errors("one two three four five six seven", "one two three four five six seven"),
    ]
    assert [u.rate for u in utterances] == [1.0, 0.0]
    assert sum(utterances, ErrorCounts()).rate == 1 / 8


def test_agrees_with_jiwer_over_a_corpus():
    pairs = sentences(300, seed=1)
    references, hypotheses = [r for r, _ in pairs], [h for _, h in pairs]
    words = sum((word_errors(r, h) for r, h in pairs), ErrorCounts())
    characters = sum((character_errors(r, h) for r, h in pairs), ErrorCounts())
    jiwer_words = jiwer.process_words(references, hypotheses)
    assert words.rate == pytest.approx(jiwer_words.wer, abs=1e-12)
    assert characters.rate == pytest.approx(jiwer.process_characters(references, hypotheses).cer, abs=1e-12)
    assert words.errors == jiwer_words.substitutions + jiwer_words.deletions + jiwer_words.insertions
    # Alignments with equally many errors may divide them differently, but not this difference.
    assert words.deletions - words.insertions == jiwer_words.deletions - jiwer_words.insertions


def test_alignment_has_the_edits_that_are_counted():
    for reference, hypothesis in sentences(200, seed=2):
        edits = align(reference, hypothesis)
        kinds, counts = Counter(e.kind for e in edits), word_errors(reference, hypothesis)
        assert (kinds["substitute"], kinds["delete"]) == (counts.substitutions, counts.deletions)
        assert kinds["insert"] == counts.insertions
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


def test_a_result_is_recounted_with_its_own_normaliser():
    words, characters = recount("Ten colours!", "10 colors, red", "whisper-en/1")
    assert words == ErrorCounts(0, 0, 1, 2)
    assert characters == ErrorCounts(0, 0, 4, 9)
    assert recount("Ten colours!", "10 colors, red", "none/1")[0] == ErrorCounts(2, 0, 1, 2)
    assert recount("Ten colours!", "10 colors", "whisper-en/1")[0].rate == 0.0
    assert recount("Ten colours!", "10 colors", "whisper-basic/1")[0].rate == 1.0


def test_another_version_of_a_normaliser_is_refused():
    assert labelled("whisper-en/1").label == "whisper-en/1"
    with pytest.raises(SharpenError, match="scored with 'whisper-en/0', but this sharpen has whisper-en/1"):
        labelled("whisper-en/0")
    with pytest.raises(SharpenError, match="unknown normaliser 'nonsense'"):
        labelled("nonsense/1")
