import json
import pickle
import re

import numpy as np
import pytest
from evaluation.corpora.trees import manifest, sound, text, told

from sharpen.errors import SharpenError
from sharpen.evaluation.corpora.corpus import read_corpus
from sharpen.speech.audio import read_audio
from sharpen.speech.noise import gaussian, mix


def test_a_manifest_with_nemos_fields(tmp_path):
    sound(tmp_path / "my-corpus" / "wavs" / "a.wav", 0.5)
    absolute = sound(tmp_path / "other" / "b.flac", 0.25)
    rows = [
        {"audio_filepath": "wavs/a.wav", "duration": 0.5, "text": "one"},
        {"audio_filepath": str(absolute), "text": ""},
    ]
    corpus = read_corpus(manifest(tmp_path / "my-corpus", *rows))
    assert corpus.name == "my-corpus"
    assert told(corpus) == [("wavs/a", "clean", "one", "en", ""), ("other/b", "clean", "", "en", "")]
    assert [u.duration for u in corpus.utterances] == [0.5, 0.25]  # the second from the file's own header
    assert np.array_equal(corpus.utterances[1].samples(), read_audio(absolute).samples)
    assert read_corpus(tmp_path / "my-corpus") == corpus


def test_a_manifest_with_the_leaderboards_fields(tmp_path):
    sound(tmp_path / "a.flac")
    rows = [
        {"id": "1", "audio": "a.flac", "text": "x", "domain": "d", "accent": "a", "noise": "GS", "language": "de"},
        {"id": "2", "audio": "a.flac", "text": "x", "accent": "a", "noise": "GS", "lang": "German"},
        {"id": "3", "audio": "a.flac", "text": "x", "noise": "GS", "snr": 10, "speaker": 12, "language": "de-AT"},
        {"id": "4", "audio": "a.flac", "text": "x", "language": "de"},
        {"id": "5", "audio": "a.flac", "text": "x", "language": "en", "corpus": "other"},
    ]
    corpus = read_corpus(manifest(tmp_path, *rows))
    assert [u.domain for u in corpus.utterances] == ["d", "a", "GS", "de", "clean"]
    assert [u.language for u in corpus.utterances] == ["de", "de", "de", "de", "en"]
    assert [u.speaker for u in corpus.utterances] == ["", "", "12", "", ""]
    assert [u.corpus for u in corpus.utterances] == [*[tmp_path.name] * 4, "other"]
    assert corpus.domains == ("d", "a", "GS", "de", "clean")
    asked = read_corpus(tmp_path, language="pl", domain="mine")
    assert {(u.language, u.domain) for u in asked.utterances} == {("pl", "mine")}


def test_zero_is_a_name_and_noise_has_its_ratio(tmp_path):
    sound(tmp_path / "a.flac", 0.5)
    row = {"id": 0, "audio_filepath": "a.flac", "text": "x", "speaker": 0, "noise": "GS"}
    (u,) = read_corpus(manifest(tmp_path, row)).utterances
    assert (u.id, u.speaker, u.domain, u.mixed) == ("0", "0", "GS", {})
    (u,) = read_corpus(manifest(tmp_path, row | {"snr": 5, "snr_rule": "true"})).utterances
    assert u.mixed == {"noise": "GS", "snr": 5.0}
    corpus = read_corpus(manifest(tmp_path, row | {"snr": 5, "overflow": "clip"}))
    assert corpus.utterances[0].mixed == {"noise": "GS", "snr": 5.0, "overflow": "clip"}
    with pytest.raises(SharpenError, match="0 already has GS noise at 5 dB"):
        corpus.corrupted("GS", 10.0)


def test_names_in_a_manifest_without_ids(tmp_path):
    for name in ("x/1.wav", "y/1.wav", "y/2.wav"):
        sound(tmp_path / name, 1.0)
    rows = [{"audio_filepath": name, "text": "t"} for name in ("x/1.wav", "y/1.wav", "y/2.wav")]
    cuts = [{"audio_filepath": "y/2.wav", "text": "t", "offset": at, "duration": 0.25} for at in (0.5, 0.75)]
    assert [u.id for u in read_corpus(manifest(tmp_path, *rows)).utterances] == ["x/1", "y/1", "y/2"]
    assert [u.id for u in read_corpus(manifest(tmp_path, *rows[:1])).utterances] == ["x/1"]  # whatever else is listed
    whole = read_audio(tmp_path / "y" / "2.wav").samples
    first, second = read_corpus(manifest(tmp_path, *cuts)).utterances
    assert (first.id, second.id) == ("y/2@0.5", "y/2@0.75")
    assert np.array_equal(np.concatenate([first.samples(), second.samples()]), whole[8000:])


def test_everything_wrong_with_a_manifest_is_named_by_line(tmp_path):
    sound(tmp_path / "a.flac", 1.0)
    text(tmp_path / "noise.wav", "no sound at all")
    good = {"id": "a", "audio_filepath": "a.flac", "text": "x"}
    rows = [
        good,
        "",
        "{broken",
        "[1, 2]",
        {"id": "b", "audio_filepath": "gone.flac", "text": "x"},
        {"id": "c", "audio_filepath": "a.flac"},
        {"id": "d", "text": "x"},
        {"id": "e", "audio_filepath": "a.flac", "text": "x", "duration": "long"},
        {"id": "f", "audio_filepath": "a.flac", "text": "x", "language": "klingon"},
        {"id": "g", "audio_filepath": "noise.wav", "text": "x"},
        good,
        {"id": "h", "audio_filepath": "a.flac", "text": "x", "duration": 0},
        {"id": "i", "audio_filepath": "a.flac", "text": "\ud83d"},
        {"id": "j", "audio_filepath": "a.flac", "text": "x", "noise": "GS", "snr": "loud"},
    ]
    path = manifest(tmp_path, *rows)
    expected = {
        3: "not JSON",
        4: "not a JSON object",
        5: "no audio at .*gone.flac",
        6: "no text",
        7: "no audio_filepath",
        8: "expected numbers",
        9: "unknown language 'klingon'",
        10: "cannot be decoded",
        11: "duplicate id a in domain clean",
        12: "expected more than 0",
        13: "not valid UTF-8",
        14: "'snr': 'loud'",
    }
    with pytest.raises(SharpenError, match=r"12 of 13 entries cannot be used: .* line 3: .*; and 7 more.*--skip-bad"):
        read_corpus(path)
    corpus = read_corpus(path, skip_bad=True)
    assert [u.id for u in corpus.utterances] == ["a"]
    assert len(corpus.skipped) == len(expected)
    for (line, what), reason in zip(expected.items(), corpus.skipped, strict=True):
        assert f"manifest.jsonl line {line}: " in reason
        assert re.search(what, reason)


def test_what_is_not_there(tmp_path):
    with pytest.raises(SharpenError, match="no such file or folder"):
        read_corpus(tmp_path / "nowhere")
    with pytest.raises(SharpenError, match=r"unknown layout of a corpus; .*librispeech: \*\.trans\.txt"):
        read_corpus(tmp_path)
    with pytest.raises(SharpenError, match="does not have the layout mls: expected test"):
        read_corpus(tmp_path, layout="mls")
    with pytest.raises(SharpenError, match="unknown layout 'timit'; choose from auto, manifest"):
        read_corpus(tmp_path, layout="timit")
    with pytest.raises(SharpenError, match="the list is empty"):
        read_corpus(manifest(tmp_path))
    (tmp_path / "wide.jsonl").write_bytes('{"text": "x"}'.encode("utf-16"))
    with pytest.raises(SharpenError, match="is in UTF-16; save it as UTF-8"):
        read_corpus(tmp_path / "wide.jsonl")


@pytest.mark.parametrize("field", ["id", "text", "speaker", "domain", "language"])
def test_a_byte_that_is_not_utf8_costs_its_own_line(tmp_path, field):
    sound(tmp_path / "a.flac")
    good = {"id": "1", "audio_filepath": "a.flac", "text": "x"}
    bad = json.dumps(good | {"id": "2"} | {field: "cafe"}).encode().replace(b"cafe", b"caf\xe9")
    (tmp_path / "manifest.jsonl").write_bytes(json.dumps(good).encode() + b"\n" + bad + b"\n")
    with pytest.raises(SharpenError, match="line 2: the text is not valid UTF-8"):
        read_corpus(tmp_path)
    assert [u.id for u in read_corpus(tmp_path, skip_bad=True).utterances] == ["1"]


def test_what_no_file_system_or_number_can_hold_is_a_bad_entry(tmp_path):
    sound(tmp_path / "a.flac")
    good = {"audio_filepath": "a.flac", "text": "x"}
    rows = [
        good,
        good | {"id": "1", "audio_filepath": "n" * 300 + ".wav"},
        json.dumps(good | {"id": "2", "duration": "D"}).replace('"D"', "9" * 5000),
        json.dumps(good | {"id": "3", "duration": "D"}).replace('"D"', "9" * 400),
        good | {"id": "4", "offset": -3, "duration": 1},
        json.dumps(good | {"id": "5", "offset": float("nan"), "duration": 1}),
    ]
    corpus = read_corpus(manifest(tmp_path, *rows), skip_bad=True)
    assert [u.id for u in corpus.utterances] == ["a"]
    assert [int(reason.split(" line ")[1].split(":")[0]) for reason in corpus.skipped] == [2, 3, 4, 5, 6]


def test_a_cut_must_be_in_its_recording(tmp_path):
    sound(tmp_path / "a.flac", 1.0)
    row = {"id": "x", "audio_filepath": "a.flac", "text": "x", "offset": 0.5}
    for seconds in (0.5, 0.55):  # lists round
        (u,) = read_corpus(manifest(tmp_path, row | {"duration": seconds})).utterances
        assert len(u.samples()) == 8000
    for wrong in ({"duration": 3.0}, {"duration": 0.5, "offset": 2.0}):
        (u,) = read_corpus(manifest(tmp_path, row | wrong)).utterances
        with pytest.raises(SharpenError, match=r"a\.flac lasts 1\.00 s, but x should be at"):
            u.samples()


def test_damaged_audio_is_not_scored(tmp_path):
    path = sound(tmp_path / "a.flac", 3.0)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    (u,) = read_corpus(manifest(tmp_path, {"audio_filepath": "a.flac", "text": "x", "duration": 3.0})).utterances
    with pytest.raises(SharpenError, match=r"is damaged: .* get a fresh copy"):
        u.samples()


def test_noise_stands_behind_a_domain(tmp_path):
    sound(tmp_path / "a.wav")
    row = {"id": "s1", "audio_filepath": "a.wav", "text": "x"}
    manifest(tmp_path, row, row | {"accent": "Hindi"}, row | {"accent": "Korean"})
    noisy = read_corpus(tmp_path).corrupted("GS", 10.0)
    assert noisy.domains == ("GS", "Hindi GS", "Korean GS")
    manifest(tmp_path, *(row | {"id": str(i), "accent": accent} for i, accent in enumerate(("Hindi", "Korean"))))
    assert read_corpus(tmp_path, domain="GS").corrupted("GS", 10.0).domains == ("GS",)


def test_a_fingerprint_follows_what_is_heard(tmp_path):
    path = sound(tmp_path / "a.wav", 1.0)
    row = {"id": "x", "audio_filepath": "a.wav", "text": "x"}

    def of(**others):
        return read_corpus(manifest(tmp_path, row | others)).utterances[0].fingerprint

    whole = of()
    assert of(text="y") == whole != of(offset=0.5, duration=0.25)
    sound(path, 0.9)
    assert of() != whole


def test_long_utterances_are_left_out_and_counted(tmp_path):
    sound(tmp_path / "a.flac")
    rows = [{"id": str(s), "audio_filepath": "a.flac", "text": "x", "duration": s} for s in (19.0, 20.0, 20.01)]
    corpus = read_corpus(manifest(tmp_path, *rows), max_seconds=20)
    assert [u.id for u in corpus.utterances] == ["19.0", "20.0"]
    assert len(corpus.skipped) == 1
    assert "duration 20.01 s, over the limit of 20 s" in corpus.skipped[0]
    with pytest.raises(SharpenError, match="none of 3 utterances can be used"):
        read_corpus(tmp_path, max_seconds=1)


def test_the_choice_follows_from_ids_and_seed(tmp_path):
    sound(tmp_path / "a.flac")
    rows = [{"id": f"u{i}", "audio_filepath": "a.flac", "text": "x", "duration": 1} for i in range(40)]
    corpus = read_corpus(manifest(tmp_path, *rows))
    ids = [u.id for u in corpus.first(12).utterances]
    assert ids[:6] == ["u26", "u21", "u4", "u30", "u32", "u2"]  # results rest on it: it must not change
    assert [u.id for u in corpus.first(6).utterances] == ids[:6]
    assert [u.id for u in corpus.first(6, seed=1).utterances] != ids[:6]
    assert [u.id for u in corpus.corrupted("GS", 10).first(6).utterances] == ids[:6]
    assert corpus.first(None) is corpus
    assert len(corpus.first(100).utterances) == 40
    rest = manifest(tmp_path, *[row for row in rows if row["id"] != ids[0]])
    assert [u.id for u in read_corpus(rest).first(11).utterances] == ids[1:]


def test_noise_is_mixed_when_samples_are_read(tmp_path):
    path = sound(tmp_path / "a.flac")
    corpus = read_corpus(manifest(tmp_path, {"id": "a", "audio_filepath": "a.flac", "text": "x"}))
    noisy = corpus.corrupted("GS", 7.5).utterances[0]
    clean = read_audio(path).samples
    assert noisy.domain == "GS"
    assert np.array_equal(noisy.samples(), mix(clean, gaussian(len(clean), "a"), 7.5))
    assert np.array_equal(noisy.samples(), pickle.loads(pickle.dumps(noisy)).samples())
    assert np.array_equal(corpus.utterances[0].samples(), clean)
    with pytest.raises(SharpenError, match="give the folder that has it"):
        corpus.corrupted("BA", 10)


def test_the_real_manifests(data):
    corpus = read_corpus(data / "librispeech-test-other", max_seconds=20)
    assert (corpus.name, len(corpus.utterances), corpus.skipped) == ("librispeech-test-other", 120, ())
    assert corpus.domains == ("clean",)
    u = corpus.corrupted("BA", 10, data / "ms-snsd").utterances[0]
    assert (u.speaker, len(u.samples())) == ("1688", round(u.duration * 16_000))
    languages = read_corpus(data / "commonvoice-multilingual")
    assert sorted(languages.domains) == ["de", "es", "fr", "it", "nl", "pl", "pt"]
