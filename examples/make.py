"""Make the example clips: synthetic voices, noises computed here, mixed at a known signal-to-noise ratio.

    python examples/make.py [--output DIRECTORY]

Needs flite and espeak-ng (Debian packages of the same names), numpy and av. The same versions give the same samples.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import wave
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

RATE = 16_000  # Hz
LEVEL = -36.0  # dBFS, RMS of the speech over the whole clip
PAUSE = 0.15  # seconds of noise alone before and after the speech
SEED = 20_240
CODECS = {".flac": "flac", ".ogg": "libopus", ".mp3": "libmp3lame", ".m4a": "aac"}
BIT_RATE = 32_000  # bits per second of the lossy codecs


@dataclass(frozen=True)
class Clip:
    file: str
    voice: str  # flite:NAME or espeak-ng:NAME
    noise: str  # a key of NOISES; "+room" adds reverberation to the speech
    snr: float  # dB, power of the speech over power of the noise, over the whole clip
    text: str


CLIPS = [
    Clip("ferry.flac", "flite:slt", "hum", 10, "The night ferry to Aberdeen leaves at half past nine."),
    Clip("bakery.flac", "flite:rms", "brown", -5, "My grandfather opened this bakery in nineteen fifty two."),
    Clip("letter.flac", "flite:awb", "typing", 5, "She wrote to Doctor Silva about the broken window."),
    Clip("station.ogg", "flite:kal", "pink+room", 15, "Platform seven is closed until Thursday morning."),
    Clip(
        "harvest.ogg",
        "flite:rms",
        "white",
        5,
        "Three hundred baskets of ripe plums were carried down to the river before the storm, "
        "and the children slept in the barn.",
    ),
    Clip(
        "museum.ogg",
        "flite:slt",
        "white",
        10,
        "The museum in Lisbon keeps a silver clock that once belonged to a sailor, "
        "and it still strikes every quarter of an hour.",
    ),
    Clip(
        "market.mp3",
        "flite:awb",
        "babble",
        15,
        "Ask Margaret whether the fishmonger will take forty pounds for the old wooden boat.",
    ),
    Clip(
        "glacier.m4a",
        "espeak-ng:en-gb-scotland",
        "pink",
        20,
        "The glacier moved eleven metres last winter, more than anyone in the valley had expected.",
    ),
    Clip(
        "harbour.ogg",
        "espeak-ng:en-us",
        "babble",
        15,
        "Captain Joseph painted the harbour wall bright yellow so that the pilots could see it in the rain.",
    ),
]


def speak(voice: str, text: str) -> np.ndarray:
    """The text in a synthetic voice: (N,) float64 at RATE."""
    program, name = voice.split(":")
    if shutil.which(program) is None:
        raise SystemExit(f"{program} is not installed, but the voice {name!r} needs it: apt-get install {program}")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "speech.wav")
        flite = ["flite", "-voice", name, "-t", text, "-o", path]
        espeak = ["espeak-ng", "-v", name, "-s", "145", "-w", path, text]  # -s: words per minute
        subprocess.run(flite if program == "flite" else espeak, check=True, capture_output=True)
        with wave.open(path, "rb") as file:
            rate, samples = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return resample(samples.astype(np.float64) / 32768, rate)


def resample(samples: np.ndarray, rate: int) -> np.ndarray:
    """Resamples in the frequency domain; what is above the lower of the two Nyquist frequencies is lost."""
    length = round(len(samples) * RATE / rate)
    spectrum = np.fft.rfft(samples)
    kept = np.zeros(length // 2 + 1, complex)
    shared = min(len(kept), len(spectrum))
    kept[:shared] = spectrum[:shared]
    return np.fft.irfft(kept, length) * length / len(samples)


def coloured(n: int, rng: np.random.Generator, exponent: float) -> np.ndarray:
    """Gaussian noise with a power spectrum of 1/f**exponent above 30 Hz and flat below."""
    spectrum = np.fft.rfft(rng.standard_normal(n))
    frequency = np.maximum(np.fft.rfftfreq(n, 1 / RATE), 30.0)
    return np.fft.irfft(spectrum * frequency ** (-exponent / 2), n)


def hum(n: int, rng: np.random.Generator) -> np.ndarray:
    """Mains at 50 Hz with its harmonics, over a faint hiss."""
    t = np.arange(n) / RATE
    tones = [np.sin(2 * np.pi * (50 * k * t + rng.random())) / k for k in range(1, 40)]
    return np.sum(tones, axis=0) + 0.1 * rng.standard_normal(n)


def typing(n: int, rng: np.random.Generator) -> np.ndarray:
    """Eight keystrokes per second: a burst of noise of some milliseconds, and a softer one when the key rises."""
    out = 0.002 * rng.standard_normal(n)
    for start in np.flatnonzero(rng.random(n) < 8 / RATE):
        for delay, strength in ((0, 1.0), (round(0.07 * RATE), 0.4)):
            burst = rng.standard_normal(800) * np.exp(-np.arange(800) / 120) * strength * rng.uniform(0.5, 1.0)
            place = out[start + delay : start + delay + 800]
            place += burst[: len(place)]
    return out


def babble(n: int, rng: np.random.Generator, text: str) -> np.ndarray:
    """The voices of all other clips at once, each from a random start."""
    out = np.zeros(n)
    for other in CLIPS:
        if other.text != text:
            voice = speak(other.voice, other.text)
            voice = np.roll(voice, rng.integers(len(voice)))
            out += np.resize(voice, n) / rms(voice)
    return out


NOISES = {
    "white": lambda n, rng, text: rng.standard_normal(n),
    "pink": lambda n, rng, text: coloured(n, rng, 1.0),
    "brown": lambda n, rng, text: coloured(n, rng, 2.0),
    "hum": lambda n, rng, text: hum(n, rng),
    "typing": lambda n, rng, text: typing(n, rng),
    "babble": babble,
}


def reverberate(samples: np.ndarray, rng: np.random.Generator, seconds: float = 0.5) -> np.ndarray:
    """Adds the echoes of a room, which lose 60 dB in `seconds`."""
    n = round(seconds * RATE)
    room = 0.08 * rng.standard_normal(n) * 10 ** (-3 * np.arange(n) / n)
    room[0] = 1.0
    return np.convolve(samples, room)


def rms(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(samples**2)))


def mix(clip: Clip) -> tuple[np.ndarray, np.ndarray]:
    """The speech alone and the mixture, both (N,) int16."""
    rng = np.random.default_rng([SEED, *clip.file.encode()])
    kind, _, room = clip.noise.partition("+")
    silence = np.zeros(round(PAUSE * RATE))
    speech = speak(clip.voice, clip.text)
    speech = np.concatenate([silence, reverberate(speech, rng) if room else speech, silence])
    noise = NOISES[kind](len(speech), rng, clip.text)
    speech *= 10 ** (LEVEL / 20) / rms(speech)
    noise *= rms(speech) / rms(noise) * 10 ** (-clip.snr / 20)
    scale = 32767 * min(1.0, 0.99 / np.abs(speech + noise).max())
    return np.round(speech * scale).astype(np.int16), np.round((speech + noise) * scale).astype(np.int16)


def measured_snr(speech: np.ndarray, mixture: np.ndarray) -> float:
    """Signal-to-noise ratio in dB of the written samples; for a lossy format, of the encoder's input."""
    noise = mixture.astype(np.float64) - speech
    return float(20 * np.log10(rms(speech.astype(np.float64)) / rms(noise)))


def write(path: Path, samples: np.ndarray) -> None:
    with av.open(str(path), "w") as out:
        stream = out.add_stream(CODECS[path.suffix], rate=RATE, layout="mono")
        if path.suffix != ".flac":
            stream.bit_rate = BIT_RATE
        stream.codec_context.open()
        resampler = av.AudioResampler(stream.format.name, "mono", RATE, stream.codec_context.frame_size or 4096)
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = RATE, 0
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))


def make(output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    rows = []
    for clip in CLIPS:
        speech, mixture = mix(clip)
        write(output / clip.file, mixture)
        row = {
            "id": Path(clip.file).stem,
            "audio_filepath": clip.file,
            "duration": round(len(mixture) / RATE, 3),
            "text": clip.text,
            "language": "en",
            "speaker": clip.voice,
            "noise": clip.noise,
            "snr": round(measured_snr(speech, mixture), 2) + 0.0,  # no -0.0
        }
        rows.append(json.dumps(row))
        print(f"{clip.file:14} {row['duration']:6.2f} s  {clip.noise:10} {row['snr']:5.1f} dB", file=sys.stderr)
    (output / "manifest.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="where to write (default: here)")
    make(parser.parse_args().output)


if __name__ == "__main__":
    main()
