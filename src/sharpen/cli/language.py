"""What `generate` and `evaluate-text` share: the language model, the options of an answer, the machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sharpen.cli import machine
from sharpen.cli.flags import add_options, given
from sharpen.text.options import MODEL, Generation

if TYPE_CHECKING:
    from sharpen.text.generate import LanguageModel


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=MODEL,
        help="a Hugging Face directory or id, a GGUF or llama2.c file, or stories15M, smollm2-135m, gemma3-270m or "
        f"qwen2.5-coder-0.5b (default: {MODEL})")  # fmt: skip


def add_answer(parser: argparse.ArgumentParser, skip: tuple[str, ...] = (), cores: int | None = None) -> None:
    """How to answer, and on which machine; a method's own flags include the seed."""
    add_options(parser.add_argument_group("answer"), Generation(), skip=("seed", *skip))
    machine.add_device(parser.add_argument_group("machine"), cores=cores)


def answering(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `Generation` that the command line gives."""
    values = given(args, Generation)
    values.pop("seed", None)
    if "end_with" in values:  # a newline is hard to type
        values["end_with"] = values["end_with"].replace("\\n", "\n")
    return values


def load(args: argparse.Namespace) -> LanguageModel:
    import torch  # only now: a mistake on the command line is reported at once

    from sharpen.text.generate import load_text

    if args.threads:
        torch.set_num_threads(args.threads)
    device, dtype = machine.device_and_dtype(args)
    return load_text(args.model, device=device, dtype=dtype)
