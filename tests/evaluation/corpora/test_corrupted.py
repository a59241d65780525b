import argparse
import hashlib
import json
import wave

import numpy as np
import pytest

from sharpen.cli import corpus as command
from sharpen.errors import SharpenError
from sharpen.evaluation.corpora.corpus import read_corpus
from sharpen.evaluation.corpora.corrupted import build
from sharpen.evaluation.runs.plan import Part, Run, plan
from sharpen.evaluation.runs.settings import settings
from sharpen.evaluation.runs.store import locked
from sharpen.speech.audio import read_audio

IDS = [f"7-1-000{i}" for i in range(5)]


def write(path, samples):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def speech(seed, seconds=0.3):
    """Bursts with pauses between them, of another loudness for each seed."""
    t = np.arange(round(seconds * 16000)) / 16000
    return 0.1 * (seed + 1) * np.sin(2 * np.pi * 200 * t) * (np.sin(2 * np.pi * 5 * t) > 0)


@pytest.fixture
def clean(tmp_path):
    rows = []
    for i, name in enumerate(IDS):
        write(tmp_path / "clean" / f"{name}.wav", speech(i))
        rows.append({"id": name, "audio_filepath": f"{name}.wav", "text": f"WORD {i}", "speaker": "7"})
    (tmp_path / "clean" / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_corpus(tmp_path / "clean")


@pytest.fixture
def noises(tmp_path):
    rng = np.random.default_rng(0)
    write(tmp_path / "noises" / "audio" / "Babble_4.wav", 0.1 * rng.standard_normal(2000).clip(-3, 3))
    spiky = np.full(3000, 0.01)
    spiky[::500] = 0.99  # so that 16 bits cannot hold it at a low ratio
    write(tmp_path / "noises" / "audio" / "Munching_3.wav", spiky)
    return tmp_path / "noises"


def lines(out, noise):
    return [json.loads(line) for line in (out / noise / "manifest.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("overflow", ["float", "clip", "wrap"])
@pytest.mark.parametrize("rule", ["true", "ms-snsd-legacy"])
def test_written_files_read_back_as_the_samples_mixed_without_files(clean, noises, tmp_path, overflow, rule):
    build(clean, tmp_path / "out", -12, noises, domains=("BA", "GS", "MU"), overflow=overflow, snr_rule=rule)
    assert {(row["snr"], row["overflow"], row["snr_rule"]) for row in lines(tmp_path / "out", "MU")} == {
        (-12, overflow, rule)
    }
    written = read_corpus(tmp_path / "out")
    assert written.domains == ("BA", "GS", "MU")
    direct = [clean.corrupted(n, -12, noises, overflow=overflow, snr_rule=rule) for n in written.domains]
    peak = 0.0
    for there, here in zip(written.utterances, [u for c in direct for u in c.utterances], strict=True):
        names = ("corpus", "domain", "id", "reference", "language", "speaker", "duration")
        assert [getattr(there, n) for n in names] == [getattr(here, n) for n in names]
        assert there.samples().dtype == np.float32
        assert np.array_equal(there.samples(), here.samples())
        peak = max(peak, float(np.abs(here.samples()).max()))
    assert (peak > 1.0) == (overflow == "float")  # the test reaches the range's end


def test_rows_of_two_ratios_are_two_and_those_of_files_and_of_no_files_are_one(clean, tmp_path):
    def keys(part):
        work = plan([part], settings(["source"]), Run())
        return [key for batch in work.batches for key in batch.keys(work.run)]

    for snr in (5, 10):
        build(clean, tmp_path / f"at-{snr}", snr, domains=("GS",))
    build(clean, tmp_path / "legacy", 10, domains=("GS",), snr_rule="ms-snsd-legacy")
    five, ten, legacy = (keys(Part(read_corpus(tmp_path / name))) for name in ("at-5", "at-10", "legacy"))
    assert len({*five, *ten, *legacy}) == 3 * len(IDS)
    assert ten == keys(Part(clean.corrupted("GS", 10.0), "GS", 10.0))


def test_the_ratio_in_the_written_files_is_true(clean, noises, tmp_path):
    for snr, overflow in ((10.0, "float"), (5.0, "clip")):
        build(clean, tmp_path / overflow, snr, noises, domains=("BA", "GS"), overflow=overflow)
        for u in read_corpus(tmp_path / overflow).utterances:
            source = read_audio(tmp_path / "clean" / f"{u.id}.wav").samples.astype(np.float64)
            scaled = source * 10 ** (-25 / 20) / np.sqrt(np.mean(source**2))
            noise = u.samples() - scaled
            assert 10 * np.log10(np.mean(scaled**2) / np.mean(noise**2)) == pytest.approx(snr, abs=0.01)


def test_the_manifest_says_what_each_file_is(clean, noises, tmp_path):
    (made,) = build(clean, tmp_path / "out", 10, noises, domains=("BA",))
    assert (made.written, made.kept, made.skipped) == (5, 0, ())
    rows = lines(tmp_path / "out", "BA")
    assert [row["id"] for row in rows] == IDS
    for row in rows:
        content = (tmp_path / "out" / "BA" / row["audio_filepath"]).read_bytes()
        assert row["sha256"] == hashlib.sha256(content).hexdigest()
    assert {k: v for k, v in rows[1].items() if k != "sha256"} == {
        "id": "7-1-0001",
        "audio_filepath": "audio/7-1-0001.wav",
        "duration": 0.3,
        "text": "WORD 1",
        "language": "en",
        "speaker": "7",
        "corpus": "clean",
        "noise": "BA",
        "snr": 10,
        "snr_rule": "true",
        "overflow": "float",
        "origin": clean.corrupted("BA", 10, noises).utterances[1].fingerprint,
    }


def test_a_float_file_is_one_that_others_can_read(clean, tmp_path):
    build(clean, tmp_path / "out", 10, domains=("GS",))
    path = tmp_path / "out" / "GS" / "audio" / "7-1-0000.wav"
    exact = read_corpus(tmp_path / "out" / "GS").utterances[0].samples()
    assert np.abs(read_audio(path).samples - exact).max() <= 0.51 / 32768


def test_an_utterance_is_the_same_in_every_order(clean, tmp_path):
    build(clean, tmp_path / "a", 10, domains=("GS",))
    build(clean.first(3), tmp_path / "b", 10, domains=("GS",))
    sums = {row["id"]: row["sha256"] for row in lines(tmp_path / "a", "GS")}
    some = {row["id"]: row["sha256"] for row in lines(tmp_path / "b", "GS")}
    assert len(some) == 3
    assert some.items() <= sums.items()
    assert len(set(sums.values())) == 5


def test_an_interrupted_build_goes_on_where_it_stopped(clean, noises, tmp_path):
    def stop_after(count):
        calls = []

        def stop(noise):
            calls.append(noise)
            if len(calls) == count:
                raise KeyboardInterrupt

        return stop

    settings = {"corpus": clean, "snr": 10, "noise_folder": noises, "domains": ("BA", "GS")}
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        build(out=out, progress=stop_after(8), **settings)
    assert (out / "BA" / "manifest.jsonl").is_file()
    assert not (out / "GS" / "manifest.jsonl").exists()  # half a domain is not offered as a corpus
    part = out / "GS" / "manifest.jsonl.part"
    part.write_text(part.read_text() + '{"id": "7-1-00')  # as a kill in the middle of a line leaves it
    with pytest.raises(KeyboardInterrupt):
        build(out=out, progress=stop_after(9), **settings)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*.wav")}
    assert len(before) == 9
    ba, gs = build(out=out, **settings)
    assert (ba.written, ba.kept, gs.written, gs.kept) == (0, 5, 1, 4)
    assert all(p.stat().st_mtime_ns == at for p, at in before.items())
    build(out=tmp_path / "whole", **settings)
    made = sorted(p.relative_to(out) for p in out.rglob("*") if p.is_file())
    assert made == sorted(p.relative_to(tmp_path / "whole") for p in (tmp_path / "whole").rglob("*") if p.is_file())
    assert all((out / p).read_bytes() == (tmp_path / "whole" / p).read_bytes() for p in made)


def test_damage_is_repaired_and_a_larger_limit_adds(clean, tmp_path):
    out = tmp_path / "out"
    (few,) = build(clean.first(2), out, 10, domains=("GS",))
    name = clean.first(1).utterances[0].id
    (out / "GS" / "audio" / f"{name}.wav").write_bytes(b"damaged")
    (more,) = build(clean.first(4), out, 10, domains=("GS",))
    assert (few.written, more.written, more.kept) == (2, 3, 1)
    (fewer,) = build(clean.first(1), out, 10, domains=("GS",))
    assert (fewer.written, fewer.kept) == (0, 1)
    assert len(read_corpus(out).utterances) == 4  # what is there stays listed


def test_one_folder_holds_one_setting(clean, tmp_path):
    build(clean.first(1), tmp_path, 10, domains=("GS",))
    with pytest.raises(SharpenError, match="built with snr 10, not 5: choose another --out"):
        build(clean, tmp_path, 5, domains=("GS",))
    with pytest.raises(SharpenError, match="built with overflow float, not clip"):
        build(clean, tmp_path, 10, domains=("GS",), overflow="clip")


def test_a_missing_clip_is_named_before_anything_is_written(clean, noises, tmp_path):
    with pytest.raises(SharpenError, match=r"TP needs the clip Typing_2, .*Available: BA, GS, MU\..*--skip-bad"):
        build(clean, tmp_path / "out", 10, noises, domains=("GS", "TP"))
    assert not (tmp_path / "out").exists()
    gs, tp = build(clean, tmp_path / "out", 10, noises, domains=("GS", "TP"), skip_bad=True)
    assert (gs.written, tp.written, tp.manifest) == (5, 0, None)
    assert "Typing_2" in tp.skipped[0]
    with pytest.raises(SharpenError, match="no folder of noise clips was given"):
        build(clean, tmp_path / "out", 10, domains=("BA",))
    with pytest.raises(SharpenError, match="unknown noise XX; choose from AA"):
        build(clean, tmp_path / "out", 10, noises, domains=("XX",))


def test_silence_cannot_be_mixed(clean, tmp_path):
    write(tmp_path / "clean" / "7-1-0002.wav", np.zeros(4800))
    with pytest.raises(SharpenError, match=r"7-1-0002: the speech is silent.*--skip-bad"):
        build(clean, tmp_path / "out", 10, domains=("GS",))
    (made,) = build(clean, tmp_path / "out", 10, domains=("GS",), skip_bad=True)
    assert (made.written + made.kept, len(made.skipped)) == (4, 1)
    assert [row["id"] for row in lines(tmp_path / "out", "GS")] == [name for name in IDS if name != "7-1-0002"]


def test_ids_that_are_no_file_names(tmp_path):
    for folder in ("x", "y"):
        write(tmp_path / "clean" / folder / "1.wav", speech(1))
        (tmp_path / "clean" / folder / "1.txt").write_text("one")
    build(read_corpus(tmp_path / "clean"), tmp_path / "out", 10, domains=("GS",))
    assert [u.id for u in read_corpus(tmp_path / "out").utterances] == ["x/1", "y/1"]
    assert len(list((tmp_path / "out" / "GS" / "audio").iterdir())) == 2


def test_a_very_long_id_has_a_file(tmp_path):
    rows = []
    for i in range(2):
        write(tmp_path / "clean" / f"{i}.wav", speech(1))
        rows.append({"id": "щ" * 60 + str(i), "audio_filepath": f"{i}.wav", "text": "x"})
    (tmp_path / "clean" / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build(read_corpus(tmp_path / "clean"), tmp_path / "out", 10, domains=("GS",))
    assert [u.id for u in read_corpus(tmp_path / "out").utterances] == [row["id"] for row in rows]


def test_noise_is_mixed_into_clean_speech_only(clean, tmp_path):
    build(clean, tmp_path / "out", 10, domains=("GS",))
    with pytest.raises(SharpenError, match="already has GS noise at 10 dB"):
        build(read_corpus(tmp_path / "out"), tmp_path / "more", 10, domains=("GS",))


def test_other_speech_or_another_clip_under_the_same_name_is_mixed_anew(clean, noises, tmp_path):
    build(clean, tmp_path / "out", 10, noises, domains=("BA",))
    write(tmp_path / "clean" / f"{IDS[0]}.wav", speech(3))
    (made,) = build(clean, tmp_path / "out", 10, noises, domains=("BA",))
    assert (made.written, made.kept) == (1, 4)
    write(noises / "audio" / "Babble_4.wav", 0.1 * np.random.default_rng(9).standard_normal(2000).clip(-3, 3))
    (made,) = build(clean, tmp_path / "out", 10, noises, domains=("BA",))
    assert (made.written, made.kept) == (5, 0)


def test_what_cannot_be_written_is_told(clean, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SharpenError, match=r"cannot write to .*give another folder to --out"):
        build(clean, tmp_path / "file" / "out", 10, domains=("GS",))
    (tmp_path / "out" / "GS").mkdir(parents=True)
    with locked(tmp_path / "out" / "GS"), pytest.raises(SharpenError, match="in use by another run"):
        build(clean, tmp_path / "out", 10, domains=("GS",))


def test_ten_real_noises_but_one(data, tmp_path):
    corpus = read_corpus(data / "librispeech-test-other").first(1)
    made = build(corpus, tmp_path, 10, data / "ms-snsd", skip_bad=True)
    assert [d.noise for d in made if not d.manifest] == ["TP"]
    written = read_corpus(tmp_path)
    assert len(written.utterances) == 9
    for u in written.utterances:
        direct = corpus.corrupted(u.domain, 10, data / "ms-snsd").utterances[0]
        assert np.array_equal(u.samples(), direct.samples())


def run(*words):
    parser = argparse.ArgumentParser()
    command.arguments(parser)
    args = parser.parse_args([str(word) for word in words])
    return args.run(args)


def test_the_command_builds_and_shows(clean, noises, tmp_path, capsys):
    paths = ("--librispeech", tmp_path / "clean", "--noise-dir", noises, "--out", tmp_path / "out")
    assert run("ls-c", *paths, "--snr", "10", "--noise", "gs,TP", "--limit", "3", "--skip-bad", "-q") == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'out' / 'GS' / 'manifest.jsonl'}  3 written, 0 kept\n"
    assert "1 skipped" in err
    assert "Typing_2" in err
    assert run("show", tmp_path / "out") == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "out: 3 utterances, 0 skipped"
    assert table[3].split() == ["GS", "3", "0.00", "1", "en"]
    assert run("show", tmp_path / "clean", "--json", "--domain", "quiet", "--language", "de") == 0
    shown = json.loads(capsys.readouterr().out)
    counts = {"utterances": 5, "hours": 0.0004, "speakers": 1, "languages": ["de"]}
    assert shown["domains"] == [{"domain": "quiet", **counts}]
    assert shown["total"] == {"domain": "all", **counts}
    assert shown["skipped"] == []


def test_the_command_leaves_long_utterances_out(clean, tmp_path, capsys):
    paths = ("--librispeech", tmp_path / "clean", "--out", tmp_path / "out", "--snr", "10", "--noise", "GS", "-q")
    with pytest.raises(SharpenError, match=r"none of 5 utterances can be used .*over the limit of 0.2 s"):
        run("ls-c", *paths, "--max-seconds", "0.2")
    with pytest.raises(SystemExit) as usage:
        run("ls-c", *paths, "--overflow", "loud")
    assert usage.value.code == 2


def test_the_table_of_a_real_corpus(data, capsys):
    assert run("show", data / "commonvoice-multilingual") == 0
    table = capsys.readouterr().out
    assert "commonvoice-multilingual: 140 utterances, 0 skipped" in table
    assert "all     140         0.18   " in table
    with pytest.raises(SharpenError, match="no text, which is needed"):
        run("show", data / "ms-snsd")
