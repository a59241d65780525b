"""The batch that all requests share: a line, and lanes that work on what waits in it.

A lane is a thread with an episode. On a CPU two lanes of one thread each do more than one lane of two threads: a search
has many small steps, which two threads cannot share well. A lane that works alone has all threads.
"""

from __future__ import annotations

import math

import torch

from sharpen.models.speech import SpeechModel
from sharpen.serving.costs import Costs, warm_up
from sharpen.serving.errors import stopping
from sharpen.serving.lane import Lane
from sharpen.serving.limits import ServerLimits
from sharpen.serving.line import WaitingLine
from sharpen.serving.metrics import Metrics
from sharpen.serving.ticket import Ticket

LAST_TURN = 60.0  # seconds that the end waits for it
MOST_LANES = 4  # unless told otherwise: each has its own hypotheses and gradients in memory
WIDEST = 768  # the states of whisper-small; a larger model has one lane, for the sake of memory


class EpisodeBatch:
    """Takes tickets from any thread and works on them in its own."""

    def __init__(self, speech: SpeechModel, limits: ServerLimits, metrics: Metrics) -> None:
        self.speech, self.metrics = speech, metrics
        self.costs = Costs()
        self._line = WaitingLine(limits, self.costs)
        self.lanes: list[Lane] = []
        number = min(limits.lanes or default_lanes(speech), limits.rows)
        rows = math.ceil(limits.rows / number)
        for _ in range(number):
            self.lanes.append(Lane(speech, self._line, self.costs, metrics, rows, self.lanes))

    def start(self) -> None:
        """Begins to work, once it knows about how long things take."""
        warm_up(self.speech, self.costs)
        for lane in self.lanes:
            lane.start()

    def stop(self) -> None:
        """Ends every lane after its turn; what is unfinished fails."""
        self._line.end()
        for lane in self.lanes:
            lane.join(LAST_TURN)
        for ticket in self._line.rest():
            self._line.remove(ticket)
            ticket.fail(stopping(1.0))

    @property
    def alive(self) -> bool:
        return all(lane.alive for lane in self.lanes)

    @property
    def size(self) -> int:
        """Recordings accepted and not yet done."""
        return len(self._line)

    def check_room(self) -> None:
        """Raises where one more recording is too many."""
        self._line.check_room()

    def submit(self, ticket: Ticket) -> None:
        if ticket.job.finished:  # silence from its beginning to its end
            ticket.finish()
        else:
            self._line.add(ticket)


def default_lanes(speech: SpeechModel) -> int:
    """One for each thread of a CPU, within reason; one for a large model, and on a device that does much at once."""
    weights = [norm.weight for norm in speech.policy.norms()]
    alone = any(weight.device.type != "cpu" or weight.numel() > WIDEST for weight in weights)
    return 1 if alone else min(torch.get_num_threads(), MOST_LANES)
