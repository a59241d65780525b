"""Runs methods on LibriSpeech test-other with Gaussian noise and keeps one row per utterance and method.

    python scripts/method_table.py run DATA --method em-tok-b --every 2 --out results/method-gs10.jsonl
    python scripts/method_table.py table results/method-gs10.jsonl

DATA is a folder with librispeech-test-other/manifest.jsonl. Rows are flushed as they come; a rerun does the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from sharpen.evaluation.runs.normalisers import normaliser
from sharpen.evaluation.runs.score import ErrorCounts, word_errors
from sharpen.method.adaptation import Adaptation
from sharpen.method.entropy import entropy
from sharpen.method.episode import adapt
from sharpen.method.objectives import METHODS
from sharpen.method.policy import default_limit, generator
from sharpen.method.search import beam, greedy, sample
from sharpen.method.tree import pack
from sharpen.models.padding import EVERY
from sharpen.models.weights.load import load_checkpoint
from sharpen.models.whisper import WhisperPolicy
from sharpen.speech.audio import read_audio
from sharpen.models.log_mel import log_mel
from sharpen.speech.noise import gaussian, mix

NORMALISE = normaliser("whisper-en")
FRESH = 16  # samples by which the entropy is measured before and after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run_parser = commands.add_parser("run")
    run_parser.add_argument("data", type=Path)
    run_parser.add_argument("--method", choices=METHODS, required=True)
    run_parser.add_argument("--every", type=int, default=1, help="every n-th utterance")
    run_parser.add_argument("--snr", type=float, default=10.0)
    run_parser.add_argument("--padding", choices=("full", *EVERY), default="full")
    run_parser.add_argument("--out", type=Path, required=True)
    run_parser.set_defaults(run=run)
    table_parser = commands.add_parser("table")
    table_parser.add_argument("rows", type=Path)
    table_parser.add_argument("--against", type=Path, help="compare each method with itself in this file")
    table_parser.add_argument("--than", choices=METHODS, default="source", help="compare each method with this one")
    table_parser.set_defaults(run=table)
    args = parser.parse_args()
    return args.run(args)


def run(args: argparse.Namespace) -> int:
    folder = args.data / "librispeech-test-other"
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()][:: args.every]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    found = read_rows(args.out) if args.out.exists() else []
    before = [r for r in found if r["method"] == args.method]
    if any((r["snr"], r.get("padding", "full")) != (args.snr, args.padding) for r in before):
        sys.exit(f"{args.out} holds {args.method} with another --snr or --padding; give another file to --out")
    done = {r["id"] for r in before}
    todo = [row for row in rows if row["id"] not in done]
    args.out.write_text("".join(json.dumps(r) + "\n" for r in found))  # without a line that a kill tore
    policy = WhisperPolicy(load_checkpoint("base"))
    total = ErrorCounts()
    with args.out.open("a") as out, tqdm(todo, desc=args.method, unit="utt") as bar:
        for row in bar:
            samples = read_audio(folder / row["audio_filepath"]).samples
            samples = mix(samples, gaussian(len(samples), row["id"]), args.snr)
            result = {"id": row["id"], "speaker": row.get("speaker"), "method": args.method, "snr": args.snr}
            result |= {"reference": row["text"], "duration": row["duration"]}
            result |= {"padding": args.padding} | transcribe(policy, samples, row["id"], args.method, args.padding)
            out.write(json.dumps(result) + "\n")
            out.flush()
            total += word_errors(NORMALISE(row["text"]), NORMALISE(result["text"]))
            bar.set_postfix_str(f"WER {100 * total.rate:.1f} %")
    return 0


def transcribe(policy: WhisperPolicy, samples: np.ndarray, name: str, method: str, padding: str) -> dict:
    checkpoint, t = policy.checkpoint, policy.checkpoint.tokenizer
    prompt = [t.sot, t.languages["en"], t.transcribe, t.no_timestamps]
    speech = None if padding == "full" else [-(-len(samples) // checkpoint.mel.hop_length)]
    prepared = policy.prepare(log_mel([samples], checkpoint.mel), [prompt], speech, EVERY.get(padding, 1))
    limits = [default_limit(len(samples) / 16000)]
    start = time.perf_counter()
    episode = adapt(policy, prepared, Adaptation(method=method), ids=[name], limits=limits)
    adapted = policy.adapted(episode.norms)
    with torch.no_grad():
        encoded = adapted.encode(prepared)
        find = beam(adapted, encoded, limits, 16) if METHODS[method].decode == "beam" else None
        (tree,) = find or greedy(adapted, encoded, limits)
    seconds = time.perf_counter() - start
    (trace,) = episode.traces
    result = {"text": t.decode(tree.hypotheses[0].content).strip(), "seconds": round(seconds, 2)}
    if trace.steps:
        result["H_tok"] = [round(s.H_tok, 4) for s in trace.steps]
        result["nodes"], result["tokens"] = [s.nodes for s in trace.steps], [s.tokens for s in trace.steps]
        result["truncated"] = sum(s.truncated for s in trace.steps)
        result["stopped"] = trace.stopped
        result["H_tok_fresh"] = [fresh_entropy(view, prepared, limits, name) for view in (policy, adapted)]
    return result


@torch.no_grad()
def fresh_entropy(policy: WhisperPolicy, prepared, limits: list[int], name: str) -> float:
    """Mean H_tok over samples that the adaptation has not seen."""
    encoded = policy.encode(prepared)
    (tree,) = sample(policy, encoded, limits, FRESH, [generator(1, f"{name} fresh")])
    packed = pack([tree])
    hidden = policy.score(encoded, packed)[0]
    first = entropy(policy.log_pi(hidden[:1], 0))
    rest = entropy(policy.log_pi(hidden[1:], 1))
    at = torch.cat([first, rest])
    return round(float(np.mean([at[list(y.nodes)].sum() for y in tree.hypotheses])), 4)


def read_rows(path: Path) -> list[dict]:
    *whole, _torn = path.read_text().split("\n")
    return [json.loads(line) for line in whole]


def table(args: argparse.Namespace) -> int:
    rows = read_rows(args.rows)
    errors = count(rows)
    others = count(read_rows(args.against)) if args.against else errors
    what = f"in {args.against.name}" if args.against else args.than
    print(f"normaliser {NORMALISE.label}; intervals: 95 %, bootstrap over utterances, 10,000 draws\n")
    print(f"| method | utterances | WER % | {what} WER % | difference | helped / hurt / same | entropy fell | s each |")
    print("|---|---|---|---|---|---|---|---|")
    for method in METHODS:
        other = method if args.against else args.than
        mine = [r for r in rows if r["method"] == method and (r["id"], other) in others]
        if not mine:
            continue
        ours = [errors[r["id"], method] for r in mine]
        source = [others[r["id"], other] for r in mine]
        low, high = paired_interval(ours, source)
        wer, base = sum(ours, ErrorCounts()).rate, sum(source, ErrorCounts()).rate
        helped = sum(a.errors < b.errors for a, b in zip(ours, source, strict=True))
        hurt = sum(a.errors > b.errors for a, b in zip(ours, source, strict=True))
        fresh = [r["H_tok_fresh"] for r in mine if "H_tok_fresh" in r]
        fell = f"{100 * np.mean([after < before for before, after in fresh]):.0f} %" if fresh else ""
        print(
            f"| {method} | {len(mine)} | {100 * wer:.2f} | {100 * base:.2f} | {100 * (wer - base):+.2f} "
            f"[{100 * low:+.2f}, {100 * high:+.2f}] | {helped} / {hurt} / {len(mine) - helped - hurt} | {fell} | "
            f"{np.mean([r['seconds'] for r in mine]):.1f} |"
        )
    return 0


def count(rows: list[dict]) -> dict[tuple[str, str], ErrorCounts]:
    """Word errors by utterance and method."""
    return {(r["id"], r["method"]): word_errors(NORMALISE(r["reference"]), NORMALISE(r["text"])) for r in rows}


def paired_interval(ours: list[ErrorCounts], source: list[ErrorCounts]) -> tuple[float, float]:
    """95 % interval of the difference in corpus WER."""
    words = np.array([e.reference for e in ours])
    difference = np.array([a.errors - b.errors for a, b in zip(ours, source, strict=True)])
    draws = np.random.default_rng(0).integers(len(words), size=(10_000, len(words)))
    low, high = np.quantile(difference[draws].sum(1) / words[draws].sum(1), [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    sys.exit(main())
