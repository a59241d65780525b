"""A real browser on the page of a server."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-ui-for-media-stream",  # the microphone is allowed, and is a file
    "--use-fake-device-for-media-stream",
]


expect.set_options(timeout=30_000)  # a busy machine may take its time


def chromium() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no browser is here: install chromium")
    return found


class Visitors:
    """People with one browser: some have a key to the server."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    def open(self, url: str, key: str = "") -> tuple[Page, list[str]]:
        """A page in a browser without history, and what it complains about."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        context = self._browser.new_context(viewport={"width": 1200, "height": 900}, extra_http_headers=headers)
        page, complaints = context.new_page(), list[str]()
        page.set_default_timeout(60_000)
        page.on("console", lambda said: said.type in ("error", "warning") and complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        return page, complaints


@contextmanager
def browsing(*flags: str) -> Iterator[Visitors]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=[*FLAGS, *flags])
        yield Visitors(browser)
        browser.close()


def until(page: Page, condition: str) -> None:
    """Waits for a condition. Its own policy lets the page evaluate no string, so it is asked from outside."""
    end = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)
