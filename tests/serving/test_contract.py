"""Fields of a form to a request."""

import pytest
from openai.types.audio import transcription_create_params, translation_create_params

from sharpen.serving.contract import parse
from sharpen.serving.errors import ApiError
from sharpen.serving.limits import ServerLimits
from sharpen.speech.options import VadParameters

LIMITS = ServerLimits(max_steps=12, max_samples=8, max_n_best=6)


def ask(task="transcribe", default="normal", **fields):
    given = {"model": "tiny.en", **fields}
    lists = {name: tuple(v) if isinstance(v, list) else (v,) for name, v in given.items() if v is not None}
    return parse(lists, task, ("tiny.en", "whisper-1"), default, LIMITS)


def refused(**fields):
    with pytest.raises(ApiError) as caught:
        ask(**fields)
    return caught.value


def test_the_defaults_are_the_servers_effort():
    found = ask()
    assert (found.response_format, found.stream, found.logprobs, found.deadline) == ("json", False, False, None)
    assert (found.effort, found.method) == ("normal", "em-tok-b")
    assert found.options.adapt.steps == 1
    assert ask(default="high") == ask(effort="high")
    assert ask(effort="plain").options.adapt is None
    assert ask(effort="plain").method == "beam"


def test_openai_fields():
    found = ask(
        task="translate",
        language="German",
        prompt="Doctor Silva",
        response_format="verbose_json",
        **{"timestamp_granularities[]": ["word", "segment"], "include[]": ["logprobs"], "stream": "true"},
    )
    assert (found.options.task, found.options.language, found.options.initial_prompt) == (
        "translate",
        "de",
        "Doctor Silva",
    )
    assert found.options.word_timestamps
    assert found.segments
    assert found.logprobs
    assert found.stream


def test_lists_with_and_without_brackets_are_the_same():
    for name in ("timestamp_granularities", "timestamp_granularities[]"):
        found = ask(response_format="verbose_json", **{name: ["word"]})
        assert found.options.word_timestamps
        assert not found.segments


def test_a_temperature_samples_once_and_does_not_adapt():
    found = ask(temperature="0.5")
    assert found.options.temperature == (0.5,)
    assert found.options.adapt is None
    assert len(ask(temperature="0").options.temperature) == 6
    assert refused(temperature="0.5", effort="high").param == "temperature"


def test_own_fields():
    found = ask(method="em-tok", steps="3", samples="4", deadline="2.5", stream="1", explain="on")
    assert (found.options.adapt.method, found.options.adapt.steps, found.options.adapt.samples) == ("em-tok", 3, 4)
    assert (found.deadline, found.explain, found.effort, found.method) == (2.5, True, "", "em-tok")
    assert ask(effort="high", steps="2").options.adapt.steps == 2
    assert ask(method="em-tok-b").options.adapt.steps == 10  # the method's own, below the server's 12
    assert ask(method="em-tok-b").options.adapt.samples == 8  # its own 16 is above the server's most


def test_several_texts():
    assert ask(n_best="3").options.n_best == 3
    assert ask(n_best="5", effort="plain", response_format="verbose_json").options.n_best == 5
    assert ask(n_best="6", method="beam", samples="8").options.n_best == 6
    assert ask(n_best="2", stream="true", response_format="srt").options.n_best == 2
    assert ask(n_best="1", response_format="srt") == ask(response_format="srt")


def test_windows_are_whispers_own_unless_voice_activity_is_asked_for():
    assert ask(chunking_strategy="auto").options == ask().options
    assert not ask().options.needs_voice


@pytest.mark.parametrize(
    ("chunking", "parameters"),
    [
        ({"chunking_strategy": '{"type": "server_vad"}'}, VadParameters()),
        ({"chunking_strategy": '{"type": "server_vad", "threshold": 0.4}'}, VadParameters(threshold=0.4)),
        (
            {"chunking_strategy[type]": "server_vad", "chunking_strategy[prefix_padding_ms]": "300",
             "chunking_strategy[silence_duration_ms]": "500"},
            VadParameters(speech_pad_ms=300, min_silence_duration_ms=500),
        ),
    ],
)  # fmt: skip
def test_server_vad_is_our_detector_with_its_parameters(chunking, parameters):
    found = ask(**chunking).options
    assert (found.vad_filter, found.chunk, found.vad_parameters) == (True, "sequential", parameters)


def parameters(kind):
    return sorted({*kind.__annotations__, "stream"} - {"file"})  # the file is no field


@pytest.mark.parametrize("name", parameters(transcription_create_params.TranscriptionCreateParamsBase))
def test_every_parameter_of_openais_client_is_known(name):
    """One that the client has and nobody thought of here would be ignored in silence."""
    if name == "prompt":
        assert ask(prompt="nonsense").options.initial_prompt == "nonsense"
    else:
        assert refused(**{name: "nonsense"}).param == name


def test_a_translation_has_no_parameter_that_a_transcription_lacks():
    ours = parameters(transcription_create_params.TranscriptionCreateParamsBase)
    assert set(parameters(translation_create_params.TranslationCreateParams)) <= set(ours)


def test_unknown_fields_are_ignored():
    assert ask(nonsense="1", user="me") == ask()


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"model": None}, "model", "missing"),
        ({"response_format": "diarized_json"}, "response_format", "speakers"),
        ({"response_format": "xml"}, "response_format", "'xml' is unknown"),
        ({"known_speaker_names[]": ["a"]}, "known_speaker_names", "speakers"),
        ({"known_speaker_references[]": ["a"]}, "known_speaker_references", "speakers"),
        ({"keywords[]": ["a"]}, "keywords", "prompt"),
        ({"languages[]": ["de", "en"]}, "languages", "one language"),
        ({"n_best": "7"}, "n_best", "at most 6"),
        ({"n_best": "6"}, "n_best", "normal finds fewer"),
        ({"n_best": "2", "response_format": "vtt"}, "n_best", "vtt"),
        ({"timestamp_granularities[]": ["word"]}, "timestamp_granularities", "verbose_json"),
        ({"response_format": "verbose_json", "timestamp_granularities[]": ["x"]}, "timestamp_granularities", "'x'"),
        ({"include[]": ["logprobs"], "response_format": "srt"}, "include", "srt"),
        ({"include[]": ["tokens"]}, "include", "'tokens'"),
        ({"temperature": "1.5"}, "temperature", "at most 1"),
        ({"temperature": "warm"}, "temperature", "'warm'"),
        ({"temperature": "nan"}, "temperature", "'nan'"),
        ({"stream": "maybe"}, "stream", "true or false"),
        ({"language": "klingon"}, "language", "klingon"),
        ({"language": ["en", "de"]}, "language", "2 times"),
        ({"method": "sgd"}, "method", "em-tok-b"),
        ({"method": "em-tok", "effort": "high"}, "effort", "leave"),
        ({"steps": "13"}, "steps", "at most 12"),
        ({"steps": "0"}, "steps", "from 1"),
        ({"steps": "2.5"}, "steps", "whole"),
        ({"samples": "9"}, "samples", "at most 8"),
        ({"steps": "2", "effort": "plain"}, "steps", "does not adapt"),
        ({"deadline": "0"}, "deadline", "above 0"),
        ({"deadline": "1e9"}, "deadline", "at most 3600"),
        ({"explain": "true"}, "explain", "stream"),
        ({"chunking_strategy": "fast"}, "chunking_strategy", "'fast'"),
        ({"chunking_strategy": '{"type": "client_vad"}'}, "chunking_strategy", "server_vad"),
        ({"chunking_strategy": '{"type": "server_vad", "threshold": "x"}'}, "chunking_strategy", "number"),
        ({"chunking_strategy": '{"type": "server_vad", "threshold": 2}'}, "chunking_strategy", "threshold"),
        ({"chunking_strategy": '{"type": "server_vad", "prefix_padding_ms": 1e999}'}, "chunking_strategy", "number"),
        ({"chunking_strategy": "[" * 5000}, "chunking_strategy", "auto"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields, param, says):
    error = refused(**fields)
    assert (error.status, error.param) == (400, param)
    assert says in error.message


def test_an_unknown_model_is_not_found():
    error = refused(model="gpt-4o-transcribe")
    assert (error.status, error.code) == (404, "model_not_found")
    assert "whisper-1" in error.message
