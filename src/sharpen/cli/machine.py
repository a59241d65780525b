"""The flags about the model and the machine, the same in every command that runs a model."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from sharpen.cli.values import threads
from sharpen.speech.presets import PRESETS, Dtype, default_device

MODEL = "directory or file, size name, or Hugging Face id (default: base)"


def add_machine(group: Any, preset: str | None = "exact") -> None:
    group.add_argument("--preset", choices=PRESETS, default=preset,
        help="exact: all padding; fast: condensed padding, and bfloat16 where the hardware has it; fastest: sparse "
        "padding, measured with base, not fit for tiny "
        f"(default: {preset or 'the padding of the effort, float32'})")  # fmt: skip
    add_device(group, dtype="the preset's", each=" of each model")


def add_device(group: Any, *, dtype: str = "float32", cores: int | None = None, each: str = "") -> None:
    """`dtype` says what the default stands for; `cores` is the default number of threads, None torch's choice."""
    add = group.add_argument
    add("--device", default="auto", help="auto, cpu, cuda, mps (default: auto, which never takes mps)")
    add("--dtype", choices=get_args(Dtype), help=f"type of the weights (default: {dtype})")
    shown = "torch's choice" if cores is None else cores
    add("--threads", type=threads, default=cores, metavar="N", help=f"CPU threads{each} (default: {shown})")


def device_and_dtype(args: argparse.Namespace) -> tuple[str, Dtype]:
    """The device that `auto` stands for here, and the type of the weights on it."""
    device = default_device() if args.device == "auto" else args.device
    preset = getattr(args, "preset", None)  # language models have none
    return device, args.dtype or (PRESETS[preset].dtype(device) if preset else "float32")
