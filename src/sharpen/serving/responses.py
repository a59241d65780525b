"""Transcripts in the five formats of OpenAI's reference, and the events of its stream."""

from __future__ import annotations

import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sharpen.models.languages import LANGUAGES
from sharpen.models.speech import TokenText
from sharpen.serving.contract import Ask
from sharpen.serving.events import DONE, Deltas, Finished, Told, WindowTold, as_data, explained, logprobs, sse
from sharpen.serving.pictures import Pictures
from sharpen.speech.longform import Segment
from sharpen.speech.subtitles import Subtitles
from sharpen.speech.writers import WRITERS, as_dict, as_readings

MEDIA_TYPES = {"text": "text/plain", "srt": "text/plain", "vtt": "text/vtt"}  # the others are JSON
FILES = ("txt", "srt", "vtt", "json")  # that a page offers
SEGMENT_FIELDS = ("id", "seek", "start", "end", "text", "tokens", "temperature", "avg_logprob", "compression_ratio",
                  "no_speech_prob")  # fmt: skip
FRAMES_PER_SECOND = 50  # of Whisper's encoder: what usage counts as tokens of audio


def transcript(result: Finished, ask: Ask, tokenizer: TokenText) -> str | dict[str, Any]:
    """The whole answer: text for text, srt and vtt, else an object."""
    if ask.response_format == "text":
        return result.text + "\n"
    if ask.response_format in ("srt", "vtt"):
        return written(result, ask.response_format)
    usage = {"type": "duration", "seconds": round(result.duration, 3)}
    listed: dict[str, Any] = {"logprobs": logprobs(result.segments, tokenizer)} if ask.logprobs else {}
    own = {**n_best(result, ask), "adaptation": adaptation(result, ask)}
    said = {"text": result.text, **languages(result)} if ask.response_format == "json" else verbose(result, ask)
    return {**said, **listed, "usage": usage, **own}


def n_best(result: Finished, ask: Ask) -> dict[str, Any]:
    """The best texts of each window, where more than one was asked for."""
    return {"windows": [as_readings(window) for window in result.readings]} if ask.options.n_best > 1 else {}


def languages(result: Finished) -> dict[str, Any]:
    """What was spoken, as OpenAI's newer models say it: one language here, none where nothing was said."""
    return {"languages": [{"code": result.language}] if result.text else []}


def verbose(result: Finished, ask: Ask) -> dict[str, Any]:
    translated = ask.options.task == "translate"
    found: dict[str, Any] = {
        "task": ask.options.task,
        "language": "english" if translated else LANGUAGES[result.language],  # OpenAI gives the name, not the code
        "duration": round(result.duration, 3),
        "text": result.text,
    }
    if ask.segments:
        found["segments"] = [_segment(segment) for segment in result.segments]
    if ask.options.word_timestamps:
        words = [word for segment in result.segments for word in segment.words]
        found["words"] = [{"word": w.word.strip(), "start": w.start, "end": w.end} for w in words]
    return found


def written(result: Finished, kind: str, meta: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The content of a transcript file; `meta` is for JSON."""
    file, writer = io.StringIO(), WRITERS[kind](Subtitles())
    writer.start(file)
    for segment in result.segments:
        writer.add(file, segment)
    writer.finish(file, result.text, meta)
    return file.getvalue()


def adaptation(result: Finished, ask: Ask) -> dict[str, Any]:
    """What was done, beside OpenAI's fields."""
    answers = {window.answer for window in result.windows}
    return {
        **({"effort": ask.effort} if ask.effort else {}),
        "method": ask.method,
        "answer": "adapted" if "adapted" in answers else "source",
        "steps": result.steps,
        "guard": sum(bool(window.guard) for window in result.windows),
        "complete": result.transcribed >= result.duration,
        "transcribed": round(result.transcribed, 3),
        "windows": [as_data(window) for window in result.windows],
    }


def summary_header(result: Finished, ask: Ask) -> str:
    """The same in one line, for the formats that have no place for it."""
    said = adaptation(result, ask)
    complete = "true" if said["complete"] else "false"
    return f"answer={said['answer']}; steps={said['steps']}; guard={said['guard']}; complete={complete}"


class Stream:
    """The server-sent events of one answer."""

    def __init__(self, ask: Ask, tokenizer: TokenText, prompt_tokens: int) -> None:
        self.ask, self.tokenizer, self.prompt_tokens = ask, tokenizer, prompt_tokens
        self._deltas, self._pictures = Deltas(), Pictures(tokenizer)

    def told(self, event: Told) -> list[bytes]:
        """What a client is sent when that happens."""
        own = explained(event, self.tokenizer) if self.ask.explain else None
        found = [{**own, **self._pictures.of(event)}] if own else []
        if isinstance(event, WindowTold):
            found += self._delta(event.segments)
        elif isinstance(event, Finished):
            return [sse(self._done(event)), DONE]
        return [sse(one) for one in found]

    def _files(self, result: Finished) -> dict[str, Any]:
        """What `sharpen transcribe` would write to files."""
        meta = {"language": result.language, "duration": round(result.duration, 3)}
        meta |= {**n_best(result, self.ask), "adaptation": adaptation(result, self.ask)}
        return {kind: written(result, kind, meta) for kind in FILES}

    def _delta(self, segments: tuple[Segment, ...]) -> list[dict[str, Any]]:
        if not segments:
            return []
        listed = {"logprobs": logprobs(segments, self.tokenizer)} if self.ask.logprobs else {}
        return [{"type": "transcript.text.delta", "delta": self._deltas.add(segments), **listed}]

    def _done(self, result: Finished) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        if self.ask.response_format == "verbose_json":
            extra = verbose(result, self.ask)
        elif self.ask.response_format in ("srt", "vtt"):
            extra = {self.ask.response_format: written(result, self.ask.response_format)}
        if self.ask.logprobs:
            extra["logprobs"] = logprobs(result.segments, self.tokenizer)
        if self.ask.explain:
            extra["files"] = self._files(result)
        return {
            "type": "transcript.text.done",
            "text": result.text,
            **languages(result),
            **extra,
            "usage": self._usage(result),
            **n_best(result, self.ask),
            "adaptation": adaptation(result, self.ask),
        }

    def _usage(self, result: Finished) -> dict[str, Any]:
        """OpenAI's client takes only a count of tokens here; the seconds stand beside it."""
        audio, text = round(FRAMES_PER_SECOND * result.duration), self.prompt_tokens
        written = sum(len(segment.tokens) for segment in result.segments)
        return {
            "type": "tokens",
            "input_tokens": audio + text,
            "input_token_details": {"audio_tokens": audio, "text_tokens": text},
            "output_tokens": written,
            "total_tokens": audio + text + written,
            "seconds": round(result.duration, 3),
        }


def _segment(segment: Segment) -> dict[str, Any]:
    return {name: value for name, value in as_dict(segment).items() if name in SEGMENT_FIELDS}
