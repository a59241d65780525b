"""Every number of docs/results.md against the rows; the pages against `sharpen report`."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from published import ROOT, lines, load_script

from sharpen.cli import main
from sharpen.evaluation.report.lines import group_lines, read
from sharpen.evaluation.report.markup import bounds, percent
from sharpen.evaluation.report.statistics import compare

PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
NOTES = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
FIGURES = re.compile(r"[−+]?\d+\.\d\d+|\d+ / \d+ / \d+")  # rates, differences; helped / hurt / same


summary = load_script("summary_table")
LS = "librispeech-test-other"


def table_of(text):
    """The cells of the first table in a markdown text, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize(("number", "line"), list(enumerate(summary.LINES)), ids=[x.label for x in summary.LINES])
def test_every_cell_of_the_table(number, line):
    printed = table_of(PAGE)
    assert len(printed) == len(summary.LINES)
    expected = list(summary.cells(line))
    assert dict(zip(summary.HEAD, printed[number], strict=True)) == dict(zip(summary.HEAD, expected, strict=True))


def wer(run, label, without=""):
    result = lines(run, without=without)[label]
    return percent((result.average or next(iter(result.cells.values()))).wer.value)


def fall(run, label="em-tok-b", source="source"):
    return f"{wer(run, source)} → {wer(run, label)} %"


def interval(run, label, against, column="", without=""):
    """The difference of two lines as a report prints it."""
    x = summary.difference(lines(run, against, without)[label], against, column)
    return f"{percent(x.value, signed=True)} {bounds(x.low, x.high, signed=True)}"


def size(run, label, against, without=""):
    """The absolute difference of two lines."""
    return percent(abs(summary.difference(lines(run, against, without)[label], against).value))


def lead(run, label, against):
    """The absolute difference with its interval."""
    x = summary.difference(lines(run, against)[label], against)
    low, high = sorted((abs(x.low), abs(x.high)))
    assert x.low * x.high > 0
    return f"{percent(abs(x.value))} points [{percent(low)}, {percent(high)}]"


def ratio(run, label, other, digits=0):
    ours, theirs = (sum(row.seconds for row in lines(run)[name].line.rows) for name in (label, other))
    return f"{ours / theirs:.{digits}f}"


def share(run, label, other):
    ours, theirs = (sum(row.seconds for row in lines(run)[name].line.rows) for name in (label, other))
    return f"{100 * ours / theirs:.0f}"


def counts(run, label, against):
    x = lines(run, against)[label].paired[against].average
    return f"{x.helped} utterances helped, {x.hurt} hurt"


def eight(without=""):
    """The paper's setting, its source and a beam of its width in eight noises, by method."""
    return summary.results(summary.EIGHT, without)


def fall_in_eight():
    before, after = (percent(eight()[method].average.wer.value) for method in ("source", "em-tok-b"))
    return f"{before} → {after} %"


def gain_in_eight():
    """How many points fewer than beam search without the loop, of a difference that is significant."""
    x = summary.difference(eight(LOOPS[summary.EIGHT])["em-tok-b"], "beam")
    assert x.high < 0
    return percent(-x.value)


LOOPS, SAMPLES, TINY = summary.LOOPS, "ls-gs10-samples,ls-gs10-ablations", "em-tok-b · preset fast"
CLAIMS = {  # what the lists say, word for word, with what the rows give in place of {}
    "**Gaussian noise**, most of all: {} WER, and with the exact preset {}.": lambda: (
        fall("ls-gs10"),
        fall("ls-gs10-exact"),
    ),
    "better than beam search: by {} points without the loop, by {} points with the exact preset.": lambda: (
        size("ls-gs10", "em-tok-b", "beam", LOOPS["ls-gs10"]),
        size("ls-gs10-exact", "em-tok-b", "beam"),
    ),
    "**Other languages**: {} on average, better than beam search by {} points without the loop.": lambda: (
        fall("languages"),
        size("languages", "em-tok-b", "beam", LOOPS["languages"]),
    ),
    "**Other noises**: {} on average, better than beam search by {} points without the loop.": lambda: (
        fall_in_eight(),
        gain_in_eight(),
    ),
    "**A Chinese accent**: {}; {}.": lambda: (fall("accents"), counts("accents", "em-tok-b", "source")),
    "**A smaller model**: tiny, {}.": lambda: (fall("ls-gs10-tiny", TINY, "source · preset fast"),),
    "on Gaussian noise by {}, on languages by {}.": lambda: (
        lead("ls-gs10", "em-tok-b", "em-tok"),
        lead("languages", "em-tok-b", "em-tok"),
    ),
    "those of the decoder alone are worse than both by {}.": lambda: (
        lead("ls-gs10-norms,ls-gs10", "em-tok-b · norms decoder", "em-tok-b"),
    ),
    "**The accent, loop left out**: {}, not significant, at {} times the time.": lambda: (
        interval("accents", "em-tok-b", "beam", without=LOOPS["accents"]),
        ratio("accents", "em-tok-b", "beam"),
    ),
    "**tiny**: {}, not significant, at {} times the time.": lambda: (
        interval("ls-gs10-tiny", TINY, "beam"),
        ratio("ls-gs10-tiny", TINY, "beam · preset fast"),
    ),
    "Beam search costs {} times the source's time on Gaussian noise, em-tok-b {} times.": lambda: (
        ratio("ls-gs10", "beam", "source", 1),
        ratio("ls-gs10", "em-tok-b", "source"),
    ),
    "(G = 4 against G = 16: {} on 20 utterances) at {} % of the time.": lambda: (
        interval(SAMPLES, "em-tok-b · G 4", "em-tok-b"),
        share(SAMPLES, "em-tok-b · G 4", "em-tok-b · G 16"),
    ),
    "not significant over eight noises ({}), worse than the source on announcements ({}), and worse on tiny ({}).": (
        lambda: (
            interval("ls-noises", "greedy-em", "source"),
            interval("ls-noises", "greedy-em", "source", "AA 10 dB"),
            interval("ls-gs10-tiny", "greedy-em · preset fast", "source"),
        )
    ),
    "on Gaussian noise they have {}, {} and {} % WER; 80 utterances": lambda: (
        wer("ls-gs10", "greedy-em"),
        wer("ls-gs10", "em-seq"),
        wer("ls-gs10", "em-tok"),
    ),
    "from G = 4 on, the paper has": lambda: (),
    "no difference to em-tok is significant on 20 utterances": lambda: (),
    "em-tok-b takes {} % less time than em-tok at G = 16 (80 utterances); the paper has nearly 35 %.": lambda: (
        str(100 - int(share("ls-gs10", "em-tok-b", "em-tok"))),
    ),
    "L2-ARCTIC": lambda: (),
    "[small](results/ls-gs10-small.md) there is a beam of five in Gaussian noise, with {} % WER": lambda: (
        percent(next(iter(lines("ls-gs10-small").values())).summary.words.rate),
    ),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_every_number_of_the_lists(claim):
    assert claim.format(*CLAIMS[claim]()) in lists()


def lists():
    return " ".join(PAGE.split("## Where adapting helps")[1].split())


def test_no_number_of_the_lists_is_unchecked():
    rest = lists()
    for claim, values in CLAIMS.items():
        rest = rest.replace(claim.format(*values()), "")
    assert re.findall(r"[^ ]*\d[^ ]*", rest) == []


def test_words_of_the_lists():
    """Statements without a number."""
    languages = lines("languages", "source")
    assert all(c.difference.high < 0 for c in eight()["em-tok-b"].paired["source"].cells.values())
    gains = [summary.difference(of["em-tok-b"], "source").value for of in (eight(), lines("ls-gs10-exact"))]
    assert round(gains[1] / gains[0]) == 2  # half of the gain on Gaussian noise
    sure = {c.key for c, x in languages["em-tok-b"].paired["source"].cells.items() if x.difference.high < 0}
    assert sure == {"de", "it", "nl"}
    lower = set()
    for results in (eight(), lines("languages", "beam")):
        for column, x in results["em-tok-b"].paired["beam"].cells.items():
            if x.difference.value > 0:
                lower.add(column.domain)
                assert x.difference.low <= 0
    assert lower == {"AA", "fr", "pt"}
    for run in LOOPS:
        assert summary.results(run)["em-tok-b"].summary.refused == 0  # no loop
    for G in (1, 4, 16):
        rates = {m: lines(SAMPLES)[f"{m} · G {G}"].summary.words.rate for m in ("em-tok", "pg-tok", "ent-tok")}
        assert min(rates, key=rates.get) == "ent-tok"
        difference = lines(SAMPLES, "em-tok")[f"ent-tok · G {G}"].paired["em-tok"].average.difference
        assert difference.low < 0 < difference.high


def pages():
    """The commands of scripts/pages.sh: each page with the arguments that make it."""
    for command in re.findall(r"^(?:page|with_figures) (\S+ .+)$", (ROOT / "scripts/pages.sh").read_text(), re.M):
        name, folders, *options = shlex.split(command)
        yield name, [*(f"results/{folder}" for folder in folders.split(",")), *options]


@pytest.mark.parametrize(("name", "arguments"), list(pages()), ids=[name for name, _ in pages()])
def test_the_pages_are_what_the_report_prints_now(name, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    if "--frontier" in arguments:  # the page names the file without its folder
        at = arguments.index("--frontier") + 1
        arguments = [*arguments[:at], str(tmp_path / Path(arguments[at]).name), *arguments[at + 1 :]]
    assert main(["report", *arguments, "--markdown", str(tmp_path / "page.md")]) == 0
    committed = (ROOT / "docs" / "results" / f"{name}.md").read_text(encoding="utf-8")
    images = re.compile(r"^!\[.*\n\n.*\n\n?", re.M)  # a figure with its caption: none without --figures
    made = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert images.sub("", committed).strip() == images.sub("", made).strip(), "run `make pages`"


def test_every_folder_of_results_has_a_page():
    """Those that `sharpen evaluate` writes; another must say what its rows are."""
    used = {argument for _, arguments in pages() for argument in arguments if argument.startswith("results/")}
    folders = [path for path in (ROOT / "results").iterdir() if path.is_dir()]
    assert used == {f"results/{path.name}" for path in folders if (path / "rows.jsonl").is_file()}
    assert all((path / "README.md").is_file() for path in folders if not (path / "rows.jsonl").is_file())
    made = {f"{name}.md" for name, _ in pages()} | {"README.md"}
    assert made == {path.name for path in (ROOT / "docs" / "results").iterdir()}


def test_the_table_of_words_is_what_its_rows_give():
    script = load_script("word_times")
    page = (ROOT / "docs" / "words.md").read_text(encoding="utf-8")
    printed = table_of(page.split("## How exact")[1])
    made = "\n".join(script.lines(script.read(ROOT / "results" / "words" / "boundaries.jsonl")))
    assert printed == table_of(made)
    assert len(printed) == 16  # two kinds of clips, clean and noisy, in four ways


NOTED = [section for section in NOTES.split("\n## ")[1:] if FIGURES.search(section)]


@pytest.mark.parametrize("section", NOTED, ids=[section.splitlines()[0] for section in NOTED])
def test_every_number_of_the_notes_is_in_the_pages_they_link_to(section):
    """Or in the table of the script that they name."""
    linked = re.findall(r"\]\(([\w-]+\.md)\)", section)
    text = "".join((ROOT / "docs" / "results" / name).read_text(encoding="utf-8") for name in linked)
    for script in re.findall(r"`python scripts/(\w+)\.py`", section):
        text += "\n".join(load_script(script).table())
    assert set(FIGURES.findall(section)) - set(FIGURES.findall(text)) == set()


@pytest.mark.skipif(os.name == "nt", reason="a shell script")
def test_the_script_calls_report_for_each_page():
    command, environment = ["sh", ROOT / "scripts" / "pages.sh"], {**os.environ, "SHARPEN": "echo"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert len(done.stdout.splitlines()) == len(list(pages()))
    assert "report results/ls-source --markdown docs/results/ls-source.md" in done.stdout


def rows_of(name):
    return [json.loads(line) for line in (ROOT / "results" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def missing(page, lines):
    """The lines of a table that a page does not have."""
    made, text = list(lines), (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    assert len(made) > 3
    return [line for line in made if line not in text]


def test_what_condensed_padding_costs():
    found = {
        line.settings.get("padding", "full"): line for line in group_lines(read([ROOT / "results/padding-noises"]))[LS]
    }
    pair = compare(found["condensed"].items(), found["full"].items())
    x, texts = pair.difference, [{(r.domain, r.id): r.text for r in line.rows} for line in found.values()]
    assert -0.003 < x.low < x.high < 0.003
    same = sum(texts[0][key] == text for key, text in texts[1].items())
    time = sum(row.seconds for row in found["condensed"].rows) / sum(row.seconds for row in found["full"].rows)
    said = (
        f"against full {percent(x.value, signed=True)} {bounds(x.low, x.high, signed=True)} points, {pair.helped} "
        f"utterances helped, {pair.hurt} hurt, {same} of {len(texts[0])} texts the same to the letter, in "
        f"{100 * time:.0f} % of the time"
    )
    assert said in " ".join((ROOT / "docs" / "speed.md").read_text(encoding="utf-8").split())


def test_the_tables_of_silence_are_those_of_the_rows():
    script = load_script("silence")
    assert missing("silence.md", script.invented_lines(rows_of("silence/invented"))) == []
    assert missing("silence.md", script.speech_lines(rows_of("silence/speech"))) == []


def test_the_tables_of_long_recordings_are_those_of_the_rows():
    script = load_script("long_recordings")
    for name in ("long/choosing", "long/joined"):
        assert missing("decisions.md", script.lines(rows_of(name))) == []


def test_three_hours_in_the_same_memory():
    script, rows = load_script("long_memory"), rows_of("long/memory")
    assert missing("transcribing.md", script.lines(rows)) == []
    (result,) = (row for row in rows if row["process"] == "result")
    assert result["seconds"] > 3 * 3600
    assert result["in_order"]
    assert result["exits"] == [-9, 0]
    page = " ".join((ROOT / "docs" / "transcribing.md").read_text(encoding="utf-8").split())
    assert f"{result['segments']} segments in order, the last at {result['last'] / 60:.1f} minutes" in page
    assert f"{result['words']:,} words for {result['reference_words']:,} of the references" in page


def test_the_tables_of_ctc_are_those_of_the_rows():
    script = load_script("ctc_shift")
    for name in ("ctc/choosing", "ctc/shift"):
        assert missing("ctc.md", script.table(rows_of(name))) == []
