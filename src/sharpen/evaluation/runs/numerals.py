"""Spoken English numbers as digits, the way Whisper's normaliser writes them: "twenty one dollars" becomes "$21".

The words are read from left to right. A number is open while words can still join it, and is one of two things:

- an int, which grows by arithmetic: "two thousand" and then "five" is 2005;
- a str of digits, which grows by appending: "nineteen eighty" is "1980", "one oh one" is "101".

Some of Whisper's results are odd: "0 point five" is ".5", "nineth" is a number and "ninth" is not. They are reproduced,
because error rates are comparable only if every text is normalised in the same way.
"""

import re
from fractions import Fraction

ZEROS = {"zero", "oh", "o"}
DIGITS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEENS = tuple(f"{start}teen" for start in ("thir", "four", "fif", "six", "seven", "eigh", "nine"))
UNITS = {name: i for i, name in enumerate((*DIGITS, "ten", "eleven", "twelve", *TEENS), start=1)}
TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
ILLIONS = ("m", "b", "tr", "quadr", "quint", "sext", "sept", "oct", "non", "dec")
SCALES = {"hundred": 100, "thousand": 1000, **{f"{p}illion": 1000**i for i, p in enumerate(ILLIONS, start=2)}}

IRREGULAR_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "twelve": "twelfth"}
ORDINAL_ENDINGS = {1: "st", 2: "nd", 3: "rd"}  # "th" for all others

SIGNS = {"minus": "-", "negative": "-", "plus": "+", "positive": "+"}  # before a number
CURRENCIES = {"pound": "£", "euro": "€", "dollar": "$", "cent": "¢"}  # after a number
CURRENCIES |= {f"{name}s": symbol for name, symbol in CURRENCIES.items()}
REPEATS = {"double": 2, "triple": 3}

PLAIN = {*ZEROS, *UNITS, *TENS}  # cardinal numbers below a hundred
NUMERAL = re.compile(r"\d+(\.\d+)?")
MOST_DIGITS = 4000  # a longer number stays text: Python converts at most 4,300 digits to an int

Number = int | str


def _plural(name: str) -> str:
    if name in TENS:
        return name[:-1] + "ies"
    return "sixes" if name == "six" else name + "s"


def _ordinal(name: str) -> str:
    if name in TENS:
        return name[:-1] + "ieth"
    return IRREGULAR_ORDINALS.get(name, name + ("h" if name.endswith("t") else "th"))


def _with_endings(names: dict[str, int]) -> dict[str, tuple[int, str]]:
    """Each name, its plural and its ordinal, with its value and the ending that follows the digits."""
    forms = {name: (value, "") for name, value in names.items()}
    forms |= {_plural(name): (value, "s") for name, value in names.items()}
    return forms | {_ordinal(name): (value, ORDINAL_ENDINGS.get(value, "th")) for name, value in names.items()}


ADDENDS = {**_with_endings(UNITS), **_with_endings(TENS), "zeroth": (0, "th")}
FACTORS = _with_endings(SCALES)
WORDS = {*ZEROS, *ADDENDS, *FACTORS, *SIGNS, *CURRENCIES, *REPEATS, "per", "percent", "and", "point"}


def write_numbers(text: str) -> str:
    """The text with every number in digits. It must be in lower case and free of symbols other than . % $ ¢ € £."""
    words = _separate(_halves(text)).split()
    return _tidy(" ".join(_Reader().read(words)))


class _Reader:
    """Reads the words of one text."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.number: Number | None = None  # the open number
        self.symbol = ""  # a sign or currency, put before the next thing written

    def read(self, words: list[str]) -> list[str]:
        used = False  # whether the previous word has used up this one, as "double" uses up "five"
        for previous, word, following in zip([None, *words], words, [*words[1:], None], strict=False):
            used = not used and self._word(previous, word, following)
        self._close()
        return self.written

    def _write(self, text: Number) -> None:
        self.written.append(f"{self.symbol}{text}")
        self.number, self.symbol = None, ""

    def _close(self) -> None:
        if self.number is not None:
            self._write(self.number)

    def _close_and_write(self, word: str) -> None:
        self._close()
        self._write(word)

    def _word(self, previous: str | None, word: str, following: str | None) -> bool:
        """Read one word. True if that used up the following word as well."""
        if word in ADDENDS:
            value, ending = ADDENDS[word]
            self._set(_added(self.number, value, previous), ending)
        elif word in FACTORS:
            self._scale(*FACTORS[word])
        elif word in ZEROS:
            self._append("0")
        elif word in SIGNS:
            self._sign(word, following)
        elif word in CURRENCIES and self.number is not None:
            self.symbol = CURRENCIES[word]
            self._close()
        elif word == "percent" and self.number is not None:
            self._write(f"{self.number}%")
        elif word == "per" and self.number is not None and following == "cent":
            self._write(f"{self.number}%")
            return True
        elif word in REPEATS and (following in UNITS or following in ZEROS):
            self._append(str(UNITS.get(following, 0)) * REPEATS[word])
            return True
        elif word == "point" and _in_number(following):
            if following in PLAIN or _is_numeral(following):
                self._append(".")
        elif word == "and" and _in_number(following) and previous in SCALES:
            pass  # "two hundred and five": the number stays open
        elif not self._numeral(word):
            self._close_and_write(word)
        return False

    def _set(self, number: Number, ending: str) -> None:
        self.number = number
        if ending:
            self._write(f"{number}{ending}")

    def _append(self, digits: str) -> None:
        self.number = f"{self.number or ''}{digits}"

    def _scale(self, factor: int, ending: str) -> None:
        product = factor if self.number is None else _scaled(self.number, factor)
        if product is None:
            self._close()
            product = factor
        self._set(product, ending)

    def _sign(self, word: str, following: str | None) -> None:
        self._close()
        if _in_number(following):
            self.symbol = SIGNS[word]
        else:
            self._write(word)

    def _numeral(self, word: str) -> bool:
        """Read a number in digits, with or without a currency symbol. False if the word is not one."""
        symbol, digits = (word[0], word[1:]) if word[0] in "£€$¢" else ("", word)
        value = _fraction(digits) if _is_numeral(digits) else None
        if value is None:
            return False
        if isinstance(self.number, str) and self.number.endswith("."):
            self.number += word
            return True
        self._close()
        self.symbol = symbol or self.symbol
        self.number = value.numerator if value.denominator == 1 else digits
        return True


def _is_numeral(word: str | None) -> bool:
    return word is not None and NUMERAL.fullmatch(word) is not None


def _in_number(word: str | None) -> bool:
    """Whether the word can be part of a number."""
    return word in WORDS or _is_numeral(word)


def _added(number: Number | None, value: int, previous: str | None) -> Number:
    """The open number with a unit or ten added if its last digits are zeros, and appended if they are not."""
    if number is None:
        return value
    if isinstance(number, str):
        return f"{number[:-1]}{value}" if previous in TENS and value < 10 else f"{number}{value}"
    ends_in_zeros = number % (10 if value < 10 else 100) == 0
    return number + value if ends_in_zeros and previous not in UNITS else f"{number}{value}"


def _scaled(number: Number, factor: int) -> int | None:
    """The open number times the factor; None if the product is not a whole number.

    Only the last three digits of an int are multiplied: "two million three hundred thousand" is 2,300,000.
    """
    if isinstance(number, int):
        return number - number % 1000 + number % 1000 * factor
    value = _fraction(number)
    if value is None or (value * factor).denominator != 1:
        return None
    return (value * factor).numerator


def _fraction(number: str) -> Fraction | None:
    """The value of a decimal number; None for "1.2.3" and for a number that is too long."""
    try:
        return None if len(number) > MOST_DIGITS else Fraction(number)
    except ValueError:
        return None


def _halves(text: str) -> str:
    """Write "two and a half" as "two point five"."""
    *heads, tail = re.split(r"\band\s+a\s+half\b", text)
    parts = []
    for head in (h for h in heads if h.strip()):
        last = head.split()[-1]
        parts += [head, "point five" if last in PLAIN or last in SCALES else "and a half"]
    return " ".join([*parts, tail])


def _separate(text: str) -> str:
    """Put a space between digits and letters, but none before the ending of an ordinal or plural."""
    text = re.sub(r"(?<=[a-z])(?=[0-9])|(?<=[0-9])(?=[a-z])", " ", text)
    return re.sub(r"(?<=[0-9])\s+(?=(?:st|nd|rd|th|s)\b)", "", text)


def _tidy(text: str) -> str:
    """Join cents to their dollars, and write a lone 1 as "one"."""
    text = re.sub(r"([€£$][0-9]+) (?:and )?¢([0-9]{1,2})\b", lambda m: f"{m[1]}.{int(m[2]):02d}", text)
    # The dot matches any character, as in Whisper: "$0 05" becomes "¢5" too.
    text = re.sub(r"[€£$]0.([0-9]{1,2})\b", lambda m: f"¢{int(m[1])}", text)
    return re.sub(r"\b1(?=s?\b)", "one", text)
