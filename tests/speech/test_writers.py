import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from speech.pieces import Piece, write

from sharpen.errors import SharpenError
from sharpen.files import write_text
from sharpen.speech.output import TranscriptFiles, plan_outputs
from sharpen.speech.writers import WRITERS, clock, parse_formats


class Full:
    """A file whose last bytes find no room."""

    def __init__(self, file):
        self.file, self.name = file, file.name

    def close(self):
        self.file.close()
        raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    with TranscriptFiles(tmp_path, "talk", ["txt", "srt"]) as files:
        files._open = {name: Full(file) for name, file in files._open.items()}
        assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == []


PIECES = [
    Piece(0.0, 2.5, " The first café;\twith a tab."),
    Piece(2.5, 3599.9996, " An arrow --> and\na new line."),
    Piece(3661.25, 3662.0, " 日本 & <third>"),
]

GOLDEN = {
    "txt": "The first café;\twith a tab.\nAn arrow --> and a new line.\n日本 & <third>\n",
    "srt": (
        "1\n00:00:00,000 --> 00:00:02,500\nThe first café;\twith a tab.\n\n"
        "2\n00:00:02,500 --> 01:00:00,000\nAn arrow -> and a new line.\n\n"
        "3\n01:01:01,250 --> 01:01:02,000\n日本 & <third>\n\n"
    ),
    "vtt": (
        "WEBVTT\n\n"
        "00:00.000 --> 00:02.500\nThe first café;\twith a tab.\n\n"
        "00:02.500 --> 01:00:00.000\nAn arrow --&gt; and a new line.\n\n"
        "01:01:01.250 --> 01:01:02.000\n日本 &amp; &lt;third&gt;\n\n"
    ),
    "tsv": (
        "start\tend\ttext\n"
        "0\t2500\tThe first café; with a tab.\n"
        "2500\t3600000\tAn arrow --> and a new line.\n"
        "3661250\t3662000\t日本 & <third>\n"
    ),
}


@pytest.mark.parametrize("arrow", ["-->", "--->", "---->", "-->-->", "--> --->", "<-->"])
def test_no_text_looks_like_the_times_of_a_cue(tmp_path, arrow):
    write(tmp_path, [Piece(0.0, 1.0, f" a {arrow} b\x0b\x0b00:00\u2028\u2028{arrow}\x85\x85c")], ["srt", "vtt"])
    for name, blank in (("srt", 1), ("vtt", 2)):
        lines = (tmp_path / f"talk.{name}").read_text(encoding="utf-8").splitlines()
        assert sum("-->" in line for line in lines) == 1
        assert lines.count("") == blank  # nothing else ends the cue
    assert f"a {arrow.replace('<', '&lt;').replace('>', '&gt;')} b" in (tmp_path / "talk.vtt").read_text(
        encoding="utf-8"
    )


EMPTY = {"txt": "", "srt": "", "vtt": "WEBVTT\n\n", "tsv": "start\tend\ttext\n"}


def test_golden_texts(tmp_path):
    paths = write(tmp_path / "new" / "folder", PIECES, language="en")
    assert [p.name for p in paths] == ["talk.txt", "talk.srt", "talk.vtt", "talk.tsv", "talk.json"]
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == sorted(p.name for p in paths)
    for name, text in GOLDEN.items():
        assert (tmp_path / "new" / "folder" / f"talk.{name}").read_bytes().decode() == text


def test_json_has_the_names_of_whisper(tmp_path):
    write(tmp_path, PIECES, ["json"], language="en", duration=3662.0)
    document = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))
    assert document["text"] == "The first café;\twith a tab. An arrow --> and\na new line. 日本 & <third>"
    assert document["language"] == "en"
    assert document["duration"] == 3662.0
    assert [s["text"] for s in document["segments"]] == [p.text for p in PIECES]
    whisper = {"id", "seek", "start", "end", "text", "tokens", "temperature", "avg_logprob"}
    assert whisper | {"compression_ratio", "no_speech_prob"} <= document["segments"][0].keys()
    assert document["segments"][0]["tokens"] == [50364, 440]
    assert document["segments"][0]["entropies"] == [0.5, 0.25]


def test_json_takes_numpy_and_never_writes_nan(tmp_path):
    piece = Piece(0.0, np.float32(0.1), "x", tokens=np.array([7]), avg_logprob=np.float32("nan"), logprobs=[-np.inf])
    write(tmp_path, [piece], ["json"])
    text = (tmp_path / "talk.json").read_text()
    segment = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))["segments"][0]
    assert (segment["end"], segment["tokens"], segment["avg_logprob"], segment["logprobs"]) == (0.1, [7], None, [None])


def test_times_come_back_from_every_format(tmp_path):
    write(tmp_path, PIECES)
    lines = (tmp_path / "talk.tsv").read_text(encoding="utf-8").splitlines()[1:]
    tsv = [(int(a) / 1000, int(b) / 1000) for a, b, _ in (line.split("\t") for line in lines)]

    def seconds(stamp: str) -> float:
        *rest, last = stamp.replace(",", ".").split(":")
        return float(last) + sum(60 ** (len(rest) - i) * int(part) for i, part in enumerate(rest))

    for name in ("srt", "vtt"):
        cues = [line.split(" --> ") for line in (tmp_path / f"talk.{name}").read_text(encoding="utf-8").splitlines()]
        assert [(seconds(c[0]), seconds(c[1])) for c in cues if len(c) == 2] == tsv
    segments = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))["segments"]
    assert [(s["start"], s["end"]) for s in segments] == tsv


def test_an_empty_transcript_gives_valid_files(tmp_path):
    write(tmp_path, [], language="en")
    for name, text in EMPTY.items():
        assert (tmp_path / f"talk.{name}").read_text() == text
    assert json.loads((tmp_path / "talk.json").read_text()) == {"text": "", "segments": [], "language": "en"}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupt_leaves_the_earlier_transcript(tmp_path, error):
    write(tmp_path, PIECES[:1], ["txt", "srt"])
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def interrupted():
        with TranscriptFiles(tmp_path, "talk", ["txt", "srt", "json"]) as files:
            files.add(PIECES[1])
            raise error

    with pytest.raises(error):
        interrupted()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_nothing_appears_without_finish(tmp_path):
    with TranscriptFiles(tmp_path, "talk", ["txt"]) as files:
        files.add(PIECES[0])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SharpenError, match="finish"):
        files.finish()


def test_segments_are_on_disk_as_they_come(tmp_path):
    with TranscriptFiles(tmp_path, "talk", ["txt"]) as files:
        for count, piece in enumerate(PIECES, 1):
            files.add(piece)
            (aside,) = tmp_path.iterdir()
            assert aside.name != "talk.txt"
            assert len(aside.read_text(encoding="utf-8").splitlines()) == count
        files.finish()
    assert [p.name for p in tmp_path.iterdir()] == ["talk.txt"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SharpenError, match="cannot be written"), TranscriptFiles(tmp_path / "file", "talk", ["txt"]):
        pass


def test_output_files_have_ordinary_permissions(tmp_path):
    (path,) = write(tmp_path, PIECES, ["txt"])
    (tmp_path / "other").write_text("")
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_formats():
    assert parse_formats("srt, json") == ["srt", "json"]
    assert parse_formats(["srt", "srt"]) == ["srt"]
    assert parse_formats("txt,all") == list(WRITERS)
    with pytest.raises(SharpenError, match=r"docx; choose from txt, srt"):
        parse_formats("txt,docx")
    with pytest.raises(SharpenError, match="none"):
        parse_formats([])


@pytest.mark.parametrize(
    ("seconds", "short", "long"),
    [
        (0, "00:00.000", "00:00:00,000"),
        (59.9995, "01:00.000", "00:01:00,000"),
        (-0.01, "00:00.000", "00:00:00,000"),
        (3600, "01:00:00.000", "01:00:00,000"),
        (360_000.5, "100:00:00.500", "100:00:00,500"),
    ],
)
def test_clock(seconds, short, long):
    assert clock(seconds) == short
    assert clock(seconds, hours=True, point=",") == long


@pytest.mark.parametrize(
    ("inputs", "stems"),
    [
        (["a/x.wav", "b/y.wav"], ["x", "y"]),
        (["a/x.wav", "b/x.wav"], ["x.a", "x.b"]),
        (["b/x.wav", "a/x.wav"], ["x.b", "x.a"]),
        (["a/x.wav", "a/x.flac"], ["x.wav", "x.flac"]),
        (["p/a/x.wav", "q/a/x.wav"], ["x.a.p", "x.a.q"]),
        (["a/x.wav", "a/x.flac", "b/x.wav", "b/x.flac"], ["x.wav.a", "x.flac.a", "x.wav.b", "x.flac.b"]),
        (["a/x.wav", "b/x.wav", "c/x.a.wav"], ["x.wav.a", "x.b", "x.a.wav"]),
        (["-", "a/y.wav"], ["stdin", "y"]),
        (["-", "stdin.wav"], ["stdin", "stdin.wav"]),
        (["a/x.tar.wav"], ["x.tar"]),
        (["a/x.wav", "b/X.wav"], ["x.a", "X.b"]),
        (["a/x", "a/X"], None),
        ([], []),
    ],
)
def test_inputs_never_share_an_output(inputs, stems, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = plan_outputs(inputs)
    assert list(plan) == inputs
    assert len({s.casefold() for s in plan.values()}) == len(inputs)
    if stems is not None:
        assert list(plan.values()) == stems


def test_an_input_given_twice_counts_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.wav").write_bytes(b"")
    os.symlink(tmp_path / "x.wav", tmp_path / "link.wav")
    assert plan_outputs(["x.wav", "./x.wav", tmp_path / "x.wav", "-", "-"]) == {"x.wav": "x", "-": "stdin"}
    assert plan_outputs(["x.wav", "link.wav"]) == {"x.wav": "x", "link.wav": "link"}  # its name is what people gave it


def test_a_name_as_long_as_names_can_be(tmp_path):
    stem = "n" * 250
    with TranscriptFiles(tmp_path, stem, ["txt"]) as written:
        written.finish()
    write_text(tmp_path / f"{stem}.json", "{}")
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".txt"]


def test_links_are_followed(tmp_path):
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "page.html"
    target.write_text("earlier")
    for name in ("page.html", "talk.txt"):
        (tmp_path / name).symlink_to(tmp_path / "real" / name)  # talk.txt is not there yet
    write_text(tmp_path / "page.html", "new")
    write(tmp_path, PIECES[:1], ["txt"])
    assert target.read_text() == "new"
    assert (tmp_path / "real" / "talk.txt").read_text(encoding="utf-8") == "The first café;\twith a tab.\n"
    assert (tmp_path / "page.html").is_symlink()
    assert (tmp_path / "talk.txt").is_symlink()
    assert sorted(p.name for p in (tmp_path / "real").iterdir()) == ["page.html", "talk.txt"]


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "page")
    reader.join(timeout=10)
    assert received == ["page"]
    assert pipe.is_fifo()
    assert write_text("/dev/null", "page").is_char_device()
    with pytest.raises(SharpenError, match="cannot be written: Is a directory; choose another path"):
        write_text(tmp_path, "page")


@pytest.mark.parametrize("where", ["/dev/stdout", "/dev/fd/1"])
@pytest.mark.parametrize("redirected", [True, False])
def test_standard_output_keeps_what_is_around_it(tmp_path, where, redirected):
    script = f"from sharpen.files import write_text\nprint('a')\nwrite_text({where!r}, 'page\\n')\nprint('b')"
    command = [sys.executable, "-c", script]
    if redirected:
        with (tmp_path / "out").open("wb") as file:
            subprocess.run(command, stdout=file, check=True)
        text = (tmp_path / "out").read_bytes()
    else:
        text = subprocess.run(command, capture_output=True, check=True).stdout
    assert text == b"a\npage\nb\n"
