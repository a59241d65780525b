import hashlib
import json
import random
import subprocess
import sys
import unicodedata
from importlib.resources import files
from pathlib import Path

import pytest
from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

from sharpen.errors import SharpenError
from sharpen.evaluation.runs import numerals, whisper_rules
from sharpen.evaluation.runs.normalisers import NORMALISERS, normaliser, normaliser_for

SPELLING = files("sharpen.evaluation.runs").joinpath("assets", "spelling.json").read_bytes()
RESULTS = Path(__file__).parents[3] / "results"

# The output of version 1. A change to any of these texts needs a new version.
VERSION_1 = {
    "whisper-en": {
        "Mr. O'Neill didn't go; he'd gone already!": "mister 0 neill did not go he had gone already",
        "The colour of the theatre, realised in grey.": "the color of the theater realized in gray",
        "A QUARTER PAST TEN, HALF PAST": "a quarter past 10 half past",
        "Um, twenty-one dollars and five cents [laughs]": "$21.05",
        "1,000,000 people (about 40%)": "1000000 people",
        "Café, naïve, Straße": "cafe naive strasse",
        "Two million three hundred and five thousand": "2305000",
        "two and a half percent, minus three point oh five": "2.5% -3.05",
        "in nineteen ninety-nine, the seventies, the twenty-first": "in 1999 the 70s the 21st",
        "call double seven triple oh one": "call 770001",
        "one of the ones, ten five for one point five": "one of the ones 105 for one.5",
        "We'dn't've, y'all's been": "we would not have you all has been",
        "  ": "",
        "": "",
    },
    "whisper-basic": {
        "Où est-il? L'été, à Zürich!": "où est il l été à zürich",
        "TEN o'clock [music]": "ten o clock",
        "«Добрый день», — сказал он.": "добрый день сказал он",
        " ... ": "",
        "": "",
    },
    "none": {" As it is. ": " As it is. ", "": ""},
}

NUMBER_WORDS = sorted(numerals.WORDS)
CONTRACTIONS = [*whisper_rules.WHOLE_WORDS, *whisper_rules.PERFECT_TENSES, "n't", *whisper_rules.ENDINGS]
NUMERALS = [
    *("0", "00", "007", "1", "1s", "1st", "2 nd", "5.", ".5", "2.0", "3.14", "1.2.3", "10", "100", "1,000", "1,2,3"),
    *("$0", "$0.05", "$1", "£2", "€20", "¢7", "¢50", "$2 and ¢7", "$$5", "5$", "$.", "50%", "%", "-5", "+5", "1/2"),
    *("1990s", "3d", "٣", "५.५", "2.125 hundred", "six point 2.5 thousand"),
]
OTHER_WORDS = [
    *("and a half", "and  a\nhalf", "per cent", "hmm", "mm", "mhm", "mmm", "uh", "um", "been", "gone", "done", "got"),
    *("i", "it", "he", "s", "st", "th", "t", "d", "n", "y", "all", "ma", "am", "a", "cat", "ninth", "R2D2"),
    *("colour", "theatre", "realise"),
]
CHARACTERS = [
    *"'’.,%$¢€£-+/<>[]()&#@!?*\"_~`^|\\:;—…„“¿٪＄½²①ⅣﬁẞßŒœᴭꟹæøđðłþÞİıéñ日がｶﾞ\u0301\u3099\u0903\u20dd\u200d\u00ad\ufeff",
    *" \u00a0\u2028\x85\x1c\t\n👍🏽ΑΣςℝ™№℃Åǅŉ\ud800",
]


@pytest.fixture(scope="module")
def oracles():
    english, basic = EnglishTextNormalizer(json.loads(SPELLING)), BasicTextNormalizer()
    return {"whisper-en": lambda text: english(text).strip(), "whisper-basic": lambda text: basic(text).strip()}


def differences(oracles, texts) -> list[tuple[str, str, str, str]]:
    """Each text for which ours and transformers' normaliser differ, with the normaliser and both outputs."""
    return [
        (name, text, ours, theirs)
        for name, oracle in oracles.items()
        for text in texts
        if (ours := normaliser(name)(text)) != (theirs := oracle(text))
    ]


def strings(value) -> list[str]:
    """All strings in a JSON value, at any depth."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [string for part in parts for string in strings(part)]


def generated(count: int, seed: int) -> list[str]:
    """Texts of number words, of all kinds of words, and of characters without regard to words."""
    generator = random.Random(seed)
    choices = [
        (NUMBER_WORDS, [" "]),
        (NUMBER_WORDS + NUMERALS * 2, [" "] * 6 + ["-", ", ", ". "]),
        (NUMBER_WORDS + (NUMERALS + CONTRACTIONS + OTHER_WORDS) * 2 + CHARACTERS, [" "] * 8 + ["", "'", "-", "\n"]),
        (CONTRACTIONS + OTHER_WORDS, [" ", "", "'"]),
        (CHARACTERS + NUMERALS, ["", "", " "]),
        (list("<>[]()ab 1'.,%$0s"), [""]),
    ]
    texts = []
    for _ in range(count):
        words, separators = generator.choice(choices)
        parts = [generator.choice(words) + generator.choice(separators) for _ in range(generator.randint(0, 14))]
        case = generator.choice([str.lower, str.lower, str.upper, str.title])
        texts.append(case("".join(parts)))
    return texts


@pytest.mark.parametrize("name", VERSION_1)
def test_texts_of_version_1(name):
    assert normaliser(name).label == f"{name}/1"
    assert {text: normaliser(name)(text) for text in VERSION_1[name]} == VERSION_1[name]


def test_every_normaliser_has_its_texts():
    assert VERSION_1.keys() == NORMALISERS.keys()


@pytest.mark.skipif(not RESULTS.is_dir(), reason="results/ is part of the repository, not of the source package")
def test_equals_transformers_on_all_kept_rows(oracles):
    lines = [line for path in RESULTS.rglob("*.jsonl") for line in path.read_text(encoding="utf-8").splitlines()]
    texts = {string for line in lines for string in strings(json.loads(line))}
    assert len(texts) > 2500
    assert differences(oracles, texts) == []


def test_equals_transformers_on_all_pairs_of_number_words(oracles):
    words = [*NUMBER_WORDS, "0", "7", "2.5", "$3", "cat"]
    assert differences(oracles, [" cat ".join(f"{a} {b}" for b in words) for a in words]) == []


def test_equals_transformers_on_generated_texts(oracles):
    assert differences(oracles, generated(8000, seed=3)) == []


def test_equals_transformers_on_every_character(oracles):
    assigned = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) not in ("Cn", "Co")]
    assert differences(oracles, ["x".join(assigned[i : i + 500]) for i in range(0, len(assigned), 500)]) == []


def test_a_number_with_too_many_digits_is_left_alone():
    digits, spoken = "9" * 5000, "seven " * 4290 + "decillion"  # the product would have more digits than Python prints
    for text in (digits, spoken):
        with pytest.raises(ValueError, match=r"fraction|limit"):
            EnglishTextNormalizer({})(text)
    assert normaliser("whisper-en")(f"the {digits} of") == f"the {digits} of"
    assert normaliser("whisper-en")(spoken) == f"{'7' * 4290} {10**33}"


def test_unknown_name():
    with pytest.raises(SharpenError, match="'whisper'; choose from whisper-en, whisper-basic, none"):
        normaliser("whisper")


@pytest.mark.parametrize(
    ("language", "name"),
    [
        ("en", "whisper-en"),
        ("English", "whisper-en"),
        ("en-GB", "whisper-en"),
        ("de", "whisper-basic"),
        (None, "whisper-basic"),
    ],
)
def test_normaliser_for_a_language(language, name):
    assert normaliser_for(language).name == name


def test_the_spelling_table_is_that_of_openai_whisper():
    assert hashlib.sha256(SPELLING).hexdigest() == "6607f948be9824d2e1b2fa2223cd94c06c45afa4e05ea0e3d5e1f2bdffde2465"


def test_scoring_imports_neither_torch_nor_transformers():
    script = (
        "import sys; from sharpen.evaluation.runs import normalisers, score\n"
        "assert normalisers.normaliser('whisper-en')('ten') == '10'\n"
        "assert score.recount('ten', '10', 'whisper-en/1')[0].errors == 0\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
