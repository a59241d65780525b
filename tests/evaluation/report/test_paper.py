import re
from pathlib import Path

import pytest
from evaluation.report.answers import answer

from sharpen.evaluation.report import paper
from sharpen.evaluation.report.comparisons import line_results
from sharpen.evaluation.report.lines import group_lines
from sharpen.evaluation.report.paper import PaperNumber, PaperSetting

SOURCE = Path(__file__).parents[4] / "shared" / "paper.tex.txt"
METHODS = {"Source": "source", "Greedy-EM": "greedy-em", "EM-seq": "em-seq", "EM-tok": "em-tok", "EM-tok-b": "em-tok-b"}


def setting(method="em-tok-b", model="base", samples=16, steps=10, lr=1e-3, norms="encoder+decoder", **others):
    return PaperSetting(method, model, samples, steps, lr, norms, **others)


@pytest.mark.parametrize("name", ["table-noise", "table-accent", "table-languages"])
def test_averages_are_those_of_the_numbers(name):
    table = paper.table(name)
    for method, row in table["rows"].items():
        assert sum(row.values()) / len(row) == pytest.approx(table["average"][method], abs=0.0051), method


def test_the_beam_table_repeats_the_others():
    found = paper.table("table-beam")["rows"]
    for method in ("source", "em-tok-b"):
        assert found[method]["LS-GS-10"] == paper.table("table-noise")["rows"][method]["GS"]
        assert found[method]["LS-TP-10"] == paper.table("table-noise")["rows"][method]["TP"]
        assert found[method]["L2-Korean"] == paper.table("table-accent")["rows"][method]["Korean"]
        assert found[method]["L2-Spanish"] == paper.table("table-accent")["rows"][method]["Spanish"]
        assert found[method]["MLS-Italian"] == paper.table("table-languages")["rows"][method]["Italian"]
        assert found[method]["MLS-Polish"] == paper.table("table-languages")["rows"][method]["Polish"]


@pytest.mark.parametrize("name", ["table-noise", "table-accent", "table-languages", "table-models"])
def test_every_number_is_in_the_paper(name):
    if not SOURCE.is_file():
        pytest.skip("the paper's source is not beside the repository")
    table = paper.table(name)
    part = SOURCE.read_text(encoding="utf-8").split(f"%% file: {table['source']}\n")[1].split("%% file:")[0]
    printed = {}
    for line in part.splitlines():
        cells = re.sub(r"\\textbf\{([^}]*)\}", r"\1", line.strip().removesuffix(r"\\")).split("&")
        if cells[0].strip() in METHODS:
            printed[METHODS[cells[0].strip()]] = [float(cell) for cell in cells[1:]]
    ours = {
        m: [*row.values(), *([table["average"][m]] if "average" in table else [])] for m, row in table["rows"].items()
    }
    assert ours == printed


def test_the_beam_table_is_in_the_paper():
    if not SOURCE.is_file():
        pytest.skip("the paper's source is not beside the repository")
    text, table = SOURCE.read_text(encoding="utf-8"), paper.table("table-beam")
    for column in table["columns"]:
        line = next(line for line in text.splitlines() if line.strip().startswith(f"{column} &"))
        numbers = [float(n) for n in re.findall(r"\d+\.\d+", line)]
        assert numbers == [table["rows"][method][column] for method in ("source", "beam", "em-tok-b")]


@pytest.mark.parametrize(
    ("corpus", "domain", "snr", "value", "table"),
    [
        ("librispeech-test-other", "GS", 10.0, 23.16, "tab:ls-results"),
        ("LS-C-10", "gs", None, 23.16, "tab:ls-results"),
        ("lsc", "LS-GS-10", None, 23.16, "tab:ls-results"),
        ("l2-arctic", "Mandarin", None, 18.84, "tab:l2-results"),
        ("l2arctic", "Chinese", None, 18.84, "tab:l2-results"),
        ("mls", "pl", None, 23.20, "tab:mls-results"),
        ("multilingual-librispeech", "Polish", None, 23.20, "tab:mls-results"),
    ],
)
def test_numbers_by_corpus_and_domain(corpus, domain, snr, value, table):
    assert paper.wer(corpus, domain, snr, setting()) == PaperNumber(value, table)


def test_beam_search_comes_from_its_own_table():
    assert paper.wer("mls", "it", None, setting("beam", steps=0)) == PaperNumber(31.83, "tab:em-vs-beam")
    assert paper.wer("mls", "it", None, setting("beam", samples=5, steps=0)) is None
    assert paper.wer("mls", "nl", None, setting("beam", steps=0)) is None


def test_model_sizes_are_on_gaussian_noise_only():
    corpus = "librispeech-test-other"
    for model in ("tiny", "openai/whisper-tiny"):
        assert paper.wer(corpus, "GS", 10, setting(model=model)) == PaperNumber(33.21, "tab:model-ablate")
    assert paper.wer(corpus, "AC", 10, setting(model="tiny")) is None
    large = paper.wer(corpus, "GS", 10, setting(model="large"))
    assert large == paper.wer(corpus, "GS", 10, setting(model="large-v3"))  # one checkpoint, two names
    assert large.value == paper.table("table-models")["rows"]["em-tok-b"]["Large"]
    for model in ("tiny.en", "openai/whisper-large", "large-v2", "runs/finetuned/tiny", "base.en"):
        assert paper.wer(corpus, "GS", 10, setting(model=model)) is None


@pytest.mark.parametrize(
    ("corpus", "domain", "snr", "made"),
    [
        ("librispeech-test-other", "GS", 5.0, setting()),
        ("librispeech-test-other", "GS", None, setting()),
        ("librispeech-test-clean", "GS", 10.0, setting()),
        ("librispeech_asr-other-validation", "GS", 10.0, setting()),
        ("librispeech-test-other", "clean", None, setting()),
        ("commonvoice-multilingual", "pl", None, setting()),
        ("speechocean762", "Mandarin", None, setting()),
        ("librispeech-test-other", "GS", 10.0, setting(samples=4)),
        ("librispeech-test-other", "GS", 10.0, setting(steps=20)),
        ("librispeech-test-other", "GS", 10.0, setting(lr=3e-4)),
        ("librispeech-test-other", "GS", 10.0, setting(norms="decoder")),
        ("librispeech-test-other", "GS", 10.0, setting("pg-tok")),
        ("librispeech-test-other", "GS", 10.0, setting(normalise="group")),
        ("librispeech-test-other", "GS", 10.0, setting(weight_decay=0.1)),
        ("librispeech-test-other", "GS", 10.0, setting(snr_rule="ms-snsd-legacy")),  # 5 dB in truth
        ("LS-C-10", "LS-GS-5", None, setting()),
        ("l2-arctic", "Spanish", 0.0, setting()),  # the paper adds no noise to it
        ("mls", "pl", 10.0, setting()),
        ("LibriSpeech", "GS", 10.0, setting()),  # all of it, or who knows what
    ],
)
def test_no_number_for_what_the_paper_did_not_do(corpus, domain, snr, made):
    assert paper.wer(corpus, domain, snr, made) is None


def test_averages_need_exactly_the_papers_domains():
    accents = {(name, None) for name in ("Arabic", "Mandarin", "Hindi", "Korean", "Spanish", "Vietnamese")}
    assert paper.average("l2-arctic", accents, setting("source")) == PaperNumber(19.35, "tab:l2-results")
    assert paper.average("l2-arctic", accents - {("Hindi", None)}, setting("source")) is None
    assert paper.average("l2-arctic", accents, setting(samples=4)) is None
    assert paper.average("l2-arctic", accents, setting("beam", steps=0)) is None


def test_an_option_that_the_paper_does_not_have_gets_none_of_its_numbers():
    settings = {"corpus": "librispeech-test-other", "domain": "GS"}
    noise = {"noise": "GS", "snr": 10.0, "weight_decay": 0.0, "normalise": "tokens"}
    rows = [
        answer("em-tok-b", options=noise, **settings),
        answer("em-tok-b", options={**noise, "stop": "agreed"}, **settings),
    ]
    (lines,) = group_lines(rows).values()
    numbers = {r.line.options.get("stop"): [cell.paper for cell in r.cells.values()] for r in line_results(lines)}
    assert numbers["agreed"] == [None]
    assert numbers[None][0].value == 23.16
