"""Segments for tests of what is written, and a way to write them."""

from dataclasses import dataclass

from sharpen.speech.output import TranscriptFiles


@dataclass(frozen=True)
class Piece:
    start: float
    end: float
    text: str
    id: int = 0
    seek: int = 0
    tokens: tuple = (50364, 440)
    temperature: float = 0.0
    avg_logprob: float = -0.25
    compression_ratio: float = 1.1
    no_speech_prob: float = 0.01
    logprobs: tuple = (-0.2, -0.3)
    entropies: tuple = (0.5, 0.25)
    words: tuple = ()
    confidence: float = 0.9
    expected_wer: float = 0.125
    unreliable: str = ""


def write(directory, pieces, formats=("all",), stem="talk", subtitles=None, **meta):
    with TranscriptFiles(directory, stem, formats, subtitles) as files:
        for piece in pieces:
            files.add(piece)
        return files.finish(meta)
