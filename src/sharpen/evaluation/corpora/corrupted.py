"""Corrupted LibriSpeech on disk: a folder for each noise, with audio/ and manifest.jsonl.

WAV holds 32-bit floats without loss, and its bytes depend on the samples only, so checksums are the same with every
library version. The files read back as exactly the samples that `Corpus.corrupted` mixes without files.
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
class BuiltDomain:
    """The result of building one noise."""

    noise: str
    manifest: Path | None  # None if its noise clip is missing
    written: int = 0
    kept: int = 0  # intact from an earlier run
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
) -> tuple[BuiltDomain, ...]:
    """Writes `corpus` in each noise under `out`; finished files of an earlier run are verified and kept.

    Only one process at a time may write there. A missing clip or an utterance that cannot be mixed is an error, or with
    `skip_bad` a reason in the result. `progress` is called with the noise after each utterance.
    """
    twice = [name for name, count in Counter(u.id for u in corpus.utterances).items() if count > 1]
    if twice:
        raise SharpenError(f"{corpus.name}: duplicate id {twice[0]}; ids must be unique")
    clips = find_clips(noise_folder) if noise_folder is not None else {}
    available = [noise for noise, clip in DOMAINS.items() if clip is None or noise in clips]
    missing = _missing(domains, available, noise_folder)
    if missing and not skip_bad:
        reasons = "; ".join(f"{noise} {reason}" for noise, reason in missing.items())
        raise SharpenError(
            f"{reasons}. Available: {', '.join(available)}. Add the missing files, "
            "choose others with --noise, or skip them with --skip-bad"
        )
    made = []
    for noise in domains:
        if noise in missing:
            made.append(BuiltDomain(noise, None, skipped=(missing[noise],)))
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
                f"cannot write to {folder}: {error}; give another folder to --out, or free some space. "
                "Finished files are kept"
            ) from error
    return tuple(made)


def _missing(domains: Sequence[str], available: Sequence[str], folder: str | Path | None) -> dict[str, str]:
    """For each code whose clip is missing, the reason."""
    unknown = [noise for noise in domains if noise not in DOMAINS]
    if unknown or not domains:
        raise SharpenError(
            f"unknown noise {', '.join(unknown) or '(none)'}; choose from {', '.join(DOMAINS)}; "
            "the folder of clips is --noise-dir"
        )
    why = f"which is not in {folder}" if folder is not None else "but no folder of noise clips was given"
    return {noise: f"needs the clip {DOMAINS[noise]}, {why}" for noise in domains if noise not in available}


def _build_domain(
    utterances: Iterable[Utterance],
    corruption: Corruption,
    folder: Path,
    skip_bad: bool,
    progress: Callable[[str], object],
) -> BuiltDomain:
    manifest, part = folder / "manifest.jsonl", folder / "manifest.jsonl.part"
    earlier = {**_finished(manifest), **_finished(part)}
    _check_settings(manifest, corruption, earlier.values())
    lines: dict[str, dict[str, Any]] = {}
    skipped: list[str] = []
    written = 0
    # Lines are collected in another file: manifest.jsonl exists only when its domain is complete.
    with part.open("a", encoding="utf-8") as file:
        file.write("\n")  # ends a line that a killed run left incomplete
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
                    raise SharpenError(f"{u.id}: {error}. Or skip it with --skip-bad") from error
                skipped.append(f"{u.id}: {error}")
            progress(corruption.noise)
    others = {name: line for name, line in earlier.items() if name not in lines}
    _replace(manifest, "".join(_as_json(line) for line in (lines | others).values()).encode())
    part.unlink()
    return BuiltDomain(corruption.noise, manifest, written, len(lines) - written, tuple(skipped))


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
    """A file name for an id, which may hold slashes or be too long."""
    quoted = quote(name, safe="")
    return quoted if len(quoted) <= LONGEST_NAME else f"{quoted[: LONGEST_NAME - 17]}~{_digest(name.encode())[:16]}"


def _finished(manifest: Path) -> dict[str, dict[str, Any]]:
    """The lines that an earlier run wrote, by id; incomplete lines are ignored."""
    lines = {}
    for text in manifest.read_text(encoding="utf-8").split("\n") if manifest.is_file() else ():
        try:
            line = json.loads(text)
            lines[line["id"]] = line
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    return lines


def _check_settings(manifest: Path, corruption: Corruption, lines: Iterable[dict[str, Any]]) -> None:
    """Raises if the folder was built with other settings: a folder holds one setting."""
    for line in lines:
        for name in ("noise", "snr", "snr_rule", "overflow"):
            if line.get(name) != getattr(corruption, name):
                raise SharpenError(
                    f"{manifest} was built with {name} {line.get(name)}, not {getattr(corruption, name)}: "
                    "choose another --out, or remove that folder"
                )


def _kept(wanted: dict[str, Any], there: dict[str, Any] | None, folder: Path) -> dict[str, Any] | None:
    """The line of an earlier run, if it has the same fields and its file is intact; else None."""
    if there is None or {**there, **wanted} != there:
        return None
    path = folder / wanted["audio_filepath"]
    return there if path.is_file() and _digest(path.read_bytes()) == there.get("sha256") else None


def _written(line: dict[str, Any], samples: np.ndarray, folder: Path) -> dict[str, Any]:
    if line["overflow"] == "float":
        content = _wave(3, samples.astype("<f4"))
    else:
        content = _wave(1, (samples * 32768).astype("<i2"))  # exact: the samples are multiples of 1/32768
    _replace(folder / line["audio_filepath"], content)
    return line | {"sha256": _digest(content)}


def _wave(tag: int, samples: np.ndarray) -> bytes:
    """A mono WAV file; `tag` 1 means integer samples, 3 means floats, which need a fact chunk."""
    data, width = samples.tobytes(), samples.itemsize
    form = struct.pack("<HHIIHH", tag, 1, SAMPLING_RATE, SAMPLING_RATE * width, width, 8 * width)
    form += b"\0\0" if tag == 3 else b""  # size of the extension: none
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
