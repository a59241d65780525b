"""The flags about the model and the machine, the same in every command that runs a model."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from sharpen.cli.values import threads
from sharpen.speech.presets import PRESETS, Dtype, default_device

MODEL = "directory or file, size name, or Hugging Face id (default: base)"


def add_machine(group: Any, preset: str | None = "exact") -> None:
    add = group.add_argument
    add("--preset", choices=PRESETS, default=preset,
        help="exact: all padding; fast: condensed padding, and bfloat16 where the hardware has it; fastest: sparse "
        "padding, measured with base, not fit for tiny "
        f"(default: {preset or 'the padding of the effort, float32'})")  # fmt: skip
    add("--device", default="auto", help="auto, cpu, cuda, mps (default: auto, which never takes mps)")
    add("--dtype", choices=get_args(Dtype), help="type of the weights (default: the preset's)")
    add("--threads", type=threads, metavar="N", help="CPU threads of each model (default: torch's choice)")


def device_and_dtype(args: argparse.Namespace) -> tuple[str, Dtype]:
    """The device that `auto` stands for here, and the type of the weights on it."""
    device = default_device() if args.device == "auto" else args.device
    return device, args.dtype or (PRESETS[args.preset].dtype(device) if args.preset else "float32")
