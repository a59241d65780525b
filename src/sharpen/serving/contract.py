"""What a request asks for: OpenAI's fields with OpenAI's rules, and a few of our own beside them.

Fields that nobody knows are ignored, as OpenAI does. Known fields that cannot be served here are refused by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation, applies
from sharpen.method.objectives import METHODS
from sharpen.serving.errors import ApiError, bad_field
from sharpen.serving.limits import ServerLimits
from sharpen.speech.efforts import EFFORTS
from sharpen.speech.options import FALLBACK, Options, VadParameters

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
IN_JSON = ("json", "verbose_json")
GRANULARITIES = ("word", "segment")
OWN_FIELDS = {
    "effort": "plain, normal, high, max or paper: how much to spend on adapting",
    "method": "in place of an effort: source, beam, em-tok-b and others",
    "steps": "updates of the norms in each window",
    "samples": "hypotheses at each step",
    "n_best": "texts of each window, with their probabilities",
    "deadline": "seconds, from the end of the upload, in which to answer",
    "explain": "with stream: the source's text, every step and every answer as events of their own",
}
REFUSED = {
    "known_speaker_names": "speakers are not told apart here",
    "known_speaker_references": "speakers are not told apart here",
    "keywords": "not supported here; put the words into prompt",
    "languages": "not supported here; give one language, or none to have it detected",
}
LIMIT_OF = {"steps": "max_steps", "samples": "max_samples"}
# The fields of server_vad, and what they are called here
VAD_FIELDS = {
    "threshold": "threshold",
    "prefix_padding_ms": "speech_pad_ms",  # here on both sides of speech
    "silence_duration_ms": "min_silence_duration_ms",
}
TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")


@dataclass(frozen=True)
class Ask:
    """A request that has been understood."""

    options: Options
    response_format: str = "json"
    segments: bool = True  # of verbose_json
    logprobs: bool = False
    stream: bool = False
    explain: bool = False
    deadline: float | None = None  # seconds from the end of the upload
    effort: str = ""  # as asked for, or the default; empty where a method was asked for
    method: str = ""  # by its name


def parse(
    given: Mapping[str, tuple[str, ...]], task: str, models: tuple[str, ...], effort: str, limits: ServerLimits
) -> Ask:
    """The fields of a form as a request for `task`; `models` are the names served here, `effort` is the default."""
    fields = _Fields(given)
    for name, why in REFUSED.items():
        if name in fields.values:
            raise bad_field(name, why, "unsupported_parameter")
    _check_model(fields.one("model"), models)
    response_format = fields.choice("response_format", (*FORMATS, "diarized_json")) or "json"
    if response_format == "diarized_json":
        raise bad_field("response_format", f"diarized_json: {REFUSED['known_speaker_names']}", "unsupported_parameter")
    stream = fields.flag("stream")
    granularities = fields.several("timestamp_granularities", GRANULARITIES)
    if granularities and response_format != "verbose_json":
        raise bad_field("timestamp_granularities", "needs response_format verbose_json")
    logprobs = "logprobs" in fields.several("include", ("logprobs",))
    if logprobs and not stream and response_format not in IN_JSON:
        raise bad_field("include", f"logprobs have no place in {response_format}; use json or verbose_json")
    explain = fields.flag("explain")
    if explain and not stream:
        raise bad_field("explain", "needs stream=true: steps are told as events")
    if (fields.whole("n_best", limits.max_n_best) or 1) > 1 and not stream and response_format not in IN_JSON:
        raise bad_field("n_best", f"several texts have no place in {response_format}; use json or verbose_json")
    shown = {"word_timestamps": "word" in granularities, "confidence": explain}
    options, named = _options(fields, task, effort, limits, shown)
    method = named if named in METHODS else options.adapt.method if options.adapt else "beam"
    return Ask(
        options,
        response_format,
        not granularities or "segment" in granularities,
        logprobs,
        stream,
        explain,
        fields.number("deadline", above=0, most=limits.max_deadline),
        "" if named in METHODS else named,
        str(method),
    )


class _Fields:
    """The values of a form by name; a name may end in [], as lists do in OpenAI's client."""

    def __init__(self, given: Mapping[str, tuple[str, ...]]) -> None:
        self.values: dict[str, list[str]] = {}
        for name, values in given.items():
            self.values.setdefault(name.removesuffix("[]"), []).extend(values)

    def one(self, name: str) -> str | None:
        values = self.values.get(name, [])
        if len(values) > 1:
            raise bad_field(name, f"given {len(values)} times; give it once")
        return values[0] if values else None

    def choice(self, name: str, choices: Any) -> str | None:
        value = self.one(name)
        if value and value not in choices:
            raise bad_field(name, f"{_short(value)} is unknown; expected one of {', '.join(choices)}")
        return value or None

    def several(self, name: str, choices: tuple[str, ...]) -> set[str]:
        values = self.values.get(name, [])
        for value in values:
            if value not in choices:
                raise bad_field(name, f"{_short(value)} is unknown; expected {' or '.join(choices)}")
        return set(values)

    def flag(self, name: str) -> bool:
        value = (self.one(name) or "").lower()
        if value not in TRUE + FALSE:
            raise bad_field(name, f"{_short(value)}: expected true or false")
        return value in TRUE

    def number(self, name: str, *, least: float = -math.inf, above: float = -math.inf, most: float) -> float | None:
        text = self.one(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least <= value <= most and value > above):
            low = f"above {above:g}" if above > -math.inf else f"from {least:g}"
            raise bad_field(name, f"{_short(text)}: expected a number {low}, at most {most:g}")
        return value

    def whole(self, name: str, most: int) -> int | None:
        value = self.number(name, least=1, most=most)
        if value is not None and value != int(value):
            raise bad_field(name, f"{value:g}: expected a whole number from 1 to {most}")
        return None if value is None else int(value)


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _check_model(name: str | None, models: tuple[str, ...]) -> None:
    if not name:
        raise bad_field("model", f"missing; this server has {', '.join(models)}", "missing_parameter")
    if name not in models:
        raise unknown_model(name, models)


def unknown_model(name: str, models: tuple[str, ...]) -> ApiError:
    return ApiError(
        404, f"there is no model {_short(name)}; this server has {', '.join(models)}", "model", "model_not_found"
    )


def _voice(fields: _Fields) -> dict[str, Any]:
    """What is transcribed: with server_vad the stretches where a voice is heard, else everything, in Whisper's windows.

    The two spellings are those of OpenAI's client.
    """
    text = fields.one("chunking_strategy")
    prefix = "chunking_strategy["
    parts: dict[str, Any] = {n[len(prefix) : -1]: fields.one(n) for n in fields.values if n.startswith(prefix)}
    if text and text != "auto":
        try:
            loaded = json.loads(text)
        except (ValueError, RecursionError):
            loaded = None
        if not isinstance(loaded, dict):
            raise bad_field("chunking_strategy", f"{_short(text)}: expected auto, or an object of type server_vad")
        parts |= loaded
    if not parts:
        return {}
    kind, unknown = parts.pop("type", None), sorted(set(parts) - set(VAD_FIELDS))
    if kind != "server_vad" or unknown:
        seen = f"unknown: {', '.join(map(_short, unknown))}" if unknown else f"type {_short(str(kind))}"
        raise bad_field("chunking_strategy", f"{seen}; expected type server_vad, with {', '.join(VAD_FIELDS)}")
    given = {VAD_FIELDS[name]: _number(name, value) for name, value in parts.items() if value is not None}
    try:
        return {"vad_filter": True, "vad_parameters": VadParameters(**given)}
    except SharpenError as error:
        raise bad_field("chunking_strategy", f"server_vad: {error}") from error


def _number(name: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise bad_field("chunking_strategy", f"{name}: expected a number")
    return found


def _options(
    fields: _Fields, task: str, default: str, limits: ServerLimits, shown: Mapping[str, Any]
) -> tuple[Options, str]:
    """The options of a transcription, and the effort or method that was asked for; `shown` is what the answer has."""
    method, effort = fields.choice("method", METHODS), fields.choice("effort", EFFORTS)
    temperature = fields.number("temperature", least=0, most=1) or 0.0
    if method and effort:
        raise bad_field("effort", "chooses the method; leave effort or method out")
    if temperature and (method or effort) and (method or effort) not in ("source", "plain"):
        raise bad_field("temperature", "an adapted transcript is searched at temperature 0; leave one of the two out")
    own = {name: fields.whole(name, getattr(limits, most)) for name, most in LIMIT_OF.items()}
    given: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
    named = method or effort or ("plain" if temperature else default)
    bundle = dict(EFFORTS["plain" if method else named])
    base = bundle.pop("adapt") or Adaptation(method="source")
    adapt = Adaptation(method=method) if method else base
    adapt = replace(adapt, steps=min(adapt.steps, limits.max_steps), samples=min(adapt.samples, limits.max_samples))
    adapt = replace(adapt, **given)
    for name in given:
        if adapt.row.search is None and not applies(name, adapt.row):
            raise bad_field(name, f"needs an adapting method or effort; {named} does not adapt")
    try:
        return Options(
            **bundle,
            adapt=adapt,
            language=fields.one("language") or "auto",
            task=task,  # type: ignore[arg-type]
            initial_prompt=fields.one("prompt") or "",
            temperature=(temperature,) if temperature else FALLBACK,
            **shown,
            n_best=fields.whole("n_best", limits.max_n_best) or 1,
            **_voice(fields),
        ), named
    except SharpenError as error:
        if "n_best" in str(error):
            why = f"the search of {named} finds fewer texts; ask for fewer, or for method=beam with as many samples"
            raise bad_field("n_best", why) from error
        name = "language" if "language" in str(error) else "method"
        raise bad_field(name, str(error)) from error
