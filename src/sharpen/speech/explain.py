"""What adaptation changed, for people: a few lines for the terminal, and a page that needs nothing but itself."""

from __future__ import annotations

import codecs
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path

from sharpen.method.trace import Step, Trace
from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.speech.alignment import Stretch, stretches
from sharpen.speech.decoding import Decoded
from sharpen.speech.drawing import LEVELS, columns, curve_svg, level, percent, tree_svg
from sharpen.speech.writers import write_text

BLOCKS = "▁▂▃▄▅▆▇█"
RED, GREEN, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[0m"


@dataclass(frozen=True, eq=False)
class Explanation:
    """One window before and after its episode; the trace comes from a run with `explain`."""

    name: str  # of the recording, and of the window where it has several
    method: str
    source: Decoded  # what the model as it is makes of it
    adapted: Decoded  # what the adapted model makes of it, whether or not the guard let it pass
    trace: Trace
    tokenizer: WhisperTokenizer
    guard: str = ""  # why the source's result stands instead; empty where the adapted one does
    seconds: float = 0.0  # of the whole window


def as_text(explanation: Explanation, *, width: int = 80, colour: bool = False) -> str:
    """A few lines for the terminal; what changed is underlined with ^, so that nothing depends on colour."""
    x, steps = explanation, explanation.trace.steps
    lines = [f"{x.name} · {_facts(x)}"]
    if x.source.text == x.adapted.text:
        lines += textwrap.wrap(x.source.text, width, initial_indent="  unchanged  ", subsequent_indent=" " * 13)
    else:
        lines += _aligned(stretches(x.source.text, x.adapted.text), width, colour)
    if steps:
        lines += [_bar("H_tok", [s.H_tok for s in steps]), _bar("H_seq", [s.H_seq for s in steps]), "  " + _work(steps)]
    lines += [f"  {note}" for note in _notes(x)]
    return "\n".join(lines) + "\n"


def _facts(x: Explanation) -> str:
    n = len(x.trace.steps)
    parts = [x.method, f"{n} step{'' if n == 1 else 's'}", f"{x.seconds:.1f} s" if x.seconds else ""]
    return " · ".join(part for part in parts if part)


def _notes(x: Explanation) -> list[str]:
    return [
        *([f"stopped: {x.trace.stopped}"] if x.trace.stopped else []),
        *([f"guard: {x.guard}; the source transcript stands"] if x.guard else []),
    ]


def _aligned(found: list[Stretch], width: int, colour: bool) -> list[str]:
    """Both texts one above the other, folded at `width` columns."""
    names, room = ("  source   ", "  adapted  "), max(20, width - 11)
    lines: list[str] = []
    upper, lower, marks, used = "", "", "", 0

    def flush() -> None:
        lines.extend([(names[0] + upper).rstrip(), (names[1] + lower).rstrip()])
        if marks.strip():
            lines.append((" " * 11 + marks).rstrip())

    for stretch in found:
        pairs = list(zip_longest(stretch.source, stretch.adapted, fillvalue=""))
        for i, (a, b) in enumerate(pairs):
            wide = max(columns(a.strip()), columns(b.strip()))
            if used and used + wide > room:
                flush()
                upper, lower, marks, used = "", "", "", 0
            ends = i + 1 == len(pairs)
            mark = "^" if stretch.changed else " "
            upper += _painted(a.strip(), RED if colour and stretch.changed else "") + _pad(a, wide)
            lower += _painted(b.strip(), GREEN if colour and stretch.changed else "") + _pad(b, wide)
            marks += mark * wide + (" " if ends else mark)
            used += wide + 1
    flush()
    return lines


def _painted(text: str, colour: str) -> str:
    return f"{colour}{text}{PLAIN}" if colour and text else text


def _pad(word: str, wide: int) -> str:
    return " " * (wide - columns(word.strip()) + 1)


def _bar(name: str, values: Sequence[float]) -> str:
    """One block for each step, measured from zero."""
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
    """One page for all windows, with its style inside and nothing to fetch."""
    found = list(explanations)
    style = files("sharpen.speech").joinpath("assets/explain.css").read_text(encoding="utf-8")
    toc = "".join(f'<li><a href="#w{i}">{escape(x.name)}</a> · {escape(x.method)}</li>' for i, x in enumerate(found, 1))
    nav = f'<nav aria-label="Windows"><ol>{toc}</ol></nav>' if len(found) > 1 else ""
    articles = "".join(_article(i, x) for i, x in enumerate(found, 1))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>What adaptation changed</title><style>{style}</style></head>\n<body><main>"
        "<h1>What adaptation changed</h1>"
        "<p class='lead'>The model was adapted to each input alone, without a transcript, by making its own output "
        "distribution less uncertain; then it answered, and the adaptation was forgotten. Colour is entropy, in nats: "
        "how undecided the model was about the next token.</p>"
        f"{_legend()}{nav}\n{articles}</main></body></html>\n"
    )


def _legend() -> str:
    bounds = (0.0, *LEVELS)
    swatches = "".join(
        f'<li><i class="e{k}"></i>{bound:g}{"+" if k == len(LEVELS) else ""}</li>' for k, bound in enumerate(bounds)
    )
    return (
        "<ul class='legend' aria-label='Entropy in nats, from certain to undecided'>"
        f"<li>certain</li>{swatches}<li>undecided</li></ul>"
    )


def _article(number: int, x: Explanation) -> str:
    steps = x.trace.steps
    sections = [f"<h2>{escape(x.name)}</h2><p class='facts'>{escape(_facts(x))}</p>"]
    sections += [f"<p class='note'>{escape(note)}</p>" for note in _notes(x)]
    sections.append(_changes(x))
    sections.append(
        "<div class='pair'>"
        + _tokens("Before", x.source, x.tokenizer)
        + _tokens("After", x.adapted, x.tokenizer)
        + "</div>"
    )
    if steps:
        curve = curve_svg([s.H_tok for s in steps], [s.H_seq for s in steps])
        sections.append(
            "<div class='pair'><section><h3>Entropy of the output</h3>"
            f"<figure>{curve}<figcaption>Mean over the hypotheses, before each update, in nats. {escape(_work(steps))}."
            f"</figcaption></figure></section>{_readings(x)}</div>"
        )
        sections += _trees(x)
    return f'<article id="w{number}">{"".join(sections)}</article>\n'


def _changes(x: Explanation) -> str:
    found = stretches(x.source.text, x.adapted.text)
    words = []
    for stretch in found:
        before, after = "".join(stretch.source), "".join(stretch.adapted)
        if not stretch.changed:
            words.append(escape(after))
            continue
        edits = [f"<del>{escape(before.strip())}</del>"] if before else []
        edits += [f"<ins>{escape(after.strip())}</ins>"] if after else []
        words.append(" ".join(edits) + " " * (before + after).endswith(" "))
    same = "" if any(stretch.changed for stretch in found) else "<p class='facts'>No word changed.</p>"
    return f"<p class='words'>{''.join(words) or '<em>nothing was said</em>'}</p>{same}"


def _tokens(title: str, decoded: Decoded, tokenizer: WhisperTokenizer) -> str:
    spans, rows, total = [], [], 0.0
    for text, logprob, entropy in _pieces(decoded, tokenizer):
        word = text.lstrip()
        shown = escape(word or "·")
        facts = f"“{escape(text)}” · probability {percent(logprob)} · entropy {entropy:.2f} nats"
        gap = " " if word != text else ""  # outside of the colour, where a line may break
        spans.append(f'{gap}<span class="{level(entropy)}" title="{facts}">{shown}</span>')
        total += entropy
        rows.append(f"<tr><td>{shown}</td><td>{percent(logprob)}</td><td>{entropy:.2f}</td></tr>")
    return (
        f"<section><h3>{title}</h3><p class='tokens'>{''.join(spans)}</p>"
        f"<details><summary>{len(rows)} tokens, {total:.1f} nats in all</summary><table><thead><tr><th>token</th>"
        f"<th>probability</th><th>entropy</th></tr></thead><tbody>{''.join(rows)}</tbody></table></details></section>"
    )


def _pieces(decoded: Decoded, tokenizer: WhisperTokenizer) -> Iterator[tuple[str, float, float]]:
    """Text, log-probability and entropy of each text token; a character cut by tokens goes to the one that ends it."""
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    for token, logprob, entropy in zip(decoded.tokens, decoded.logprobs, decoded.entropies, strict=True):
        if tokenizer.is_text(token):
            yield utf8.decode(tokenizer.token_bytes(token)), logprob, entropy


def _readings(x: Explanation) -> str:
    """The greedy transcript wherever an update changed it, what is new marked."""
    readings = [(i, x.tokenizer.decode(s.greedy).strip()) for i, s in enumerate(x.trace.steps) if s.greedy is not None]
    readings.append((len(x.trace.steps), x.adapted.text))
    items, last = [], None
    for i, text in readings:
        if text == last:
            continue
        items.append(f"<dt>{i}</dt><dd>{_marked(last, text)}</dd>")
        last = text
    return (
        "<section><h3>What it would have said</h3><p class='facts'>Greedy transcript after so many updates, where it "
        f"changed.</p><dl>{''.join(items)}</dl></section>"
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


def _trees(x: Explanation) -> list[str]:
    shown = [(i, s.tree) for i, s in enumerate(x.trace.steps) if s.tree is not None]
    figures = []
    for i, tree in [shown[0], shown[-1]] if len(shown) > 1 else shown:
        when = "before the first update" if i == 0 else f"after {i} update{'' if i == 1 else 's'}"
        title = f"Hypotheses {when}"
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
            f"<thead><tr><th>hypothesis</th><th>probability</th><th>times</th></tr></thead><tbody>{rows}</tbody></table>"
            "</details></section>"
        )
    caption = (
        "<p class='facts'>Left to right: one token after another. A branch is as wide as the number of hypotheses that "
        "take it and has the colour of the entropy where it was chosen; a dot is the end of a hypothesis, open where "
        "the length limit cut it, with its probability.</p>"
    )
    return [*figures, caption] if figures else []


def write_html(path: str | Path, explanations: Iterable[Explanation]) -> Path:
    """Writes the page."""
    return write_text(path, as_html(explanations))
