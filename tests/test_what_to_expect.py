"""Every number of the README's first screen and of its "What to expect" against the rows."""

import re

import pytest
from published import ROOT, lines, load_script

from sharpen.evaluation.report.markup import bounds, percent
from sharpen.evaluation.report.statistics import compare

README = (ROOT / "README.md").read_text(encoding="utf-8")
efforts = load_script("effort_table")
steps = load_script("other_steps_table")
BEAM, WIDE, EFFORTS = efforts.BEAM, efforts.WIDE, efforts.EFFORTS


def effort(condition, name, with_loops=True):
    return efforts.points(condition, with_loops)[name]


def rate(condition, name, with_loops=True):
    return percent(effort(condition, name, with_loops).wer.value)


def times(condition, name, digits=1):
    return f"{effort(condition, name).times:.{digits}f}"


def gain(condition, name, other, with_loops=True):
    """How many points fewer, of a difference that is significant."""
    x = effort(condition, name, with_loops).against[other].difference
    assert x.high < 0
    return percent(-x.value)


def span(condition, name, other, with_loops=True):
    x = effort(condition, name, with_loops).against[other].difference
    return f"{percent(x.value, signed=True)} {bounds(x.low, x.high, signed=True)}"


def helped(condition, name, other):
    x = effort(condition, name).against[other]
    return x.helped, x.hurt


def against_greedy(condition, name):
    x = compare(*(effort(condition, one).line.items() for one in (name, "greedy")))
    assert 3 * x.hurt <= x.helped  # hurt at most a third as often as helped
    return x.helped, x.hurt


def two_draws(name, other):
    """The difference over two draws of Gaussian noise, and its interval."""
    ((*_, both, _),) = (line for line in steps.draws() if line[:2] == (name, other))
    return both.strip("*")


def every_in_eight():
    """The steps of `high` in every window, in bfloat16, against the paper's setting in eight noises."""
    (found,) = (line for line in steps.in_eight_noises() if line[2] == steps.EVERY)
    return found[-1]


def small():
    """A beam of five by whisper-small on the same utterances in Gaussian noise: its WER, and its time as a multiple of
    base's, which is of another run, so in whole numbers."""
    (found,) = lines("ls-gs10-small").values()
    base = efforts.seconds(efforts.earlier(GS))  # with float32 as it went then, like small's
    assert {name for *_, name in base} == {name for _, name in found.line.ids}
    ratio = sum(row.seconds for row in found.line.rows) / sum(base.values())
    assert found.summary.words.rate < effort(GS, "paper").wer.value  # fewer errors than base under any effort
    assert ratio < effort(GS, "high").times
    return percent(found.summary.words.rate), f"{ratio:.0f}"


def adapted_small():
    """The paper's setting with whisper-small, beside a beam of 16."""
    found = lines("families", "beam")
    ours, beam = found["em-tok-b · small"], found["beam · small"]
    (x,) = ours.paired["beam"].cells.values()
    difference = (
        f"{percent(x.difference.value, signed=True)} {bounds(x.difference.low, x.difference.high, signed=True)}"
    )
    rates = (percent(one.summary.words.rate) for one in (ours, beam))
    ours_seconds, beam_seconds = (sum(row.seconds for row in one.line.rows) for one in (ours, beam))
    assert round(ours_seconds / beam_seconds) == 18
    return len(ours.line.rows), *rates, difference


GS, EIGHT, ACCENT, SEVEN, TINY_GS, CLEAN = efforts.RUNS
FIRST_SCREEN = (
    "LibriSpeech with Gaussian noise at 10 dB, whisper-base: **{} % WER with a beam of five, as Whisper is usually "
    "run; {} with sharpen's default, at {} times the time; {} with `--effort high`, at {} times**; {} with the paper's "
    "setting, at {} times."
)
EXPECT = {  # what the README's lists say, word for word, with what the rows give in place of {}
    "`high` lowers the error of a beam of five by {} points in Gaussian noise and by {} in eight other noises, at {} "
    "and {} times its time; the default by {} in the eight noises, at {} times; in Gaussian noise it is {}, at {} "
    "times.": lambda: (
        *(gain(run, "high", BEAM) for run in (GS, EIGHT)),
        *(times(run, "high") for run in (GS, EIGHT)),
        gain(EIGHT, "normal", BEAM),
        times(EIGHT, "normal"),
        span(GS, "normal", BEAM),
        times(GS, "normal"),
    ),
    "With a Chinese accent, loops left out, it is {} points with `high`, and with the default {}; in seven languages "
    "{} with `high` and {} with the default.": lambda: (
        gain(ACCENT, "high", BEAM, with_loops=False),
        span(ACCENT, "normal", BEAM, with_loops=False),
        *(gain(SEVEN, name, BEAM) for name in ("high", "normal")),
    ),
    "In Gaussian noise the default helps {} utterances and hurts {}, `high` {} and {}; in the eight noises {} and {}, "
    "{} and {}.": lambda: (*(count for run in (GS, EIGHT) for name in EFFORTS for count in helped(run, name, BEAM)),),
    "Against greedy decoding, the paper's baseline, `high` helps {} and hurts {} in Gaussian noise, {} and {} in the "
    "eight.": lambda: [count for run in (GS, EIGHT) for count in against_greedy(run, "high")],
    "Over two draws of the noise `high` is {} against the paper's setting, and takes a seventh of its time. The same "
    "in every window in bfloat16 is {}, at a seventh, too: `--effort high --gate 0 --dtype bfloat16`, on a CPU that "
    "multiplies bfloat16": lambda: [two_draws(name, "paper") for name in (steps.HIGH, steps.EVERY)],
    "In the eight noises, loops left out, `high` is {} against it, in a ninth of its time, and the same in every "
    "window {}.": lambda: (span(EIGHT, "high", "paper", with_loops=False), every_in_eight()),
    "In seven languages `high` has {} % WER and the paper's setting {} ({}), in nine times its time. With the accent, "
    "loops left out, `high` is {} against it, in an eleventh of its time.": lambda: (
        *(rate(SEVEN, name) for name in ("high", "paper")),
        span(SEVEN, "high", "paper"),
        span(ACCENT, "high", "paper", with_loops=False),
    ),
    "The default is {} against a beam of five, at {} times its time; `high` is {}, at {} times.": lambda: [
        part for name in EFFORTS for part in (span(CLEAN, name, BEAM), times(CLEAN, name))
    ],
    "A beam of 16 takes {} times the time of one of five. In Gaussian noise the default ({}) and `high` ({}) are not "
    "told apart from it, the paper's setting ({}) is better; over two draws of that noise `high` is better ({}). In "
    "the eight noises, loops left out, `high` is better ({}) and the default is not told apart ({}); in seven "
    "languages `high` is better, too ({}).": lambda: (
        times(GS, "beam 16"),
        *(span(GS, name, WIDE) for name in ("normal", "high", "paper")),
        two_draws(steps.HIGH, "beam 16"),
        *(span(EIGHT, name, WIDE, with_loops=False) for name in ("high", "normal")),
        span(SEVEN, "high", WIDE),
    ),
    "With tiny the default ({} %) and `high` ({} %) are better than a beam of five by {} and {} points and not told "
    "apart from one of 16 ({} and {}).": lambda: (
        *(rate(TINY_GS, name) for name in EFFORTS),
        *(gain(TINY_GS, name, BEAM) for name in EFFORTS),
        *(span(TINY_GS, name, WIDE) for name in EFFORTS),
    ),
    "In seven languages the text of least risk among 16 beams (`--effort plain --decode mbr --beam-size 16`) has {} % "
    "WER without adapting, at {} times the time of a beam of five; the default has {} %. In the eight noises, loops "
    "left out, that text has {} % and the default {} %.": lambda: (
        rate(SEVEN, "mbr 16"),
        times(SEVEN, "mbr 16"),
        rate(SEVEN, "normal"),
        *(rate(EIGHT, name, with_loops=False) for name in ("mbr 16", "normal")),
    ),
    "whisper-small with a beam of five has {} % WER in Gaussian noise, in about {} times the time of base": small,
    "what adapting as in the paper adds to small is little: on {} utterances {} % WER, a beam of 16 has {} "
    "({}), at an eighteenth of the time": lambda: adapted_small(),
    "base with a beam of five ({}) is better than tiny with `high` ({})": lambda: (
        rate(GS, "beam 5"),
        rate(TINY_GS, "high"),
    ),
    "a beam of 16 has {} % WER with the accent, {} without the {} utterances on which some setting loops": lambda: (
        rate(ACCENT, "beam 16"),
        percent(effort(ACCENT, "beam 16", with_loops=False).wer.value),
        str(len(efforts.loops(ACCENT))),
    ),
}


def looping(name):
    """The utterances with an accent on which a setting repeats itself."""
    return {row.id for row in effort(ACCENT, name).line.rows if efforts.guard.repeats(row.text)}


def test_words_of_what_to_expect():
    """Statements without a number."""
    assert effort(GS, "beam 5").seconds < effort(TINY_GS, "high").seconds
    assert all(effort(TINY_GS, name).against[WIDE].difference.high > 0 for name in EFFORTS)
    for condition in (GS, EIGHT, ACCENT, SEVEN):
        better, worse = helped(condition, "high", BEAM)
        same = sum(efforts.frontier(condition).utterances.values()) - better - worse
        assert same > better + worse  # most transcripts make as many errors
    counts = (helped(condition, "high", BEAM) for condition in (GS, EIGHT))
    assert [round(better / worse) for better, worse in counts] == [3, 4]  # three to four times as often
    for condition in (EIGHT, ACCENT, SEVEN):
        assert effort(condition, "high", with_loops=False).against[WIDE].difference.high < 0
    assert effort(EIGHT, "normal", with_loops=False).against[WIDE].difference.high > 0  # not told apart
    assert round(effort(GS, "paper").seconds / effort(GS, "high").seconds) == 7  # a seventh of its time
    assert round(effort(SEVEN, "paper").seconds / effort(SEVEN, "high").seconds) == 9
    spent = {name: float(part.removeprefix("1 / ")) for name, *_, part in steps.seconds("every-window")}
    assert round(spent[steps.EVERY]) == 7
    for condition, part in ((EIGHT, 9), (ACCENT, 11)):
        paper, high = (effort(condition, name, with_loops=False).seconds for name in ("paper", "high"))
        assert round(paper / high) == part
    ends = re.findall(r"[−+]\d\.\d\d(?=\])", two_draws(steps.HIGH, "beam 16") + two_draws(steps.EVERY, "paper"))
    assert ends[0].startswith("−")  # better than a beam of 16
    assert float(ends[1]) < 0.7  # the paper's error
    for name in EFFORTS:
        assert looping(name) >= looping("beam 5") != set()
        assert effort(GS, name).against[WIDE].difference.high >= 0


def expectations():
    return " ".join(README.split("## What to expect")[1].split("\n## ")[0].split("|\n\n")[1].split())


def test_the_first_screen_of_the_readme():
    text = " ".join(README.split("```")[0].split())
    values = [rate(GS, "beam 5")]
    for name, digits in (("normal", 1), ("high", 1), ("paper", 0)):
        values += [rate(GS, name), times(GS, name, digits)]
    assert FIRST_SCREEN.format(*values) in text


def test_the_table_of_the_readme():
    section = README.split("## What to expect")[1].split("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("|")] == efforts.table()


@pytest.mark.parametrize("claim", EXPECT)
def test_every_number_of_what_to_expect(claim):
    assert claim.format(*EXPECT[claim]()) in expectations()


def test_no_number_of_what_to_expect_is_unchecked():
    rest = expectations()
    for claim, values in EXPECT.items():
        rest = rest.replace(claim.format(*values()), "")
    assert re.findall(r"[^ ]*\d[^ ]*", rest) == []
