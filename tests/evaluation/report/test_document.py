import argparse
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from evaluation.report.answers import answer

from sharpen.cli import report as command
from sharpen.errors import SharpenError
from sharpen.evaluation.report import cases, markup, tables
from sharpen.evaluation.report import document as report
from sharpen.evaluation.report.markup import Cell

RIGHT, ONE_OFF = "one two three four", "one two three five"


def noise(method, id, text, domain="GS", **others):
    return answer(method, id, text, corpus="librispeech-test-other", domain=domain,
                  options={"noise": domain, "snr": 10.0}, **others)  # fmt: skip


def small():
    """Two utterances in two noises; the source has one error in each GS, em-tok-b none."""
    rows = []
    for id in "ab":
        rows += [noise("source", id, ONE_OFF), noise("source", id, RIGHT, "AC")]
        rows += [
            noise("em-tok-b", id, RIGHT, source_text=ONE_OFF),
            noise("em-tok-b", id, RIGHT, "AC", source_text=RIGHT),
        ]
    return rows


def test_rates_as_golden_text():
    found = report.build(small()).sections[0].tables[0]
    assert markup.as_markdown(found) == (
        "### librispeech-test-other: word error rate\n\n"
        "| method | utterances | AC | GS | average |\n"
        "|---|---:|---:|---:|---:|\n"
        "| source | 2 each | **0.00** [0.00, 0.00] (paper 15.23) | 25.00 [25.00, 25.00] (paper 27.37) "
        "| 12.50 [12.50, 12.50] |\n"
        "| em-tok-b | 2 each | **0.00** [0.00, 0.00] (paper 12.80) | **0.00** [0.00, 0.00] (paper 23.16) "
        "| **0.00** [0.00, 0.00] |\n\n"
        "WER in %, all errors over all reference words, with its 95 % interval; average: mean over the domains. "
        "Bold: the lowest of a column and model, among methods on the same utterances.\n\n"
        "Paper: its number on its whole test set (tab:ls-results), not on these utterances.\n\n"
        "Protocol: model base; normaliser none/1; SNR 10 dB; G 16; steps 10; lr 0.001; preset exact; guard on; "
        "norms encoder+decoder; batch size 1; device cpu; threads 1; utterances AC 2, GS 2; seeds 0; "
        "versions sharpen 0.1.0, torch 2.13.0. Intervals: bootstrap, 10,000 resamples of 2 utterances; "
        "no interval where a domain has only one.\n"
    )


def test_differences_as_golden_text():
    found = report.build(small()).sections[0].tables[1]
    assert markup.as_markdown(found).splitlines()[2:5] == [
        "| method | AC | GS | average | P(better) | helped / hurt / same | utterances |",
        "|---|---:|---:|---:|---:|---:|---:|",
        "| em-tok-b | 0.00 [0.00, 0.00] | −25.00 [−25.00, −25.00] | −12.50 [−12.50, −12.50] | 1.000 | 2 / 0 / 2 | 4 |",
    ]


def test_details_have_every_number():
    found = report.build(small()).sections[0].tables[2]
    row = dict(zip(found.head, (cell.text for cell in found.rows[1]), strict=True))
    assert row == {
        "method": "em-tok-b", "utterances": "4", "WER": "0.00", "sub.": "0.00", "del.": "0.00", "ins.": "0.00",
        "CER": "0.00", "mean WER": "0.00", "over 1": "0.0", "RTF": "0.5", "guard fired": "0", "WER guarded": "0.00",
        "unguarded": "0.00", "H_tok fell": "–", "seeds": "1",
    }  # fmt: skip


def test_one_utterance_has_no_interval():
    made = report.build([answer("source", "a", ONE_OFF), answer("em-tok", "a", RIGHT)])
    rates, differences, _ = made.sections[0].tables
    assert rates.rows[0][2] == Cell("25.00")
    assert [cell.text for cell in differences.rows[0]] == ["em-tok", "−25.00", "–", "1 / 0 / 0", "1"]
    found = json.loads(report.as_json(made), parse_constant=pytest.fail)
    assert found["corpora"][0]["lines"][0]["domains"]["clean"]["wer"]["low"] is None


def test_seeds_show_mean_and_spread():
    rows = [answer("em-tok", id, text, seed=s) for s, text in enumerate((RIGHT, ONE_OFF)) for id in "ab"]
    found = report.build(rows).sections[0].tables[-1]
    assert found.rows[0][-1].text == "2: 12.50 ± 17.68"


def test_only_methods_on_the_same_utterances_compete_for_bold():
    rows = [answer(method, id, ONE_OFF) for method in ("source", "beam") for id in "ab"]
    rows += [answer("em-seq", "a", RIGHT), answer("em-tok", "a", ONE_OFF)]  # better and as good, on one utterance only
    rows += [answer("em-tok-b", id, RIGHT) for id in "abc"]  # alone with its three
    found = report.build(rows).sections[0].tables[0]
    assert {row[0].text: row[2].best for row in found.rows} == {
        "source": True,
        "beam": True,
        "em-seq": False,
        "em-tok": False,
        "em-tok-b": False,
    }


def test_a_line_without_a_domain_has_no_average():
    rows = [row for row in small() if not (row.method == "em-tok-b" and row.domain == "AC")]
    found = report.build(rows).sections[0].tables[0]
    assert [cell.text for cell in found.rows[1]] == ["em-tok-b", "2", "–", "0.00", "–"]


def test_other_methods_to_compare_with():
    rows = [*small(), *(noise("beam", id, ONE_OFF) for id in "ab")]
    titles = [table.title for table in report.build(rows, ["source", "beam"]).sections[0].tables]
    assert titles[1:3] == ["librispeech-test-other: against source", "librispeech-test-other: against beam"]
    with pytest.raises(SharpenError, match="unknown method 'nonsense'"):
        report.build(rows, ["nonsense"])


def test_a_source_that_was_not_run_by_itself_is_named_so():
    rows = [noise("em-tok-b", id, RIGHT, source_text=ONE_OFF) for id in "ab"]
    against = report.build(rows).sections[0].tables[1]
    assert (against.head[1], against.rows[0][1].text) == ("against", "source, of the same rows")


def test_failed_rows_are_counted_and_listed():
    made = report.build([*small(), noise("em-tok-b", "c", "", failed="no sound in c.flac")])
    assert made.sections[0].tables[0].rows[1][1].text == "2 each"
    text = report.as_markdown(made)
    assert "| librispeech-test-other GS c | em-tok-b | no sound in c.flac |" in text
    assert "Failed rows: 1." in text
    assert report.build([answer("source", failed="torn")]).notes == ("No row has an answer: there are no tables.",)


def test_changed_counts_are_said():
    rows = [replace(row, errors=replace(row.errors, substitutions=3)) for row in small()]
    assert "differ from a recount of their texts: 8." in report.as_markdown(report.build(rows))


def test_the_papers_setting_is_shown():
    rows = [answer("em-tok-b", steps=steps, samples=g) for steps in (1, 10, 20) for g in (4, 16)]
    assert report.build(rows).sections[0].shown == "em-tok-b · G 16 · 10 steps"


class Check(HTMLParser):
    """Opens and closes tags, and gathers ids and addresses."""

    VOID = ("meta", "br", "use", "path")

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.fetched, self.tags = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.fetched += [v for n, v in attrs if n in ("src", "href", "xlink:href") and not v.startswith("#")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_escapes_what_it_shows_and_fetches_nothing():
    evil = "<script>alert(1)</script>"
    rows = [answer("source", evil, f"{evil} & two", reference=f"{evil} two", corpus=evil, domain=evil)]
    rows += [answer("em-tok", evil, f"{evil} two", reference=f"{evil} two", corpus=evil, domain=evil,
                    trace={"H_tok": [3.0, 1.0]}, source_text=f"{evil} & two", refused=evil)]  # fmt: skip
    rows += [answer("source", "b", corpus=evil, domain=evil, failed=evil)]
    page = report.as_html(report.build(rows))
    check = Check()
    check.feed(page)
    assert check.open == []
    assert "script" not in check.tags
    assert check.fetched == []
    assert len(set(check.ids)) == len(check.ids)
    assert check.tags.count("svg") == 2  # computing time and entropy
    assert "url(http" not in page
    assert not re.search(r"#(22262a|636b73|d96c22)", page[page.index("<body") :])  # colours come from the style sheet


def test_signs_and_words_of_the_page():
    (section,) = report.build(small()).sections
    page = cases.as_html(section.helped[0])
    assert "<span class='wrong'>≠five</span><span class='right'>four</span>" in page
    assert "<span>one</span><span class='same'>one</span><span class='same'>one</span>" in page


def test_json_holds_the_numbers():
    found = json.loads(report.as_json(report.build(small())))
    source, adapted = found["corpora"][0]["lines"]
    assert source["domains"]["GS 10 dB"]["wer"]["value"] == 0.25
    assert source["domains"]["GS 10 dB"]["paper"] == {"value": 27.37, "table": "tab:ls-results"}
    assert adapted["against"]["source"]["domains"]["GS 10 dB"]["difference"]["value"] == -0.25
    assert adapted["settings"]["samples"] == 16
    assert adapted["summary"]["guard_off"]["reference"] == 16


def run(*arguments):
    parser = argparse.ArgumentParser()
    command.arguments(parser)
    args = parser.parse_args([str(argument) for argument in arguments])
    return args.run(args)


@pytest.fixture
def folder(tmp_path):
    rows = [replace(row, trace={"H_tok": [3.0, 1.0]}) if row.method == "em-tok-b" else row for row in small()]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rows.jsonl").write_text("".join(row.as_json() + "\n" for row in rows))
    return tmp_path / "run"


def test_the_command_prints_markdown(folder, capsys):
    assert run(folder) == 0
    out, err = capsys.readouterr()
    assert out.startswith("### librispeech-test-other: word error rate\n")
    assert "against source" in out
    assert err == ""


def test_the_command_writes_files(folder, tmp_path, capsys):
    made = tmp_path / "made"
    code = run(folder, "--html", made / "r.html", "--markdown", made / "r.md", "--latex", made / "r.tex",
               "--json", made / "r.json", "--figures", made / "figures")  # fmt: skip
    assert code == 0
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in made.iterdir()) == ["figures", "r.html", "r.json", "r.md", "r.tex"]
    shown = re.findall(r"\]\((figures/[^)]+)\)", (made / "r.md").read_text())
    assert shown == ["figures/librispeech-test-other-time.png", "figures/librispeech-test-other-entropy.png"]
    assert all((made / name).read_bytes().startswith(b"\x89PNG") for name in shown)


def test_without_matplotlib(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SharpenError, match=r"pip install 'sharpen\[report\]'"):
        run(folder, "--html", tmp_path / "r.html")
    assert run(folder, "--html", tmp_path / "r.html", "--no-figures") == 0
    assert "<svg" not in (tmp_path / "r.html").read_text()
    assert run(folder) == 0


def test_contradictions_and_bad_places(folder, tmp_path):
    with pytest.raises(SharpenError, match="contradict"):
        run(folder, "--figures", tmp_path, "--no-figures")
    (tmp_path / "file").write_text("")
    with pytest.raises(SharpenError, match="cannot be written"):
        run(folder, "--json", tmp_path / "file" / "r.json")


def test_help_does_not_import_torch():
    code = "import sys, argparse; from sharpen.cli import report; report.arguments(argparse.ArgumentParser()); "
    done = subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], capture_output=True)
    assert done.returncode == 0, done.stderr


def test_protocol_names_every_value():
    rows = [answer("em-tok", samples=g, options={"lr": lr}) for g, lr in ((4, 1e-3), (16, 3e-3))]
    text = tables.protocol(report.build(rows).sections[0].results)
    assert "G 4, 16; steps 10; lr 0.001, 0.003;" in text


def test_an_average_over_fewer_domains_is_not_shown_beside_others():
    rows = [
        *small(),
        noise("em-tok", "a", RIGHT, source_text=ONE_OFF),
        noise("em-tok", "b", RIGHT, source_text=ONE_OFF),
    ]
    found = report.build(rows).sections[0].tables[1]
    by_method = {row[0].text: dict(zip(found.head, (cell.text for cell in row), strict=True)) for row in found.rows}
    assert (by_method["em-tok"]["GS"], by_method["em-tok"]["average"], by_method["em-tok"]["P(better)"]) == (
        "−25.00", "–", "–",
    )  # fmt: skip
    assert by_method["em-tok-b"]["average"] == "−12.50"


def test_the_best_is_the_best_of_its_model():
    rows = [answer(m, i, t, model=model)
            for model, texts in (("tiny", (ONE_OFF, "one two x y")), ("base", (RIGHT, ONE_OFF)))
            for m, t in zip(("em-tok-b", "source"), texts, strict=True) for i in "ab"]  # fmt: skip
    found = report.build(rows).sections[0].tables[0]
    assert {row[0].text for row in found.rows if row[2].best} == {"em-tok-b · tiny", "em-tok-b · base"}


def test_corpora_whose_names_look_alike_have_figures_and_labels_of_their_own(tmp_path):
    rows = [replace(row, corpus=corpus) for corpus in ("ls_c", "ls-c", "ls c") for row in small()]
    built = report.build(rows)
    paths = [path for section in report.draw(built, tmp_path) for path in section]
    assert len(paths) == len(set(paths)) == len(list(tmp_path.iterdir())) > 2
    labels = re.findall(r"\\label\{(.+?)\}", report.as_latex(built))
    assert len(labels) == len(set(labels)) == 9


def test_latex_tells_of_failures_and_notes():
    rows = [*small(), replace(noise("em-tok-b", "c", ""), failed="no audio at 50 %")]
    text = report.as_latex(report.build(rows))
    assert r"no audio at 50 \%" in text
    assert "Failed rows: 1." in text
    odd = [replace(row, errors=replace(row.errors, substitutions=3)) for row in small()[:1]]
    assert report.as_latex(report.build([*odd, *small()[1:]])).startswith("% Rows with error counts that differ")


def test_utterances_can_be_left_out_and_are_named():
    built = report.build(small(), without=["b"])
    assert built.notes == ("Left out: b.",)
    assert all(r.line.utterances == 2 for r in built.sections[0].results)  # one in each noise
    with pytest.raises(SharpenError, match="--without z: no row has that id"):
        report.build(small(), without=["z"])


def test_a_model_on_fewer_utterances_has_a_best_too():
    rows = [answer(m, id, model="base") for m in ("source", "em-tok-b") for id in "abc"]
    rows += [answer("source", "a", "one", model="tiny"), answer("em-tok-b", "a", model="tiny")]
    found = report.build(rows).sections[0].tables[0]
    assert "em-tok-b · tiny" in {row[0].text for row in found.rows if row[2].best}


def test_a_guard_that_was_off_only_would_have_refused():
    told = {}
    for guard in (True, False):
        row = answer("em-tok-b", text="one one one", source_text=RIGHT, refused="a loop", options={"guard": guard})
        told[guard] = report.as_markdown(report.build([row]))
    assert "; guard: a loop" in told[True]
    assert "; the guard was off; it would have refused: a loop" in told[False]


def test_the_most_hurt_of_equals_are_the_first_by_name():
    rows = [answer("em-tok-b", f"u{i}", "one two three", source_text=RIGHT) for i in range(7)]
    assert [case.id for case in report.build(rows).sections[0].hurt] == ["u0", "u1", "u2", "u3", "u4"]


def test_odd_names_are_no_markdown_and_no_mathematics():
    corpus = "a$\\foo$ <b>[x](y)"
    rows = [answer(m, corpus=corpus, domain=d) for m in ("source", "em-tok-b") for d in ("$\\bar$", "clean")]
    rows.append(answer("em-tok-b", "b", "one", source_text=RIGHT, corpus=corpus))
    built = report.build(rows)
    text = report.as_markdown(built, [["my figures/x.png"]])
    assert "](my%20figures/x.png)" in text
    headings = [line for line in text.splitlines() if line.startswith("###")]
    assert headings
    assert all("\\<b>" in line and "\\](y)" in line for line in headings)
    assert "$\\bar$" in report.as_html(built)
