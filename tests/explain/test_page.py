import math
import re
import wave
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from models.small import small_checkpoint

from sharpen.errors import SharpenError
from sharpen.explain.alignment import stretches
from sharpen.explain.drawing import TRUNK, branches, curve_svg, fit, level, tree_svg
from sharpen.explain.page import Explanation, as_html, as_text, write_html
from sharpen.method.adaptation import Adaptation
from sharpen.method.episode import Step, Trace
from sharpen.method.network import Alternative
from sharpen.method.tree import HypothesisTree
from sharpen.models.tokenizer import MULTILINGUAL, WhisperTokenizer
from sharpen.models.whisper_speech import WhisperSpeech
from sharpen.speech.answers import Decoded
from sharpen.speech.doubts import trust_section
from sharpen.speech.files import transcribe_files
from sharpen.speech.longform import Segment
from sharpen.speech.options import Options
from sharpen.speech.transcribe import Model
from sharpen.speech.words import Word
from sharpen.terminal import width

VOID = {"meta", "br", "hr", "img", "link", "input"}


@pytest.fixture(scope="module")
def tokenizer():
    return WhisperTokenizer.of_kind(MULTILINGUAL)


def decoded(tokenizer, text, entropy=0.5):
    tokens = tuple(tokenizer.encode(" " + text))
    n = len(tokens)
    return Decoded(tokens, (-0.1,) * n, (entropy,) * n, text, "en", 0.0, -0.1, 0.0, 1.0)


def grown(tokenizer, texts):
    """A tree of outputs whose nodes have entropies 0, 1, 2 … by depth."""
    tree = HypothesisTree.of([[*tokenizer.encode(" " + text), tokenizer.eot] for text in texts], tokenizer.eot)
    tree.entropies = [float(depth) for depth in tree.depths]
    return tree


def step(tokenizer, texts, H_tok, H_seq):
    tree = grown(tokenizer, texts)
    return Step(
        loss=0.0,
        H_tok=H_tok,
        H_seq=H_seq,
        hypotheses=len(texts),
        distinct=len(set(texts)),
        distinct_texts=len(set(texts)),
        nodes=len(tree),
        tokens=sum(len(y) for y in tree.hypotheses),
        truncated=0,
        best_probability=0.5,
        gradient_norm=1.0,
        seconds={},
        batch_seconds={},
        tree=tree,
        greedy=tree.hypotheses[0].tokens,
    )


@pytest.fixture
def explanation(tokenizer):
    before = ["he was in a fleet and agent", "he was an athlete and agent", "he was <b>&", "he was <b>&"]
    after = ["he was an athlete and a giant"] * 4
    trace = Trace(
        [step(tokenizer, before, 8.0, 6.0), step(tokenizer, after, 4.0, 3.0), step(tokenizer, after, 1.0, 0.7)]
    )
    source, adapted = decoded(tokenizer, before[0], 2.5), decoded(tokenizer, after[0], 0.01)
    return Explanation("ship & <sea>", "em-tok-b", source, adapted, trace, tokenizer, seconds=12.34)


class Page(HTMLParser):
    """Refuses what does not nest, and keeps elements and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag, **attrs):
        return [a for t, a in self.elements if t == tag and all(a.get(k) == v for k, v in attrs.items())]


def widths(svg):
    return [float(w) for w in re.findall(r'stroke-width="([\d.]+)"', svg)]


def test_words_are_aligned():
    found = stretches("he was in a fleet and agent", "he was an athlete and a giant")
    assert ["".join(s.source).strip() for s in found if s.changed] == ["in a fleet", "agent"]
    assert ["".join(s.adapted).strip() for s in found if s.changed] == ["an athlete", "a giant"]
    assert "".join(w for s in found for w in s.source) == "he was in a fleet and agent"


def test_text_without_spaces_is_aligned_by_character():
    found = stretches("今日は雨です", "今日は雪です")
    assert [(s.source, s.adapted) for s in found if s.changed] == [(("雨",), ("雪",))]


def test_characters_keep_their_marks():
    (thai,) = stretches("ที่นี่", "ที่นี่")
    assert thai.source == ("ที่", "นี่")
    assert stretches("  cafe\u0301 au\nlait ", "")[0].source == ("cafe\u0301 ", "au\n", "lait ")


def test_words_with_marks_line_up(explanation, tokenizer):
    source, adapted = decoded(tokenizer, "cafe\u0301 two"), decoded(tokenizer, "ca two")
    lines = as_text(replace(explanation, source=source, adapted=adapted)).splitlines()[1:4]
    assert lines == ["  source   cafe\u0301 two", "  adapted  ca   two", "           ^^^^"]


def test_an_unchanged_text_is_folded_by_its_width(explanation, tokenizer):
    same = decoded(tokenizer, "今日は雨です" * 10)
    lines = as_text(replace(explanation, source=same, adapted=same), size=40).splitlines()[1:-3]
    assert max(map(width, lines)) == 39  # 13 columns of indent, 13 characters of two
    assert "".join(lines).replace("unchanged", "").replace(" ", "") == same.text


def test_words_to_doubt_come_with_what_else_they_may_be(explanation):
    words = (
        Word(" the", math.nan, math.nan, 0.9, confidence=0.95),
        Word(" <night>", math.nan, math.nan, 0.9, 0.35, (Alternative("knight & day", 0.4), Alternative("", 0.1))),
        Word(
            " ferry", math.nan, math.nan, 0.9, 0.91, before=(Alternative("old", 0.2),), after=(Alternative("x", 0.3),)
        ),
        Word(" leaves", math.nan, math.nan, 0.9, 0.85),
    )
    text = "".join(word.word for word in words)
    segment = Segment(0, 0, 0.0, 1.0, text, (), 0.0, 0.0, 1.0, 0.0, (), (), words, 0.7, 0.25, "doubt: <why>")
    page = Page(as_html([replace(explanation, more=trust_section([segment]))]))
    shown = "".join(page.text)
    assert "Expected word error rate: 25%" in shown
    assert "unreliable: doubt: <why>" in shown
    assert "the <night>35% likely to be rightknight & day 40%no word 10%" in shown
    assert "ferry91% likely to be rightbefore it: old 20%behind it: x 30%" in shown
    assert [a["class"] for a in page.all("span", tabindex="0")] == ["e4 others", "e0 others", "e1"]
    assert "Which words to doubt" not in as_html([explanation])
    assert "when it was said" not in shown


def test_words_with_times_say_when_they_were_said(explanation):
    words = (
        Word(" the", 1.2, 1.36, 0.9, confidence=0.95),
        Word(" night", 1.36, 1.8, 0.9, 0.35, (Alternative("knight", 0.4),)),
    )
    segment = Segment(0, 0, 0.0, 2.0, " the night", (), 0.0, 0.0, 1.0, 0.0, (), (), words, 0.7, 0.25, "")
    page = Page(as_html([replace(explanation, more=trust_section([segment]))]))
    shown = "".join(page.text)
    assert "to see when it was said and what other hypotheses have in its place" in shown
    assert "night35% likely to be right1.36 to 1.80 sknight 40%" in shown
    assert [a["title"] for a in page.all("span", **{"class": "sure"})] == ["1.20 to 1.36 s"]
    assert len(page.all("span", tabindex="0")) == 1


def test_text_for_the_terminal(explanation):
    assert as_text(explanation) == (
        "ship & <sea> · em-tok-b · 3 steps · 12.3 s\n"
        "  source   he was in a       fleet and agent\n"
        "  adapted  he was an athlete       and a     giant\n"
        "                  ^^^^^^^^^^^^^^^^     ^^^^^^^^^^^\n"
        "  H_tok    8.00 █▄▁ 1.00 nats\n"
        "  H_seq    6.00 █▄▁ 0.70 nats\n"
        "  4 hypotheses, 3 → 1 distinct; 16 → 8 nodes for 29 → 32 tokens\n"
    )


def test_text_folds_at_the_width_and_marks_only_what_changed(explanation):
    lines = as_text(explanation, size=40).splitlines()[1:-3]
    assert lines == [
        "  source   he was in a       fleet and",
        "  adapted  he was an athlete       and",
        "                  ^^^^^^^^^^^^^^^^",
        "  source   agent",
        "  adapted  a     giant",
        "           ^^^^^^^^^^^",
    ]


def test_colour_only_adds_colour(explanation):
    painted = as_text(explanation, colour=True)
    assert "\x1b[31mfleet\x1b[0m" in painted
    assert "\x1b[32mathlete\x1b[0m" in painted
    assert re.sub(r"\x1b\[\d+m", "", painted) == as_text(explanation)


def test_text_says_what_happened_otherwise(explanation):
    same = replace(explanation, adapted=explanation.source, trace=Trace([], "why"), guard="it repeats", seconds=0.0)
    assert as_text(same) == (
        "ship & <sea> · em-tok-b · 0 steps\n"
        "  unchanged  he was in a fleet and agent\n"
        "  stopped: why\n"
        "  guard: it repeats; the source transcript is kept\n"
    )


def test_an_entropy_that_is_not_finite_still_prints(explanation):
    steps = explanation.trace.steps
    broken = replace(explanation, trace=Trace([steps[0], replace(steps[1], H_tok=math.nan, H_seq=math.inf)]))
    assert "8.00 █? nan" in as_text(broken)
    Page(as_html([broken]))


def test_the_page_parses_and_text_is_escaped(explanation):
    page = Page(as_html([explanation, replace(explanation, guard="<script>")]))
    assert page.all("script") == []
    assert page.all("b") == []
    assert "ship & <sea>" in page.text
    assert any("guard: <script>" in text for text in page.text)
    assert len(page.all("article")) == 2
    assert len(page.all("svg", **{"class": "tree"})) == 4
    assert len(page.all("svg", **{"class": "curve"})) == 2
    assert all(a.get("role") == "img" for a in page.all("svg"))


def test_the_page_needs_nothing_from_elsewhere(explanation):
    text = as_html([explanation])
    assert "http" not in text
    assert "url(" not in text
    assert "@import" not in text
    page = Page(text)
    assert not any("src" in attrs for _, attrs in page.elements)
    assert page.all("link") == []


def test_tokens_carry_the_colour_and_the_numbers(explanation):
    page = Page(as_html([explanation]))
    spans = page.all("span")
    n = len(explanation.source.tokens)
    assert {a["class"] for a in spans[:n]} == {"e5"}
    assert {a["class"] for a in spans[n:]} == {"e0"}
    assert spans[0]["title"] == "“ he” · probability 90 % · entropy 2.50 nats"


def test_greedy_transcripts_appear_only_where_they_change(explanation):
    page = Page(as_html([explanation]))
    assert len(page.all("dt")) == 2
    assert len(page.all("mark")) == 2


def test_timestamps_are_not_shown(explanation, tokenizer):
    stamp = tokenizer.timestamp_begin
    source = explanation.source
    stamped = replace(
        source,
        tokens=(stamp, *source.tokens, stamp + 50),
        logprobs=(0.0, *source.logprobs, 0.0),
        entropies=(0.0, *source.entropies, 0.0),
    )
    assert as_html([replace(explanation, source=stamped)]) == as_html([explanation])


def test_a_character_of_several_tokens_goes_to_the_last(explanation, tokenizer):
    text = "a 𓀀"
    assert len(tokenizer.encode(" " + text)) > 3
    page = as_html([replace(explanation, source=decoded(tokenizer, text))])
    assert "𓀀</span>" in page
    assert "\ufffd" not in page


def test_branches_are_the_edges_with_widths_by_count(tokenizer):
    texts = ["he was here", "he was here", "he was there", "she"]
    tree = grown(tokenizer, texts)
    drawn = [b for bs in branches(tree).values() for b in bs]
    # he, was, here, end of here, there, end of there, she, end of she
    assert sorted(b.count for b in drawn) == [1, 1, 1, 1, 2, 2, 3, 3]
    svg = tree_svg(tree, tokenizer.decode, "a & b")
    Page(svg)
    assert svg.count("<path") == len(drawn)
    assert sorted(widths(svg)) == pytest.approx(sorted(b.count * TRUNK / 4 for b in drawn))
    assert svg.count("<circle") == 3
    assert "×2" in svg
    assert "<title>a &amp; b</title>" in svg


def test_the_most_used_branch_goes_straight_on(tokenizer):
    tree = grown(tokenizer, ["she", "he was here", "he was there", "he was there"])
    first = branches(tree)[0][0]
    assert tokenizer.decode([first.token]) == " he"
    tops = re.findall(r'<text x="[\d.]+" y="([\d.]+)">([^<]*)</text>', tree_svg(tree, tokenizer.decode, ""))
    rows = {label: float(y) for y, label in tops}
    assert rows["he was"] == rows["there"] < rows["here"] < rows["she"]


def test_a_branch_has_the_same_key_in_every_tree(tokenizer):
    def keyed(texts):
        svg = tree_svg(grown(tokenizer, texts), tokenizer.decode, "")
        found = re.findall(r'data-key="([0-9a-f]+)"[^>]*><title>([^·]+) ·', svg)
        assert len({key for key, _ in found}) == len(found)
        return dict(found)

    one, other = keyed(["he was here", "he is"]), keyed(["she was here", "he was there"])
    common = set(one) & set(other)
    assert (
        {one[key] for key in common} == {other[key] for key in common} == {"“ he”", "“ was”"}
    )  # after he, not after she


def test_branches_do_not_cross(tokenizer):
    """A branch that drops to its row passes only rows that begin further right."""
    rng = np.random.default_rng(0)
    words = ["one", "two", "six"]
    texts = [" ".join(rng.choice(words, size=6)) for _ in range(16)]
    svg = tree_svg(grown(tokenizer, texts), tokenizer.decode, "")
    lines = re.findall(r'd="M([\d.]+) ([\d.]+)(?:C[^H]*? ([\d.]+))?H([\d.]+)"', svg)
    flat = [(float(x0), float(x1), float(bend or y)) for x0, y, bend, x1 in lines]
    drops = [(float(x0) + 16, float(y), float(bend)) for x0, y, bend, _ in lines if bend]
    assert drops
    for x, top, bottom in drops:
        assert not any(x0 < x - 17 and x1 > x + 1 and top + 20 < y < bottom - 1 for x0, x1, y in flat)


def test_a_hypothesis_cut_by_the_limit_ends_open(tokenizer):
    tree = HypothesisTree.of([tokenizer.encode(" he was"), [tokenizer.encode(" he")[0], tokenizer.eot]], tokenizer.eot)
    svg = tree_svg(tree, tokenizer.decode, "")
    assert svg.count('class="dot cut"') == 1
    assert svg.count('class="dot"') == 1
    assert 'class="b en"' in svg  # nobody took the entropies of this tree


@pytest.mark.parametrize("tokens", [30, 440])
def test_a_long_trunk_stays_narrow(tokenizer, tokens):
    words = " ".join(["and"] * tokens)
    svg = tree_svg(grown(tokenizer, [words + " one", words + " two"]), tokenizer.decode, "")
    across = float(re.search(r'width="(\d+)"', svg)[1])
    assert across < (1000 if tokens == 30 else 2200)
    assert ("…" in svg) == (tokens == 440)


def test_levels():
    assert [level(h) for h in (0.0, 0.05, 0.3, 0.9, 1.5, 2.5, 9.0, math.nan)] == [
        "e0", "e1", "e2", "e3", "e4", "e5", "e6", "en",
    ]  # fmt: skip


def test_fit():
    assert fit("one two three", 13, ends=True) == "one two three"
    assert fit("one two three", 8, ends=True) == "one two…"
    assert fit("one two three", 8, ends=False) == "one…ree"
    assert fit("one", 2, ends=True) == ""
    for room in range(3, 9):
        assert width(fit("今日は雨です", room, ends=False)) <= room
        for ends in (False, True):
            text = fit("e\u0301" * 20, room, ends=ends)
            assert width(text) == room
            assert text.count("e") == text.count("\u0301") == room - 1


def test_the_curve_says_its_numbers():
    svg = curve_svg([12.0, 3.0], [10.0, 2.9])
    Page(svg)
    assert "H_tok from 12.00 to 3.00 nats, H_seq from 10.00 to 2.90 nats" in svg
    at = {name: float(y) for y, name in re.findall(r'y="([\d.]+)">(H_\w+) ', svg)}
    assert abs(at["H_tok"] - at["H_seq"]) >= 14.9  # the labels do not touch
    Page(curve_svg([1.0], [1.0]))
    Page(curve_svg([0.0, 0.0], [0.0, 0.0]))


def test_the_page_takes_its_name_when_it_is_whole(tmp_path, explanation):
    target = tmp_path / "new" / "a.html"
    assert write_html(target, [explanation]) == target
    assert target.read_text(encoding="utf-8") == as_html([explanation])
    assert [p.name for p in target.parent.iterdir()] == ["a.html"]
    with pytest.raises(SharpenError, match="cannot be written"):
        write_html(target / "b.html", [explanation])


def test_a_page_that_fails_leaves_the_earlier_one(tmp_path, explanation, monkeypatch):
    target = tmp_path / "a.html"
    target.write_text("earlier")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sharpen.files.os.replace", full)
    with pytest.raises(SharpenError, match="No space left"):
        write_html(target, [explanation])
    assert target.read_text() == "earlier"
    assert [p.name for p in tmp_path.iterdir()] == ["a.html"]


def test_a_page_that_fails_does_not_hide_the_transcript(tmp_path):
    clip = tmp_path / "noise.wav"
    with wave.open(str(clip), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(np.random.default_rng(0).integers(-9999, 9999, 8000, dtype=np.int16).tobytes())
    (tmp_path / "out" / "noise.html").mkdir(parents=True)  # where the page would be
    adapt = Adaptation(method="greedy-em", steps=1, explain=True, guard=False)
    options = Options(language="en", timestamps=False, adapt=adapt, temperature=(0.0,), no_speech_threshold=None)
    model = Model(WhisperSpeech(small_checkpoint()))
    *_, last = transcribe_files(model, [str(clip)], options, str(tmp_path / "out"), ["txt"])
    assert last.kind == "finished"
    assert "the explanation page was not written" in last.reason
    assert "Is a directory" in last.reason
    assert last.segments
    assert (tmp_path / "out" / "noise.txt").read_text(encoding="utf-8").strip()
