"""The page at /, in a real browser."""

import json
import re
import wave

import httpx2
import numpy as np
import pytest
from playwright.sync_api import expect
from serving.browser import browsing, chromium, until
from serving.running import LETTER, SAID, Running
from speechlike import EXAMPLES

from sharpen.speech.audio import read_audio
from sharpen.speech.efforts import EFFORTS

MUSEUM = EXAMPLES / "museum.ogg"  # whose noise leaves tiny.en in doubt
DONE = "#again:visible"
KEY = "open sesame"
STEPS = EFFORTS["high"]["adapt"].steps


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    chromium()
    keys = tmp_path_factory.mktemp("server") / "keys"
    keys.write_text(KEY)
    with Running("--max-upload", "1", "--api-keys", str(keys)) as running:
        yield running


@pytest.fixture(scope="module")
def microphone(tmp_path_factory):
    """What is said into it: a clip at 48 kHz, which begins again when it ends."""
    path = tmp_path_factory.mktemp("microphone") / "ferry.wav"
    samples = read_audio(EXAMPLES / "ferry.flac", sampling_rate=48_000).samples
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(48_000)
        file.writeframes((samples * 32767).astype(np.int16).tobytes())
    return path


@pytest.fixture(scope="module")
def browser(server, microphone):
    with browsing(f"--use-file-for-fake-audio-capture={microphone}") as browser:
        yield browser


@pytest.fixture
def page(browser, server):
    """The page as a visitor finds it; what it complains about fails the test."""
    page, complaints = browser.open(server.url, KEY)
    expect(page.locator("#model")).to_have_text("tiny.en is ready")
    page.complaints = complaints
    yield page
    page.close()
    assert complaints == []


def choose(page, path, effort):
    page.locator(f"#effort input[value={effort}]").check(force=True)
    page.locator("#file").set_input_files(path)


@pytest.fixture(scope="module")
def adapted(browser, server):
    """A page after a recording that the model adapts to; `seen` and `drawn` are what was there on the way."""
    page, complaints = browser.open(server.url, KEY)
    expect(page.locator("#model")).to_have_text("tiny.en is ready")
    page.evaluate(
        """() => {
            const [status, curve] = ["status", "curve"].map((id) => document.getElementById(id));
            const watch = (element, note) => new MutationObserver(note).observe(element, { childList: true });
            window.seen = [], window.drawn = [];
            watch(status, () => seen.push(status.textContent));
            watch(curve, () => drawn.push(curve.querySelectorAll("circle").length));
        }"""
    )
    choose(page, MUSEUM, "high")
    page.wait_for_selector(DONE)
    yield page
    assert complaints == []


def test_one_can_watch_it_adapt(adapted):
    steps = [text for text in adapted.evaluate("seen") if text.startswith("Adapting")]
    assert steps == [f"Adapting: update {k} of {STEPS}" for k in range(1, STEPS + 1)]
    points = adapted.evaluate("drawn")
    assert points == sorted(points), "the curve did not grow"
    assert points[-1] == 2 * STEPS, "two curves"
    assert adapted.locator("#frames span").all_text_contents() == ["source", *map(str, range(STEPS)), "adapted"]
    last = adapted.locator("#tree svg desc").text_content()
    adapted.locator("#frames input").first.check(force=True)
    expect(adapted.locator("#tree-title")).to_have_text("Hypotheses of the source model")
    assert adapted.locator("#tree svg desc").text_content() != last


def test_changed_words_are_marked_in_both_texts(adapted):
    expect(adapted.locator("#status")).to_contain_text(f"{STEPS} updates")
    assert adapted.locator("#answer button.word").count() > 15
    assert adapted.locator("#answer .word:is(.e3, .e4, .e5, .e6)").count() > 0, "nothing is coloured as doubtful"
    assert adapted.locator("#answer ins").count() > 0
    assert adapted.locator("#source del").count() > 0
    kept = """(text) => {
        const copy = text.cloneNode(true);
        for (const mark of copy.querySelectorAll("ins, del, .stamp")) mark.remove();
        return copy.textContent.split(/\\s+/).filter(Boolean);
    }"""
    assert adapted.locator("#answer p").evaluate(kept) == adapted.locator("#source p").evaluate(kept)


def test_a_word_is_heard_and_doubted(adapted):
    word, card = adapted.locator("#answer ins button.word").first, adapted.locator("#word-card")
    word.click()
    expect(card.locator(".chosen")).to_have_text(word.text_content())
    expect(card).to_contain_text("before adapting")
    expect(card.locator(".others li").first).to_be_visible()
    until(adapted, "document.getElementById('audio').currentTime > 0")
    adapted.keyboard.press("Escape")
    expect(card).to_be_hidden()
    adapted.keyboard.press("Home")
    assert adapted.evaluate("document.activeElement === document.querySelector('#answer button.word')")
    assert adapted.locator("#answer button.word").evaluate_all("all => all.filter(b => b.tabIndex === 0).length") == 1
    adapted.keyboard.press("Enter")
    expect(card.locator(".chosen")).to_have_text(adapted.locator("#answer button.word").first.text_content())
    until(adapted, "document.getElementById('audio').paused")  # at the end of the word
    assert adapted.evaluate("document.getElementById('audio').currentTime") < 2
    adapted.keyboard.press("Escape")


def test_doubt_and_alternatives_are_said_to_a_screen_reader(adapted):
    doubtful = adapted.locator("#answer .word:is(.e4, .e5, .e6)")
    assert doubtful.count() == adapted.locator("#answer .word[aria-description='in doubt']").count() > 0
    word = adapted.locator("#answer ins button.word").first
    word.click()
    other = adapted.locator("#word-card .others b").first.text_content()
    expect(adapted.locator("#said[aria-live=polite]")).to_have_text(
        re.compile(rf"{word.text_content()}, confidence .+, before adapting: .+, {other} \d+ %")
    )
    assert adapted.evaluate("document.activeElement.matches('button.word')")
    adapted.keyboard.press("Escape")


def test_downloads(adapted):
    saved = {}
    for kind in ("txt", "srt", "vtt", "json"):
        with adapted.expect_download() as download:
            adapted.get_by_role("link", name=kind, exact=True).click()
        assert download.value.suggested_filename == f"museum.{kind}"
        saved[kind] = download.value.path().read_text(encoding="utf-8")
    words = saved["txt"].split()
    assert words == adapted.locator("#answer").inner_text().split()
    assert saved["srt"].startswith("1\n00:00:0")
    assert saved["vtt"].startswith("WEBVTT\n\n")
    loaded = json.loads(saved["json"])
    assert loaded["text"].split() == words
    assert loaded["adaptation"]["steps"] == STEPS
    assert loaded["segments"][0]["words"][0]["end"] > 0


def test_the_microphone(page):
    page.locator("#effort input[value=plain]").check(force=True)
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.locator("#clock")).to_contain_text("0:04")
    page.get_by_role("button", name="Stop and transcribe").click()
    page.wait_for_selector(DONE)
    assert "Aberdeen" in page.locator("#answer").inner_text()
    expect(page.locator("#name")).to_have_text("recording.webm")
    page.locator("#answer button.word").last.click()
    until(page, "document.getElementById('audio').currentTime > 1")  # a recording that can be sought in


def test_a_dropped_file(page):
    page.locator("#effort input[value=plain]").check(force=True)
    dropped = page.evaluate_handle(
        """(bytes) => {
            const dropped = new DataTransfer();
            dropped.items.add(new File([new Uint8Array(bytes)], "letter.flac"));
            return dropped;
        }""",
        list(LETTER),
    )
    page.dispatch_event("body", "dragenter")
    expect(page.locator("#dropping")).to_be_visible()
    page.dispatch_event("body", "drop", {"dataTransfer": dropped})
    expect(page.locator("#dropping")).to_be_hidden()
    page.wait_for_selector(DONE)
    assert SAID in page.locator("#answer").inner_text()


def test_the_keyboard_alone(page):
    def tab_to(selector, key="Tab"):
        for _ in range(20):
            page.keyboard.press(key)
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"{key} does not reach {selector}")

    page.on("filechooser", lambda chooser: None)  # from here on the browser hands choosers over
    tab_to("#effort input")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#effort input[value=plain]")).to_be_checked()
    tab_to("#record", "Shift+Tab")
    tab_to("#file", "Shift+Tab")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(EXAMPLES / "letter.flac")
    page.wait_for_selector(DONE)
    tab_to("#answer button.word")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.locator("#word-card .chosen")).to_have_text("window.")
    page.keyboard.press("Escape")
    tab_to("#downloads a")


def test_hints_say_how_many_updates_an_effort_takes(page):
    words = {0: "nothing", 1: "one", 4: "four", 10: "ten"}
    for effort, bundle in EFFORTS.items():
        page.locator(f"#effort input[value={effort}]").check(force=True)
        steps = bundle["adapt"].steps if bundle["adapt"] else 0
        expect(page.locator("#effort-hint")).to_contain_text(re.compile(rf"\b{words[steps]}\b", re.IGNORECASE))


def test_errors_are_said_in_words(server, page, tmp_path):
    bad = tmp_path / "notes.wav"
    bad.write_text("this is no audio")
    page.locator("#file").set_input_files(bad)
    error = page.locator("#error")
    expect(error).to_contain_text("The given data is not audio that can be decoded")
    expect(page.locator("#result")).to_be_hidden()
    assert page.complaints.pop().startswith("Failed to load resource: the server responded with a status of 4")

    large = tmp_path / "large.wav"
    large.write_bytes(bytes(1_100_000))
    page.locator("#file").set_input_files(large)
    expect(error).to_have_text("The recording has 1.0 MB; this server takes up to 1 MB.")
    (tmp_path / "empty.wav").touch()
    page.locator("#file").set_input_files(tmp_path / "empty.wav")
    expect(error).to_have_text("The recording is empty.")

    page.route("**/v1/audio/transcriptions", lambda route: route.abort())
    choose(page, EXAMPLES / "letter.flac", "plain")
    expect(error).to_contain_text("cannot be reached")
    page.unroute("**/v1/audio/transcriptions")
    page.complaints.clear()
    choose(page, EXAMPLES / "letter.flac", "plain")
    page.wait_for_selector(DONE)
    expect(error).to_be_hidden()
    assert "window" in page.locator("#answer").inner_text()


def test_a_key_is_asked_for_only_where_it_is_needed(server, browser, page):
    expect(page.locator("#key-field")).to_be_hidden()
    stranger, complaints = browser.open(server.url)
    expect(stranger.locator("#error")).to_have_text("This server asks for an API key.")
    stranger.get_by_label("API key").fill("wrong")
    stranger.get_by_role("button", name="Use it").click()
    expect(stranger.locator("#error")).to_have_text("The server does not accept this API key.")
    stranger.get_by_label("API key").fill(KEY)
    stranger.keyboard.press("Enter")
    expect(stranger.locator("#model")).to_have_text("tiny.en is ready")
    expect(stranger.locator("#key-field")).to_be_hidden()
    choose(stranger, EXAMPLES / "letter.flac", "plain")
    stranger.wait_for_selector(DONE)
    assert "window" in stranger.locator("#answer").inner_text()
    assert len(complaints) == 2
    assert all("401" in complaint for complaint in complaints)


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1600, "light")])
def test_it_fits_a_phone_and_a_wide_screen(server, page, width, scheme):
    page.set_viewport_size({"width": width, "height": 740})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    choose(page, EXAMPLES / "letter.flac", "plain")
    page.wait_for_selector(DONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"dark": "rgb(20, 23, 26)", "light": "rgb(251, 250, 247)"}[scheme]
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, select")]
            .filter(e => e.checkVisibility() && !e.textContent.trim() && !e.labels?.length && !e.ariaLabel)
            .map(e => e.outerHTML)"""
    )
    assert unnamed == []


def test_the_files_of_the_page(server):
    index = httpx2.get(server.url, headers={"accept": "text/html"})
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    policy = index.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert httpx2.get(server.url).json()["name"] == "sharpen"  # a program is told what paths there are
    found = set(re.findall(r'(?:src|href)="(assets/[^"]+)"', index.text))
    assert len(found) == 4
    scripts = {"assets/main.js"}
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    while found:
        name = found.pop()
        answer = httpx2.get(f"{server.url}/{name}")
        assert answer.headers["content-type"].startswith(kinds[name.rpartition(".")[2]])
        assert answer.headers["x-content-type-options"] == "nosniff"
        tag = {"if-none-match": answer.headers["etag"]}
        assert httpx2.get(f"{server.url}/{name}", headers=tag).status_code == 304
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text), f"{name} names another host"
        new = {f"assets/{other}" for other in re.findall(r'from "\./([a-z]+\.js)"', answer.text)} - scripts
        scripts |= new
        found |= new
    assert httpx2.get(f"{server.url}/assets/../app.py").status_code == 404
    assert httpx2.get(f"{server.url}/assets/%2e%2e%2fapp.py").status_code == 404
