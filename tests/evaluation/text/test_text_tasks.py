import json

import pytest

from sharpen.errors import SharpenError
from sharpen.evaluation.text.scorers import exact, last_number, number, scorer
from sharpen.evaluation.text.tasks import MAKERS, made_task, read_task


def test_made_tasks_are_right_and_splits_share_no_prompt():
    for kind in MAKERS:
        tune, test = made_task(kind, "tune"), made_task(kind, "test")
        assert len(tune.items) == len(test.items) == 200
        assert not {i.prompt for i in tune.items} & {i.prompt for i in test.items}
        assert made_task(kind, "test") == test
    for item in made_task("arithmetic", "test").items:
        asked = item.prompt.removeprefix("What is ").partition("?")[0]
        assert set(asked) <= set("0123456789+- ")
        assert eval(asked) == int(item.answer) >= 0
    for item in made_task("sorting", "test").items:
        numbers = [int(n) for n in item.prompt.partition(": ")[2].partition(".")[0].split(", ")]
        assert item.answer == ", ".join(map(str, sorted(numbers)))
    for item in made_task("copying", "test").items:
        assert item.prompt.startswith(f"Repeat: {item.answer}. ")
    for item in made_task("reading-choice", "test").items:
        assert item.answer in item.choices
        story, _, question = item.prompt.rpartition(". ")
        facts = [sentence for sentence in story.split(". ") if item.answer in sentence.split()]
        assert len(facts) == 1  # the answer is in one sentence, and so is what is asked for
        asked = question.partition("?")[0].split()[-1]  # a thing or a place
        assert asked in facts[0].split()
        assert sum(asked in sentence.split() for sentence in story.split(". ")) == 1


def test_answered_questions_come_first():
    for item in made_task("arithmetic-shots", "test").items:
        *shown, asked, end = item.prompt.split("\n")
        assert end == "A:"
        assert len(shown) == 6
        assert asked not in shown
        for question, answer in zip([*shown[::2], asked], [*shown[1::2], f"A: {item.answer}"], strict=True):
            assert eval(question.removeprefix("Q: What is ").rstrip("?")) == int(answer.removeprefix("A: "))


def test_files(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"id": "a", "prompt": "p", "answer": 3}\n\n{"prompt": "q", "answer": "x", "domain": "d"}\n')
    task = read_task(str(path))
    assert (task.name, task.scorer) == ("mine", "exact")
    assert [(i.id, i.answer, i.domain) for i in task.items] == [("a", "3", ""), ("3", "x", "d")]
    path.write_text(json.dumps({"prompt": "p", "answer": "b", "choices": ["a", "b"]}))
    assert read_task(str(path)).scorer == "choice"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no items"),
        ("{", "not JSON"),
        ('{"prompt": "p"}', '"prompt" and "answer"'),
        ('{"prompt": "p", "answer": "c", "choices": ["a"]}', "not one of the choices"),
        ('{"id": 1, "prompt": "p", "answer": "c"}\n{"id": 1, "prompt": "q", "answer": "c"}', "taken"),
    ],
)
def test_files_that_are_no_tasks(tmp_path, text, message):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(SharpenError, match=message):
        read_task(str(tmp_path / "t.jsonl"))
    with pytest.raises(SharpenError, match="no task 'chess'"):
        read_task("made:chess")
    with pytest.raises(SharpenError, match="cannot read"):
        read_task("/nowhere.jsonl")


def test_scorers(tmp_path):
    assert exact("  The Cat. \nQ: more", "the cat")
    assert exact("\n\n3, 5, 9", "3, 5, 9")
    assert not exact("the cat sat", "the cat")
    assert number("17 + 25 is 42.", "42")
    assert number("It is 1,042", "1042")
    assert number("-3.0", "-3")
    assert not number("none", "42")
    assert not number("42 or 43", "42")
    assert last_number("2.5.1") == "2.5.1"
    own = tmp_path / "own.py"
    own.write_text("def same_length(answer, right):\n    return len(answer) == len(right)\n")
    assert scorer(f"{own}:same_length")("ab", "cd")
    for name, message in (("best", "expected exact"), (f"{own}:no", "no function"), ("/no.py:f", "there is no file")):
        with pytest.raises(SharpenError, match=message):
            scorer(name)
