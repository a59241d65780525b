"""What adaptation changed, for a reader: a few lines for the terminal, and a self-contained HTML page."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Protocol

from sharpen.explain.alignment import Stretch, stretches
from sharpen.explain.drawing import LEVELS, curve_svg, level, percent, tree_svg
from sharpen.files import write_text
from sharpen.method.trace import Step, Trace
from sharpen.method.tree import HypothesisTree
from sharpen.terminal import cut, pad, width, wrap

BLOCKS = "▁▂▃▄▅▆▇█"
RED, GREEN, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[0m"


class Answered(Protocol):
    """An answer with what the model thought of each token."""

    @property
    def tokens(self) -> tuple[int, ...]: ...
    @property
    def logprobs(self) -> tuple[float, ...]: ...
    @property
    def entropies(self) -> tuple[float, ...]: ...
    @property
    def text(self) -> str: ...


class TokenSpelling(Protocol):
    """The text of tokens."""

    def decode(self, ids: Iterable[int]) -> str: ...
    def is_text(self, token: int) -> bool: ...
    def token_bytes(self, token: int) -> bytes: ...


@dataclass(frozen=True)
class Wording:
    """What a page calls things."""

    input: str
    output: str
    did: str
    empty: str  # what an answer without words is
    greedy: str  # how the answers on the way were decoded


SPEECH = Wording("window", "transcript", "transcribed the window", "no speech", "decoded without timestamps, ")
TEXT = Wording("prompt", "answer", "answered the prompt", "no text", "")


@dataclass(frozen=True, eq=False)
class Explanation:
    """One input before and after its episode; its trace comes from a run with `Adaptation(explain=True)`."""

    name: str  # of the recording, and of the window where it has several; of the prompt
    method: str
    source: Answered  # the answer of the source model
    adapted: Answered  # the answer of the adapted model, even if the guard rejected it
    trace: Trace
    tokenizer: TokenSpelling
    guard: str = ""  # why the guard rejected the adapted answer; empty if it did not
    seconds: float = 0.0  # of the whole input
    wording: Wording = SPEECH
    more: str = ""  # HTML: a section of the caller's own about the answer


def as_text(explanation: Explanation, *, size: int = 80, colour: bool = False, hypotheses: int = 0) -> str:
    """A few lines for a terminal of `size` columns; changed words are underlined with ^, and coloured if asked for.

    With `hypotheses`, so many of the first and of the last tree are listed, each from where it leaves the one above.
    """
    x, steps = explanation, explanation.trace.steps
    lines = [f"{x.name} · {_facts(x)}"]
    if x.source.text == x.adapted.text:
        first, *others = wrap(x.source.text, max(20, size - 13)) or [""]
        lines += [f"  unchanged  {first}".rstrip(), *(" " * 13 + line for line in others)]
    else:
        lines += _aligned(stretches(x.source.text, x.adapted.text), size, colour)
    if steps:
        lines += [_bar("H_tok", [s.H_tok for s in steps]), _bar("H_seq", [s.H_seq for s in steps]), "  " + _work(steps)]
    if hypotheses:
        for i, tree in _shown(x):
            lines += [f"  {_when(i)}:", *_branches(tree, x.tokenizer, size, hypotheses)]
    lines += [f"  {note}" for note in _notes(x)]
    return "\n".join(lines) + "\n"


def _facts(x: Explanation) -> str:
    n = len(x.trace.steps)
    parts = [x.method, f"{n} step{'' if n == 1 else 's'}", f"{x.seconds:.1f} s" if x.seconds else ""]
    return " · ".join(part for part in parts if part)


def _notes(x: Explanation) -> list[str]:
    return [
        *([f"stopped: {x.trace.stopped}"] if x.trace.stopped else []),
        *([f"guard: {x.guard}; the source {x.wording.output} is kept"] if x.guard else []),
    ]


def _aligned(aligned: list[Stretch], size: int, colour: bool) -> list[str]:
    """Both texts one above the other, folded at `size` columns."""
    names, room = ("  source   ", "  adapted  "), max(20, size - 11)
    lines: list[str] = []
    upper, lower, marks, used = "", "", "", 0

    def flush() -> None:
        lines.extend([(names[0] + upper).rstrip(), (names[1] + lower).rstrip()])
        if marks.strip():
            lines.append((" " * 11 + marks).rstrip())

    for stretch in aligned:
        words = [(a.strip(), b.strip()) for a, b in zip_longest(stretch.source, stretch.adapted, fillvalue="")]
        for i, (a, b) in enumerate(words):
            wide = max(width(a), width(b))
            if used and used + wide > room:
                flush()
                upper, lower, marks, used = "", "", "", 0
            mark = "^" if stretch.changed else " "
            upper += _painted(pad(a, wide + 1), a, RED if colour and stretch.changed else "")
            lower += _painted(pad(b, wide + 1), b, GREEN if colour and stretch.changed else "")
            marks += mark * wide + (" " if i + 1 == len(words) else mark)
            used += wide + 1
    flush()
    return lines


def _painted(padded: str, word: str, colour: str) -> str:
    return f"{colour}{word}{PLAIN}{padded[len(word) :]}" if colour and word else padded


def _bar(name: str, values: Sequence[float]) -> str:
    """One block for each step; its height is the entropy, from zero."""
    peak = max((v for v in values if math.isfinite(v)), default=0.0) or 1.0
    bars = "".join(BLOCKS[min(7, max(0, math.ceil(8 * v / peak) - 1))] if math.isfinite(v) else "?" for v in values)
    return f"  {name}    {values[0]:.2f} {bars} {values[-1]:.2f} nats"


def _work(steps: Sequence[Step]) -> str:
    first, last = steps[0], steps[-1]
    return (
        f"{first.hypotheses} hypotheses, {_from_to(first.distinct, last.distinct)} distinct; "
        f"{_from_to(first.nodes, last.nodes)} nodes for {_from_to(first.tokens, last.tokens)} tokens"
    )


def _from_to(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} → {last}"


def as_html(explanations: Iterable[Explanation]) -> str:
    """One page for all inputs; its style is inside and it loads nothing."""
    windows = list(explanations)
    say = windows[0].wording if windows else SPEECH
    style = files("sharpen.explain").joinpath("assets/explain.css").read_text(encoding="utf-8")
    links = [f'<li><a href="#w{i}">{escape(x.name)}</a> · {escape(x.method)}</li>' for i, x in enumerate(windows, 1)]
    nav = f'<nav aria-label="{say.input.title()}s"><ol>{"".join(links)}</ol></nav>' if len(windows) > 1 else ""
    articles = "".join(_article(i, x) for i, x in enumerate(windows, 1))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>What adaptation changed</title><style>{style}</style></head>\n<body><main>"
        "<h1>What adaptation changed</h1>"
        f"<p class='lead'>The model was adapted to each {say.input} separately, without a reference {say.output}, by "
        f"minimising the entropy of its own output. Then it {say.did}, and the adaptation was discarded. "
        "Colour shows entropy in nats: how uncertain the model was about the next token.</p>"
        f"{_legend()}{nav}\n{articles}</main></body></html>\n"
    )


def _legend() -> str:
    bounds = (0.0, *LEVELS)
    swatches = "".join(
        f'<li><i class="e{k}"></i>{bound:g}{"+" if k == len(LEVELS) else ""}</li>' for k, bound in enumerate(bounds)
    )
    return (
        "<ul class='legend' aria-label='Entropy in nats, from certain to uncertain'>"
        f"<li>certain</li>{swatches}<li>uncertain</li></ul>"
    )


def _article(number: int, x: Explanation) -> str:
    steps = x.trace.steps
    sections = [f"<h2>{escape(x.name)}</h2><p class='facts'>{escape(_facts(x))}</p>"]
    sections += [f"<p class='note'>{escape(note)}</p>" for note in _notes(x)]
    sections.append(_changes(x))
    sections += [x.more] if x.more else []
    sections.append(
        "<div class='pair'>"
        + _tokens("Before", x.source, x.tokenizer)
        + _tokens("After", x.adapted, x.tokenizer)
        + "</div>"
    )
    if steps:
        curve = curve_svg([s.H_tok for s in steps], [s.H_seq for s in steps])
        sections.append(
            "<div class='pair'><section><h3>Entropy over the updates</h3>"
            f"<figure>{curve}<figcaption>Mean over the hypotheses before each update, in nats. {escape(_work(steps))}."
            f"</figcaption></figure></section>{_readings(x)}</div>"
        )
        sections += _trees(x)
    return f'<article id="w{number}">{"".join(sections)}</article>\n'


def _changes(x: Explanation) -> str:
    aligned = stretches(x.source.text, x.adapted.text)
    words = []
    for stretch in aligned:
        before, after = "".join(stretch.source), "".join(stretch.adapted)
        if not stretch.changed:
            words.append(escape(after))
            continue
        edits = [f"<del>{escape(before.strip())}</del>"] if before else []
        edits += [f"<ins>{escape(after.strip())}</ins>"] if after else []
        words.append(" ".join(edits) + " " * (before + after).endswith(" "))
    same = "" if any(stretch.changed for stretch in aligned) else "<p class='facts'>No word changed.</p>"
    return f"<p class='words'>{''.join(words) or f'<em>{x.wording.empty}</em>'}</p>{same}"


def _tokens(title: str, decoded: Answered, tokenizer: TokenSpelling) -> str:
    spans, rows, total = [], [], 0.0
    for text, logprob, entropy in _pieces(decoded, tokenizer):
        word = text.lstrip()
        shown = escape(word or "·")
        facts = f"“{escape(text)}” · probability {percent(logprob)} · entropy {entropy:.2f} nats"
        gap = " " if word != text else ""  # outside of the coloured span, so that a line can break here
        spans.append(f'{gap}<span class="{level(entropy)}" title="{facts}">{shown}</span>')
        total += entropy
        rows.append(f"<tr><td>{shown}</td><td>{percent(logprob)}</td><td>{entropy:.2f}</td></tr>")
    return (
        f"<section><h3>{title}</h3><p class='tokens'>{''.join(spans)}</p>"
        f"<details><summary>{len(rows)} tokens, {total:.1f} nats in total</summary><table><thead><tr><th>token</th>"
        f"<th>probability</th><th>entropy</th></tr></thead><tbody>{''.join(rows)}</tbody></table></details></section>"
    )


def _pieces(decoded: Answered, tokenizer: TokenSpelling) -> Iterator[tuple[str, float, float]]:
    """Text, log-probability and entropy of each text token; a character of several tokens belongs to the last one."""
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    for token, logprob, entropy in zip(decoded.tokens, decoded.logprobs, decoded.entropies, strict=True):
        if tokenizer.is_text(token):
            yield utf8.decode(tokenizer.token_bytes(token)), logprob, entropy


def _readings(x: Explanation) -> str:
    """The greedy answer after each update that changed it, with the changes marked."""
    readings = [(i, x.tokenizer.decode(s.greedy).strip()) for i, s in enumerate(x.trace.steps) if s.greedy is not None]
    readings.append((len(x.trace.steps), x.adapted.text))
    items, last = [], None
    for i, text in readings:
        if text == last:
            continue
        items.append(f"<dt>{i}</dt><dd>{_marked(last, text)}</dd>")
        last = text
    return (
        f"<section><h3>{x.wording.output.title()} over the updates</h3><p class='facts'>The greedy {x.wording.output}, "
        f"{x.wording.greedy}after each update that changed it; 0 is before the first update.</p>"
        f"<dl>{''.join(items)}</dl></section>"
    )


def _marked(before: str | None, after: str) -> str:
    if before is None:
        return escape(after)
    words = []
    for stretch in stretches(before, after):
        gone, text = escape("".join(stretch.source)), escape("".join(stretch.adapted))
        if stretch.changed:
            text = f"<mark>{text.rstrip()}</mark> " if text else f"<del>{gone.rstrip()}</del> "
        words.append(text)
    return "".join(words).strip()


def _shown(x: Explanation) -> list[tuple[int, HypothesisTree]]:
    """The first and the last tree that were kept, with the number of updates before each."""
    shown = [(i, s.tree) for i, s in enumerate(x.trace.steps) if s.tree is not None]
    return [shown[0], shown[-1]] if len(shown) > 1 else shown


def _when(updates: int) -> str:
    return "before the first update" if updates == 0 else f"after {updates} update{'' if updates == 1 else 's'}"


def _branches(tree: HypothesisTree, tokenizer: TokenSpelling, size: int, most: int) -> list[str]:
    """The most probable texts of a tree, best first; what a text shares with the one above it is a gap."""
    unique = {y.content: y for y in tree.hypotheses}
    ranked = sorted(unique.values(), key=lambda y: -y.logprob)
    lines, above = list[str](), tuple[int, ...]()
    for y in ranked[:most]:
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(above, y.content, strict=False)))
        room, same = size - 14, tokenizer.decode(y.content[:shared])
        gap = min(width(same), room // 2)
        rest = " ".join(tokenizer.decode(y.content[shared:]).split(" ")).replace("\n", "⏎")
        shown = cut(rest, room - gap)
        lines.append(f"  {percent(y.logprob):>10}  {'·' * gap}{shown}{'…' if shown != rest else ''}")
        above = y.content
    if len(ranked) > most:
        lines.append(f"{'':12}and {len(ranked) - most} more")
    return lines


def _trees(x: Explanation) -> list[str]:
    figures = []
    for i, tree in _shown(x):
        title = f"Hypotheses {_when(i)}"
        counts: dict[tuple[int, ...], int] = {}
        logprobs = {}
        for y in tree.hypotheses:
            counts[y.content] = counts.get(y.content, 0) + 1
            logprobs[y.content] = y.logprob
        rows = "".join(
            f"<tr><td>{escape(x.tokenizer.decode(content).strip())}</td><td>{percent(logprobs[content])}</td>"
            f"<td>{count}</td></tr>"
            for content, count in counts.items()
        )
        figures.append(
            f"<section><h3>{title}</h3><figure><div class='scroll' tabindex='0' role='region' aria-label='{title}'>"
            f"{tree_svg(tree, x.tokenizer.decode, title)}</div></figure><details><summary>As text</summary><table>"
            f"<thead><tr><th>hypothesis</th><th>probability</th><th>count</th></tr></thead><tbody>{rows}</tbody></table>"
            "</details></section>"
        )
    caption = (
        "<p class='facts'>Tokens run from left to right. The width of a branch is the number of hypotheses that take "
        "it; its colour is the entropy at the point of choice. A dot is the end of a hypothesis (open: cut by the "
        "length limit), followed by the probability of the hypothesis.</p>"
    )
    return [*figures, caption] if figures else []


def write_html(path: str | Path, explanations: Iterable[Explanation]) -> Path:
    """Writes the page and returns its path."""
    return write_text(path, as_html(explanations))
