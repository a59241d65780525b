import json
from pathlib import Path

import pytest
from speech.pieces import Piece, write

from sharpen.cli import main
from sharpen.errors import SharpenError
from sharpen.speech.files import transcribe_files
from sharpen.speech.options import Options
from sharpen.speech.subtitles import CueLayout, Subtitles
from sharpen.speech.words import Word

EXAMPLE = str(Path(__file__).parent.parent.parent / "examples" / "ferry.flac")


def spoken(text, start=0.0, step=0.5):
    """A segment whose words last `step` seconds each."""
    words = [Word(f" {word}", start + step * i, start + step * (i + 1), 0.9) for i, word in enumerate(text.split())]
    return Piece(start, words[-1].end, f" {text}", words=tuple(words))


PIECES = [spoken("The night ferry to Aberdeen"), spoken("leaves at half past nine.", 3.0)]


def cues(pieces, **style):
    layout = CueLayout(Subtitles(**style), lambda text: text)
    made = [cue for piece in pieces for cue in layout.add(piece.words)]
    return [(cue.start, cue.end, cue.text) for cue in [*made, *layout.finish()]]


def test_lines_are_no_wider_than_asked():
    assert cues(PIECES, max_line_width=12) == [
        (0.0, 2.5, "The night\nferry to\nAberdeen"),
        (3.0, 5.5, "leaves at\nhalf past\nnine."),
    ]
    assert cues([spoken("Unbelievably wide")], max_line_width=5) == [(0.0, 1.0, "Unbelievably\nwide")]


def test_with_a_number_of_lines_subtitles_run_on():
    assert cues(PIECES, max_line_width=20, max_line_count=1) == [
        (0.0, 2.0, "The night ferry to"),
        (2.0, 4.0, "Aberdeen leaves at"),
        (4.0, 5.5, "half past nine."),
    ]
    assert cues(PIECES, max_line_width=20, max_line_count=2) == [
        (0.0, 4.0, "The night ferry to\nAberdeen leaves at"),
        (4.0, 5.5, "half past nine."),
    ]


def test_but_not_over_a_long_pause():
    late = [PIECES[0], spoken("leaves at half past nine.", 5.1)]
    assert [text for _, _, text in cues(late, max_line_width=99, max_line_count=2)] == [
        "The night ferry to Aberdeen",
        "leaves at half past nine.",
    ]
    soon = [PIECES[0], spoken("leaves at half past nine.", 4.9)]
    assert len(cues(soon, max_line_width=99, max_line_count=2)) == 1


def test_so_many_words_at_once():
    assert cues(PIECES, max_words_per_line=2) == [
        (0.0, 1.0, "The night"),
        (1.0, 2.0, "ferry to"),
        (2.0, 2.5, "Aberdeen"),
        (3.0, 4.0, "leaves at"),
        (4.0, 5.0, "half past"),
        (5.0, 5.5, "nine."),
    ]
    assert cues(PIECES[:1], max_words_per_line=3, max_line_width=9)[0] == (0.0, 1.5, "The night\nferry")


def test_each_word_is_underlined_while_it_is_spoken():
    words = (Word(" a", 0.0, 0.4, 1.0), Word(" b", 0.6, 1.0, 1.0))
    assert cues([Piece(0.0, 1.0, " a b", words=words)], highlight_words=True) == [
        (0.0, 0.4, "<u>a</u> b"),
        (0.4, 0.6, "a b"),
        (0.6, 1.0, "a <u>b</u>"),
    ]
    assert cues(PIECES[:1], highlight_words=True, max_line_width=9)[2][2] == "The night\n<u>ferry</u> to\nAberdeen"


def test_a_word_of_nothing_makes_no_empty_line():
    words = (Word(" a", 0.0, 0.4, 1.0), Word(" ", 0.4, 0.6, 1.0), Word(" b\n", 0.6, 1.0, 1.0))
    assert cues([Piece(0.0, 1.0, " a  b", words=words)], max_line_width=1) == [(0.0, 1.0, "a\nb")]
    assert cues([Piece(0.0, 1.0, " ", words=words[1:2])], highlight_words=True) == []


@pytest.mark.parametrize(
    ("style", "message"),
    [
        ({"max_line_count": 2}, "max_line_count is 2, but lines have no end: set max_line_width"),
        ({"max_line_count": 2, "max_line_width": 9, "max_words_per_line": 3}, "has no effect with max_line_count"),
        ({"max_line_width": 0}, "max_line_width is 0; expected a whole number, at least 1"),
    ],
)
def test_options_that_would_do_nothing_are_refused(style, message):
    with pytest.raises(SharpenError, match=message):
        Subtitles(**style)


GOLDEN = {
    "srt": (
        "1\n00:00:00,000 --> 00:00:00,500\n<u>a->b</u> & <c>\n\n"
        "2\n00:00:00,500 --> 00:00:01,000\na->b <u>&</u> <c>\n\n"
        "3\n00:00:01,000 --> 00:00:01,500\na->b & <u><c></u>\n\n"
    ),
    "vtt": (
        "WEBVTT\n\n"
        "00:00.000 --> 00:00.500\n<u>a--&gt;b</u> &amp; &lt;c&gt;\n\n"
        "00:00.500 --> 00:01.000\na--&gt;b <u>&amp;</u> &lt;c&gt;\n\n"
        "00:01.000 --> 00:01.500\na--&gt;b &amp; <u>&lt;c&gt;</u>\n\n"
    ),
    "tsv": "start\tend\ttext\n0\t1500\ta-->b & <c>\n",
    "txt": "a-->b & <c>\n",
}


def test_every_format_with_words(tmp_path):
    piece = spoken("a-->b & <c>")
    write(tmp_path, [piece], subtitles=Subtitles(highlight_words=True))
    for name, text in GOLDEN.items():
        assert (tmp_path / f"talk.{name}").read_text(encoding="utf-8") == text
    (segment,) = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))["segments"]
    assert segment["words"] == [
        {"word": " a-->b", "start": 0.0, "end": 0.5, "probability": 0.9},
        {"word": " &", "start": 0.5, "end": 1.0, "probability": 0.9},
        {"word": " <c>", "start": 1.0, "end": 1.5, "probability": 0.9},
    ]


def test_subtitles_that_run_on_are_complete_and_numbered(tmp_path):
    write(tmp_path, PIECES, ["srt"], subtitles=Subtitles(max_line_width=20, max_line_count=1))
    lines = (tmp_path / "talk.srt").read_text(encoding="utf-8").split("\n\n")
    assert [cue.splitlines()[0] for cue in lines if cue] == ["1", "2", "3"]
    assert lines[2].splitlines()[2] == "half past nine."


def test_segments_without_words_are_written_as_they_are(tmp_path):
    write(tmp_path, [Piece(0.0, 2.5, " No words.")], ["srt", "json"], subtitles=Subtitles(highlight_words=True))
    assert (tmp_path / "talk.srt").read_text() == "1\n00:00:00,000 --> 00:00:02,500\nNo words.\n\n"
    assert "words" not in json.loads((tmp_path / "talk.json").read_text())["segments"][0]


def test_words_without_a_style_change_no_subtitle(tmp_path):
    write(tmp_path / "a", PIECES, ["srt", "vtt"])
    write(tmp_path / "b", [Piece(p.start, p.end, p.text) for p in PIECES], ["srt", "vtt"])
    for name in ("talk.srt", "talk.vtt"):
        assert (tmp_path / "a" / name).read_text() == (tmp_path / "b" / name).read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--highlight-words"], "highlight_words needs the times of words: set word_timestamps (--word-timestamps)"),
        (["--max_line_width", "40", "--max_words_per_line", "3"], "max_line_width, max_words_per_line need the times"),
        (["--highlight-words", "--word-timestamps", "False", "-f", "srt"], "highlight_words needs the times of words"),
        (["--highlight-words", "--word-timestamps", "-f", "json"], "needs srt or vtt among the output formats"),
        (["--max-line-count", "2", "--word-timestamps", "-f", "srt"], "lines have no end: set max_line_width"),
    ],
)
def test_the_command_says_what_is_missing(flags, message, capsys):
    assert main(["transcribe", EXAMPLE, "--model", "no-such-model", *flags]) == 2
    assert message in capsys.readouterr().err


def test_so_does_python():
    with pytest.raises(SharpenError, match="set word_timestamps"):
        next(transcribe_files(None, [], Options(), formats=["srt"], subtitles=Subtitles(highlight_words=True)))


@pytest.mark.parametrize("on", ["True", "on"])
def test_the_command_writes_words(tmp_path, on):
    flags = ["--word_timestamps", on, "--highlight_words", on, "--max_words_per_line", "3", "--effort", "plain"]
    assert main(["transcribe", EXAMPLE, "--model", "tiny.en", "-q", "-o", str(tmp_path), *flags]) == 0
    (segment,) = json.loads((tmp_path / "ferry.json").read_text(encoding="utf-8"))["segments"]
    assert "".join(word["word"] for word in segment["words"]) == segment["text"]
    assert "<u>ferry</u>" in (tmp_path / "ferry.vtt").read_text(encoding="utf-8")
    assert "The night <u>ferry</u>\n" in (tmp_path / "ferry.srt").read_text(encoding="utf-8")
    assert "<u>" not in (tmp_path / "ferry.txt").read_text(encoding="utf-8")
