"""One thread of the batch, with an episode: it takes windows from the line and works on them in turns.

In a turn the source model decodes some windows together, every window that adapts takes one step, and those that are
done are decoded with their own norms. A recording takes part with one window at a time, and its next window waits
behind those of the others: a long recording does not hold up a short one.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch

from sharpen.errors import reason
from sharpen.method.adapt import Outcome
from sharpen.method.episode import Episode
from sharpen.method.trace import OUT_OF_TIME
from sharpen.models.speech import SpeechModel
from sharpen.serving.costs import Costs, search_of
from sharpen.serving.errors import ApiError, broken
from sharpen.serving.events import SourceTold, StepTold
from sharpen.serving.line import WaitingLine
from sharpen.serving.metrics import Metrics
from sharpen.serving.ticket import LATE, LiveRow, Ticket, answer_key, cheapest
from sharpen.speech.answers import Decoded, text_tree
from sharpen.speech.decoding import (
    SourcePass,
    adapt_windows,
    decode_adapted,
    decode_source,
    episode_inputs,
    first_hypotheses,
    normal_text,
)
from sharpen.speech.fallback import attempts
from sharpen.speech.options import Options

SHED = "load: {} windows were waiting"


class Lane:
    """Works on windows in a thread of its own; several lanes share a line."""

    def __init__(
        self, speech: SpeechModel, line: WaitingLine, costs: Costs, metrics: Metrics, rows: int, beside: Sequence[Lane]
    ) -> None:
        self.speech, self.costs, self.metrics = speech, costs, metrics
        self.working = False
        self._line, self._capacity, self._beside = line, rows, beside  # all lanes, this one among them
        self._episode = Episode(speech.policy, normal_text(speech))
        self._rows: dict[str, LiveRow] = {}
        self._taken: set[Ticket] = set()  # what a mistake of this lane would cost
        self._threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name="lane", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Waits for the end of its last turn."""
        self._thread.join(seconds)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def __len__(self) -> int:
        """Windows that adapt in it."""
        return len(self._rows)

    def _run(self) -> None:
        while not self._line.ended:
            self.working = True
            try:
                self._turn()
            except Exception:  # ours: what it was about is lost, the next request is not
                traceback.print_exc()
                self._begin_anew()
            if not self._rows:
                self.working = False
                self._gauges()
                self._line.wait()

    def _begin_anew(self) -> None:
        self._episode = Episode(self.speech.policy, normal_text(self.speech))
        self._rows.clear()
        for ticket in list(self._taken) or self._line.rest():  # nothing was taken: one of those that wait is to blame
            ticket.vanished = True
            self._fail(ticket, broken())

    def _turn(self) -> None:
        """One source batch, one step of everything that adapts, and the answers of what is done."""
        begin = time.monotonic()
        torch.set_num_threads(max(1, self._threads // sum(lane.working for lane in self._beside)))  # of this thread
        self._drop_vanished()
        self._decode_ready()
        if self._rows:
            self._stop_late()
            self._shed()
            self._step()
            self._answer([row for row in self._rows.values() if row.id not in set(self._episode.live)])
            self.costs.saw("turn", time.monotonic() - begin)
        self._gauges()

    def _gauges(self) -> None:
        self.metrics.set("queue", len(self._line))
        self.metrics.set("waiting", self._line.waiting)
        self.metrics.set("rows", sum(map(len, self._beside)))

    def _drop_vanished(self) -> None:
        gone = [row for row in self._rows.values() if row.ticket.vanished]
        self._episode.leave([row.id for row in gone])
        for row in gone:
            del self._rows[row.id]
            self._taken.discard(row.ticket)
        self._line.drop_vanished()

    def _chosen(self, ticket: Ticket) -> tuple[Options, str]:
        """The options of its next window: less where the deadline leaves no time for more."""
        options = ticket.job.options
        left = ticket.share_ends - time.monotonic()
        seconds = min(self.speech.seconds, ticket.seconds - ticket.job.done)
        if options.decode != "greedy" and left < self.costs.expected(search_of(options.decode), seconds):
            return cheapest(options), LATE
        return options, ""

    def _decode_ready(self) -> None:
        """The source model transcribes some windows; those to adapt to join the episode, the others are done."""
        if self._rows and not all(lane.working for lane in self._beside):
            return  # the next window is for whoever has nothing to do
        taken = []
        hurried = any(row.until < math.inf for row in self._rows.values())  # they wait while others are decoded
        rows = self._capacity - len(self._rows)
        share = math.ceil(self._line.waiting / len(self._beside))  # the others have hands, too
        most = 1 if hurried else max(1, min(share, self._line.limits.together))
        for ticket, options, why in self._line.take(self._chosen, rows, most):
            self._taken.add(ticket)
            if time.monotonic() >= ticket.until:
                self._give_up(ticket)
            else:
                taken.append((ticket, options, why, ticket.job.window()))
        if not taken:
            return
        options = taken[0][1]

        def decode(some: Sequence[tuple]) -> list[SourcePass]:  # type: ignore[type-arg]
            languages = [ticket.job.language for ticket, *_ in some]
            done = decode_source(self.speech, [window for *_, window in some], options, languages)
            return [done.select([b]) for b in range(len(some))]

        seconds = sum(len(window.samples) for *_, window in taken) / self.speech.sampling_rate
        with self._timed("source", search_of(options.decode), seconds):
            found = attempts(taken, decode)
        for attempt in found:
            ticket, options, why, window = attempt.item
            if attempt.result is None:
                self._broke(ticket, attempt.error)
                continue
            decoded = attempt.result.results[0]
            if ticket.explain:
                seconds = len(window.samples) / self.speech.sampling_rate
                (tree,) = attempt.result.trees
                beams = None if tree is None else text_tree(self.speech, tree, options.beam_size)
                ticket.send(SourceTold(round(ticket.job.done, 3), round(seconds, 3), decoded, beams))
            if options.adapt is None or not decoded.is_speech:
                self._accept(ticket, attempt.result, decoded, why)
            else:
                self._join(ticket, attempt.result, options)

    def _join(self, ticket: Ticket, source: SourcePass, options: Options) -> None:
        assert options.adapt is not None
        until = ticket.share_ends
        row = LiveRow(f"{ticket.id}@{ticket.job.position}", ticket, source, options, until)
        if time.monotonic() + self.costs.expected("turn") + self._last(row) > until:
            self._accept(ticket, source, source.results[0], OUT_OF_TIME)
            return
        prepared, draws, limits = episode_inputs(self.speech, source, options)
        trees, anew = first_hypotheses(self.speech, source, options)
        self._episode.join(prepared, [row.id], limits, options.adapt, draws=draws, trees=trees, search_anew=anew)
        self._rows[row.id] = row

    def _last(self, row: LiveRow) -> float:
        """Seconds that its last decode will take."""
        return self.costs.expected(search_of(row.options.final_decode), row.seconds)

    def _stop_late(self) -> None:
        """Ends the rows whose next step would leave no time for their answer."""
        for row in self._rows.values():
            expected = self.costs.expected("turn") + self._last(row)
            if time.monotonic() + expected > row.until:
                self._episode.trace(row.id).stopped = OUT_OF_TIME

    def _shed(self) -> None:
        """Where many windows wait for a row, the most confident rows give theirs up; each has one step at least."""
        waiting = self._line.waiting
        if waiting < self._line.limits.busy or len(self._rows) < self._capacity:
            return
        traces = [self._episode.trace(i) for i in self._episode.live]
        begun = [trace for trace in traces if trace.steps]
        begun.sort(key=lambda trace: trace.steps[-1].H_tok * trace.steps[-1].hypotheses / trace.steps[-1].tokens)
        for trace in begun[:waiting]:
            trace.stopped = SHED.format(waiting)
            self.metrics.add("shed_total")

    def _step(self) -> None:
        try:
            with self._timed("step"):
                steps = self._episode.step()
        except Exception:  # whose fault it is, is found by adapting to each alone
            self._adapt_alone()
            return
        self.metrics.add("steps_total", len(steps))
        for i, step in steps.items():
            row = self._rows[i]
            row.told += 1
            if row.ticket.explain and row.options.adapt is not None:
                ticket = row.ticket
                ticket.send(StepTold(round(ticket.job.done, 3), row.told, row.options.adapt.steps, step))

    def _adapt_alone(self) -> None:
        """Each window in an episode of its own, from its first step on."""
        rows = list(self._rows.values())
        self._episode.leave([row.id for row in rows])
        self._rows.clear()
        for row in rows:
            try:
                (decoded,) = self._alone(row)
            except Exception as error:
                self._broke(row.ticket, error)
            else:
                self._accept(row.ticket, row.source, decoded)

    def _alone(self, row: LiveRow) -> list[Decoded]:
        outcome = adapt_windows(self.speech, row.source, row.options, until=row.until)
        return decode_adapted(self.speech, row.source, outcome, row.options)

    def _answer(self, done: Sequence[LiveRow]) -> None:
        """Decodes the windows of finished rows with their own norms."""
        groups: dict[Hashable, list[LiveRow]] = defaultdict(list)
        for row in done:
            groups[answer_key(row.options)].append(row)
        for rows in groups.values():
            seconds = sum(row.seconds for row in rows if self._episode.trace(row.id).steps)
            with self._timed("answer", search_of(rows[0].options.final_decode), seconds):
                found = attempts(rows, self._answers)
            self._episode.leave([row.id for row in rows])
            for attempt in found:
                row = attempt.item
                del self._rows[row.id]
                if attempt.result is None:
                    self._broke(row.ticket, attempt.error)
                else:
                    self._accept(row.ticket, row.source, attempt.result)

    def _answers(self, rows: Sequence[LiveRow]) -> list[Decoded]:
        ids = [row.id for row in rows]
        traces = [self._episode.trace(i) for i in ids]
        outcome = Outcome(self._episode.theta(ids), self._episode.norms(ids), traces)
        source = SourcePass.join([row.source for row in rows])
        return decode_adapted(self.speech, source, outcome, rows[0].options)

    def _accept(self, ticket: Ticket, source: SourcePass, decoded: Decoded, stopped: str = "") -> None:
        """A window is done: the recording goes back into the line, or is done too."""
        finished = ticket.accept(source.windows[0], decoded, stopped)
        report = ticket.reports[-1]
        self.metrics.add("windows_total", label=report.answer)
        self.metrics.add("audio_seconds_total", report.seconds)
        self.metrics.add("guard_total", bool(report.guard))
        self.metrics.add("confident_total", report.stopped.startswith("confident"))
        self.metrics.add("out_of_time_total", report.stopped.startswith("deadline"))
        if finished:
            self._finish(ticket)
        else:
            self._taken.discard(ticket)
            if not ticket.vanished:
                self._line.put_back(ticket)

    def _give_up(self, ticket: Ticket) -> None:
        """Its deadline has passed: what there is of the transcript is the answer."""
        if ticket.reports:
            self._finish(ticket, complete=False)
        else:
            message = "the deadline passed before the first window had its turn; give it longer, or try again later"
            self._fail(ticket, ApiError(503, message, "deadline", "deadline_exceeded", self.costs.expected("turn")))

    def _finish(self, ticket: Ticket, complete: bool = True) -> None:
        self._taken.discard(ticket)
        self._line.remove(ticket)
        ticket.finish(complete)

    def _fail(self, ticket: Ticket, error: ApiError) -> None:
        self._taken.discard(ticket)
        self._line.remove(ticket)
        ticket.fail(error)

    def _broke(self, ticket: Ticket, error: Exception | None) -> None:
        why = reason(error) if error else "unknown"
        self._fail(ticket, ApiError(500, f"this recording could not be transcribed: {why}", None, "decoding_failed"))

    @contextmanager
    def _timed(self, stage: str, what: str = "", seconds: float = 1.0) -> Iterator[None]:
        """Counts the time of a stage, and what a second of audio costs there."""
        begin = time.monotonic()
        yield
        took = time.monotonic() - begin
        self.metrics.add("stage_seconds_total", took, stage)
        if what:
            self.costs.saw(what, took, seconds)
