"""What the server accepts, and how much it holds at once. The flags of `sharpen serve` follow from these lines."""

from __future__ import annotations

from dataclasses import dataclass

from sharpen.options import option, validate
from sharpen.speech.samples import ReadLimits

MEGABYTE = 1 << 20
# What FFmpeg may open: containers that hold their own audio. Playlists and lists of files are not among them.
CONTAINERS = "wav,flac,mp3,mov,mp4,m4a,ogg,matroska,webm,aac,aiff,caf,amr,mpeg,mpegts,asf,avi"


@dataclass(frozen=True)
class ServerLimits:
    """Every bound of a server, set when it starts."""

    max_upload: float = option(25.0, "MB of a request", above=0)
    max_seconds: float = option(3600.0, "seconds of audio in a recording", above=0)
    max_decoded: int = option(2_000_000_000, "samples of a recording in all its channels, once decoded", least=1)
    max_fields: int = option(64, "fields of a request", least=1)
    max_field: int = option(65_536, "bytes of a field that is not the file", least=1)
    max_header: int = option(16_384, "bytes of a request's headers", least=1024)
    upload_seconds: float = option(60.0, "seconds that an upload may take", above=0)
    max_uploads: int = option(8, "uploads at once; more are refused with 429", least=1)
    max_connections: int = option(256, "connections at once", least=1)
    queue: int = option(64, "recordings accepted and not yet done; more are refused with 429", least=1)
    rows: int = option(8, "windows that adapt side by side", least=1)
    lanes: int = option(
        0,
        "threads that work on windows; 0: one for each thread of the CPU, at most 4, one for models larger than small",
        least=0,
    )
    together: int = option(
        8, "windows that the source model decodes at once; more would keep the others waiting", least=1
    )
    busy: int = option(
        16, "windows waiting at which the most confident ones stop adapting after the step they are in", least=1
    )
    max_steps: int = option(20, "steps that a request may ask for", least=1)
    max_samples: int = option(16, "hypotheses at each step that a request may ask for", least=1)
    max_n_best: int = option(16, "texts of each window that a request may ask for", least=1)
    max_deadline: float = option(3600.0, "seconds that a request may give itself", above=0)
    media_processes: int = option(2, "processes that decode audio files", least=1)
    media_seconds: float = option(60.0, "seconds that decoding one file may take", above=0)
    media_memory: float = option(1024.0, "MB that decoding one file may take", least=64)
    drain: float = option(30.0, "seconds that requests in flight have after SIGTERM", least=0)

    def __post_init__(self) -> None:
        validate(self)

    @property
    def upload_bytes(self) -> int:
        return round(self.max_upload * MEGABYTE)

    @property
    def reading(self) -> ReadLimits:
        return ReadLimits(self.max_seconds, self.max_decoded, CONTAINERS)


@dataclass(frozen=True)
class RayScale:
    """How Ray Serve runs several models."""

    replicas: int = option(2, "models, each in a process of its own", least=1)
    ongoing: int = option(
        16, "recordings that one of them works on at once; more wait in Ray's queue, as many as --queue says", least=1
    )
    address: str | None = None  # of a running cluster, as `ray start` prints it

    def __post_init__(self) -> None:
        validate(self)
