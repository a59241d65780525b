"""What a table and a case look like in each of the formats."""

from evaluation.report.answers import answer

from sharpen.evaluation.report import cases, markup
from sharpen.evaluation.report import document as report
from sharpen.evaluation.report.markup import Cell, Table

RIGHT = "one two three four"


def test_both_texts_are_aligned_with_the_reference():
    found = cases.align_texts("he was an athlete", "he in a an", "so he was an athlete now")
    assert [(s.reference, s.source, s.adapted) for s in found] == [
        (None, None, "so"),
        ("he", "he", "he"),
        ("was", "in", "was"),
        (None, "a", None),
        ("an", "an", "an"),
        ("athlete", None, "athlete"),
        (None, None, "now"),
    ]


def test_cases_as_golden_text():
    rows = [answer("source", "a", "one too three"), answer("em-tok-b", "a", "one two three four four")]
    (section,) = report.build(rows).sections
    assert (len(section.helped), len(section.hurt)) == (1, 0)
    assert cases.as_text(section.helped[0]).splitlines() == [
        "a (clean): 2 → 1 errors in 4 words",
        "reference  one two  three four",
        "source     one ≠too three –",
        "em-tok-b   one two  three four +four",
    ]


def test_cases_are_in_the_order_of_their_change():
    texts = {"a": "one", "b": "one two three", "c": RIGHT, "d": "x x x x", "e": "one two x x"}
    rows = [answer("em-tok", id, RIGHT, source_text=text) for id, text in texts.items()]
    rows += [answer("em-tok", "f", "x y", source_text=RIGHT)]
    (section,) = report.build(rows).sections
    assert [(case.id, case.before - case.after) for case in section.helped] == [("d", 4), ("a", 3), ("e", 2), ("b", 1)]
    assert [(case.id, case.after) for case in section.hurt] == [("f", 4)]


def test_latex_escapes_everything():
    table = Table(
        r"50 % & more_{x} \o/ ~^<#$", ("m", "n"), ((Cell("a_b · c"), Cell("−1.00", "[−2.00, 3]", "4", True)),)
    )
    assert markup.latex(table.title) == (
        r"50 \% \& more\_\{x\} \textbackslash{}o/ \textasciitilde{}\textasciicircum{}\textless{}\#\$"
    )
    text = markup.as_latex(table, "fifty")
    assert r"\label{tab:fifty}" in text
    below = r"\textbf{$-$1.00} \\ \scriptsize {[}$-$2.00, 3] \\ \scriptsize paper 4"
    assert r"    a\_b $\cdot$ c & \begin{tabular}[t]{@{}r@{}}" + below + r"\end{tabular} \\" in text
    assert text.count("{") == text.count("}")


def test_latex_cases_carry_signs_and_colour():
    texts = {"source": "one too 3%", "em-tok-b": "one two 3%"}
    rows = [answer(method, "a", text, reference="one two 3%") for method, text in texts.items()]
    text = report.as_latex(report.build(rows))
    assert r"\textbf{Source:} one \textcolor{red}{$\neq$too} 3\% \\" in text
    assert r"\textbf{em-tok-b:} one two 3\% \\" in text


def test_markdown_escapes_what_would_break_a_table():
    assert markup.as_markdown(Table("t", ("a|b",), ((Cell("x|y\n*z* <b> snake_case _i_"),),))).splitlines()[2:] == [
        r"| a\|b |",
        "|---|",
        r"| x\|y \*z\* \<b> snake_case \_i\_ |",
    ]
