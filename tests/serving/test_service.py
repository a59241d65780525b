"""What a request needs that is not installed."""

import importlib.util

import pytest

from sharpen.models.silero import load_silero
from sharpen.serving.errors import ApiError
from sharpen.serving.form import Form
from sharpen.serving.limits import ServerLimits
from sharpen.serving.service import Service
from sharpen.speech.transcribe import load


@pytest.fixture
def without_silero(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "silero_vad" else find(name))
    load_silero.cache_clear()
    yield
    load_silero.cache_clear()


def test_voice_activity_without_its_weights_is_refused_and_says_what_to_install(without_silero):
    service = Service(load("tiny.en"), ("tiny.en",), ServerLimits())
    fields = {"model": ("tiny.en",), "chunking_strategy": ('{"type": "server_vad"}',)}
    with pytest.raises(ApiError, match=r"sharpen\[vad\]") as caught:
        service.understand(Form(fields, b"audio"), "transcribe")
    assert (caught.value.status, caught.value.param) == (400, "chunking_strategy")
    assert caught.value.code == "unsupported_parameter"
    ask, data = service.understand(Form(fields | {"chunking_strategy": ("auto",)}, b"audio"), "transcribe")
    assert (ask.options.needs_voice, data) == (False, b"audio")
