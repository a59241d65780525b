import argparse
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from evaluation import tiny
from evaluation.tiny import ROW

from sharpen.cli import reproduce as command
from sharpen.errors import SharpenError
from sharpen.evaluation.report import paper
from sharpen.evaluation.runs.recipes import RECIPES, Folders, Recipe, parts, saved
from sharpen.evaluation.runs.settings import settings


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The three corpora in their own layouts, and two of the noise clips."""
    root = tmp_path_factory.mktemp("corpora")
    sound = tiny.wav(root / "sound.wav", 0.1 * np.random.default_rng(0).standard_normal(8000)).read_bytes()

    def put(path, content):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    libri = root / "LibriSpeech" / "test-other"
    put(libri / "1" / "2" / "1-2.trans.txt", b"1-2-0000 A WORD\n1-2-0001 ANOTHER\n")
    for name in ("1-2-0000", "1-2-0001"):
        put(libri / "1" / "2" / f"{name}.flac", sound)
    for speaker in ("EBVS", "HJK", "BWC"):  # Spanish, Korean, Mandarin
        put(root / "l2" / speaker / "wav" / "arctic_a0001.wav", sound)
        put(root / "l2" / speaker / "transcript" / "arctic_a0001.txt", b"Author of the danger trail.\n")
    for language in ("polish", "italian"):
        put(root / "mls" / f"mls_{language}" / "test" / "transcripts.txt", b"1_2_000000\tslowo\n")
        put(root / "mls" / f"mls_{language}" / "test" / "audio" / "1" / "2" / "1_2_000000.flac", sound)
    for clip in ("Babble_4", "Munching_3"):
        put(root / "noise" / f"{clip}.wav", sound)
    return Folders(libri, root / "noise", root / "l2", root / "mls")


def conditions(found):
    return [(part.noise or part.corpus.utterances[0].domain, len(part.corpus.utterances)) for part in found]


def test_the_recipes_are_the_papers():
    """Domains, methods and settings of each table and figure, against the numbers read from the paper."""
    assert set(command.NAMES) == {*RECIPES, command.LINK}
    for table in paper.data()["tables"]:
        recipe = RECIPES[table["name"]]
        assert set(recipe.methods) == set(table["rows"])
        assert (recipe.samples, recipe.at) == ((16,), (10,))
        if table["name"] == "table-models":
            assert [size.capitalize() for size in recipe.models] == table["columns"]
        else:
            own = {"table-beam": set(recipe.domains)}  # the one table that names its corpora
            plain = {name.split("-")[1] for name in recipe.domains}
            assert own.get(table["name"], plain) == set(table["columns"])
            assert recipe.models == ("base",)
    for figure in paper.data()["figures"]:
        recipe = RECIPES[figure["name"]]
        assert set(figure["methods"]) <= set(recipe.methods)
        if "samples" in figure:
            assert recipe.samples == tuple(figure["samples"])
    assert RECIPES["fig-steps"].at == (1, 3, 5, 10, 20)
    for recipe in RECIPES.values():
        assert settings(recipe.methods, samples=recipe.samples, steps=recipe.at)


def test_the_domains_are_found_and_what_is_missing_is_told(folders):
    found, left_out = parts(RECIPES["table-noise"], folders)
    assert conditions(found) == [("BA", 2), ("GS", 2), ("MU", 2)]
    assert [part.snr for part in found] == [10.0] * 3
    assert len(left_out) == 7
    assert any("LS-TP-10" in reason and "Typing_2" in reason for reason in left_out)
    found, left_out = parts(RECIPES["table-beam"], folders)
    assert conditions(found) == [("GS", 2), ("Korean", 1), ("Spanish", 1), ("it", 1), ("pl", 1)]
    assert [reason.split(":")[0] for reason in left_out] == ["LS-TP-10"]
    found, left_out = parts(RECIPES["table-accent"], folders)
    assert conditions(found) == [("Mandarin", 1), ("Korean", 1), ("Spanish", 1)]  # the paper says Chinese
    assert "l2 has none of it" in left_out[0]


def test_corpora_that_are_not_here_are_left_out(folders):
    found, left_out = parts(RECIPES["fig-samples"], Folders(mls=folders.mls))
    assert conditions(found) == [("pl", 1)]
    assert left_out == [
        "LS-GS-10: give --librispeech DIR, or --corpus FILE in its place",
        "L2-Spanish: give --l2arctic DIR, or --corpus FILE in its place",
    ]
    with pytest.raises(SharpenError, match="none of the recipe's corpora is available: LS-GS-10"):
        parts(RECIPES["fig-steps"], Folders(mls=folders.mls))


def test_a_folder_of_noises_that_is_not_there_is_an_error(folders, tmp_path):
    with pytest.raises(SharpenError, match="nowhere: no such folder; expected one with clips"):
        parts(RECIPES["table-noise"], replace(folders, noise_dir=tmp_path / "nowhere"))


def test_any_corpus_can_stand_in(tmp_path, folders):
    manifest = tiny.corpus(tmp_path / "mine", 3, duration=1.0)
    found, _ = parts(RECIPES["table-beam"], Folders(corpus=manifest))
    assert conditions(found) == [("GS", 3), ("clean", 3)]  # as it is once, though two corpora are missing
    found, left_out = parts(RECIPES["table-languages"], Folders(corpus=folders.mls))
    assert conditions(found) == [("it", 1), ("pl", 1)]  # it has some of the languages: those
    assert len(left_out) == 5


def test_a_stand_in_comes_once_and_by_domain(folders):
    """Each language is a part, since a limit counts for each; and Polish does not stand in for an accent as well."""
    found, _ = parts(RECIPES["fig-samples"], Folders(corpus=folders.mls))
    assert [part.corpus.domains for part in found] == [("it GS",), ("pl GS",), ("pl",)]
    found, _ = parts(RECIPES["table-accent"], Folders(corpus=folders.mls))
    assert conditions(found) == [("it", 1), ("pl", 1)]


def test_of_all_of_librispeech_the_paper_has_test_other(tmp_path, folders):
    for subset in ("test-clean", "test-other"):
        shutil.copytree(folders.librispeech, tmp_path / "LibriSpeech" / subset)
    for where in (tmp_path, tmp_path / "LibriSpeech"):
        found, _ = parts(RECIPES["fig-steps"], Folders(librispeech=where))
        assert conditions(found) == [("GS", 2)]
        assert found[0].corpus.name.endswith("test-other")


def test_long_utterances_are_left_out_as_corrupted_librispeech_does(tmp_path):
    manifest = tiny.corpus(tmp_path, 2, duration=1.0)
    lines = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    lines[0]["duration"] = 20.5
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    recipe = Recipe(("LS-GS-10", "MLS-Polish"), ("source",))
    found, _ = parts(recipe, Folders(corpus=manifest))
    assert conditions(found) == [("GS", 1), ("clean", 2)]


def test_time_saved_is_counted_on_shared_utterances():
    def row(method, G, name, seconds):
        return replace(ROW, method=method, samples=G, id=name, seconds=seconds)

    rows = [
        row("em-tok", 4, "a", 2.0),
        row("em-tok-b", 4, "a", 1.5),
        row("em-tok", 4, "b", 100.0),
        row("em-tok", 16, "a", 9.0),
    ]
    assert saved(rows) == {4: pytest.approx(0.25)}
    rows += [replace(row, model="small", seconds=10 * row.seconds, id="a") for row in rows[:2]]
    rows[-1] = replace(rows[-1], seconds=20.0)  # nothing saved there: 2 + 20 against 1.5 + 20
    assert saved(rows) == {4: pytest.approx(1 - 21.5 / 22)}


def run(*arguments):
    parser = argparse.ArgumentParser()
    command.arguments(parser)
    args = parser.parse_args([str(a) for a in arguments])
    return args.run(args)


def test_the_command_runs_a_recipe(tmp_path, capsys):
    model, manifest = tiny.checkpoint(tmp_path), tiny.corpus(tmp_path / "mine", 3, duration=1.0)
    arguments = ["--corpus", manifest, "--models", model, "--out", tmp_path / "out", "--limit", 1, "--threads", 1, "-q"]
    assert run("table-cases", *arguments) == 0
    shown = capsys.readouterr()
    assert "em-tok-b" in shown.out
    assert "mine" in shown.out
    assert "left out L2-Spanish: mine has none of it" in shown.err
    rows = tiny.found(tmp_path / "out").values()
    assert sorted((row.domain, row.method, row.samples, row.steps) for row in rows) == [
        ("GS", "em-tok-b", 16, 10),
        ("GS", "source", 0, 0),
        ("clean", "em-tok-b", 16, 10),
        ("clean", "source", 0, 0),
    ]
    with pytest.raises(SharpenError, match="--out DIR"):
        run("table-noise")


def test_the_table_of_prior_methods_needs_no_speech(capsys):
    assert run("table-link") == 0
    assert "EM-RL-sequence" in capsys.readouterr().out
