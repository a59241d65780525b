"""API keys: which are valid, and whether a request has one."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from pathlib import Path

from sharpen.errors import SharpenError
from sharpen.serving.errors import ApiError


@dataclass(frozen=True)
class Keys:
    """The keys that are accepted; none: every request is."""

    accepted: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def read(cls, path: str | Path) -> Keys:
        """The keys in a file, one on each line; # begins a comment."""
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SharpenError(f"{path}: the API keys cannot be read: {error}") from error
        keys = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
        if not keys:
            raise SharpenError(f"{path} has no API key; write one on each line, or leave the option out")
        return cls(tuple(key.encode() for key in keys))

    def check(self, authorization: str) -> None:
        """Raises unless the header has one of the keys. How long it takes says nothing about the keys."""
        if not self.accepted:
            return
        scheme, _, given = authorization.partition(" ")
        wanted = given.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else b""
        matches = [hmac.compare_digest(wanted, key) for key in self.accepted]
        if not any(matches):
            seen = "not an accepted API key" if wanted else "no API key"
            raise ApiError(
                401, f"{seen}: send a header Authorization: Bearer KEY", None, "invalid_api_key" if wanted else None
            )
