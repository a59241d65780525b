"""The command as a user runs it: files in, transcripts out, exit codes."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from speechlike import EXAMPLES, manifest

from sharpen.cli import COMMANDS, _parser, interrupt, main, transcribe
from sharpen.cli.machine import device_and_dtype
from sharpen.cli.runs import run_from
from sharpen.errors import SharpenError
from sharpen.speech.audio import read_audio
from sharpen.speech.files import Event
from sharpen.speech.noise import corruption
from sharpen.speech.options import VadParameters

CLIPS = [row["path"] for row in manifest(EXAMPLES)]
SHARPEN = [sys.executable, "-m", "sharpen"]
TINY = ["--model", "tiny.en", "--quiet"]


def sharpen(*arguments, **settings):
    return subprocess.run([*SHARPEN, *map(str, arguments)], capture_output=True, text=True, **settings)


@pytest.fixture
def wav(tmp_path):
    """Writes samples as a wav file."""
    import wave

    def write(name, samples):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
        return path

    return write


def test_a_missing_file_does_not_stop_the_others(tmp_path):
    done = sharpen("transcribe", tmp_path / "missing.wav", CLIPS[0], *TINY, "-o", tmp_path / "out", "-f", "txt")
    assert done.returncode == 1
    assert "missing.wav: no such file" in done.stderr
    assert "1 of 2 failed" in done.stderr
    assert "ferry" in done.stdout
    assert "Traceback" not in done.stderr
    assert [p.name for p in (tmp_path / "out").iterdir()] == [f"{CLIPS[0].stem}.txt"]


def test_formats_and_equal_stems(tmp_path, wav, capsys):
    samples = read_audio(CLIPS[0]).samples
    a, b = wav("a/clip.wav", samples), wav("b/clip.wav", samples)
    out = tmp_path / "out"
    assert main(["transcribe", str(a), str(b), *TINY, "--output_dir", str(out), "--output_format", "all"]) == 0
    assert sorted(p.name for p in out.iterdir()) == sorted(
        f"clip.{folder}.{suffix}" for folder in "ab" for suffix in ("txt", "srt", "vtt", "tsv", "json")
    )
    result = json.loads((out / "clip.a.json").read_text())
    assert result["language"] == "en"
    assert result["text"] in capsys.readouterr().out.replace("\n", " ")
    for segment in result["segments"]:
        assert 0 <= segment["start"] < segment["end"] <= result["duration"]
        assert len(segment["tokens"]) == len(segment["logprobs"]) == len(segment["entropies"])
        assert all(x <= 0 for x in segment["logprobs"])
        assert all(x >= 0 for x in segment["entropies"])


def test_the_best_texts_of_a_window_and_what_is_unreliable(tmp_path, wav, capsys):
    noisy = wav("noisy.wav", corruption("GS", -5.0)(read_audio(CLIPS[0]).samples, "noisy"))
    options = ["--effort", "plain", "--n-best", "2", "--confidence", "-o", str(tmp_path), "-f", "json"]
    assert main(["transcribe", str(noisy), *TINY, *options]) == 0
    done = capsys.readouterr()
    document = json.loads((tmp_path / "noisy.json").read_text())
    (window,) = document["windows"]
    lines = done.out.splitlines()
    assert lines[-2:] == [f"  {a['probability']:4.2f}  {a['text']}" for a in window["alternatives"]]
    assert " ".join(lines[:-2]) == window["alternatives"][0]["text"] == document["text"]
    assert f"{noisy}: unreliable at 0 s (" in done.err
    assert document["segments"][0]["unreliable"] in done.err
    assert all(word["confidence"] < 0.9 for word in document["segments"][0]["words"])
    assert main(["transcribe", str(noisy), *TINY, "--n-best", "6"]) == 2
    assert "n_best is 6, but the search finds 5: set decode='beam' and beam_size=6" in capsys.readouterr().err


def test_standard_input_and_standard_output():
    done = sharpen("transcribe", "-", *TINY, stdin=CLIPS[0].open("rb"))
    assert done.returncode == 0
    assert "ferry" in done.stdout
    assert done.stderr == ""


def test_progress_goes_to_standard_error(capsys):
    assert main(["transcribe", str(CLIPS[0]), "--model", "tiny.en"]) == 0
    captured = capsys.readouterr()
    assert "s of audio" in captured.err
    assert "audio" not in captured.out


def test_silence_gives_an_empty_transcript(wav, capsys):
    quiet = wav("silence.wav", np.zeros(16000 * 40))
    hiss = wav("hiss.wav", 0.003 * np.random.default_rng(0).standard_normal(16000 * 5))
    assert main(["transcribe", str(quiet), *TINY]) == 0
    assert main(["transcribe", str(hiss), "--model", "base", "--quiet", "--language", "en"]) == 0
    assert capsys.readouterr().out == ""


def test_beam_and_batches_of_files(capsys):
    clips = [str(clip) for clip in CLIPS[:3]]
    assert main(["transcribe", *clips, *TINY, "--decode", "beam", "--beam_size", "3", "--batch_size", "2"]) == 0
    together = capsys.readouterr().out
    for clip in clips:
        assert main(["transcribe", clip, *TINY, "--decode", "beam", "--beam-size=3"]) == 0
        assert f"==> {clip} <==\n{capsys.readouterr().out}" in together


def test_transcripts_are_printed_in_the_order_of_the_files(capsys):
    report = transcribe._Report(3, quiet=True, steps=0)
    events = [Event(name, "opened", 1.0) for name in "abc"]
    events += [Event("c", "finished", 1.0), Event("b", "failed", 1.0, reason="it broke"), Event("a", "finished", 1.0)]
    shown = []
    for event in events:
        report._on_event(event)
        shown.append(capsys.readouterr())
    assert [one.out for one in shown] == ["", "", "", "", "", "==> a <==\n==> c <==\n"]
    assert "it broke" in shown[4].err


def test_explaining(tmp_path, capsys):
    flags = ["--method", "em-tok-b", "--steps", "2", "--samples", "4", "--explain", "--output-dir", str(tmp_path)]
    assert main(["transcribe", str(CLIPS[0]), *TINY, *flags, "--output-format", "txt"]) == 0
    captured = capsys.readouterr()
    assert "H_tok" in captured.err
    assert "ferry" in captured.out
    page = (tmp_path / "ferry.html").read_text()
    assert page.count("<svg") >= 3
    assert "em-tok-b" in page


def test_adapting(tmp_path, capsys):
    flags = ["--method", "em-tok-b", "--steps", "2", "--samples=4", "--guard", "off", "--adapt_norms", "decoder"]
    command = ["transcribe", str(CLIPS[0]), "--model", "tiny.en", *flags, "-o", str(tmp_path), "-f", "json"]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert "step 2/2, entropy" in captured.err
    (file,) = tmp_path.glob("*.json")
    adaptation = json.loads(file.read_text())["adaptation"]
    assert adaptation["method"] == "em-tok-b"
    (window,) = adaptation["windows"]
    assert (window["start"], window["steps"], window["refused"]) == (0.0, 2, "")
    assert window["H_tok"][1] < window["H_tok"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "em-tok", "--lr", "-1"], "argument --lr: '-1': expected a finite number, above 0"),
        (["--steps", "-1"], "argument --steps: '-1': expected a whole number, at least 0"),
        (["--language", "klingonese"], "klingonese"),
        (["--model", "tiny.en", "--language", "de"], "English-only model"),
        (["--model", "no/such/model"], "no/such/model"),
        (["--output-format", "docx"], "docx"),
        (["--beam-size", "0"], "argument --beam-size: '0': expected a whole number, at least 1"),
        (["--method", "magic"], "'magic': expected one of source, beam, greedy-em"),
        (["--method", "em-tok", "--stop", "agreed+never"], "each one of certain, agreed, settled"),
        (["--device", "abacus"], "abacus"),
        (["--nonsense"], "unrecognized arguments"),
        (["--effort", "plain", "--explain"], "--explain needs an adapting method, e.g. --method em-tok-b"),
        (
            ["--method", "source", "--steps", "3", "--adapt-norms", "encoder"],
            "--steps, --adapt-norms need an adapting method, e.g. --method em",
        ),
        (["--effort", "high", "--method", "em-tok"], "leave --effort or --method out"),
        (["--effort", "some"], "invalid choice: 'some'"),
        (["--budget", "much"], "argument --budget: 'much': expected a number such as 0.5, or a multiple such as 4x"),
        (["--adapt-norms", "encoder:top"], "each with :LAYER or :half"),
        (["--method", "beam", "--guard", "off"], "--guard needs an adapting method"),
        (["--decode", "greedy", "--beam-size", "5"], "--beam-size needs --decode beam"),
        (
            ["--method", "beam", "--beam-size", "5"],
            "a beam search as wide as --samples; leave --decode and --beam-size out",
        ),
        (["--method", "beam", "--decode", "greedy"], "leave --decode and --beam-size out"),
        (["--temperature", "nan"], "argument --temperature: 'nan': expected"),
        (["--temperature=-inf"], "argument --temperature: '-inf': expected"),
        (["--temperature", "-inf"], "argument --temperature: '-inf': expected"),
        (["--temperature-increment-on-fallback", "-0.2"], "'-0.2': expected a number, at least 0, or none"),
        (["--threads", "1000000"], "argument --threads: '1000000': expected a whole number from 1 to 1024"),
    ],
)
def test_bad_usage_is_answered_with_advice_and_2(arguments, message, capsys):
    command = ["transcribe", str(CLIPS[0]), *TINY, *arguments]
    try:
        code = main(command)
    except SystemExit as stopped:  # argparse's own way out
        code = stopped.code
    assert code == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--snr", "5"], "--snr needs a noise, e.g. --noise GS"),
        (["--noise-dir", "noises"], "--noise-dir needs a noise, e.g. --noise GS"),
        (["--noise-draws", "1"], "--noise-draws needs a noise, e.g. --noise GS"),
        (["--effort", "high", "--gate", "0"], "--gate changes nothing: an effort has its own settings"),
        (["--effort", "plain", "--beam-size", "16"], "--beam-size changes nothing: an effort has its own settings"),
        (["--workers", "3"], "--workers needs --engine ray"),
        (["--address", "auto"], "--address needs --engine ray"),
    ],
)
def test_options_that_would_do_nothing_are_refused(arguments, message, tmp_path, capsys):
    assert main(["evaluate", str(EXAMPLES / "manifest.jsonl"), "--out", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_task_for_language_models_is_no_corpus(tmp_path, capsys):
    assert main(["evaluate", "made:copying", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "made:copying is a task for language models; use `sharpen evaluate-text made:copying`" in error


@pytest.mark.parametrize("lanes", ["1", "2"])
def test_interrupted_keeps_what_is_finished(tmp_path, wav, lanes):
    long = wav("long.wav", np.tile(read_audio(CLIPS[0]).samples, 60))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "long.txt").write_text("an earlier transcript\n")
    order = [CLIPS[0], long] if lanes == "1" else [long, CLIPS[0]]
    arguments = ["transcribe", *order, *TINY, "-o", tmp_path / "out", "-f", "txt", "--lanes", lanes]
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        process = subprocess.Popen(
            [*SHARPEN, *map(str, arguments)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, usual)
    finished = tmp_path / "out" / f"{CLIPS[0].stem}.txt"
    deadline = time.monotonic() + 120
    while not finished.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "ferry" in printed
    assert "Traceback" not in errors
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [finished.name, "long.txt"]
    assert "ferry" in finished.read_text()
    assert (tmp_path / "out" / "long.txt").read_text() == "an earlier transcript\n"


def test_an_interrupt_is_not_lost_in_the_resampler():
    """PyAV's tracebacks drop one now and then (cli/interrupt.py): of 60, none may be missing."""
    samples = np.zeros((1, 16), dtype=np.int16)
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    alarm = signal.signal(signal.SIGALRM, lambda number, frame: signal.getsignal(signal.SIGINT)(signal.SIGINT, frame))
    heard = 0
    try:
        with interrupt.kept():
            for i in range(60):
                resampler = AudioResampler(format="s16", layout="mono", rate=16_000)
                frame = AudioFrame.from_ndarray(samples, format="s16", layout="mono")
                frame.sample_rate = 8_000
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.002 + i * 1e-4)
                    end = time.monotonic() + 30  # of which a moment is needed, and more on a busy machine
                    while time.monotonic() < end:
                        frame.pts = None
                        resampler.resample(frame)
                except KeyboardInterrupt:
                    heard += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGINT, usual)
    assert heard == 60


def test_models_lists_what_is_here(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "source", "format", "parameters", "languages", "verified"]
    by_name = {line.split()[0]: line for line in lines[1:]}
    assert "72.6 M" in by_name["base"]
    assert "ctranslate2" in by_name["tiny.en"]


def test_theory(tmp_path, capsys):
    assert main(["theory", "--json", "--plot", str(tmp_path / "theory.png")]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"objective", "baseline", "normalise", "samples", "bias", "variance"} <= set(rows[0])
    exact = {row["objective"] for row in rows if row["bias"] < 1e-10}
    assert exact == {"em-seq", "em-tok", "em-tok-togo", "ctc-collapse"}
    assert (tmp_path / "theory.png").read_bytes().startswith(b"\x89PNG")
    assert main(["theory"]) == 0
    table = capsys.readouterr().out
    assert "em-tok-b" in table
    assert "seed 6" in table
    assert main(["theory", "--link-table"]) == 0
    assert "EM-RL-sequence" in capsys.readouterr().out


def test_version_and_help():
    assert sharpen("--version").stdout.startswith("sharpen 0.")
    for command in ([], *([name] for name in COMMANDS), ["models", "fetch"], ["corpus", "show"], ["corpus", "ls-c"]):
        done = sharpen(*command, "--help")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"usage: {' '.join(['sharpen', *command])} ")
    assert sharpen().returncode == 2
    assert sharpen("transcripe", "f.wav").returncode == 2


def test_help_of_all_commands_takes_a_moment():
    """Only the parser of the command that was asked for is built."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(5):
        assert sharpen("--help").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 5 * 0.3  # of computing: a busy machine does not count
    check = "import sys; from sharpen.cli import _parser; _parser(None); assert 'numpy' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_needs_no_torch(command):
    check = f"import sys; from sharpen.cli import _parser; _parser({command!r}); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def parse(command, *arguments):
    return _parser(command).parse_args([command, *map(str, arguments)])


def test_negative_numbers_are_values():
    args = parse("evaluate", "corpus", "--out", "x", "--noise", "GS", "--snr", "-5,0", "--logprob-threshold", "-1,-.5")
    assert (args.snr, args.logprob_threshold) == ((-5.0, 0.0), [-1.0, -0.5])
    args = parse("corpus", "ls-c", "--librispeech", "x", "--snr", "-5", "--out", "y", "--noise-dir", "z")
    assert (args.snr, args.noise_dir, args.noise) == (-5.0, "z", None)
    args = parse("transcribe", "--logprob_threshold", "-2", "--", "-5.wav", "--snr")
    assert (args.logprob_threshold, args.files) == (-2.0, ["-5.wav", "--snr"])


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--condition-on-previous-text", "f.wav"], True),
        (["--condition_on_previous_text", "True", "f.wav"], True),
        (["f.wav", "--condition-on-previous-text"], True),
        (["--condition-on-previous-text", "off", "f.wav"], False),
        (["--condition-on-previous-text=no", "f.wav"], False),
        (["--condition-on-previous-text", "--quiet", "f.wav"], True),
        (["--no-condition-on-previous-text", "f.wav"], False),
    ],
)
def test_a_switch_takes_no_file(arguments, value):
    args = parse("transcribe", *arguments)
    assert (args.condition_on_previous_text, args.files) == (value, ["f.wav"])


def test_values_that_grids_and_thresholds_take():
    args = parse(
        "evaluate", "c", "--out", "x", "--guard", "on", "--guard", "off", "--methods", "source,", "--samples", "4,"
    )
    assert (args.guard, args.method, args.samples) == ((True, False), ["source"], [4])
    for word in ("off", "none"):
        assert parse("transcribe", "f.wav", "--no-speech-threshold", word).no_speech_threshold is None
    with pytest.raises(SystemExit):
        parse("bench", "--threads", 10**11)


def test_flags_of_whisper_and_of_before():
    def options(*arguments):
        return transcribe.make_options(parse("transcribe", "f.wav", *arguments))

    assert options("--no_timestamps").timestamps is False
    assert options().temperature == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert options("--temperature", 0.5).temperature == (0.5, 0.7, 0.9)
    assert options("--temperature_increment_on_fallback", "None").temperature == (0.0,)
    assert options("--temperature", "0+0.5").temperature == (0.0, 0.5)
    assert options("--no_speech_threshold", "None", "--preset", "fast").no_speech_threshold is None
    assert (options("--preset", "fast").padding, options("--preset", "fast", "--padding", "full").padding) == (
        "condensed",
        "full",
    )
    stops = ["--stop", "certain", "--stop", "agreed"], ["--stop", "certain+agreed"]
    for stop in stops:
        assert options("--method", "em-tok", *stop).adapt.stop == ("certain", "agreed")
    seeded = options("--method", "em-tok", "--seed", 3)
    assert (seeded.seed, seeded.adapt.seed) == (3, 3)
    evaluated = parse(
        "evaluate", "c", "--out", "x", "--methods", "source,em-tok", "--steps-at", "1,3", "--seeds", "0,1"
    )
    assert (evaluated.method, evaluated.steps, evaluated.seed) == (["source", "em-tok"], [1, 3], [0, 1])


def test_flags_of_voice_activity():
    def options(*arguments):
        return transcribe.make_options(parse("transcribe", "f.wav", *arguments))

    assert options().needs_voice is False
    assert (options("--vad").vad_filter, options("--vad_filter", "True").vad_filter) == (True, True)
    set_up = options("--vad", "--vad-threshold", 0.3, "--vad_max_speech_duration_s", 20, "--vad-speech-pad-ms", 100)
    assert set_up.vad_parameters == VadParameters(threshold=0.3, max_speech_duration_s=20, speech_pad_ms=100)
    assert options("--chunk", "vad", "--vad-threshold", 0.3).vad_parameters.threshold == 0.3
    with pytest.raises(SharpenError, match="--vad-threshold, --vad-speech-pad-ms need --vad or --chunk vad"):
        options("--vad-threshold", 0.3, "--vad-speech-pad-ms", 100)


def test_the_extra_is_named_before_anything_is_decoded():
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'silero_vad' else find(name, *rest)\n"
        "from sharpen.cli import main\n"
        f"sys.exit(main(['transcribe', {str(CLIPS[0])!r}, '--model', 'tiny.en', '--vad']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'sharpen[vad]'" in done.stderr


def test_the_device_has_one_default_and_rows_record_what_it_stands_for(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    first = {
        "transcribe": ["f.wav"],
        "evaluate": ["c", "--out", "x"],
        "tune": ["c", "--out", "x"],
        "reproduce": ["fig-time"],
    }
    for command, arguments in first.items():
        args = parse(command, *arguments)
        assert args.device == "auto"
        assert device_and_dtype(args) == ("cpu", "float32")
    assert run_from(parse("evaluate", "c", "--out", "x"), "base").device == "cpu"


def test_a_closed_pipe_is_not_a_crash():
    command = " ".join([*SHARPEN, "transcribe", str(CLIPS[0]), *TINY, "| true"])
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=os.environ)
    assert "Traceback" not in done.stderr
