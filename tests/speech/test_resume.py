"""An interrupted transcription of a long recording is continued, to the same files."""

import json
import shutil
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from speech.test_stream import write
from speechlike import EXAMPLES

from sharpen.cli import main
from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.models.whisper_speech import WhisperSpeech
from sharpen.speech import audio, transcribe
from sharpen.speech.audio import read_audio
from sharpen.speech.decoding import decode
from sharpen.speech.efforts import effort_options
from sharpen.speech.files import transcribe_files
from sharpen.speech.longform import Segment
from sharpen.speech.output import TranscriptFiles
from sharpen.speech.resume import restored
from sharpen.speech.transcribe import Model
from sharpen.speech.words import Word

FORMATS = ["txt", "srt", "json"]
ONE_STEP = Adaptation(samples=2, steps=1, lr=1e-2)
WAYS = {
    "plain": effort_options("plain", decode="greedy", word_timestamps=True, confidence=True, batch_size=1),
    "conditioned": effort_options("plain", decode="greedy", condition_on_previous_text=True, initial_prompt="Ferries."),
    "adapted": effort_options("plain", adapt=ONE_STEP, beam_size=2, n_best=2),
    "voice": effort_options("plain", decode="greedy", vad_filter=True, vad_parameters={"min_silence_duration_ms": 300}),
    "chunks": effort_options("plain", decode="greedy", chunk="vad"),
}


@pytest.fixture(scope="module")
def tiny(tiny_en):
    return Model(WhisperSpeech(tiny_en))


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Forty seconds of examples."""
    names = ("ferry.flac", "letter.flac", "bakery.flac", "harbour.ogg", "museum.ogg")
    clips = [read_audio(EXAMPLES / name).samples for name in names * 3]
    pause = np.zeros(12000, np.float32)
    samples = np.concatenate([part for clip in clips for part in (clip, pause)])[: 40 * 16000]
    return write(tmp_path_factory.mktemp("audio") / "talk.wav", samples)


class Interrupted(BaseException):
    """Not an Exception, as Ctrl-C is not."""


def run(model, recording, options, folder, *, windows=None, resume=True, monkeypatch=None):
    """The events of a run that is interrupted in the decoding after so many windows, and how many it decoded."""
    decoded = []

    def counted(speech, some, *others):
        if windows is not None and len(decoded) >= windows:
            raise Interrupted
        decoded.extend(some)
        return decode(speech, some, *others)

    events = []
    with monkeypatch.context() as patch:
        patch.setattr(transcribe, "decode", counted)
        made = transcribe_files(model, [str(recording)], options, str(folder), FORMATS, resume=resume)
        if windows is None:
            events = list(made)
        else:
            with pytest.raises(Interrupted):
                events.extend(made)
    return events, decoded


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_transcript_is_the_uninterrupted_one(tiny, recording, tmp_path, monkeypatch, way):
    monkeypatch.setattr(audio, "LONG", 10.0)  # streamed
    whole, parts, options = tmp_path / "whole", tmp_path / "parts", WAYS[way]
    _, every = run(tiny, recording, options, whole, resume=False, monkeypatch=monkeypatch)
    assert len(every) >= 2
    run(tiny, recording, options, parts, windows=1, monkeypatch=monkeypatch)
    assert list(contents(parts)) == ["talk.resume.jsonl"]
    events, rest = run(tiny, recording, options, parts, monkeypatch=monkeypatch)
    assert [window.id for window in rest] == [window.id for window in every[1:]]
    assert contents(parts) == contents(whole)
    assert sorted(contents(whole)) == ["talk.json", "talk.srt", "talk.txt"]
    heard = [segment for event in events if event.kind == "window" for segment in event.segments]
    assert heard == list(events[-1].segments)
    assert sum(event.seconds for event in events if event.kind == "window") == pytest.approx(events[-1].seconds)


@pytest.fixture
def begun(tiny, recording, tmp_path, monkeypatch):
    run(tiny, recording, WAYS["plain"], tmp_path, windows=1, monkeypatch=monkeypatch)
    return tmp_path


def failure(model, recording, options, folder):
    (event,) = transcribe_files(model, [str(recording)], options, str(folder), FORMATS, resume=True)
    assert event.kind == "failed"
    return event.reason


def test_another_recording_model_or_option_is_refused(tiny, base, recording, begun):
    before = contents(begun)
    changed = replace(WAYS["plain"], best_of=3, vad_filter=True)
    reason = failure(tiny, recording, changed, begun)
    assert "talk.resume.jsonl was begun with other options (" in reason
    assert "best_of was 5, is 3" in reason
    assert "vad_filter was off, is on" in reason
    assert "delete it to begin anew" in reason
    assert "belongs to another model" in failure(Model(WhisperSpeech(base)), recording, WAYS["plain"], begun)
    other = begun.parent / "other" / "talk.wav"
    other.parent.mkdir(exist_ok=True)
    samples = read_audio(recording).samples.copy()
    samples[-100:] = 0.1
    write(other, samples)
    assert "belongs to another audio" in failure(tiny, other, WAYS["plain"], begun)
    assert contents(begun) == before


def test_what_a_killed_run_left_is_gone_with_the_next(tiny, recording, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(TranscriptFiles, "discard", lambda self: None)  # a killed process cleans nothing up
        run(tiny, recording, WAYS["plain"], tmp_path, windows=1, monkeypatch=monkeypatch)
    assert len(contents(tmp_path)) == 4  # a part of each file, and what is finished
    run(tiny, recording, WAYS["plain"], tmp_path, monkeypatch=monkeypatch)
    assert sorted(contents(tmp_path)) == ["talk.json", "talk.srt", "talk.txt"]


def test_a_line_cut_off_by_a_kill_is_dropped(tiny, recording, begun, tmp_path_factory, monkeypatch):
    side = begun / "talk.resume.jsonl"
    whole_lines = side.read_bytes()
    side.write_bytes(whole_lines + b'{"position": 12')
    run(tiny, recording, WAYS["plain"], begun, windows=0, monkeypatch=monkeypatch)
    assert side.read_bytes() == whole_lines
    run(tiny, recording, WAYS["plain"], begun, monkeypatch=monkeypatch)
    whole = tmp_path_factory.mktemp("whole")
    run(tiny, recording, WAYS["plain"], whole, resume=False, monkeypatch=monkeypatch)
    assert contents(begun) == contents(whole)


@pytest.mark.parametrize("content", [b"nonsense\n", b"[1, 2]\n", b'{"sharpen resume": 0}\n'])
def test_a_damaged_file_is_refused(tiny, recording, tmp_path, content):
    (tmp_path / "talk.resume.jsonl").write_bytes(content)
    assert "delete it to begin anew" in failure(tiny, recording, WAYS["plain"], tmp_path)


def test_a_damaged_row_is_refused(tiny, recording, begun):
    side = begun / "talk.resume.jsonl"
    header, row = side.read_text().splitlines()
    side.write_text(header + "\n" + json.dumps(json.loads(row) | {"segments": [{"id": 1}]}) + "\n")
    assert "is damaged" in failure(tiny, recording, WAYS["plain"], begun)


def test_two_processes_do_not_share_one(tiny, recording, begun):
    events = transcribe_files(tiny, [str(recording)], WAYS["plain"], str(begun), FORMATS, resume=True)
    list(islice(events, 2))
    assert "is in use" in failure(tiny, recording, WAYS["plain"], begun)
    events.close()


def test_segments_survive_json():
    nan = float("nan")
    segment = Segment(
        1, 2, 0.1, 1 / 3, " é", (1, 2), 0.0, -0.5, 1.0, 0.0, (-0.1, nan), (0.2, 0.3), (Word(" é", 0, 1, 1 / 3),)
    )
    from dataclasses import asdict

    again = restored(Segment, json.loads(json.dumps(asdict(segment))))
    assert repr(again) == repr(segment)


def test_the_command_continues_after_an_interrupt(tiny_en, recording, tmp_path, monkeypatch, capsys):
    command = ["transcribe", str(recording), "--model", "tiny.en", "-q", "--effort", "plain", "--decode", "greedy"]
    command += ["-f", "txt", "--resume", "-o"]
    calls = []

    def interrupted(*given):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return decode(*given)

    with monkeypatch.context() as patch:
        patch.setattr(transcribe, "decode", interrupted)
        assert main([*command, str(tmp_path)]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["talk.resume.jsonl"]
    capsys.readouterr()
    assert main([*command, str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == (tmp_path / "talk.txt").read_text().splitlines()
    assert [path.name for path in tmp_path.iterdir()] == ["talk.txt"]


def test_what_cannot_be_resumed_is_refused(tiny, recording, tmp_path, capsys):
    with pytest.raises(SharpenError, match="--resume is for transcripts in files"):
        next(transcribe_files(tiny, [str(recording)], WAYS["plain"], resume=True))
    assert main(["transcribe", str(recording), "--model", "tiny.en", "--resume"]) == 2
    assert main(["transcribe", str(recording), "--resume", "-o", str(tmp_path), "--explain"]) == 2
    assert "does not keep the hypotheses that --explain shows" in capsys.readouterr().err
    shutil.rmtree(tmp_path)
