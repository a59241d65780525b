"""Small files in the layouts that corpora have."""

import json

import av
import numpy as np

CODECS = {".wav": "pcm_s16le", ".flac": "flac", ".mp3": "libmp3lame", ".opus": "libopus"}


def sound(path, seconds=0.5, rate=16_000):
    """A file of real, if meaningless, audio."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = 0.3 * np.sin(np.arange(round(seconds * rate)) * 2500 / rate)
    with av.open(str(path), "w") as out:
        stream = out.add_stream(CODECS[path.suffix], rate=48_000 if path.suffix == ".opus" else rate, layout="mono")
        size = stream.codec_context.frame_size or 4096
        resampler = av.AudioResampler(stream.format.name, "mono", stream.rate, size)
        frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16)[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = rate, 0
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    return path


def text(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def manifest(folder, *rows):
    return text(folder / "manifest.jsonl", "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))


def told(corpus):
    return [(u.id, u.domain, u.reference, u.language, u.speaker) for u in corpus.utterances]
