"""Many clients at once, with different audio, languages and methods: each gets what it would get alone."""

from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from serving.running import Running
from serving.test_media import wav
from speechlike import EXAMPLES, manifest, with_noise

from sharpen.speech.audio import read_audio

CLIENTS = 32
LANGUAGES = ("en", "de", "", "fr", "es")  # the empty one is detected
METHODS = (
    {"effort": "plain"},
    {"effort": "normal"},
    {"effort": "high", "steps": "2"},
    {"method": "source"},
    {"method": "em-tok", "steps": "2", "samples": "3"},
    {"method": "greedy-em", "steps": "2"},
    {"effort": "normal", "prompt": "The weather."},
    {"effort": "normal", "response_format": "verbose_json", "timestamp_granularities[]": "word"},
)


def requests(count):
    """Forms, of which no two are alike: three seconds of an example in noise, a language and a method."""
    clips = [read_audio(row["path"]).samples[:48_000] for row in manifest(EXAMPLES)]
    found = []
    for i in range(count):
        samples = with_noise(clips[i % len(clips)], (20.0, 15.0, 10.0)[i % 3], i)
        fields = {"include[]": "logprobs", "language": LANGUAGES[i % len(LANGUAGES)], **METHODS[i % len(METHODS)]}
        found.append((wav(32767 * samples / max(1.0, abs(samples).max())), fields))
    return found


def answers(count, *flags):
    """The answers to all requests at once, and to one after the other."""
    limits = ["--busy", "1000", "--queue", "64", "--max-uploads", str(CLIENTS)]
    with Running("--model", "base", *limits, *flags) as server:  # one thread: several sum in another order than one

        def ask(request):
            file, fields = request
            data = {"model": "base", **fields}
            answer = httpx2.post(
                f"{server.url}/v1/audio/transcriptions", data=data, files={"file": ("a.wav", file)}, timeout=900
            )
            assert answer.status_code == 200, answer.text
            return answer

        with ThreadPoolExecutor(count) as pool:
            together = list(pool.map(ask, requests(count)))
        return together, list(map(ask, requests(count)))


@pytest.mark.long
def test_32_clients_get_the_same_bytes_where_windows_are_computed_alone():
    together, alone = answers(CLIENTS, "--together", "1", "--rows", "2", "--lanes", "2")
    assert [answer.content for answer in together] == [answer.content for answer in alone]
    assert len({answer.content for answer in alone}) == CLIENTS  # so that a crossed answer would be seen


@pytest.mark.long
def test_32_clients_get_the_same_text_where_windows_share_batches():
    together, alone = answers(CLIENTS)
    texts = [(one.json()["text"], other.json()["text"]) for one, other in zip(together, alone, strict=True)]
    changed = [pair for pair in texts if pair[0] != pair[1]]
    print(f"rounding changed {len(changed)} of {CLIENTS} texts: {changed}")
    assert len(changed) <= 3
