"""OpenAI's own Python client against the server, with its strict validation of every response."""

import itertools

import numpy as np
import openai
import pytest
from openai.types import audio
from serving.running import LETTER, SAID, Running
from serving.test_media import wav
from speechlike import EXAMPLES

from sharpen.speech.audio import read_audio

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
GRANULARITIES = ((), ("word",), ("segment",), ("word", "segment"))
PLAIN = {"effort": "plain"}


@pytest.fixture(scope="module")
def server():
    with Running("--max-steps", "8", "--queue", "64") as running:
        yield running


def create(client, task="transcriptions", file=LETTER, **fields):
    settings = {"model": "whisper-1", "extra_body": PLAIN, **fields}
    return getattr(client.audio, task).create(file=("letter.flac", file), **settings)


def served(response_format, stream, granularities, include):
    return (not granularities or response_format == "verbose_json") and (
        not include or stream or response_format in ("json", "verbose_json")
    )


@pytest.mark.parametrize(
    ("response_format", "stream", "granularities", "include"),
    list(itertools.product(FORMATS, (False, True), GRANULARITIES, ((), ("logprobs",)))),
    ids=lambda value: "+".join(value) or "none" if isinstance(value, tuple) else str(value),
)
def test_every_combination(server, response_format, stream, granularities, include):
    fields = {"response_format": response_format, "stream": stream}
    fields |= {"timestamp_granularities": list(granularities)} if granularities else {}
    fields |= {"include": list(include)} if include else {}
    if not served(response_format, stream, granularities, include):
        with pytest.raises(openai.BadRequestError) as caught:
            create(server.client(), **fields)
        assert caught.value.param in ("timestamp_granularities", "include")
        return
    answer = create(server.client(), **fields)
    check = streamed if stream else CHECKS[response_format]
    check(answer, response_format, granularities, include)


def streamed(events, response_format, granularities, include):
    *deltas, done = list(events)
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert done.type == "transcript.text.done"
    assert "".join(event.delta for event in deltas) == done.text
    assert SAID in done.text
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    tokens = [one.model_dump() for event in deltas for one in event.logprobs or ()]
    assert tokens == [one.model_dump() for one in done.logprobs or ()]
    check_logprobs(done, include)
    extra = done.model_extra
    assert extra["adaptation"]["answer"] == "source"
    if response_format == "verbose_json":
        assert ("words" in extra, "segments" in extra) == (
            "word" in granularities,
            "segment" in granularities or not granularities,
        )
    if response_format in ("srt", "vtt"):
        assert "-->" in extra[response_format]


def check_logprobs(answer, include):
    if not include:
        assert answer.logprobs is None
        return
    assert bytes(int(x) for one in answer.logprobs for x in one.bytes).decode().strip() == answer.text
    assert "".join(one.token for one in answer.logprobs).strip() == answer.text
    assert all(one.logprob <= 0 for one in answer.logprobs)


def as_json(answer, _, granularities, include):
    assert SAID in answer.text
    assert (answer.usage.type, answer.usage.seconds) == ("duration", 3.18)
    check_logprobs(answer, include)
    said = answer.model_extra["adaptation"]
    assert (said["effort"], said["method"], said["steps"], said["complete"]) == ("plain", "beam", 0, True)


def as_verbose(answer, _, granularities, include):
    assert SAID in answer.text
    assert (answer.language, answer.duration, answer.model_extra["task"]) == ("english", 3.18, "transcribe")
    assert answer.usage.seconds == 3.18
    if "segment" in granularities or not granularities:
        assert "".join(segment.text for segment in answer.segments).strip() == answer.text
        assert answer.segments[0].model_extra == {}  # OpenAI's ten fields and no other
        assert answer.segments[0].tokens
    else:
        assert answer.segments is None
    if "word" in granularities:
        assert " ".join(word.word for word in answer.words) == answer.text
        assert all(a.start <= a.end <= b.end for a, b in itertools.pairwise(answer.words))
    else:
        assert answer.words is None
    assert bool(answer.model_extra.get("logprobs")) == bool(include)


def as_text(answer, response_format, *_):
    assert isinstance(answer, str)
    assert SAID in answer
    begin = {"text": "She", "srt": "1\n00:00:00,000 --> ", "vtt": "WEBVTT\n\n00:00.000 --> "}
    assert answer.startswith(begin[response_format])


CHECKS = {"json": as_json, "verbose_json": as_verbose, "text": as_text, "srt": as_text, "vtt": as_text}


def test_no_field_of_the_clients_answers_is_missing(server):
    """All that its types have is given, but what belongs to speakers."""
    client, logprobs = server.client(), ["logprobs"]
    verbose = {"response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]}
    answers = [create(client, include=logprobs), create(client, **verbose)]
    answers += create(client, include=logprobs, stream=True)
    assert [type(answer) for answer in answers] == [
        audio.Transcription, audio.TranscriptionVerbose, audio.TranscriptionTextDeltaEvent,
        audio.TranscriptionTextDoneEvent,
    ]  # fmt: skip
    missing = [set(type(answer).model_fields) - answer.model_fields_set for answer in answers]
    assert missing == [set(), set(), {"segment_id"}, set()]
    assert [answer.languages[0].code for answer in (answers[0], answers[3])] == ["en", "en"]
    assert create(client, file=wav(np.zeros(16_000))).languages == []  # nothing was said


@pytest.mark.parametrize("name", ["market.mp3", "glacier.m4a", "museum.ogg"])
def test_other_containers(server, name):
    answer = create(server.client(), file=(EXAMPLES / name).read_bytes())
    assert len(answer.text.split()) > 2


def test_adapting_and_its_events(server):
    body = {"method": "em-tok-b", "steps": "3", "samples": "4", "explain": "true"}
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")  # not strict: it meets events it does not know
    events = list(create(client, stream=True, extra_body=body))
    kinds = [event.type for event in events]
    assert kinds == ["sharpen.source", *["sharpen.step"] * 3, "sharpen.answer", "transcript.text.delta",
                     "transcript.text.done"]  # fmt: skip
    steps = [event.model_dump() for event in events[1:4]]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(step["of"] == 3 and step["H_tok"] > 0 for step in steps)
    tree = steps[0]["tree"]
    assert len(tree["texts"]) == len(tree["parents"]) == len(tree["entropies"])
    for hypothesis in tree["hypotheses"]:
        path = hypothesis["nodes"]
        assert [tree["parents"][node] for node in path[1:]] == path[:-1]
        read = "".join(tree["texts"][node] for node in path) + hypothesis["last"]
        assert read.strip() == hypothesis["text"]
    said = events[-1].model_dump()["adaptation"]
    assert (said["answer"], said["steps"], said["method"]) == ("adapted", 3, "em-tok-b")


def test_what_was_done_is_said_in_a_header_where_the_body_has_no_place(server):
    raw = server.client().audio.transcriptions.with_raw_response.create(
        file=("letter.flac", LETTER), model="tiny.en", response_format="text", extra_body={"effort": "high"}
    )
    assert raw.headers["x-sharpen"].startswith("answer=")
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.headers["content-type"] == "text/plain; charset=utf-8"


def test_voice_activity_chooses_where_a_window_begins(server):
    hiss = np.random.default_rng(0).normal(0, 20, 48_000)  # three seconds
    file = wav(np.concatenate([hiss, read_audio(LETTER).samples * 32767]))
    found = {}
    for name, chunking in (
        ("auto", "auto"),
        ("vad", {"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300}),
    ):
        answer = create(server.client(), file=file, chunking_strategy=chunking)
        assert SAID in answer.text
        found[name] = [window["start"] for window in answer.model_extra["adaptation"]["windows"]]
    assert found["auto"][0] == 0.0
    assert 2.5 < found["vad"][0] < 3.3


def test_several_texts(server):
    body = {"effort": "normal", "n_best": "3"}
    for response_format in ("json", "verbose_json"):
        answer = create(server.client(), extra_body=body, response_format=response_format)
        (window,) = answer.model_extra["windows"]
        first, *others = window["alternatives"]
        assert first["text"] == answer.text
        assert 1 <= len(others) <= 2
        assert 0 < sum(one["probability"] for one in window["alternatives"]) <= 1.001
    *_, done = create(server.client(), extra_body=body, stream=True)
    assert done.model_extra["windows"] == [window]
    assert "windows" not in create(server.client()).model_extra


def test_explained_words_have_alternatives_without_times(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    body = {"effort": "high", "explain": "true"}
    answer = next(e for e in create(client, stream=True, extra_body=body) if e.type == "sharpen.answer").model_dump()
    words = [word for part in answer["changes"] for word in part["words"]]
    assert "".join(word["word"] for word in words).strip() == answer["adapted" if answer["adapted"] else "source"]
    assert all("start" not in word and "alternatives" in word for word in words)
    assert any(word["alternatives"] for word in words)


def test_models(server):
    client = server.client()
    assert [model.id for model in client.models.list()] == ["tiny.en", "whisper-1"]
    model = client.models.retrieve("tiny.en")
    assert model.model_extra["sharpen"]["max_steps"] == 8
    assert "deadline" in model.model_extra["sharpen"]["fields"]
    with pytest.raises(openai.NotFoundError, match="whisper-1"):
        client.models.retrieve("large/v3")


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"model": "gpt-4o-transcribe"}, openai.NotFoundError, "model"),
        ({"response_format": "diarized_json"}, openai.BadRequestError, "response_format"),
        ({"known_speaker_names": ["a"]}, openai.BadRequestError, "known_speaker_names"),
        ({"language": "de"}, openai.BadRequestError, "language"),  # an English-only model
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"file": b"not audio"}, openai.BadRequestError, "file"),
        ({"file": b""}, openai.BadRequestError, "file"),
        ({"task": "translations"}, openai.BadRequestError, "model"),
    ],
)
def test_typed_errors(server, fields, kind, param):
    with pytest.raises(kind) as caught:
        create(server.client(), **fields)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.code
    assert caught.value.request_id.startswith("req_")


def test_an_api_key(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# of the tests\nfirst-key\nsecond-key\n")
    with Running("--api-keys", str(keys)) as server:
        for key in ("first-key", "second-key"):
            assert SAID in create(server.client(key)).text
        for key in ("third-key", "first-ke", "first-key2"):
            with pytest.raises(openai.AuthenticationError) as caught:
                create(server.client(key))
            assert caught.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            server.client("no").models.list()
