"""The one place where commands make a progress bar; it goes to standard error."""

from __future__ import annotations

from typing import Any


def bar(total: float, unit: str, quiet: bool, **settings: Any) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, disable=quiet, dynamic_ncols=True, **settings)
