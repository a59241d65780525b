"""Corrupted LibriSpeech on disk: a folder for each noise, with audio/ and manifest.jsonl.

The files are WAV because it holds 32-bit floats, because nothing is lost in it, and because its bytes follow from the
samples alone: a checksum means the same whatever library is installed. They read back as exactly the samples that
`Corpus.corrupted` mixes without files.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from sharpen.errors import SharpenError
from sharpen.evaluation.corpora.corpus import Corpus, Utterance
from sharpen.evaluation.runs.store import locked
from sharpen.speech.audio import SAMPLING_RATE
from sharpen.speech.noise import DOMAINS, Corruption, find_clips

LONGEST_NAME = 200  # of a file, in bytes; most systems allow 255


@dataclass(frozen=True)
class Domain:
    """What became of one noise."""

    noise: str
    manifest: Path | None  # None where there is no clip to mix from
    written: int = 0
    kept: int = 0  # found whole from an earlier run
    skipped: tuple[str, ...] = ()  # a reason for each utterance, or for the whole domain


def build(
    corpus: Corpus,
    out: str | Path,
    snr: float,
    noise_folder: str | Path | None = None,
    *,
    domains: Sequence[str] = tuple(DOMAINS),
    snr_rule: str = "true",
    overflow: str = "float",
    skip_bad: bool = False,
    progress: Callable[[str], object] = lambda noise: None,
) -> tuple[Domain, ...]:
    """Write `corpus` in each noise under `out`; what an earlier run has finished is checked and kept.

    One process at a time may write there. A missing clip or an utterance that cannot be mixed is an error, or with
    `skip_bad` a reason in the result. `progress` is called after each utterance.
    """
    twice = [name for name, count in Counter(u.id for u in corpus.utterances).items() if count > 1]
    if twice:
        raise SharpenError(f"{corpus.name} has several utterances called {twice[0]}; give every one its own id")
    clips = find_clips(noise_folder) if noise_folder is not None else {}
    available = [noise for noise, clip in DOMAINS.items() if clip is None or noise in clips]
    missing = _missing(domains, available, noise_folder)
    if missing and not skip_bad:
        what = "; ".join(f"{noise} {lack}" for noise, lack in missing.items())
        raise SharpenError(
            f"{what}. Available: {', '.join(available)}. Put the missing files there, "
            "choose with --domains, or go on without them: --skip-bad"
        )
    made = []
    for noise in domains:
        if noise in missing:
            made.append(Domain(noise, None, skipped=(missing[noise],)))
            continue
        added = Corruption(noise, snr, clips.get(noise), snr_rule, overflow)
        noisy = [u.within(added) for u in corpus.utterances]
        folder = Path(out) / noise
        try:
            (folder / "audio").mkdir(parents=True, exist_ok=True)
            with locked(folder):
                made.append(_build_domain(noisy, added, folder, skip_bad, progress))
        except OSError as error:
            raise SharpenError(
                f"cannot write to {folder}: {error}; give another folder to --out, or make room. What is finished stays"
            ) from error
    return tuple(made)


def _missing(domains: Sequence[str], available: Sequence[str], folder: str | Path | None) -> dict[str, str]:
    """For each code that cannot be mixed, what it lacks."""
    unknown = [noise for noise in domains if noise not in DOMAINS]
    if unknown or not domains:
        raise SharpenError(f"unknown domains {', '.join(unknown) or '(none)'}; choose from {', '.join(DOMAINS)}")
    where = f"{folder} has none" if folder is not None else "no folder of noises was given"
    lacking = [noise for noise in domains if noise not in available]
    return {noise: f"needs the clip {DOMAINS[noise]}, and {where}" for noise in lacking}


def _build_domain(
    utterances: Iterable[Utterance],
    corruption: Corruption,
    folder: Path,
    skip_bad: bool,
    progress: Callable[[str], object],
) -> Domain:
    manifest, part = folder / "manifest.jsonl", folder / "manifest.jsonl.part"
    earlier = {**_finished(manifest), **_finished(part)}
    _compare(manifest, corruption, earlier.values())
    lines: dict[str, dict[str, Any]] = {}
    skipped: list[str] = []
    written = 0
    # Lines gather in a file of another name: a manifest that is there is complete, and nobody scores half a domain.
    with part.open("a", encoding="utf-8") as file:
        file.write("\n")  # ends the line that a killed run may have left half written
        for u in utterances:
            try:
                wanted = _line(u, corruption)
                line = _kept(wanted, earlier.get(u.id), folder)
                if line is None:
                    line = _written(wanted, u.samples(), folder)
                    written += 1
                    file.write(_as_json(line))
                    file.flush()
                lines[u.id] = line
            except SharpenError as error:
                if not skip_bad:
                    raise SharpenError(f"{u.id}: {error}. Or go on without it: --skip-bad") from error
                skipped.append(f"{u.id}: {error}")
            progress(corruption.noise)
    others = {name: line for name, line in earlier.items() if name not in lines}
    _replace(manifest, "".join(_as_json(line) for line in (lines | others).values()).encode())
    part.unlink()
    return Domain(corruption.noise, manifest, written, len(lines) - written, tuple(skipped))


def _line(u: Utterance, corruption: Corruption) -> dict[str, Any]:
    domain = {"domain": u.domain} if u.domain != corruption.noise else {}
    return {
        "id": u.id,
        "audio_filepath": f"audio/{_file_name(u.id)}.wav",
        "duration": u.duration,
        "text": u.reference,
        "language": u.language,
        "speaker": u.speaker,
        "corpus": u.corpus,
        "noise": corruption.noise,
        "snr": corruption.snr,
        "snr_rule": corruption.snr_rule,
        "overflow": corruption.overflow,
        "origin": u.fingerprint,
        **domain,
    }


def _file_name(name: str) -> str:
    """An id may hold a slash, or be too long for a file's name."""
    quoted = quote(name, safe="")
    return quoted if len(quoted) <= LONGEST_NAME else f"{quoted[: LONGEST_NAME - 17]}~{_digest(name.encode())[:16]}"


def _finished(manifest: Path) -> dict[str, dict[str, Any]]:
    """The lines that an earlier run wrote, by id; a torn one counts as unwritten."""
    lines = {}
    for text in manifest.read_text(encoding="utf-8").split("\n") if manifest.is_file() else ():
        try:
            line = json.loads(text)
            lines[line["id"]] = line
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    return lines


def _compare(manifest: Path, corruption: Corruption, lines: Iterable[dict[str, Any]]) -> None:
    """One folder holds one setting: a mixture of two would be read as a corpus of neither."""
    for line in lines:
        for name in ("noise", "snr", "snr_rule", "overflow"):
            if line.get(name) != getattr(corruption, name):
                raise SharpenError(
                    f"{manifest} was built with {name} {line.get(name)}, and {getattr(corruption, name)} is asked for: "
                    "choose another --out, or remove that folder"
                )


def _kept(wanted: dict[str, Any], there: dict[str, Any] | None, folder: Path) -> dict[str, Any] | None:
    """The line of an earlier run, if it says the same and its file is whole."""
    if there is None or {**there, **wanted} != there:
        return None
    path = folder / wanted["audio_filepath"]
    return there if path.is_file() and _digest(path.read_bytes()) == there.get("sha256") else None


def _written(line: dict[str, Any], samples: np.ndarray, folder: Path) -> dict[str, Any]:
    if line["overflow"] == "float":
        content = _wave(3, samples.astype("<f4"))
    else:
        content = _wave(1, (samples * 32768).astype("<i2"))  # exact: they are multiples of 1/32768 already
    _replace(folder / line["audio_filepath"], content)
    return line | {"sha256": _digest(content)}


def _wave(tag: int, samples: np.ndarray) -> bytes:
    """A mono WAV file; `tag` 1 is integer samples, 3 is floats, for which the standard wants a fact chunk."""
    data, width = samples.tobytes(), samples.itemsize
    form = struct.pack("<HHIIHH", tag, 1, SAMPLING_RATE, SAMPLING_RATE * width, width, 8 * width)
    form += b"\0\0" if tag == 3 else b""  # no extension follows
    fact = struct.pack("<4sII", b"fact", 4, len(samples)) if tag == 3 else b""
    body = (
        b"WAVE" + struct.pack("<4sI", b"fmt ", len(form)) + form + fact + struct.pack("<4sI", b"data", len(data)) + data
    )
    return struct.pack("<4sI", b"RIFF", len(body)) + body


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(path.name + ".new")
    aside.write_bytes(content)
    os.replace(aside, path)


def _as_json(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"
