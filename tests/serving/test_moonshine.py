"""The server with a Moonshine model: what it answers, and which field is at fault where it cannot."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from models.moonshines import random_moonshine, write_directory
from serving.running import Running
from speechlike import EXAMPLES


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = write_directory(random_moonshine(), tmp_path_factory.mktemp("model") / "moonshine")
    with Running("--model", str(folder)) as running:
        yield running


def test_recordings_of_different_lengths_are_adapted_to_together(server):
    adapting = {"model": "whisper-1", "effort": "", "method": "em-tok-b", "steps": "2", "samples": "3"}
    files = [(EXAMPLES / name).read_bytes() for name in ("ferry.flac", "letter.flac")]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda file: server.post(file=file, **adapting), files))
    for answer in answers:
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert found["text"]
        assert (found["adaptation"]["steps"], found["adaptation"]["complete"]) == (2, True)
    plain = server.post(model="whisper-1", response_format="verbose_json").json()
    assert (plain["language"], len(plain["segments"])) == ("english", 1)
    assert not any("Warning" in line for line in server.said)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"language": "de"}, "language", "transcribes English"),
        ({"prompt": "A ferry."}, "prompt", "takes no text"),
        (
            {"response_format": "verbose_json", "timestamp_granularities[]": "word"},
            "timestamp_granularities",
            "word timestamps need a Whisper model",
        ),
        ({"path": "/v1/audio/translations"}, "model", "cannot translate"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_field_that_asks_for_it(server, fields, param, says):
    answer = server.post(**{"model": "whisper-1", **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert says in error["message"]
