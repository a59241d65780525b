"""What a client is told when something is wrong: a status, and an object with OpenAI's four keys."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Any

KINDS = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


@dataclass(eq=False)  # not frozen: Python adds the traceback to an exception
class ApiError(Exception):
    """A request that is answered with an error."""

    status: int
    message: str
    param: str | None = None  # the field that is wrong
    code: str | None = None  # a word for programs
    retry_after: float | None = None  # seconds

    def __str__(self) -> str:
        return self.message

    @property
    def body(self) -> dict[str, Any]:
        kind = KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        found = {}
        if self.retry_after is not None:
            found["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        if self.status == 401:
            found["www-authenticate"] = "Bearer"
        return found


def bad_field(name: str, problem: str, code: str = "invalid_value") -> ApiError:
    """A field that is missing or wrong."""
    return ApiError(400, f"{name}: {problem}", name, code)


def stopping(seconds: float) -> ApiError:
    return ApiError(503, "the server is stopping; try again soon, or another one", None, "stopping", seconds)


def broken() -> ApiError:
    return ApiError(500, "the server made a mistake; it is in its log", None, "internal")


def request_name() -> str:
    """A name for an answer, by which a client and an operator can speak about it."""
    return f"req_{secrets.token_hex(12)}"
