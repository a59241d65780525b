from dataclasses import replace

import jiwer
import pytest
from evaluation.report.answers import answer

from sharpen.errors import SharpenError
from sharpen.evaluation.report.comparisons import line_results
from sharpen.evaluation.report.lines import column_names, columns, group_lines, partner, read
from sharpen.evaluation.report.summary import summarise
from sharpen.evaluation.runs.score import ErrorCounts

RIGHT, ONE_OFF, LOOP = "one two three four", "one two three five", "one one one one one one one one one"


def noisy(method, domain, snr, id="a", **others):
    return answer(method, id, domain=domain, options={"noise": domain, "snr": snr}, **others)


def write(folder, *rows):
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(row.as_json() + "\n" for row in rows))
    return folder


def test_folders_are_read_together_and_an_answer_beats_a_failure(tmp_path):
    failed = answer("source", "a", failed="no audio")
    first = write(tmp_path / "first", failed, answer("source", "b"))
    second = write(tmp_path / "second", answer("source", "a"), answer("source", "c"))
    assert [(row.id, row.failed) for row in read([first, second])] == [("a", ""), ("b", ""), ("c", "")]
    assert [row.id for row in read([first / "rows.jsonl"])] == ["a", "b"]


def test_nothing_to_read(tmp_path):
    with pytest.raises(SharpenError, match="no such file"):
        read([tmp_path])
    with pytest.raises(SharpenError, match="no rows in"):
        read([write(tmp_path / "empty")])


def test_a_label_says_only_what_differs_within_a_method():
    rows = [answer("source"), answer("em-tok", samples=4), answer("em-tok", samples=16), answer("em-tok-b", steps=1)]
    (found,) = group_lines(rows).values()
    assert [line.label for line in found] == ["source", "em-tok · G 4", "em-tok · G 16", "em-tok-b"]
    rows += [answer("em-tok-b", steps=10), answer("source", options={"preset": "fast"})]
    (found,) = group_lines(rows).values()
    assert [line.label for line in found] == [
        "source · preset exact",
        "source · preset fast",
        "em-tok · G 4",
        "em-tok · G 16",
        "em-tok-b · 1 step",
        "em-tok-b · 10 steps",
    ]


def test_noise_and_ratio_make_columns_not_lines():
    rows = [answer("source"), noisy("source", "GS", 10.0), noisy("source", "AC", 10.0), noisy("source", "GS", 5.0)]
    (found,) = group_lines(rows).values()
    assert len(found) == 1
    over = columns(found)
    assert list(column_names(over).values()) == ["clean", "AC 10 dB", "GS 10 dB", "GS 5 dB"]
    assert list(column_names(over[:3]).values()) == ["clean", "AC", "GS"]  # one ratio needs no saying


def test_failed_rows_are_in_no_line():
    (found,) = group_lines([answer("source", "a"), answer("source", "b", failed="torn")]).values()
    assert found[0].utterances == 1


def test_summary_by_hand():
    trace = {"H_tok": [4.0, 3.0, 2.0]}
    rows = [
        answer("em-tok-b", "a", RIGHT, source_text=ONE_OFF, trace=trace),
        answer("em-tok-b", "b", ONE_OFF, source_text=ONE_OFF, adapted_text=LOOP, refused="a loop", trace=trace),
        answer("em-tok-b", "c", LOOP, source_text=RIGHT, trace={"H_tok": [2.0, 2.5]}, seconds=8.0, duration=8.0),
    ]
    (found,) = group_lines(rows).values()
    result = summarise(found[0])
    assert result.words == ErrorCounts(4, 0, 5, 12)  # none, one substitution, three with five insertions
    assert result.utterance_wer == pytest.approx((0 + 1 / 4 + 8 / 4) / 3)
    assert result.over_one == pytest.approx(1 / 3)
    assert result.real_time_factor == pytest.approx(12 / 16)
    assert result.refused == 1
    assert result.guard_on.errors == 0 + 1 + 8
    assert result.guard_off.errors == 0 + 8 + 8
    assert result.fell == pytest.approx(2 / 3)
    assert (result.spread, result.changed) == (None, 0)


def test_summary_agrees_with_jiwer():
    texts = ["one two four", "so one two three for", "", "one two three four five six"]
    (found,) = group_lines([answer("beam", str(i), text) for i, text in enumerate(texts)]).values()
    result, references = summarise(found[0]), [RIGHT] * len(texts)
    words, characters = jiwer.process_words(references, texts), jiwer.process_characters(references, texts)
    assert (result.words.rate, result.characters.rate) == pytest.approx((words.wer, characters.cer))
    assert (result.guard_on, result.guard_off, result.fell) == (None, None, None)


def test_an_empty_adapted_text_is_an_answer():
    (found,) = group_lines([answer("em-tok", "a", RIGHT, adapted_text="", source_text=RIGHT, refused="empty")]).values()
    result = summarise(found[0])
    assert (result.guard_on.errors, result.guard_off.errors) == (0, 4)


def test_the_guard_is_judged_also_where_it_was_off():
    row = answer("em-tok", "a", LOOP, source_text=RIGHT, refused="a loop", options={"guard": False})
    (found,) = group_lines([row]).values()
    result = summarise(found[0])
    assert (result.words.errors, result.guard_on.errors, result.guard_off.errors) == (8, 0, 8)


def test_seeds_share_a_line_and_are_averaged():
    rows = [answer("em-tok", "a", RIGHT, seed=0), answer("em-tok", "a", ONE_OFF, seed=1)]
    rows += [answer("em-tok", "b", RIGHT, seed=0)]  # the second seed has not come to it yet
    (found,) = group_lines(rows).values()
    assert [item.errors for item in found[0].items()] == [0.5, 0.0]
    result = summarise(found[0])
    assert result.seeds == (0, 1)
    assert result.wer.value == pytest.approx(0.5 / 8)
    assert (result.spread.mean, result.spread.deviation) == pytest.approx((0.125, 0.125 * 2**0.5))


def test_counts_that_are_not_those_of_the_text_are_noticed():
    (found,) = group_lines(
        [answer("source", "a"), replace(answer("source", "b"), errors=ErrorCounts(1, 0, 0, 4))]
    ).values()
    assert summarise(found[0]).changed == 1


def test_the_partner_is_the_most_alike():
    rows = [answer("source", options={"preset": p}) for p in ("exact", "fast")]
    rows += [answer("em-tok", options={"preset": "fast"}), answer("source", model="tiny")]
    (found,) = group_lines(rows).values()
    line = next(line for line in found if line.method == "em-tok")
    assert partner(line, "source", found).options["preset"] == "fast"
    assert partner(line, "beam", found) is None


def test_settings_of_one_method_are_paired_with_the_paper_s():
    fast = {"preset": "fast"}
    rows = [answer("em-tok", samples=g) for g in (1, 4, 16)]
    rows += [answer("em-tok", options=fast), answer("em-tok", options={"norms": "decoder", **fast})]
    (found,) = group_lines(rows).values()
    pairs = {line.label: other.label for line in found if (other := partner(line, "em-tok", found))}
    both = "norms encoder+decoder"
    assert pairs == {
        f"em-tok · G 1 · {both} · preset exact": f"em-tok · G 16 · {both} · preset exact",
        f"em-tok · G 4 · {both} · preset exact": f"em-tok · G 16 · {both} · preset exact",
        f"em-tok · G 16 · {both} · preset fast": f"em-tok · G 16 · {both} · preset exact",
        "em-tok · G 16 · norms decoder · preset fast": f"em-tok · G 16 · {both} · preset fast",
    }


def test_of_equal_partners_the_papers_setting_is_taken():
    """Greedy search has no G, whatever its rows store; and neither source nor beam search has steps."""
    rows = [answer("em-tok-b", samples=g, steps=n) for n in (1, 10, 20) for g in (1, 4, 16)]
    rows += [answer("greedy-em"), answer("source"), answer("beam")]
    (found,) = group_lines(rows).values()
    for line in found:
        if line.method != "em-tok-b":
            assert partner(line, "em-tok-b", found).label == "em-tok-b · G 16 · 10 steps"


def test_a_partner_has_the_same_utterances_whatever_its_threads():
    rows = [answer("em-tok", id, options={"threads": 2}) for id in "abc"]
    rows += [answer("beam", id, options={"threads": 4}) for id in "abc"]
    rows += [answer("beam", "d", options={"threads": 2}), answer("source", "d")]
    (found,) = group_lines(rows).values()
    line = next(line for line in found if line.method == "em-tok")
    assert partner(line, "beam", found).options["threads"] == 4
    assert partner(line, "source", found) is None


def test_columns_that_would_have_one_name_have_their_ratios():
    rows = [answer("source", domain="GS"), answer("source", domain="GS", options={"snr": 10.0})]
    (found,) = group_lines(rows).values()
    assert sorted(column_names(columns(found)).values()) == ["GS", "GS 10 dB"]


def test_folders_with_other_references_are_not_mixed(tmp_path):
    for name, reference in (("one", "x"), ("two", "y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text(answer("source", reference=reference).as_json() + "\n")
    with pytest.raises(SharpenError, match="another reference or language"):
        read([tmp_path / "one", tmp_path / "two"])


def test_without_a_source_line_the_rows_tell_what_it_said():
    rows = [answer("em-tok-b", "a", RIGHT, source_text=ONE_OFF), answer("em-tok-b", "b", RIGHT, source_text=RIGHT)]
    (found,) = group_lines(rows).values()
    (result,) = line_results(found)
    pair = result.paired["source"]
    assert pair.label == "source, of the same rows"
    assert pair.average.difference.value == pytest.approx(-1 / 8)
    assert (pair.average.helped, pair.average.unchanged) == (1, 1)


def test_answers_about_one_utterance_are_to_one_question_whatever_the_method(tmp_path):
    for name, row in (("a", answer()), ("b", answer("em-tok-b", reference="another sentence of four"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text(row.as_json() + "\n", encoding="utf-8")
    with pytest.raises(SharpenError, match="another reference or language"):
        read([tmp_path / "a", tmp_path / "b"])


def test_a_line_is_compared_with_a_source_that_heard_the_same():
    rows = [answer("source", text=RIGHT, options={"preset": "exact"})]
    rows += [answer("em-tok-b", text=RIGHT, source_text=ONE_OFF, options={"preset": "fastest"})]
    (found,) = group_lines(rows).values()
    pair = line_results(found)[1].paired["source"]
    assert pair.label == "source, of the same rows"
    assert pair.average.helped == 1


def test_an_option_at_its_default_counts_as_the_default():
    """A row does not record it: a greedy line must not be paired with a source that was decoded by beam search."""
    rows = [
        answer("source", options={"decode": "beam"}),
        answer("source"),
        answer("em-tok-b", options={"decode": "beam"}),
        answer("em-tok-b"),
    ]
    lines = group_lines(rows)["corpus"]
    pairs = {line.options.get("decode"): partner(line, "source", lines) for line in lines if line.adapts}
    assert {decode: other.options.get("decode") for decode, other in pairs.items()} == {"beam": "beam", None: None}
