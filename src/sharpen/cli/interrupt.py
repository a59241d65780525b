"""A Ctrl-C that is not lost while a file is read.

PyAV's compiled modules write each line of a traceback by running a small code object under their own name, and drop
whatever goes wrong in it. A KeyboardInterrupt that happens to be raised there is gone, and as the resampler raises and
catches an error with every frame, that was one Ctrl-C in six of those that came while audio was decoded.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

AGAIN = 0.01  # seconds


@contextmanager
def kept() -> Iterator[None]:
    """Inside, an interrupt that meets such a code object comes again a moment later. Other handlers are left alone."""
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
        frame = frame.f_back  # the next may come while this one is still being put off
    if frame is not None:
        threading.Timer(AGAIN, _thread.interrupt_main).start()  # at once would be in here, and as lost
    else:
        raise KeyboardInterrupt
