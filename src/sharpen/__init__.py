"""sharpen: make an autoregressive model better on the very input it is about to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharpen.errors import AudioError, SharpenError, WeightsError
    from sharpen.method.adapt import Outcome, adapt
    from sharpen.method.adaptation import Adaptation
    from sharpen.method.conformance import check_policy
    from sharpen.method.episode import Episode
    from sharpen.method.objectives import METHODS, Method
    from sharpen.speech.longform import Segment
    from sharpen.speech.options import Options
    from sharpen.speech.transcribe import Model, Transcript, load
    from sharpen.text.generate import Answer, LanguageModel, load_text
    from sharpen.text.options import Generation

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "Adaptation",
    "Answer",
    "AudioError",
    "Episode",
    "Generation",
    "LanguageModel",
    "Method",
    "Model",
    "Options",
    "Outcome",
    "Segment",
    "SharpenError",
    "Transcript",
    "WeightsError",
    "adapt",
    "check_policy",
    "load",
    "load_text",
]

_HOMES = {
    "METHODS": "sharpen.method.objectives",
    "Adaptation": "sharpen.method.adaptation",
    "Method": "sharpen.method.objectives",
    "adapt": "sharpen.method.adapt",
    "Outcome": "sharpen.method.adapt",
    "Episode": "sharpen.method.episode",
    "check_policy": "sharpen.method.conformance",
    "AudioError": "sharpen.errors",
    "SharpenError": "sharpen.errors",
    "WeightsError": "sharpen.errors",
    "Options": "sharpen.speech.options",
    "Segment": "sharpen.speech.longform",
    "Model": "sharpen.speech.transcribe",
    "Transcript": "sharpen.speech.transcribe",
    "load": "sharpen.speech.transcribe",
    "Answer": "sharpen.text.generate",
    "Generation": "sharpen.text.options",
    "LanguageModel": "sharpen.text.generate",
    "load_text": "sharpen.text.generate",
}


def __getattr__(name: str) -> Any:
    """Public names are imported on first use: `import sharpen` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sharpen' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
