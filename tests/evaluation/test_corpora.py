import importlib.util
import io
import json
import pickle
import sys

import av
import numpy as np
import pytest

from sharpen.errors import SharpenError
from sharpen.evaluation.corpora import read_corpus
from sharpen.evaluation.hub import hub_name
from sharpen.evaluation.layouts import ACCENTS, KNOWN_BAD, SPEAKERS
from sharpen.speech.audio import read_audio
from sharpen.speech.noise import gaussian, mix

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
    with pytest.raises(SharpenError, match="0 is in GS at 5 dB already"):
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
        10: "not audio that can be decoded",
        11: "a second a in clean",
        12: "expected more than 0",
        13: "half a character",
        14: "'snr': 'loud'",
    }
    with pytest.raises(SharpenError, match=r"12 of 13 entries cannot be used: .* line 3: .*; and 7 more.*--skip-bad"):
        read_corpus(path)
    corpus = read_corpus(path, skip_bad=True)
    assert [u.id for u in corpus.utterances] == ["a"]
    assert len(corpus.skipped) == len(expected)
    for (line, what), reason in zip(expected.items(), corpus.skipped, strict=True):
        assert f"manifest.jsonl line {line}: " in reason
        with pytest.raises(AssertionError, match=what):
            raise AssertionError(reason)


def test_what_is_not_there(tmp_path):
    with pytest.raises(SharpenError, match="no such file or folder"):
        read_corpus(tmp_path / "nowhere")
    with pytest.raises(SharpenError, match=r"in no layout known here; .*librispeech: \*\.trans\.txt"):
        read_corpus(tmp_path)
    with pytest.raises(SharpenError, match="not in the layout mls: expected test"):
        read_corpus(tmp_path, layout="mls")
    with pytest.raises(SharpenError, match="unknown layout 'timit'; choose from auto, manifest"):
        read_corpus(tmp_path, layout="timit")
    with pytest.raises(SharpenError, match="it lists nothing"):
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
    with pytest.raises(SharpenError, match="line 2: not UTF-8"):
        read_corpus(tmp_path)
    assert [u.id for u in read_corpus(tmp_path, skip_bad=True).utterances] == ["1"]


def test_transcripts_that_are_not_utf8_cost_their_own_file(tmp_path):
    for name in "ab":
        sound(tmp_path / f"{name}.wav")
        text(tmp_path / f"{name}.txt", "words")
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    assert [u.id for u in read_corpus(tmp_path, skip_bad=True).utterances] == ["b"]


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
        with pytest.raises(SharpenError, match=r"a\.flac lasts 1\.00 s, and x is said to be in it from"):
            u.samples()


def test_damaged_audio_is_not_scored(tmp_path):
    path = sound(tmp_path / "a.flac", 3.0)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    (u,) = read_corpus(manifest(tmp_path, {"audio_filepath": "a.flac", "text": "x", "duration": 3.0})).utterances
    with pytest.raises(SharpenError, match=r"is damaged: .* get a fresh copy"):
        u.samples()


def test_corpora_behind_links(tmp_path):
    for speaker in "78":
        sound(tmp_path / "real" / speaker / "1" / f"{speaker}-1-0000.flac")
        text(tmp_path / "real" / speaker / "1" / f"{speaker}-1.trans.txt", f"{speaker}-1-0000 WORDS\n")
    (tmp_path / "links").mkdir()
    for speaker in "78":
        (tmp_path / "links" / speaker).symlink_to(tmp_path / "real" / speaker)
    (tmp_path / "real" / "7" / "back").symlink_to(tmp_path / "links")  # in a circle
    assert [u.speaker for u in read_corpus(tmp_path / "links").utterances] == ["7", "8"]


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
    assert "lasts 20.01 s, more than 20 s" in corpus.skipped[0]
    with pytest.raises(SharpenError, match="no utterance left of 3"):
        read_corpus(tmp_path, max_seconds=1)


@pytest.mark.parametrize("above", ["", "LibriSpeech", "down/LibriSpeech"])
def test_librispeech(tmp_path, above):
    root = tmp_path / "corpora"
    folder = root / above / "test-other"
    for name in ("1688-142285-0000", "1688-142285-0001"):
        sound(folder / "1688" / "142285" / f"{name}.flac", 0.25)
    sound(folder / "367" / "130732" / "367-130732-0000.flac", 0.75)
    lines = "1688-142285-0000 THERE'S IRON\n1688-142285-0001 AND GREAT\n"
    text(folder / "1688" / "142285" / "1688-142285.trans.txt", lines)
    text(folder / "367" / "130732" / "367-130732.trans.txt", "367-130732-0000 LOBSTERS\n")
    corpus = read_corpus(root)
    assert told(corpus) == [
        ("1688-142285-0000", "clean", "THERE'S IRON", "en", "1688"),
        ("1688-142285-0001", "clean", "AND GREAT", "en", "1688"),
        ("367-130732-0000", "clean", "LOBSTERS", "en", "367"),
    ]
    assert [u.duration for u in corpus.utterances] == [0.25, 0.25, 0.75]
    assert read_corpus(folder).name == "librispeech-test-other"


def test_librispeech_with_gaps(tmp_path):
    sound(tmp_path / "1" / "2" / "1-2-0000.flac")
    text(tmp_path / "1" / "2" / "1-2.trans.txt", "1-2-0000 HELLO\n1-2-0001 GONE\n1-2-0002\n")
    with pytest.raises(SharpenError, match=r"2 of 3 .*1-2.trans.txt line 2: no audio .*line 3: '1-2-0002' has no text"):
        read_corpus(tmp_path)
    assert len(read_corpus(tmp_path, skip_bad=True).skipped) == 2


@pytest.mark.parametrize("by_accent", [False, True])
def test_l2_arctic(tmp_path, by_accent):
    root = tmp_path / "l2arctic_release_v5.0"
    for speaker in ("ABA", "BWC", "YKWK"):
        folder = root / (SPEAKERS[speaker] if by_accent else "") / speaker
        for name in ("arctic_a0001", "arctic_b0013"):
            sound(folder / "wav" / f"{name}.wav", 0.5, rate=44_100)
            text(folder / "transcript" / f"{name}.txt", f"{speaker} said {name}.\n")
    sound(root / "suitcase_corpus" / "wav" / "aba.wav")
    text(root / "suitcase_corpus" / "transcript" / "aba.txt", "once")
    corpus = read_corpus(root)
    assert sorted(told(corpus)) == [
        ("ABA-arctic_a0001", "Arabic", "ABA said arctic_a0001.", "en", "ABA"),
        ("BWC-arctic_a0001", "Mandarin", "BWC said arctic_a0001.", "en", "BWC"),
        ("YKWK-arctic_a0001", "Korean", "YKWK said arctic_a0001.", "en", "YKWK"),
    ]
    assert len(corpus.skipped) == 3
    assert all("arctic_b0013.wav: known to be bad" in reason for reason in corpus.skipped)
    assert corpus.name == "l2arctic_release_v5.0"
    assert corpus.utterances[0].duration == pytest.approx(0.5)
    assert len(corpus.utterances[0].samples()) == pytest.approx(8000, abs=2)  # 44.1 kHz came down to 16


def test_l2_arctic_tables():
    assert (len(SPEAKERS), len(ACCENTS)) == (24, 6)
    assert KNOWN_BAD.keys() <= SPEAKERS.keys()
    assert sum(map(len, KNOWN_BAD.values())) == 20  # 9 of one file, 3 for ABA, 2 each for BWC, RRBI, YBAA, and 2 more
    assert "arctic_b0013" not in KNOWN_BAD.get("ZHAA", ())


def test_l2_arctic_with_gaps(tmp_path):
    sound(tmp_path / "ABA" / "wav" / "arctic_a0001.wav")
    sound(tmp_path / "ABA" / "wav" / "arctic_a0002.wav")
    text(tmp_path / "ABA" / "transcript" / "arctic_a0002.txt", "two")
    text(tmp_path / "ABA" / "transcript" / "arctic_a0003.txt", "three")
    with pytest.raises(SharpenError, match=r"no transcript/arctic_a0001.txt; .*arctic_a0003.txt: no audio at"):
        read_corpus(tmp_path)
    text(tmp_path / "SKA" / "transcript" / "arctic_a0001.txt", "one")
    with pytest.raises(SharpenError, match=r"SKA/wav: no such folder"):
        read_corpus(tmp_path)


@pytest.mark.parametrize("suffix", [".flac", ".opus"])
def test_multilingual_librispeech(tmp_path, suffix):
    kind = "_opus" if suffix == ".opus" else ""
    for language, name, words in (("polish", "6892_10049_000000", "jak się masz"), ("german", "1_2_3", "guten tag")):
        speaker, book, _ = name.split("_")
        folder = tmp_path / f"mls_{language}{kind}" / "test"
        sound(folder / "audio" / speaker / book / f"{name}{suffix}", 0.5)
        text(folder / "transcripts.txt", f"{name}\t{words}\n")
    both = [("1_2_3", "de", "guten tag", "de", "1"), ("6892_10049_000000", "pl", "jak się masz", "pl", "6892")]
    assert told(read_corpus(tmp_path)) == both
    assert told(read_corpus(tmp_path / f"mls_polish{kind}")) == both[1:]
    assert told(read_corpus(tmp_path / f"mls_polish{kind}" / "test")) == both[1:]
    assert read_corpus(tmp_path / f"mls_polish{kind}").utterances[0].duration == pytest.approx(0.5, abs=0.03)
    text(tmp_path / f"mls_polish{kind}" / "test" / "transcripts.txt", "6892_10049_000000 no tab\n")
    with pytest.raises(SharpenError, match=r"transcripts.txt line 1: .*expected SPEAKER_BOOK_NUMBER, a tab"):
        read_corpus(tmp_path)


def test_common_voice(tmp_path):
    for language, name in (("en", "common_voice_en_1"), ("en", "common_voice_en_2"), ("pl", "common_voice_pl_3")):
        sound(tmp_path / language / "clips" / f"{name}.mp3", 0.5)
    header = "client_id\tpath\tsentence\tup_votes\taccents\tlocale\n"
    english = 's1\tcommon_voice_en_1.mp3\t"Yes, he said.\t2\tScottish English\ten\n'
    english += "s2\tcommon_voice_en_2.mp3\tNo, he did not.\t2\t\ten\n"
    text(tmp_path / "en" / "test.tsv", header + english)
    text(tmp_path / "en" / "clip_durations.tsv", "clip\tduration[ms]\ncommon_voice_en_1.mp3\t1234\n")
    old = "client_id\tpath\tsentence\taccent\ns3\tcommon_voice_pl_3\tTak.\tsilesian\n"
    text(tmp_path / "pl" / "test.tsv", old)
    corpus = read_corpus(tmp_path)
    assert told(corpus) == [
        ("common_voice_en_1", "Scottish English", '"Yes, he said.', "en", "s1"),
        ("common_voice_en_2", "clean", "No, he did not.", "en", "s2"),
        ("common_voice_pl_3", "pl", "Tak.", "pl", "s3"),
    ]
    assert corpus.utterances[0].duration == 1.234
    assert corpus.utterances[1].duration == pytest.approx(0.5, abs=0.1)
    assert len(read_corpus(tmp_path / "pl" / "test.tsv").utterances) == 1
    assert read_corpus(tmp_path / "pl").name == "common-voice-pl"
    text(tmp_path / "pl" / "test.tsv", "client_id\tpath\tsentence\ns3\ns4\tgone\tNie.\n")
    with pytest.raises(SharpenError, match=r"test.tsv line 2: too few columns.*test.tsv line 3: no audio"):
        read_corpus(tmp_path / "pl")
    text(tmp_path / "pl" / "test.tsv", "path\tsentence\n")
    with pytest.raises(SharpenError, match="no column client_id"):
        read_corpus(tmp_path / "pl")


def test_a_folder_of_audio_with_transcripts(tmp_path):
    text(sound(tmp_path / "a.flac").with_suffix(".txt"), "first\nline\n")
    text(sound(tmp_path / "deep" / "b.mp3").with_suffix(".txt"), "second")
    assert [(u.id, u.reference) for u in read_corpus(tmp_path).utterances] == [
        ("a", "first line"),
        ("deep/b", "second"),
    ]
    sound(tmp_path / "c.wav")
    with pytest.raises(SharpenError, match=r"c.wav: no transcript beside it; expected c.txt"):
        read_corpus(tmp_path)


def test_folders_of_manifests_are_one_corpus(tmp_path):
    for noise in ("BA", "GS"):
        sound(tmp_path / noise / "a.flac")
        manifest(tmp_path / noise, {"id": "a", "audio_filepath": "a.flac", "text": "x", "noise": noise})
    corpus = read_corpus(tmp_path)
    assert [(u.domain, u.id) for u in corpus.utterances] == [("BA", "a"), ("GS", "a")]


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
    with pytest.raises(SharpenError, match="give the folder of noise clips"):
        corpus.corrupted("BA", 10)


def test_the_real_manifests(data):
    corpus = read_corpus(data / "librispeech-test-other", max_seconds=20)
    assert (corpus.name, len(corpus.utterances), corpus.skipped) == ("librispeech-test-other", 120, ())
    assert corpus.domains == ("clean",)
    u = corpus.corrupted("BA", 10, data / "ms-snsd").utterances[0]
    assert (u.speaker, len(u.samples())) == ("1688", round(u.duration * 16_000))
    languages = read_corpus(data / "commonvoice-multilingual")
    assert sorted(languages.domains) == ["de", "es", "fr", "it", "nl", "pl", "pt"]


def test_the_hub_needs_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # an import of it fails, as where it was never installed
    with pytest.raises(SharpenError, match=r"pip install 'sharpen\[hub\]'"):
        read_corpus("hf:facebook/multilingual_librispeech:polish")
    with pytest.raises(SharpenError, match="expected hf:ID, hf:ID:config or hf:ID:config:split"):
        read_corpus("hf:")
    assert hub_name("hf:facebook/multilingual_librispeech:polish:test") == "multilingual_librispeech-polish"


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs the datasets package: sharpen[hub]")
def test_a_dataset_of_the_hubs_kind(tmp_path):
    import datasets

    content = sound(tmp_path / "a.flac", 0.5).read_bytes()
    rows = {
        "audio": [{"bytes": content, "path": "a.flac"}, {"bytes": content, "path": "b.flac"}],
        "sentence": ["jeden", "dwa"],
        "path": ["/cache/one.flac", "/cache/two.flac"],
        "client_id": ["s1", "s2"],
        "locale": ["pl", "pl"],
    }
    (tmp_path / "tiny").mkdir()
    stored = datasets.Dataset.from_dict(rows).cast_column("audio", datasets.Audio(decode=False))
    stored.to_parquet(tmp_path / "tiny" / "test.parquet")
    corpus = read_corpus(f"hf:{tmp_path / 'tiny'}")
    assert told(corpus) == [("one", "pl", "jeden", "pl", "s1"), ("two", "pl", "dwa", "pl", "s2")]
    assert corpus.name == "tiny"
    assert corpus.utterances[0].duration == 0.5
    expected = read_audio(io.BytesIO(content)).samples
    assert np.array_equal(corpus.utterances[1].samples(), expected)
    assert np.array_equal(pickle.loads(pickle.dumps(corpus.utterances[1])).samples(), expected)
    with pytest.raises(SharpenError, match="cannot be loaded by datasets"):
        read_corpus(f"hf:{tmp_path / 'tiny'}::validation")
    rows |= {"path": ["one", "one"], "duration": ["n/a", "0.5"], "audio": [None, rows["audio"][1]]}
    (tmp_path / "odd").mkdir()
    stored = datasets.Dataset.from_dict(rows).cast_column("audio", datasets.Audio(decode=False))
    stored.to_parquet(tmp_path / "odd" / "test.parquet")
    odd = read_corpus(f"hf:{tmp_path / 'odd'}", skip_bad=True)
    assert [u.id for u in odd.utterances] == ["one#2"]
    assert odd.skipped[0].endswith("row 0: audio of row 0 is empty")
