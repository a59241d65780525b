"""The paper's tables and figures by name: the domains, methods and settings of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sharpen.errors import SharpenError
from sharpen.evaluation.corpora.corpus import Corpus, read_corpus
from sharpen.evaluation.runs.plan import Part
from sharpen.evaluation.runs.rows import Row
from sharpen.models.languages import language_code
from sharpen.speech.noise import DOMAINS, find_clips

MAIN = ("source", "greedy-em", "em-seq", "em-tok", "em-tok-b")
NOISES = tuple(f"LS-{code}-10" for code in DOMAINS)
ACCENTS = tuple(f"L2-{name}" for name in ("Arabic", "Chinese", "Hindi", "Korean", "Spanish", "Vietnamese"))
LANGUAGES = tuple(f"MLS-{name}" for name in ("Dutch", "French", "German", "Italian", "Polish", "Portuguese", "Spanish"))
THREE = ("LS-GS-10", "L2-Spanish", "MLS-Polish")  # one domain of each corpus, on which the paper varies G


@dataclass(frozen=True)
class Recipe:
    """What a table or figure of the paper was made with."""

    domains: tuple[str, ...]  # by the paper's names: LS-GS-10, L2-Korean, MLS-Polish
    methods: tuple[str, ...]
    samples: tuple[int, ...] = (16,)
    at: tuple[int, ...] = (10,)
    models: tuple[str, ...] = ("base",)


RECIPES: Mapping[str, Recipe] = {
    "table-noise": Recipe(NOISES, MAIN),
    "table-accent": Recipe(ACCENTS, MAIN),
    "table-languages": Recipe(LANGUAGES, MAIN),
    "table-beam": Recipe(
        ("LS-GS-10", "LS-TP-10", "L2-Korean", "L2-Spanish", "MLS-Italian", "MLS-Polish"),
        ("source", "beam", "em-tok-b"),
    ),
    "table-models": Recipe(("LS-GS-10",), MAIN, models=("tiny", "small", "large")),
    "table-cases": Recipe(THREE, ("source", "em-tok-b")),
    "fig-samples": Recipe(THREE, ("source", "em-tok", "pg-tok", "ent-tok"), (1, 4, 16, 64)),
    "fig-samples-beam": Recipe(THREE, ("source", "em-tok", "em-tok-b", "pg-tok-b", "ent-tok-b"), (1, 4, 16, 64)),
    "fig-steps": Recipe(("LS-GS-10",), MAIN, at=(1, 3, 5, 10, 20)),
    "fig-time": Recipe(("LS-GS-10",), MAIN, (4, 16, 64)),
}


@dataclass(frozen=True)
class Folders:
    """Where the corpora are; None: not available."""

    librispeech: Path | None = None
    noise_dir: Path | None = None  # clips of MS-SNSD; Gaussian noise needs none
    l2arctic: Path | None = None
    mls: Path | None = None
    corpus: Path | None = None  # replaces each of the three corpora that is not given


# The paper's prefix -> the field of Folders, and the longest utterance: corrupted LibriSpeech stops at 20 s.
CORPORA = {"LS": ("librispeech", 20.0), "L2": ("l2arctic", 30.0), "MLS": ("mls", 30.0)}


def parts(recipe: Recipe, folders: Folders, skip_bad: bool = False) -> tuple[list[Part], list[str]]:
    """The recipe's domains that are available, and why each of the others is left out."""
    available: list[Part] = []
    left_out: list[str] = []
    missed: Corpus | None = None  # the replacement, where it has none of the domains
    if folders.noise_dir is not None:
        find_clips(folders.noise_dir)  # raises where it is not a folder
    for prefix, (field, longest) in CORPORA.items():
        wanted = [name for name in recipe.domains if name.startswith(prefix + "-")]
        own: Path | None = getattr(folders, field)
        where = own or folders.corpus
        if not wanted:
            continue
        if where is None:
            left_out.append(f"{', '.join(wanted)}: give --{field} DIR, or --corpus FILE in its place")
            continue
        if own is not None and prefix == "LS":
            where = _test_other(own)
        corpus = read_corpus(where, skip_bad=skip_bad, max_seconds=longest)
        if prefix == "LS":
            _add_noises(available, left_out, corpus, wanted, folders.noise_dir)
        elif not _add_domains(available, left_out, corpus, wanted) and own is None:
            missed = corpus
    if missed and not any(part.corpus.name == missed.name and not part.noise for part in available):
        available += _by_domain(missed)
    if not available:
        raise SharpenError("none of the recipe's corpora is available: " + "; ".join(left_out))
    return available, left_out


def _add_noises(
    available: list[Part], left_out: list[str], corpus: Corpus, wanted: Sequence[str], clips: Path | None
) -> None:
    for name in wanted:
        _, noise, snr = name.split("-")
        try:
            available += _by_domain(corpus.corrupted(noise, float(snr), clips), noise, float(snr))
        except SharpenError as error:  # its clip is missing
            left_out.append(f"{name}: {error}")


def _add_domains(available: list[Part], left_out: list[str], corpus: Corpus, wanted: Sequence[str]) -> int:
    """Adds the wanted domains of a corpus; returns how many it has."""
    before = len(available)
    for name in wanted:
        belongs = _member(name)
        chosen = tuple(u for u in corpus.utterances if belongs(u.domain, u.language))
        if chosen:
            available.append(Part(replace(corpus, utterances=chosen)))
        else:
            left_out.append(f"{name}: {corpus.name} has none of it; it has {', '.join(corpus.domains)}")
    return len(available) - before


def _by_domain(corpus: Corpus, noise: str = "", snr: float | None = None) -> list[Part]:
    """A part for each domain, since a limit counts per domain."""
    groups = [tuple(u for u in corpus.utterances if u.domain == domain) for domain in corpus.domains]
    return [Part(replace(corpus, utterances=group), noise, snr) for group in groups]


def _test_other(folder: Path) -> Path:
    """The paper's subset, where the folder is all of LibriSpeech."""
    return next((at for at in (folder / "test-other", folder / "LibriSpeech" / "test-other") if at.is_dir()), folder)


def _member(name: str) -> Callable[[str, str], bool]:
    """Whether a domain and language are those of the paper's name."""
    prefix, _, what = name.partition("-")
    if prefix == "MLS":
        code = language_code(what)
        return lambda domain, language: language == code
    names = {what.lower(), "mandarin"} if what == "Chinese" else {what.lower()}
    return lambda domain, language: domain.lower() in names


def saved(rows: Sequence[Row]) -> dict[int, float]:
    """For each G the share of em-tok's seconds that em-tok-b saves, on the utterances that both have."""
    shares = {}
    for G in sorted({row.samples for row in rows if row.method == "em-tok"}):
        seconds = {
            method: {
                (row.model, row.corpus, row.domain, row.id): row.seconds
                for row in rows
                if (row.method, row.samples) == (method, G)
            }
            for method in ("em-tok", "em-tok-b")
        }
        both = seconds["em-tok"].keys() & seconds["em-tok-b"].keys()
        if both:
            samples, beams = (sum(seconds[method][key] for key in both) for method in ("em-tok", "em-tok-b"))
            shares[G] = 1 - beams / samples
    return shares
