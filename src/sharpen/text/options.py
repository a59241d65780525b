"""How to answer a prompt: the options of a generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.method.objectives import Method
from sharpen.options import declared, option, validate

MODEL = "smollm2-135m"  # the language model where none is named
WIDTH = 5  # of a beam search that no method asks for
# What only some searches use.
SEARCHES = {"beam_size": ("beam",), "votes": ("vote",), "temperature": ("sample", "vote")}


@dataclass(frozen=True)
class Generation:
    """How to answer. `adapt` is the only field that is not an option: its own fields are."""

    adapt: Adaptation | None = None  # adapt the model to every prompt before answering it
    chat: bool = option(False, "the prompt is a user's message: put it into the model's chat template")
    end_with: str = option(
        "", r"a text of one token that ends an answer in place of the model's end token; \n is a newline"
    )
    max_tokens: int = option(64, "the longest answer, and the longest hypothesis while adapting, in tokens", least=1)
    decode: Literal["greedy", "beam", "sample", "vote"] = option(
        "greedy", "search for the answer, adapted or not; vote takes the most frequent of several samples"
    )
    beam_size: int = option(WIDTH, "width of --decode beam; the method beam is as wide as --samples", least=1)
    votes: int = option(16, "samples of --decode vote", least=1)
    temperature: float = option(1.0, "of --decode sample and vote", above=0)
    batch_size: int = option(1, "prompts side by side", least=1, role="machine")
    seed: int = option(0, "seed of every random draw")

    def __post_init__(self) -> None:
        given: Any = self.adapt
        adapt = Adaptation(method=given) if isinstance(given, str | Method) else given
        if not isinstance(adapt, Adaptation | None):
            raise SharpenError(f"adapt is {adapt!r}; expected a method's name or a sharpen.Adaptation")
        validate(self)
        if adapt is not None and adapt.row.search is None:  # source and beam are ways to decode
            if adapt.row.decode == "beam":
                if self.beam_size != WIDTH:
                    raise SharpenError(
                        f"beam_size is {self.beam_size}, but the method beam is as wide as its samples: set samples, "
                        "or use decode='beam' without the method"
                    )
                object.__setattr__(self, "decode", "beam")
                object.__setattr__(self, "beam_size", adapt.samples)
            adapt = None
        object.__setattr__(self, "adapt", adapt)
        own = {name: getattr(self, name) for name in SEARCHES}
        check_search({n: v for n, v in own.items() if v != declared(type(self))[n].default}, self.decode)


def check_search(given: Mapping[str, Any], decode: str) -> None:
    """Refuses an option among those given that this search would not use."""
    for name, kinds in SEARCHES.items():
        if name in given and decode not in kinds:
            expected = " or ".join(map(repr, kinds))
            raise SharpenError(f"{name} is {given[name]}, but decode is {decode!r}: set decode={expected}")
