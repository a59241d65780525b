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


COAT = spoken("Bring a coat.", 8.5, 0.4)
GAP = Piece(  # one word ends where the next begins, but for the rounding of a sum
    0.0,
    1.5,
    " Mind the gap.",
    words=(Word(" Mind", 0.0, 0.4, 0.9), Word(" the", 0.66, 0.1 + 0.7, 0.9), Word(" gap.", 0.8, 1.5, 0.9)),
)
SHIP = Piece(
    3599.0,
    3601.0,
    "夜の船だ",
    words=tuple(Word(c, 3599 + i / 2, 3599.5 + i / 2, 0.9) for i, c in enumerate("夜の船だ")),
)


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


WHISPERS = [  # what WriteSRT and WriteVTT of openai-whisper 20250625 make of these words
    (
        [*PIECES, COAT],
        "srt",
        {"max_line_width": 12},
        "1\n00:00:00,000 --> 00:00:02,500\nThe night\nferry to\nAberdeen\n\n"
        "2\n00:00:03,000 --> 00:00:05,500\nleaves at\nhalf past\nnine.\n\n"
        "3\n00:00:08,500 --> 00:00:09,700\nBring a\ncoat.\n\n",
    ),
    (
        [*PIECES, COAT],
        "srt",
        {"max_line_width": 18, "max_line_count": 2},
        "1\n00:00:00,000 --> 00:00:04,000\nThe night ferry to\nAberdeen leaves at\n\n"
        "2\n00:00:04,000 --> 00:00:05,500\nhalf past nine.\n\n"
        "3\n00:00:08,500 --> 00:00:09,700\nBring a coat.\n\n",
    ),
    (
        [*PIECES, COAT],
        "vtt",
        {"max_words_per_line": 3},
        "WEBVTT\n\n00:00.000 --> 00:01.500\nThe night ferry\n\n00:01.500 --> 00:02.500\nto Aberdeen\n\n"
        "00:03.000 --> 00:04.500\nleaves at half\n\n00:04.500 --> 00:05.500\npast nine.\n\n"
        "00:08.500 --> 00:09.700\nBring a coat.\n\n",
    ),
    (
        [*PIECES, COAT],
        "vtt",
        {"max_words_per_line": 4, "max_line_width": 10},
        "WEBVTT\n\n00:00.000 --> 00:02.000\nThe night\nferry to\n\n00:02.000 --> 00:02.500\nAberdeen\n\n"
        "00:03.000 --> 00:05.000\nleaves at\nhalf past\n\n00:05.000 --> 00:05.500\nnine.\n\n"
        "00:08.500 --> 00:09.700\nBring a\ncoat.\n\n",
    ),
    (
        [GAP],
        "srt",
        {"highlight_words": True},
        "1\n00:00:00,000 --> 00:00:00,400\n<u>Mind</u> the gap.\n\n"
        "2\n00:00:00,400 --> 00:00:00,660\nMind the gap.\n\n"
        "3\n00:00:00,660 --> 00:00:00,800\nMind <u>the</u> gap.\n\n"
        "4\n00:00:00,800 --> 00:00:01,500\nMind the <u>gap.</u>\n\n",
    ),
    (
        [GAP, SHIP],
        "vtt",
        {"highlight_words": True, "max_line_width": 8, "max_line_count": 2},
        "WEBVTT\n\n00:00.000 --> 00:00.400\n<u>Mind</u> the\ngap.\n\n00:00.400 --> 00:00.660\nMind the\ngap.\n\n"
        "00:00.660 --> 00:00.800\nMind <u>the</u>\ngap.\n\n00:00.800 --> 00:01.500\nMind the\n<u>gap.</u>\n\n"
        "59:59.000 --> 59:59.500\n<u>夜</u>の船だ\n\n59:59.500 --> 01:00:00.000\n夜<u>の</u>船だ\n\n"
        "01:00:00.000 --> 01:00:00.500\n夜の<u>船</u>だ\n\n01:00:00.500 --> 01:00:01.000\n夜の船<u>だ</u>\n\n",
    ),
    (
        [SHIP],
        "srt",
        {"highlight_words": True, "max_words_per_line": 2},
        "1\n00:59:59,000 --> 00:59:59,500\n<u>夜</u>の\n\n2\n00:59:59,500 --> 01:00:00,000\n夜<u>の</u>\n\n"
        "3\n01:00:00,000 --> 01:00:00,500\n<u>船</u>だ\n\n4\n01:00:00,500 --> 01:00:01,000\n船<u>だ</u>\n\n",
    ),
]


@pytest.mark.parametrize(("pieces", "kind", "style", "text"), WHISPERS)
def test_files_are_those_of_openai_whisper(tmp_path, pieces, kind, style, text):
    write(tmp_path, pieces, [kind], subtitles=Subtitles(**style))
    assert (tmp_path / f"talk.{kind}").read_text(encoding="utf-8") == text


def test_words_that_overlap_make_no_cue_that_ends_before_it_starts():
    words = (Word(" a", 0.0, 0.5, 1.0), Word(" b", 0.3, 0.6, 1.0))
    assert cues([Piece(0.0, 0.6, " a b", words=words)], highlight_words=True) == [
        (0.0, 0.5, "<u>a</u> b"),
        (0.3, 0.6, "a <u>b</u>"),
    ]


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
    pieces = [PIECES[0], Piece(2.5, 3.0, " No words."), PIECES[1]]
    write(tmp_path, pieces, ["vtt"], subtitles=Subtitles(max_line_width=99, max_line_count=1))
    assert (tmp_path / "talk.vtt").read_text() == (
        "WEBVTT\n\n00:00.000 --> 00:02.500\nThe night ferry to Aberdeen\n\n00:02.500 --> 00:03.000\nNo words.\n\n"
        "00:03.000 --> 00:05.500\nleaves at half past nine.\n\n"
    )


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
