"""`sharpen generate`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharpen.cli import language
from sharpen.cli.flags import add_options, check_adaptation, given
from sharpen.cli.values import DONE, FAILED
from sharpen.errors import SharpenError, reason
from sharpen.method.adaptation import Adaptation
from sharpen.terminal import progress
from sharpen.text.options import Generation, check_search

if TYPE_CHECKING:
    from sharpen.explain.page import Explanation
    from sharpen.method.trace import Step
    from sharpen.text.generate import Answer, LanguageModel
    from sharpen.text.prompts import AnswerFile, Prompt

PAGE = "generate.html"
SHOWN = 5  # hypotheses of a tree in the terminal


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Answers prompts with a language model that adapts to each of them. Answers go to standard output."
    )
    parser.set_defaults(run=_generate)
    add = parser.add_argument
    language.add_model(parser)
    add("--prompt", "-p", action="append", default=[], metavar="TEXT|@FILE|-",
        help="a prompt, the content of a file, or standard input; may be given several times")  # fmt: skip
    add("--input", metavar="FILE", help='prompts, one JSON object with "prompt" (and "id") on each line')
    add("--output", metavar="FILE", help="answers, one JSON object on each line; a stopped run continues there")
    group = parser.add_argument_group("adaptation")
    add_options(group, Adaptation(), defaults={"method": "source: nothing adapts"})
    group.add_argument("--page", metavar="FILE", default=PAGE, help=f"the page that --explain writes (default: {PAGE})")
    language.add_answer(parser)
    add("--quiet", "-q", action="store_true", help="no progress bar")


def make_generation(args: argparse.Namespace) -> Generation:
    """What the command line asks for; refuses flags that its method does not use."""
    own, answering = given(args, Adaptation), language.answering(args)
    adapt = Adaptation(**{"method": "source", **own})
    check_adaptation(own, [adapt.row])
    if adapt.method == "beam" and ("beam_size" in answering or "decode" in answering):
        raise SharpenError("--method beam is a beam search as wide as --samples; leave --decode and --beam-size out")
    check_search(answering, answering.get("decode", "greedy"))
    return Generation(**answering, seed=adapt.seed, adapt=adapt)


def _generate(args: argparse.Namespace) -> int:
    options = make_generation(args)
    if args.input and args.prompt:
        raise SharpenError("--prompt and --input contradict each other: give only one")
    if args.output and not args.input:
        raise SharpenError("--output needs --input; a --prompt is answered on standard output")
    explain = options.adapt is not None and options.adapt.explain
    from sharpen.text.prompts import Prompt, read_prompts

    if args.input:
        lines = sys.stdin.read().splitlines() if args.input == "-" else None
        prompts = read_prompts("standard input" if args.input == "-" else args.input, lines)
    else:
        prompts = [Prompt(_name(word, n), _content(word)) for n, word in enumerate(args.prompt, 1)]
    if not prompts:
        raise SharpenError("nothing to answer: give --prompt TEXT, --prompt @FILE, --prompt - or --input FILE")
    if explain:
        from sharpen.files import check_writable

        check_writable(args.page)
    with ExitStack() as stack:
        file = stack.enter_context(_answers(args, options)) if args.output else None
        left = prompts if file is None else file.missing(prompts)
        if not left:
            print(f"{args.output}: all {len(prompts)} prompts are answered", file=sys.stderr)
            return DONE
        return _Report(args, options, language.load(args), file, len(left)).run(left)


def _answers(args: argparse.Namespace, options: Generation) -> AnswerFile:
    from sharpen.models.weights.text import fingerprint_text
    from sharpen.text.prompts import AnswerFile

    return AnswerFile(args.output, args.model, fingerprint_text(args.model), options)


class _Report:
    """Prints or writes answers as they come, and lists at the end what failed."""

    def __init__(
        self, args: argparse.Namespace, options: Generation, model: LanguageModel, file: AnswerFile | None, count: int
    ) -> None:
        self.args, self.options, self.model, self.file, self.count = args, options, model, file, count
        self.steps = options.adapt.steps if options.adapt else 0
        self.bar = progress(count, "prompts", quiet=args.quiet)
        self.explanations: list[Explanation] = []
        self.failures = 0

    def run(self, prompts: Sequence[Prompt]) -> int:
        if self.model.model.quantised:
            self._note(f"weights were {self.model.model.quantised}: results differ slightly from the original")
        size = self.options.batch_size
        with self.bar:
            for start in range(0, len(prompts), size):
                for prompt, answer in self._answers(prompts[start : start + size]):
                    if isinstance(answer, Exception):
                        self.failures += 1
                        self._note(f"{prompt.id}: {reason(answer)}")
                    else:
                        self._take(answer)
                    self.bar.update(1)
        if self.explanations:
            from sharpen.explain.page import write_html

            print(f"sharpen: {write_html(self.args.page, self.explanations)} shows it as a page", file=sys.stderr)
        return FAILED if self.failures else DONE

    def _answers(self, prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, Answer | Exception]]:
        """The answers of a batch; where it fails, each prompt is tried alone."""
        try:
            texts, ids = [p.text for p in prompts], [p.id for p in prompts]
            yield from zip(prompts, self.model.answer(texts, ids, self.options, self._on_step), strict=True)
        except (SharpenError, RuntimeError, MemoryError) as error:
            if len(prompts) == 1:
                yield prompts[0], error
                return
            for prompt in prompts:
                yield from self._answers([prompt])

    def _take(self, answer: Answer) -> None:
        if self.file is not None:
            self.file.add(answer)
        else:
            if self.count > 1:
                self.bar.write(f"==> {answer.id} <==", sys.stdout)
            self.bar.write(answer.text, sys.stdout)
        if answer.refused:
            self._note(f"{answer.id}: the source's answer is kept: {answer.refused}")
        if not answer.finished and self.file is None:
            self._note(f"{answer.id}: cut after {self.options.max_tokens} tokens; --max-tokens allows more")
        if self.options.adapt is not None and self.options.adapt.explain:
            from sharpen.explain.page import as_text

            explanation = self.model.explanation(answer, self.options)
            self.explanations.append(explanation)
            self.bar.write(as_text(explanation, colour=sys.stderr.isatty(), hypotheses=SHOWN))

    def _on_step(self, number: int, steps: Mapping[int, Step]) -> None:
        entropy = sum(step.H_tok for step in steps.values()) / len(steps)
        self.bar.set_text(f"step {number}/{self.steps}, entropy {entropy:.2f}")

    def _note(self, message: str) -> None:
        self.bar.write(f"sharpen: {message}")


def _name(word: str, number: int) -> str:
    if word.startswith("@"):
        return Path(word[1:]).name
    return "standard input" if word == "-" else f"prompt {number}"


def _content(word: str) -> Any:
    """The prompt that a word of the command line stands for; the newline that ends a file is not part of it."""
    if word != "-" and not word.startswith("@"):
        return word
    try:
        text = sys.stdin.read() if word == "-" else Path(word[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SharpenError(f"cannot read {word[1:]}: {error}; --prompt TEXT takes the text itself") from error
    if not text.strip():
        raise SharpenError(f"the prompt from {'standard input' if word == '-' else word[1:]} is empty")
    return text.removesuffix("\n")
