"""A table written as markdown, LaTeX or HTML."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape

LATEX = {
    "\\": r"\textbackslash{}",
    **{c: "\\" + c for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",  # LaTeX would read a bracket after \\ as the height of the row
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≠": r"$\neq$",
    "…": r"\dots{}",
    "–": "--",
    "—": "---",
    "→": r"$\to$",
}


@dataclass(frozen=True)
class Cell:
    """A value with its interval and the paper's number."""

    text: str
    interval: str = ""
    paper: str = ""  # the paper's number for the same quantity
    best: bool = False  # of its column


@dataclass(frozen=True)
class Table:
    """The first column holds names, the others numbers."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()  # printed below it


def number(value: float, digits: int = 2, *, signed: bool = False) -> str:
    """The value with that many digits and a typographic minus; zero has no sign."""
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")


def percent(rate: float, digits: int = 2, *, signed: bool = False) -> str:
    return number(100 * rate, digits, signed=signed)


def bounds(low: float, high: float, *, signed: bool = False) -> str:
    """An interval in percent; empty for NaN."""
    if math.isnan(low) or math.isnan(high):
        return ""
    return f"[{percent(low, signed=signed)}, {percent(high, signed=signed)}]"


def difference(value: float, low: float, high: float) -> str:
    """A difference of rates with its interval, in markdown bold where that excludes zero."""
    text = f"{percent(value, signed=True)} {bounds(low, high, signed=True)}"
    return f"**{text}**" if low > 0 or high < 0 else text


def as_markdown(table: Table, level: int = 3) -> str:
    lines = [f"{'#' * level} {markdown(table.title)}", "", _md_row(map(markdown, table.head))]
    lines.append("|---|" + "---:|" * (len(table.head) - 1))
    lines += [_md_row(map(_md_cell, row)) for row in table.rows]
    for note in table.notes:
        lines += ["", markdown(note)]
    return "\n".join(lines) + "\n"


def _md_row(cells: map[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _md_cell(cell: Cell) -> str:
    text = markdown(cell.text)
    parts = [f"**{text}**" if cell.best and text else text, markdown(cell.interval)]
    parts += [f"(paper {markdown(cell.paper)})"] if cell.paper else []
    return " ".join(part for part in parts if part)


def markdown(text: str) -> str:
    """Text escaped for markdown; an underscore within a word needs no escape."""
    text = re.sub(r"([\\`*|<]|\](?=[(\[:]))", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)


def as_latex(table: Table, label: str) -> str:
    """A `table*` for a paper that loads booktabs and graphicx; `label` is its name in `\\ref{tab:…}`."""
    lines = [
        r"\begin{table*}[t]",
        r"  \centering",
        rf"  \caption{{{latex(table.title)}}}",
        rf"  \label{{tab:{label}}}",
        r"  \resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"  \begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}",
        r"    \toprule",
        "    " + " & ".join(rf"\textbf{{{latex(name)}}}" if name else "" for name in table.head) + r" \\",
        r"    \midrule",
        *("    " + " & ".join(map(_latex_cell, row)) + r" \\" for row in table.rows),
        r"    \bottomrule",
        r"  \end{tabular}}",
        *(rf"  \par\smallskip{{\footnotesize {latex(note)}}}" for note in table.notes),
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _latex_cell(cell: Cell) -> str:
    """Interval and paper's number go below the value: beside it, a table of ten domains would be too small to read."""
    text = latex(cell.text)
    parts = [rf"\textbf{{{text}}}" if cell.best and text else text]
    parts += [rf"\scriptsize {latex(cell.interval)}"] if cell.interval else []
    parts += [rf"\scriptsize paper {latex(cell.paper)}"] if cell.paper else []
    if len(parts) == 1:
        return parts[0]
    return r"\begin{tabular}[t]{@{}r@{}}" + r" \\ ".join(parts) + r"\end{tabular}"


def latex(text: str) -> str:
    """Text escaped for LaTeX."""
    return "".join(LATEX.get(c, c) for c in " ".join(text.split()))


def as_html(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    body = "".join(f"<tr>{_html_row(row)}</tr>" for row in table.rows)
    notes = "".join(f"<p class='facts'>{escape(note)}</p>" for note in table.notes)
    return (
        f"<section><h3>{escape(table.title)}</h3>"
        f"<div class='scroll' tabindex='0' role='region' aria-label='{escape(table.title)}'>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{notes}</section>"
    )


def _html_row(row: tuple[Cell, ...]) -> str:
    name = escape(row[0].text)
    if "·" in name:  # let a narrow column break between settings, not within one
        name = name.replace(" ", "&nbsp;").replace("·&nbsp;", "· ")
    return f'<th scope="row">{name}</th>' + "".join(f"<td>{_html_cell(cell)}</td>" for cell in row[1:])


def _html_cell(cell: Cell) -> str:
    text = escape(cell.text)
    parts = [f"<b>{text}</b>" if cell.best and text else text]
    parts += [f"<small>{escape(cell.interval)}</small>"] if cell.interval else []
    parts += [f"<small class='paper'>paper {escape(cell.paper)}</small>"] if cell.paper else []
    return " ".join(parts)
