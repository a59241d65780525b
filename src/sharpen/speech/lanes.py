"""Several recordings at once, each in a thread of its own.

On a CPU two threads with a recording each do more than one recording with two threads: a search has many small steps,
which two threads cannot share well. `run_in_lanes` is `run` in several threads. Only the decoding is theirs: the jobs
are made, the callbacks called and the windows yielded in the caller's thread, one at a time, and a lane waits while its
window is looked at. So a caller needs no locks, and one that stops early is not disturbed by lanes that still compute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import torch

from sharpen.method.adapt import StepCallback
from sharpen.method.trace import Step
from sharpen.models.speech import SpeechModel
from sharpen.speech.job import Job
from sharpen.speech.longform import Segment
from sharpen.speech.transcribe import run

LAST_STEP = 30.0  # seconds; a second interrupt does not wait

Done = tuple[Job, list[Segment]]


def run_in_lanes(
    speech: SpeechModel,
    jobs: Iterable[Job],
    lanes: int,
    batch_size: int = 1,
    on_step: StepCallback | None = None,
    on_failure: Callable[[Job, Exception], None] | None = None,
) -> Iterator[Done]:
    """As `run`, with `lanes` times as many recordings at a time; the threads of torch are divided among the lanes."""
    if lanes == 1:
        yield from run(speech, jobs, batch_size, on_step, on_failure)
        return
    waiting, office = iter(jobs), _Office(lanes)

    def work() -> None:
        def step(number: int, steps: Mapping[int, Step]) -> None:
            if on_step is not None:
                office.ask(lambda: on_step(number, steps))

        def failed(job: Job, error: Exception) -> None:
            assert on_failure is not None
            office.ask(lambda: on_failure(job, error))

        given = iter(lambda: office.ask(lambda: next(waiting, None)), None)
        for job, new in run(speech, given, batch_size, step, None if on_failure is None else failed):
            office.show((job, new))

    office.open(work)
    try:
        while (letter := office.next()) is not None:
            if letter.shown is not None:
                yield letter.shown
            else:
                letter.answer = letter.call()
            office.send()
    finally:
        office.close()


@dataclass(eq=False)
class _Letter:
    """What a lane asks of the caller's thread."""

    call: Callable[[], Any] = lambda: None
    shown: Done | None = None  # or what it shows it
    answered: threading.Event = field(default_factory=threading.Event)
    answer: Any = None


class _Closed(BaseException):
    """Ends a lane whose caller is gone."""


class _Office:
    """Threads, and the letters they write to the caller's."""

    def __init__(self, lanes: int) -> None:
        self.lanes, self._working = lanes, lanes
        self._letters: SimpleQueue[_Letter | BaseException | None] = SimpleQueue()  # None: a lane has ended
        self._open: _Letter | None = None  # being answered
        self._closed = False
        self._threads = torch.get_num_threads()
        self._hands: list[threading.Thread] = []

    def open(self, work: Callable[[], None]) -> None:
        for _ in range(self.lanes):
            self._hands.append(threading.Thread(target=self._lane, args=[work], name="lane", daemon=True))
            self._hands[-1].start()

    def _lane(self, work: Callable[[], None]) -> None:
        self._share_threads()
        try:
            work()
        except _Closed:
            return
        except BaseException as error:
            self._letters.put(error)
        self._letters.put(None)

    def _share_threads(self) -> None:
        torch.set_num_threads(max(1, self._threads // max(1, self._working)))  # of the thread that calls

    def ask(self, call: Callable[[], Any]) -> Any:
        """In a lane: has the caller's thread make the call, and waits for what it returns."""
        return self._sent(_Letter(call))

    def show(self, done: Done) -> None:
        """In a lane: yields this to the caller, and waits until it has looked at it."""
        self._sent(_Letter(shown=done))

    def _sent(self, letter: _Letter) -> Any:
        self._letters.put(letter)
        if not self._closed:
            letter.answered.wait()
        if self._closed:
            raise _Closed
        self._share_threads()
        return letter.answer

    def next(self) -> _Letter | None:
        """In the caller's thread: the next letter; None when every lane has ended. Raises what a lane raised."""
        while self._working:
            letter = self._letters.get()
            if isinstance(letter, BaseException):
                raise letter
            if letter is not None:
                self._open = letter
                return letter
            self._working -= 1
        return None

    def send(self) -> None:
        """The letter is answered: its lane goes on."""
        if self._open is not None:
            self._open.answered.set()
            self._open = None

    def close(self) -> None:
        """Lanes end at their next letter, which is at most one step or one search away; that is waited for."""
        self._closed = True
        self.send()
        while not self._letters.empty():
            letter = self._letters.get()
            if isinstance(letter, _Letter):
                letter.answered.set()
        for hand in self._hands:
            hand.join(LAST_STEP)  # at the interpreter's end a thread inside torch would abort the process
        torch.set_num_threads(self._threads)
