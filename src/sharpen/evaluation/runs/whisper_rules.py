"""The rules of Whisper's two text normalisers: `basic` for any language, `english` for English.

Both come from the Whisper paper (https://arxiv.org/abs/2212.04356, appendix C). They are written to give exactly what
transformers' versions give, oddities included; a test compares the two. The spelling table (British to American) is
`whisper/normalizers/english.json` of openai-whisper 20250625 (MIT), unchanged.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files

from sharpen.evaluation.runs.numerals import write_numbers

BRACKETS = re.compile(r"[<\[][^>\]]*[>\]]")
PARENTHESES = re.compile(r"\([^)]+\)")
FILLERS = re.compile(r"\b(?:hmm|mm|mhm|mmm|uh|um)\b")

WHOLE_WORDS = {
    "won't": "will not",
    "can't": "can not",
    "let's": "let us",
    "ain't": "aint",
    "y'all": "you all",
    "wanna": "want to",
    "gotta": "got to",
    "gonna": "going to",
    "i'ma": "i am going to",
    "imma": "i am going to",
    "woulda": "would have",
    "coulda": "could have",
    "shoulda": "should have",
    "ma'am": "madam",
    "mr": "mister ",
    "mrs": "missus ",
    "st": "saint ",
    "dr": "doctor ",
    "prof": "professor ",
    "capt": "captain ",
    "gov": "governor ",
    "ald": "alderman ",
    "gen": "general ",
    "sen": "senator ",
    "rep": "representative ",
    "pres": "president ",
    "rev": "reverend ",
    "hon": "honorable ",
    "asst": "assistant ",
    "assoc": "associate ",
    "lt": "lieutenant ",
    "col": "colonel ",
    "jr": "junior ",
    "sr": "senior ",
    "esq": "esquire ",
}
PERFECT_TENSES = {  # "'d" and "'s" before other words are "would" and "is"
    "'d been": " had been",
    "'s been": " has been",
    "'d gone": " had gone",
    "'s gone": " has gone",
    "'d done": " had done",
    "'s got": " has got",
}
ENDINGS = {
    "'re": " are",
    "'s": " is",
    "'d": " would",
    "'ll": " will",
    "'t": " not",
    "'ve": " have",
    "'m": " am",
}

WHOLE_WORD = re.compile(rf"\b(?:{'|'.join(WHOLE_WORDS)})\b")
PERFECT_TENSE = re.compile(rf"(?:{'|'.join(PERFECT_TENSES)})\b")
ENDING = re.compile(rf"(?:{'|'.join(ENDINGS)})\b")

KEPT_SYMBOLS = ".%$¢€£"  # parts of numbers
LETTERS = {  # that Unicode does not decompose
    "œ": "oe",
    "ø": "o",
    "æ": "ae",
    "Æ": "AE",  # the only capital that can occur: lower() leaves "ᴭ" as it is, and NFKD makes it "Æ"
    "ß": "ss",
    "đ": "d",
    "ð": "d",
    "þ": "th",
    "ł": "l",
}


def basic(text: str) -> str:
    """Lower case; text in brackets removed; symbols, marks and punctuation replaced by spaces."""
    text = _without_brackets(text.lower())
    text = unicodedata.normalize("NFKC", text).translate(WITHOUT_SYMBOLS)
    return " ".join(text.lower().split())


def english(text: str) -> str:
    """As `basic`, then without diacritics and fillers, with digits, full forms and American spelling."""
    text = _without_brackets(text.lower())
    text = FILLERS.sub("", text)
    text = _expand(text)
    text = re.sub(r"(\d),(\d)", r"\1\2", text)  # "1,000"
    text = re.sub(r"\.([^0-9]|$)", r" \1", text)  # full stops, not decimal points
    text = unicodedata.normalize("NFKD", text).translate(WITHOUT_DIACRITICS)
    spelling = _spelling()
    text = " ".join(spelling.get(word, word) for word in write_numbers(text).split())
    text = re.sub(r"[.$¢€£]([^0-9])", r" \1", text)  # symbols outside of numbers
    text = re.sub(r"([^0-9])%", r"\1 ", text)
    return " ".join(text.split())


def _without_brackets(text: str) -> str:
    return PARENTHESES.sub("", BRACKETS.sub("", text))


def _expand(text: str) -> str:
    """Write out contractions and titles."""
    text = _replace(WHOLE_WORD, WHOLE_WORDS, re.sub(r"\s+'", "'", text))
    # The order matters: the space before "not" ends a word, which the endings need.
    text = _replace(PERFECT_TENSE, PERFECT_TENSES, text)
    text = re.sub(r"n't\b", " not", text)
    return _replace(ENDING, ENDINGS, text)


def _replace(pattern: re.Pattern[str], replacements: dict[str, str], text: str) -> str:
    return pattern.sub(lambda match: replacements[match[0]], text)


def _to_space(character: str) -> str:
    return " " if unicodedata.category(character)[0] in "MSP" else character


def _to_space_or_letter(character: str) -> str:
    """As `_to_space`, but diacritics disappear and the symbols of numbers stay."""
    if character in KEPT_SYMBOLS:
        return character
    if unicodedata.category(character) == "Mn":
        return ""
    return LETTERS.get(character) or _to_space(character)


class _Characters(dict[int, str]):
    """A table for str.translate, filled as characters occur: 1.1 million are too many to list."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        self.rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = self.rule(chr(code))
        return self[code]


WITHOUT_SYMBOLS = _Characters(_to_space)
WITHOUT_DIACRITICS = _Characters(_to_space_or_letter)


@lru_cache
def _spelling() -> dict[str, str]:
    table = files("sharpen.evaluation.runs").joinpath("assets", "spelling.json").read_text(encoding="utf-8")
    spelling: dict[str, str] = json.loads(table)
    return spelling
