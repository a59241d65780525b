import hashlib
import subprocess
import sys
from importlib.resources import files

import pytest

from sharpen.errors import SharpenError
from sharpen.evaluation.runs.normalisers import NORMALISERS, normaliser, normaliser_for

# What version 1 makes of each text. When a release of transformers changes one, raise the version with the text.
VERSION_1 = {
    "whisper-en": {
        "Mr. O'Neill didn't go; he'd gone already!": "mister 0 neill did not go he had gone already",
        "The colour of the theatre, realised in grey.": "the color of the theater realized in gray",
        "A QUARTER PAST TEN, HALF PAST": "a quarter past 10 half past",
        "Um, twenty-one dollars and five cents [laughs]": "$21.05",
        "1,000,000 people (about 40%)": "1000000 people",
        "Café, naïve, Straße": "cafe naive strasse",
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


@pytest.mark.parametrize("name", VERSION_1)
def test_texts_of_version_1(name):
    assert normaliser(name).label == f"{name}/1"
    assert {text: normaliser(name)(text) for text in VERSION_1[name]} == VERSION_1[name]


def test_every_normaliser_has_its_texts():
    assert VERSION_1.keys() == NORMALISERS.keys()


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


def test_the_spelling_table_is_openais_own():
    data = files("sharpen.evaluation").joinpath("assets", "spelling.json").read_bytes()
    assert hashlib.sha256(data).hexdigest() == "6607f948be9824d2e1b2fa2223cd94c06c45afa4e05ea0e3d5e1f2bdffde2465"


def test_torch_is_not_imported():
    script = (
        "import sys; from sharpen.evaluation.runs import normalisers, score;"
        "normalize.normaliser('whisper-en')('ten'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
