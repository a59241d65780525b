"""The languages Whisper knows, in the order of their tokens, and the code of a language by its name."""

import difflib

from sharpen.errors import SharpenError

_TABLE = """
en english, zh chinese, de german, es spanish, ru russian, ko korean, fr french, ja japanese, pt portuguese,
tr turkish, pl polish, ca catalan, nl dutch, ar arabic, sv swedish, it italian, id indonesian, hi hindi, fi finnish,
vi vietnamese, he hebrew, uk ukrainian, el greek, ms malay, cs czech, ro romanian, da danish, hu hungarian, ta tamil,
no norwegian, th thai, ur urdu, hr croatian, bg bulgarian, lt lithuanian, la latin, mi maori, ml malayalam, cy welsh,
sk slovak, te telugu, fa persian, lv latvian, bn bengali, sr serbian, az azerbaijani, sl slovenian, kn kannada,
et estonian, mk macedonian, br breton, eu basque, is icelandic, hy armenian, ne nepali, mn mongolian, bs bosnian,
kk kazakh, sq albanian, sw swahili, gl galician, mr marathi, pa punjabi, si sinhala, km khmer, sn shona, yo yoruba,
so somali, af afrikaans, oc occitan, ka georgian, be belarusian, tg tajik, sd sindhi, gu gujarati, am amharic,
yi yiddish, lo lao, uz uzbek, fo faroese, ht haitian creole, ps pashto, tk turkmen, nn nynorsk, mt maltese,
sa sanskrit, lb luxembourgish, my myanmar, bo tibetan, tl tagalog, mg malagasy, as assamese, tt tatar, haw hawaiian,
ln lingala, ha hausa, ba bashkir, jw javanese, su sundanese, yue cantonese
"""

# code -> English name. The order is the order of the language tokens; the last one came with large-v3.
LANGUAGES: dict[str, str] = {
    code: name for code, _, name in (entry.strip().partition(" ") for entry in _TABLE.split(","))
}

# Languages whose scripts have few words of their own in Whisper's vocabulary, and often not even their letters: a
# character takes one token (Hindi, Armenian, Thai, Tamil) to three (Lao, Tibetan, Burmese); in English, a fifth.
_SPELLED = "am as bn bo gu hi hy ka km kn lo ml mr my ne pa sa si ta te th"
SPELLED = frozenset(_SPELLED.split())

# Languages that are written without spaces between words. Whisper's own list.
UNSPACED = frozenset(("zh", "ja", "th", "lo", "my", "yue"))

_OTHER_NAMES = {
    "burmese": "my",
    "castilian": "es",
    "farsi": "fa",
    "filipino": "tl",
    "flemish": "nl",
    "haitian": "ht",
    "iw": "he",
    "jv": "jw",
    "letzeburgesch": "lb",
    "mandarin": "zh",
    "moldavian": "ro",
    "moldovan": "ro",
    "nb": "no",
    "panjabi": "pa",
    "pushto": "ps",
    "sinhalese": "si",
    "valencian": "ca",
}


def language_code(name_or_code: str) -> str:
    """Whisper's code for a language given as a code ("de", "en-GB") or as an English name ("German")."""
    wanted = name_or_code.strip().lower().replace("_", "-")
    names = {name: code for code, name in LANGUAGES.items()} | _OTHER_NAMES
    for candidate in (wanted, wanted.replace("-", " "), wanted.partition("-")[0]):
        if candidate in LANGUAGES:
            return candidate
        if candidate in names:
            return names[candidate]
    close = difflib.get_close_matches(wanted, [*LANGUAGES, *names], n=3, cutoff=0.6)
    advice = f"did you mean {' or '.join(close)}?" if close else 'give a code such as "en", or an English name.'
    raise SharpenError(f"unknown language {name_or_code!r}: Whisper knows {len(LANGUAGES)} languages; {advice}")
