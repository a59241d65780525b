"""Which text to answer with, of the beams that a search by the source model and one by the adapted model found.

`scripts/confidence_table.py` prints it. Ways: the best beam, the text of least risk (`method/consensus.py`) among the
source's beams, among the adapted model's, and among both, which is what `--decode mbr` does; and a vote at every place
of the confusion network (ROVER). Helped and hurt are utterances against the best beam of the source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from confidence_rows import Judged, tokenizer_of

from sharpen.evaluation.runs.normalisers import normaliser_for
from sharpen.evaluation.runs.score import word_errors
from sharpen.method.consensus import least_risk, posterior
from sharpen.speech.answers import Decoded

BEAM = "beam of the source"
DRAWS = 1000


def answers_table(groups: dict[str, list[Judged]]) -> Iterator[str]:
    yield "| condition | texts | answer | WER | against the beam of the source | helped | hurt |"
    yield "|---|---:|---|---:|---:|---:|---:|"
    for name, some in groups.items():
        here = [one for one in some if one.mode == "adapted"]
        if not here:
            continue
        words = np.array([one.words for one in here])
        errors = [errors_of(one) for one in here]
        table = {way: np.array([one[way] for one in errors]) for way in errors[0]}
        for way, own in table.items():
            gain = own - table[BEAM]
            against = "" if way == BEAM else interval(gain, words)
            cells = [f"{100 * own.sum() / words.sum():.2f}", against, (gain < 0).sum(), (gain > 0).sum()]
            yield f"| {name} | {len(here)} | {way} | {' | '.join(map(str, cells))} |"


def interval(gain: np.ndarray, words: np.ndarray) -> str:
    """The difference in points with a 95 % interval, utterances resampled."""
    at = np.random.default_rng(0).integers(len(words), size=(DRAWS, len(words)))
    low, high = np.quantile(100 * gain[at].sum(1) / words[at].sum(1), [0.025, 0.975])
    return f"{100 * gain.sum() / words.sum():+.2f} [{low:+.2f}, {high:+.2f}]"


def errors_of(one: Judged) -> dict[str, int]:
    normalise = normaliser_for(one.row["language"])
    reference = normalise(one.row["reference"])
    return {way: word_errors(reference, normalise(text)).errors for way, text in ways(one).items()}


def ways(one: Judged) -> dict[str, str]:
    """The text of every way."""
    how = one.decoded.adaptation
    assert how is not None
    before, after = weighted(one, how.source), weighted(one, how.result)
    if how.refused or not after:
        after = before
    both = [(text, weight / 2) for text, weight in (*after, *before)]
    return {
        BEAM: how.source.text,
        "least risk, source": chosen(before),
        "beam of the adapted model": after[0][0],
        "least risk, adapted": chosen(after),
        "least risk, both": chosen(both),
        "vote, both": vote(one),
    }


def weighted(one: Judged, decoded: Decoded) -> list[tuple[str, float]]:
    """The beams' texts, the best first, with their posterior."""
    beams = [y for y in decoded.beams if math.isfinite(y.logprob)]
    weights = posterior([y.logprob for y in beams])
    return [(tokenizer_of(one.row).decode(y.content).strip(), w) for y, w in zip(beams, weights, strict=True)]


def chosen(some: Sequence[tuple[str, float]]) -> str:
    texts, weights = zip(*some, strict=True)
    return texts[least_risk(texts, weights)]


def vote(one: Judged) -> str:
    """At every place of the network the weightiest word, or none."""
    found, words = one.known.network, [e.word for e in one.evidence]
    said = list[str]()
    for i, gap in enumerate(found.gaps):
        if gap and gap[0].probability > 1 - sum(a.probability for a in gap):
            said.append(gap[0].word)
        if i < len(words):
            slot = found.slots[i]
            said.append(slot[0].word if slot and slot[0].probability > found.support[i] else words[i].strip())
    return " ".join(word for word in said if word)


if __name__ == "__main__":
    raise SystemExit("run scripts/confidence_table.py")
