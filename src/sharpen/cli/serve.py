"""`sharpen serve`."""

from __future__ import annotations

import argparse
import ipaddress
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from sharpen.cli import machine
from sharpen.cli.flags import add_options, flag, given
from sharpen.cli.values import DONE, threads
from sharpen.errors import SharpenError
from sharpen.serving.limits import RayScale, ServerLimits
from sharpen.speech.efforts import DEFAULT, EFFORTS
from sharpen.speech.presets import Dtype

if TYPE_CHECKING:
    from sharpen.serving.keys import Keys

ALIAS = "whisper-1"  # what clients of OpenAI's ask for


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serves transcripts over HTTP, as OpenAI's /v1/audio/transcriptions and /v1/audio/translations do: a client of "
        "theirs needs only another base URL. SIGTERM or Ctrl-C ends it after what is in flight."
    )
    parser.set_defaults(run=_serve)
    add = parser.add_argument
    add("--model", default="base", help=machine.MODEL)
    add("--alias", action="append", metavar="NAME",
        help=f"another name that requests may give the model; may be repeated (default: {ALIAS})")  # fmt: skip
    add("--effort", choices=EFFORTS, default=DEFAULT,
        help=f"how much to spend on requests that do not say (default: {DEFAULT})")  # fmt: skip
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine alone)")
    add("--port", type=_port, default=8000, help="port; 0: any that is free (default: 8000)")
    add("--api-keys", metavar="FILE", help="accept only requests with one of the keys in this file, one on each line")
    add("--cors", action="append", metavar="ORIGIN",
        help="let web pages of this origin use the server, * is any; may be repeated (default: none)")  # fmt: skip
    add_options(parser.add_argument_group("limits"), ServerLimits())
    ray = parser.add_argument_group("several models (needs sharpen[ray])")
    ray.add_argument("--engine", choices=("local", "ray"), default="local",
                     help="ray: the same server in front of replicas on Ray Serve (default: local)")  # fmt: skip
    add_options(ray, RayScale())
    ray.add_argument("--address", metavar="HOST:PORT",
                     help="of a running ray cluster (default: start one on this machine)")  # fmt: skip
    add = parser.add_argument_group("machine").add_argument
    add("--device", default="auto", help="auto, cpu, cuda, mps (default: auto, which never takes mps)")
    add("--dtype", choices=get_args(Dtype), default="float32", help="type of the weights (default: float32)")
    add("--threads", type=threads, metavar="N", help="CPU threads of the model (default: torch's choice)")


def _serve(args: argparse.Namespace) -> int:
    limits = ServerLimits(**given(args, ServerLimits))
    _require_server()
    from sharpen.serving import keys as api_keys

    keys = api_keys.Keys.read(args.api_keys) if args.api_keys else api_keys.Keys()
    if not keys.accepted and not _is_loopback(args.host):
        print(f"sharpen: {args.host} is open to others, and no --api-keys are set", file=sys.stderr)
    scale = given(args, RayScale)
    if args.engine == "ray":
        _serve_replicas(args, limits, keys, RayScale(**scale, address=args.address))
    elif scale or args.address:
        raise SharpenError(f"{flag(RayScale, next(iter(scale))) if scale else '--address'} needs --engine ray")
    else:
        _serve_model(args, limits, keys)
    return DONE


def _serve_model(args: argparse.Namespace, limits: ServerLimits, keys: Keys) -> None:
    import torch

    from sharpen.serving.app import make_app
    from sharpen.serving.server import serve
    from sharpen.serving.service import Service
    from sharpen.speech.transcribe import load

    if args.threads:
        torch.set_num_threads(args.threads)
    model = load(args.model, device=args.device, dtype=args.dtype)
    names = tuple(dict.fromkeys([model.speech.name, *(args.alias or [ALIAS])]))
    service = Service(model, names, limits, keys, args.effort)
    serve(make_app(service, tuple(args.cors or ())), service, args.host, args.port)


def _serve_replicas(args: argparse.Namespace, limits: ServerLimits, keys: Keys, scale: RayScale) -> None:
    from sharpen.serving.gateway import make_gateway
    from sharpen.serving.replica import ReplicaSetup
    from sharpen.serving.replicas import Replicas, deployed
    from sharpen.serving.server import serve

    # A replica has another working directory, so a path must be absolute.
    where = str(Path(args.model).absolute()) if Path(args.model).exists() else args.model
    aliases = tuple(args.alias or [ALIAS])
    setup = ReplicaSetup(where, aliases, args.effort, limits, args.device, args.dtype, args.threads)
    with deployed(setup, scale) as handle:
        replicas = Replicas(handle, limits, keys)
        serve(make_gateway(replicas, tuple(args.cors or ())), replicas, args.host, args.port)


def _require_server() -> None:
    try:
        import python_multipart  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise SharpenError(f"`sharpen serve` needs {error.name}: pip install 'sharpen[server]'") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port from 0 to 65535")
    return int(text)
