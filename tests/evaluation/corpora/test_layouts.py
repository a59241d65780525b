import importlib.util
import io
import pickle
import sys

import numpy as np
import pytest
from evaluation.corpora.trees import manifest, sound, text, told

from sharpen.errors import SharpenError
from sharpen.evaluation.corpora.corpus import read_corpus
from sharpen.evaluation.corpora.hub import hub_name
from sharpen.evaluation.corpora.layouts import ACCENTS, KNOWN_BAD, SPEAKERS
from sharpen.speech.audio import read_audio


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
    assert all("arctic_b0013.wav: listed as bad" in reason for reason in corpus.skipped)
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


def test_transcripts_that_are_not_utf8_cost_their_own_file(tmp_path):
    for name in "ab":
        sound(tmp_path / f"{name}.wav")
        text(tmp_path / f"{name}.txt", "words")
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    assert [u.id for u in read_corpus(tmp_path, skip_bad=True).utterances] == ["b"]


def test_corpora_behind_links(tmp_path):
    for speaker in "78":
        sound(tmp_path / "real" / speaker / "1" / f"{speaker}-1-0000.flac")
        text(tmp_path / "real" / speaker / "1" / f"{speaker}-1.trans.txt", f"{speaker}-1-0000 WORDS\n")
    (tmp_path / "links").mkdir()
    for speaker in "78":
        (tmp_path / "links" / speaker).symlink_to(tmp_path / "real" / speaker)
    (tmp_path / "real" / "7" / "back").symlink_to(tmp_path / "links")  # in a circle
    assert [u.speaker for u in read_corpus(tmp_path / "links").utterances] == ["7", "8"]


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
