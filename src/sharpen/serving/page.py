"""The page at /: files from this package, which load nothing from elsewhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

INDEX = "index.html"
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Scripts and styles are this server's files, and audio is what the visitor has chosen: nothing else is let in.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; media-src blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "cache-control": "no-cache",  # kept, but asked about: the page of a newer server is seen at once
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    content: bytes
    media_type: str

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:20]}"'


class Page:
    """The page and its files, read once."""

    def __init__(self) -> None:
        own = files("sharpen.serving").joinpath("assets")
        found = [*own.iterdir(), files("sharpen.explain").joinpath("assets/explain.css")]  # whose look it shares
        self._assets = {path.name: _asset(path) for path in found if _ending(path) in MEDIA_TYPES}

    def index(self, request: Request) -> Response:
        return self._file(request, INDEX, {"vary": "accept"})

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._assets:
            raise HTTPException(404)
        return self._file(request, name, {})

    def _file(self, request: Request, name: str, headers: dict[str, str]) -> Response:
        asset = self._assets[name]
        headers = {**HEADERS, **headers, "etag": asset.tag}
        if asset.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers, media_type=asset.media_type)


def _ending(path: Traversable) -> str:
    return path.name.rpartition(".")[2]


def _asset(path: Traversable) -> Asset:
    return Asset(path.read_bytes(), MEDIA_TYPES[_ending(path)])


def wants_page(request: Request) -> bool:
    """Whether a browser asks, which can show it; programs are told what paths there are."""
    return "text/html" in request.headers.get("accept", "")
