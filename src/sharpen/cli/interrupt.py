"""Keeps a Ctrl-C from being lost while audio is decoded.

PyAV's compiled modules add each line of a traceback by running a small code object, and drop any exception raised in
it. A KeyboardInterrupt raised there is lost. The resampler raises and catches an error for every frame, so one Ctrl-C
in six was lost during decoding.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

DELAY = 0.01  # seconds until a lost interrupt is raised again


@contextmanager
def kept() -> Iterator[None]:
    """Inside, an interrupt in such a code object is raised again a moment later. Other signal handlers are kept."""
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None and Path(frame.f_code.co_filename).parts[:1] != ("av",):
        frame = frame.f_back  # another interrupt may arrive inside this handler
    if frame is not None:
        threading.Timer(DELAY, _thread.interrupt_main).start()  # raised at once it would be lost as well
    else:
        raise KeyboardInterrupt
