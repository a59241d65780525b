"""An option is declared once; its flag, validation, grid, row key and label follow, for every field and a new one."""

import shutil
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import pytest

import sharpen
from sharpen.cli import evaluate, reproduce, transcribe, tune
from sharpen.cli.flags import given
from sharpen.cli.parser import Parser
from sharpen.errors import SharpenError
from sharpen.evaluation.corpora.corpus import Utterance
from sharpen.evaluation.report import lines
from sharpen.evaluation.runs.plan import Batch, Run
from sharpen.evaluation.runs.settings import decoding, settings, varied
from sharpen.method.adaptation import Adaptation
from sharpen.method.objectives import METHODS
from sharpen.models.padding import EVERY as FEWER
from sharpen.options import as_text, declared, option, recorded, validate
from sharpen.speech.options import Options, VadParameters
from sharpen.speech.subtitles import Subtitles

UTTERANCE = Utterance("corpus", "clean", "u", "a word", "en", "s", 1.0, Path("u.wav"))
EVERY = [(cls, name) for cls in (Adaptation, Options, VadParameters, Subtitles) for name in declared(cls)]
BAD = {int: "1.5", float: "nan", bool: "perhaps"}
# What an option needs to make a difference.
NEEDED = {
    "beam_size": {"decode": ("beam",)},
    "best_of": {"temperature": ((0.5,),)},
    "length_penalty": {"decode": ("beam",)},
}
TEXTS = {"norms": ("encoder", "encoder:half+decoder"), "budget": ("0.5", "4x")}  # those that must look like something


def parser(command):
    made = Parser()
    command.arguments(made)
    return made


def another(one):
    """Two values."""
    if one.choices:
        choices = tuple(one.choices)[-2:]
        return tuple((choice,) for choice in choices) if one.several else choices
    if one.name in TEXTS:
        return TEXTS[one.name]
    if one.scalar is bool:
        return (True, False)
    if one.several:
        return (0.25,), (0.5, 0.75)
    return {int: (7, 8), float: (0.25, 0.5), str: ("a, b", "c")}[one.scalar]


def rows(**values):
    """What is planned of one utterance, for a method that has every option."""
    found = settings(["em-tok"], **values)
    return [row for setting in found for row in Batch(setting, (UTTERANCE,)).blanks(Run(), UTTERANCE)]


def default(name):
    """Of evaluation, which decodes without Whisper's checks."""
    return getattr(Adaptation() if name in declared(Adaptation) else decoding("exact"), name)


def test_the_choices_are_those_of_the_code_behind_them(monkeypatch):
    assert tuple(declared(Options)["padding"].choices) == ("full", *FEWER)
    monkeypatch.setitem(METHODS, "mine", METHODS["em-tok"])
    assert Adaptation("mine").row is METHODS["em-tok"]


def test_only_two_fields_are_no_options():
    undeclared = [f.name for cls in (Adaptation, Options) for f in fields(cls) if f.name not in declared(cls)]
    assert undeclared == ["adapt", "vad_parameters"]


@pytest.mark.parametrize(("cls", "name"), EVERY)
def test_every_option_has_a_flag_with_its_meaning(cls, name):
    one = declared(cls)[name]
    if one.flag is None:
        assert (name, one.role) == ("greedy_at", "output")  # nothing that the command shows
        return
    text = as_text(another(one)[0]).replace(" ", "")
    shown = " ".join(parser(transcribe).format_help().split()).replace("- ", "-")
    assert f"{one.flag} " in shown
    assert one.meaning.split("(")[0] in shown
    args = parser(transcribe).parse_args(["file.wav", f"{one.flag}={text}"])
    assert given(args, cls) == {name: one.parse(text)}
    assert args.files == ["file.wav"]


@pytest.mark.parametrize(("cls", "name"), EVERY)
def test_every_option_is_validated(cls, name):
    one = declared(cls)[name]
    below = [] if one.least is None else [one.least - 1]
    wrong = [object(), *below, *([] if one.above is None else [one.above])]
    for value in wrong:
        with pytest.raises(SharpenError, match=rf"^{name} is .*; expected "):
            cls(**{name: (value,) if one.several else value})
    if one.choices or one.scalar in BAD:
        with pytest.raises(SharpenError, match="expected"):
            one.parse("nonsense" if one.choices else BAD[one.scalar])


@pytest.mark.parametrize("name", varied())
def test_every_setting_is_a_grid_a_key_and_a_label(name):
    one = varied()[name]
    a, b = another(one)
    assert one.parse(as_text(a)) == a
    rest = NEEDED.get(name, {})
    found = rows(**rest, **{name: (a, b)})
    assert len({row.key for row in found}) == 2
    if name in ("samples", "steps", "seed"):
        assert [getattr(row, name) for row in found] == [a, b]
    else:
        told = {one.plain(value) for value in (a, b) if one.always or value != default(name)}
        assert {row.options[name] for row in found if name in row.options} == told
    (labels,) = lines.group_lines([replace(row, text="a word") for row in found]).values()
    if name != "seed":  # its rows share a line
        assert {line.label for line in labels} == {f"em-tok · {one.said(value)}" for value in (a, b)}
    flags = [as_text(value) for value in (a, b)]
    text = [f"{one.flag}={','.join(flags)}"] if name != "initial_prompt" else [f"{one.flag}={flag}" for flag in flags]
    for command, first in ((evaluate, ["corpus"]), (tune, ["corpus"]), (reproduce, ["fig-steps"])):
        if command is not reproduce or name not in reproduce.FIXED:
            args = parser(command).parse_args([*first, "--out", "x", *text])
            assert tuple(getattr(args, name)) == (a, b)


@pytest.mark.parametrize("name", varied())
def test_a_setting_at_its_default_leaves_a_row_as_rows_were(name):
    """So that rows from before an option was declared keep their keys."""
    before = {"lr", "weight_decay", "norms", "normalise", "guard", "batch_size", "threads", "device", "preset", "dtype"}
    (plain,) = rows()
    assert set(plain.options) == before
    assert rows(**{name: (default(name),)})[0].key == plain.key


def test_output_and_recording_are_no_settings():
    roles = {name: declared(cls)[name].role for cls, name in EVERY if declared(cls)[name].role != "setting"}
    assert roles == {
        "explain": "output",
        "greedy_at": "output",
        "word_timestamps": "output",
        "confidence": "output",
        "n_best": "output",
        **dict.fromkeys(declared(Subtitles), "output"),
        "language": "recording",
        "condition_on_previous_text": "recording",
        "budget": "recording",
        "deadline": "recording",
        "vad_filter": "recording",
        "chunk": "recording",
        **dict.fromkeys(declared(VadParameters), "recording"),
        "batch_size": "machine",
    }
    assert not roles.keys() & varied().keys()
    assert recorded(Adaptation(explain=True, greedy_at=(1,)), Adaptation()) == recorded(Adaptation(), Adaptation())
    with pytest.raises(SharpenError, match="explain cannot be varied; expected one of steps, samples"):
        settings(["em-tok"], explain=(True,))


CHECK = """
from pathlib import Path
from sharpen.cli import evaluate, reproduce, transcribe, tune
from sharpen.cli.parser import Parser
from sharpen.cli.runs import settings_from
from sharpen.errors import SharpenError
from sharpen.evaluation.corpora.corpus import Utterance
from sharpen.evaluation.report.lines import group_lines
from sharpen.evaluation.runs.plan import Batch, Run
from sharpen.evaluation.runs.settings import settings
from sharpen.method.adaptation import Adaptation
from sharpen.speech.options import Options

def parsed(command, *arguments):
    parser = Parser()
    command.arguments(parser)
    return parser.parse_args(arguments), parser.format_help()

args, text = parsed(transcribe, "f.wav", "--method", "em-tok", "--patience", "5", "--loudness", "soft")
assert "how long to wait" in text and "(default: 3)" in text
assert transcribe.make_options(args).adapt.patience == 5 and transcribe.make_options(args).loudness == "soft"
for make, message in ((lambda: Adaptation(patience=0), "patience is 0; expected a whole number, at least 1"),
                      (lambda: Options(loudness="x"), "loudness is 'x'; expected one of plain, soft")):
    try:
        make()
    except SharpenError as error:
        assert str(error) == message, error
    else:
        raise AssertionError(message)
for command, first in ((evaluate, "corpus"), (tune, "corpus"), (reproduce, "fig-steps")):
    args, text = parsed(command, first, "--out", "x", "--patience", "3,4", "--loudness", "plain,soft")
    values = {name: settings_from(args, {})[name] for name in ("patience", "loudness")}
    assert values == {"patience": (3, 4), "loudness": ("plain", "soft")}, values
u = Utterance("corpus", "clean", "u", "a word", "en", "s", 1.0, Path("u.wav"))
rows = [Batch(s, (u,)).blank(Run(), u, 10) for s in settings(["em-tok"], **values)]
assert len({row.key for row in rows}) == 4
assert [(row.options.get("patience"), row.options.get("loudness")) for row in rows] == [
    (None, None), (None, "soft"), (4, None), (4, "soft")]
(found,) = group_lines(rows).values()
assert [line.label for line in found][1] == "em-tok · loudness soft · wait 3", [line.label for line in found]
"""


def test_a_new_field_is_one_line(tmp_path):
    """The package with one line more in each of two files, and nothing else changed."""
    copy = tmp_path / "sharpen"
    shutil.copytree(Path(sharpen.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path, line in (
        ("method/adaptation.py", '    patience: int = option(3, "how long to wait", least=1, label="wait {}")\n'),
        ("speech/options.py", '    loudness: Literal["plain", "soft"] = option("plain", "how to speak")\n'),
    ):
        source = (copy / path).read_text(encoding="utf-8")
        assert source.count("\n    seed: int") == 1
        (copy / path).write_text(source.replace("\n    seed: int", f"\n{line}    seed: int"), encoding="utf-8")
    changed = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, env=changed)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Kinds:
    many: tuple[Literal["a", "b"], ...] = option((), "several choices")
    maybe: float | None = option(None, "a number or nothing", least=0, most=1)
    whole: int = option(2, "a count", least=1, flag="--count", label="{} of them")
    text: str = option("", "any words")

    def __post_init__(self):
        validate(self)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("many", "none", ()),
        ("many", "a+b", ("a", "b")),
        ("maybe", "none", None),
        ("maybe", "0.5", 0.5),
        ("whole", "3", 3),
        ("text", "none", "none"),
    ],
)
def test_texts_and_values(name, text, value):
    one = declared(Kinds)[name]
    assert one.parse(text) == value
    assert as_text(value) == text
    assert one.check(value) is None


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("many", "c", "'c': expected parts joined by +, each one of a, b"),
        ("maybe", "inf", "'inf': expected a finite number, at least 0 and at most 1, or none"),
        ("maybe", "-0.1", "'-0.1': expected a finite number, at least 0 and at most 1, or none"),
        ("maybe", "", "'': expected a finite number, at least 0 and at most 1, or none"),
        ("whole", "1e3", "'1e3': expected a whole number, at least 1"),
        ("whole", "9" * 5000, "expected a whole number"),
    ],
)
def test_bad_texts(name, text, expected):
    with pytest.raises(SharpenError) as error:
        declared(Kinds)[name].parse(text)
    assert expected in str(error.value)


def test_numbers_of_numpy_are_numbers_and_truth_is_none():
    import numpy as np

    assert Kinds(whole=np.int64(4), maybe=np.float32(0.5)).whole == 4
    for name in ("whole", "maybe"):
        with pytest.raises(SharpenError, match=f"{name} is True"):
            Kinds(**{name: True})


def test_what_is_recorded_is_what_differs():
    assert recorded(Kinds(), Kinds()) == {}
    assert recorded(Kinds(many=("a", "b"), maybe=1), Kinds()) == {"many": "a+b", "maybe": 1.0}
    assert declared(Kinds)["whole"].said(3) == "3 of them"
    assert (declared(Kinds)["whole"].flag, declared(Kinds)["text"].flag) == ("--count", "--text")
