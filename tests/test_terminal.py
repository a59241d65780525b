import io
import subprocess
import sys

import pytest

from sharpen import terminal
from sharpen.terminal import clusters, columns, cut, pad, progress, width, wrap

E_ACUTE = "e\u0301"
DEVANAGARI = "कि"  # a consonant and a vowel sign that has a column of its own
FAMILY = "\U0001f469\u200d\U0001f467"  # one picture, of a woman and a girl


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abc", 3),
        ("日本", 4),
        ("Ａ", 2),  # full width
        (f"caf{E_ACUTE}", 4),
        ("a\u200bb", 2),  # zero width space
        ("a\u2060b\ufeff", 2),  # word joiner, byte order mark
        ("\u202eabc\u202c", 3),  # direction marks
        ("กำ้", 2),  # Thai: the tone mark takes no column
        (FAMILY, 2),
        ("\u1112\u1161\u11ab", 2),  # Hangul, decomposed
        ("", 0),
    ],
)
def test_width(text, expected):
    assert width(text) == expected


def test_marks_stay_with_their_character():
    assert list(clusters(f"x{E_ACUTE}y{FAMILY}{DEVANAGARI}")) == ["x", E_ACUTE, "y", FAMILY, DEVANAGARI]
    assert list(clusters("\u0301a")) == ["\u0301", "a"]  # nothing to stand on
    for size in range(8):
        for end in (False, True):
            kept = cut(f"{E_ACUTE}日{E_ACUTE}本{FAMILY}", size, end=end)
            assert width(kept) <= size
            assert kept.count("e") == kept.count("\u0301")
    assert cut(f"a{E_ACUTE}", 2) == f"a{E_ACUTE}"
    assert cut("日本", 3) == "日"
    assert cut("日本", 3, end=True) == "本"


def test_pad():
    assert pad("日", 4) == "日  "
    assert pad("日", 4, right=True) == "  日"
    assert pad("long", 2) == "long"


def test_wrap():
    assert wrap("one two three", 7) == ["one two", "three"]
    assert wrap("今日は雨です ok", 5) == ["今日", "は雨", "です", "ok"]
    assert wrap(" ", 5) == []
    assert wrap("日", 1) == ["日"]  # no narrower than one character
    assert wrap(f"{E_ACUTE}" * 3, 2) == [E_ACUTE * 2, E_ACUTE]


def test_columns():
    assert columns([("name", "WER"), ("日本", "9.5"), ("b",)]) == ["name  WER", "日本  9.5", "b"]
    assert columns([("name", "WER"), ("b", "10.25")], right=[1], rule=True) == [
        "name    WER",
        "----  -----",
        "b     10.25",
    ]
    assert columns([]) == columns([], rule=True) == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end(clock):
    log = io.StringIO()
    with progress(100, "rows", done=20, stream=log) as bar:
        for i in range(80):
            clock[0] += 1
            bar.set_text(f"WER {i}")
            bar.update()
    assert log.getvalue().splitlines() == [
        "sharpen: 49/100 rows, 0:30 elapsed, 0:53 left; WER 29",
        "sharpen: 79/100 rows, 1:00 elapsed, 0:21 left; WER 59",
        "sharpen: 100/100 rows, 1:20 elapsed; WER 79",
    ]


def test_the_last_line_is_not_printed_twice(clock):
    log = io.StringIO()
    with progress(1, "rows", stream=log) as bar:
        clock[0] += 3700
        bar.update()
    assert log.getvalue() == "sharpen: 1/1 rows, 1:01:40 elapsed\n"


def test_a_total_that_grows_or_is_not_known(clock):
    log = io.StringIO()
    with progress(0, "s", stream=log) as bar:
        bar.extend(7.5)
        bar.update(7.6)
    with progress(None, "case", stream=log) as bar:
        bar.set_text("warming up")
    with progress(0, "rows", stream=log):
        pass  # nothing to do, nothing to say
    assert log.getvalue() == "sharpen: 8/8 s, 0:00 elapsed\nsharpen: 0:00 elapsed; warming up\n"


def test_an_error_leaves_the_line_where_it_stood(clock):
    log = io.StringIO()

    def interrupted():
        with progress(3, "clips", stream=log) as bar:
            bar.update()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert log.getvalue().startswith("sharpen: 1/3 clips")


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_quiet_shows_only_what_is_written(stream):
    log = stream()
    with progress(3, "clips", quiet=True, stream=log) as bar:
        bar.set_text("text")
        bar.update()
        bar.write("a warning", file=log)
    assert log.getvalue() == "a warning\n"


def test_a_terminal_gets_a_bar(capsys):
    screen = Terminal()
    with progress(2, "clips", stream=screen) as bar:
        bar.set_text("em-tok-b")
        bar.update()
        bar.extend(1)
        bar.write("a transcript", file=sys.stdout)
        bar.update(2.4)
    last = screen.getvalue().rstrip().split("\r")[-1]
    assert "100%|" in last
    assert "3/3 clips" in last
    assert "em-tok-b" in last
    assert capsys.readouterr().out == "a transcript\n"


def test_a_bar_of_an_unknown_total():
    screen = Terminal()
    with progress(None, "case", stream=screen) as bar:
        bar.set_text("warming up")
    assert "[00:00] warming up" in screen.getvalue()


def test_nothing_heavy_is_imported():
    check = "import sys, sharpen.terminal; sys.exit(bool({'torch', 'numpy', 'tqdm'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
