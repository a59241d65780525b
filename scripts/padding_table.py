"""Measures the cost of condensed padding and bfloat16 in source decoding.

    python scripts/padding_table.py run MANIFEST --snr 10 --ways full,4,16,bfloat16,16+bfloat16 --out DIR
    python scripts/padding_table.py table DIR
    python scripts/padding_table.py distance MANIFEST --snr 10 --ways 4,16,16@75,bfloat16 --limit 40

A way is `full`, or the number of padded frames that one kept frame replaces, with or without `+bfloat16`. Rows are
flushed one by one, for each utterance and way; a rerun resumes. `distance` compares distributions instead of
transcripts, at every token of the transcript in full float32; there `16@75` keeps the first 75 frames of padding.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sharpen.evaluation.corpora.corpus import Utterance, read_corpus
from sharpen.evaluation.report.statistics import Item, compare
from sharpen.evaluation.runs.normalisers import normaliser_for
from sharpen.evaluation.runs.plan import versions
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import word_errors
from sharpen.evaluation.runs.store import Store, read_rows
from sharpen.method.search import greedy
from sharpen.method.tree import HypothesisTree, pack
from sharpen.models.log_mel import log_mel
from sharpen.models.padding import MARGIN, condense
from sharpen.models.states import EncodedSpeech, PreparedSpeech
from sharpen.models.weights.load import load_checkpoint
from sharpen.models.whisper import WhisperPolicy
from sharpen.models.whisper_speech import length_limit

BATCH = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("manifest", type=Path)
    one.add_argument("--snr", type=float, action="append", required=True, help="of Gaussian noise; may be repeated")
    one.add_argument("--ways", default="full,16", type=lambda text: text.split(","))
    one.add_argument("--out", type=Path, required=True)
    one.set_defaults(run=run)
    other = commands.add_parser("table")
    other.add_argument("folder", type=Path)
    other.set_defaults(run=table)
    third = commands.add_parser("distance")
    third.add_argument("manifest", type=Path)
    third.add_argument("--snr", type=float, required=True)
    third.add_argument("--ways", default="16,bfloat16", type=lambda text: text.split(","))
    third.add_argument("--limit", type=int, default=40)
    third.set_defaults(run=distance)
    args = parser.parse_args()
    return args.run(args)


def run(args: argparse.Namespace) -> int:
    corpus = read_corpus(args.manifest, domain="GS")
    with Store(args.out) as store:
        for way in args.ways:
            every, _, dtype = way.partition("+")
            every, dtype = ("full", every) if every == "bfloat16" else (every, dtype or "float32")
            policy = WhisperPolicy(load_checkpoint("base"), dtype=getattr(torch, dtype))
            for snr in args.snr:
                noisy = corpus.corrupted("GS", snr, None).utterances
                for start in tqdm(range(0, len(noisy), BATCH), desc=f"{way}, {snr:g} dB"):
                    batch = noisy[start : start + BATCH]
                    blanks = [blank(u, snr, every, dtype) for u in batch]
                    if any(row.key not in store for row in blanks):
                        store.add(answer(policy, blanks, [u.samples() for u in batch], every))
    return 0


def blank(u: Utterance, snr: float, every: str, dtype: str) -> Row:
    options = {"every": every, "dtype": dtype, "noise": "GS", "snr": snr, "batch_size": BATCH}
    return Row(u.corpus, u.domain, u.id, u.speaker, u.language, u.duration, u.reference, "base", "source", 0, 0, 0,
               options, versions())  # fmt: skip


@torch.no_grad()
def answer(policy: WhisperPolicy, blanks: Sequence[Row], samples: Sequence[np.ndarray], every: str) -> list[Row]:
    t, mel = policy.checkpoint.tokenizer, policy.checkpoint.mel
    start = time.perf_counter()
    condensing = {} if every == "full" else {
        "speech": [-(-len(s) // mel.hop_length) for s in samples], "every": int(every)
    }  # fmt: skip
    prepared = policy.prepare(log_mel(samples, mel), [english(policy)] * len(samples), **condensing)
    trees = greedy(policy, policy.encode(prepared), [length_limit(len(s) / mel.sampling_rate) for s in samples])
    seconds = (time.perf_counter() - start) / len(samples)
    rows = []
    for row, tree in zip(blanks, trees, strict=True):
        text, normalise = t.decode(tree.hypotheses[0].content).strip(), normaliser_for(row.language)
        errors = word_errors(normalise(row.reference), normalise(text))
        rows.append(replace(row, text=text, normaliser=normalise.label, errors=errors, seconds=round(seconds, 3)))
    return rows


def table(args: argparse.Namespace) -> int:
    ways: dict[tuple[float, str], list[Row]] = {}
    for row in read_rows(args.folder):
        ways.setdefault((row.options["snr"], f"{row.options['every']} {row.options['dtype']}"), []).append(row)
    print("| SNR dB | way | utterances | WER % | minus full float32, 95 % interval | other texts | seconds |")
    print("|---|---|---|---|---|---|---|")
    for (snr, way), rows in ways.items():
        full = {row.id: row for row in ways[snr, "full float32"]}
        mine = [row for row in rows if row.id in full]
        difference = compare(items(mine), items([full[row.id] for row in mine]))
        words, wrong = sum(r.errors.reference for r in mine), sum(r.errors.errors for r in mine)
        changed = sum(row.text != full[row.id].text for row in mine)
        low, high = 100 * difference.difference.low, 100 * difference.difference.high
        print(f"| {snr:g} | {way} | {len(mine)} | {100 * wrong / words:.2f} | "
              f"{100 * difference.difference.value:+.2f} [{low:+.2f}, {high:+.2f}] | {changed} | "
              f"{sum(r.seconds for r in mine) / len(mine):.2f} |")  # fmt: skip
    return 0


@torch.no_grad()
def distance(args: argparse.Namespace) -> int:
    """Kullback-Leibler divergence of each way's next-token distributions from full float32's, and its top tokens."""
    policy = WhisperPolicy(load_checkpoint("base"))
    rounded = WhisperPolicy(load_checkpoint("base"), dtype=torch.bfloat16)
    measured: dict[str, list[tuple[int, Tensor, Tensor]]] = {way: [] for way in args.ways}
    for u in tqdm(read_corpus(args.manifest, domain="GS").corrupted("GS", args.snr, None).utterances[: args.limit]):
        prepared = prepare(policy, u, "full")
        encoded = policy.encode(prepared)
        tree = greedy(policy, encoded, [length_limit(u.duration)])[0]
        exact = log_pi(policy, encoded, tree)
        for way, rows in measured.items():
            every, _, dtype = ("full+" + way if way == "bfloat16" else way).partition("+")
            other = rounded if dtype else policy
            prepared = prepare(other, u, every)
            near = log_pi(other, other.encode(prepared), tree)
            kl = (exact.exp() * (exact - near)).sum(-1)
            rows.append((prepared.stem.shape[1], kl, exact.argmax(-1) == near.argmax(-1)))
    print("| way | frames | mean KL, nats | median of utterances | same top token % |")
    print("|---|---|---|---|---|")
    for way, rows in measured.items():
        frames = sum(count for count, _, _ in rows) / len(rows)
        per_token, same = torch.cat([kl for _, kl, _ in rows]), torch.cat([top for _, _, top in rows]).float()
        median = torch.stack([kl.mean() for _, kl, _ in rows]).median()
        print(f"| {way} | {frames:.0f} | {per_token.mean():.4f} | {median:.4f} | {100 * same.mean():.1f} |")
    return 0


def prepare(policy: WhisperPolicy, u: Utterance, every: str) -> PreparedSpeech:
    samples, mel = u.samples(), policy.checkpoint.mel
    full = policy.prepare(log_mel([samples], mel), [english(policy)])
    if every == "full":
        return full
    k, _, margin = every.partition("@")
    speech = -(-len(samples) // mel.hop_length)
    kept = condense([-(-speech // 2)], full.stem.shape[1], int(k), int(margin or MARGIN))
    return PreparedSpeech(kept.of(full.stem), full.prompts, kept.frames, kept.bias.to(policy.dtype)[:, None, None])


def log_pi(policy: WhisperPolicy, encoded: EncodedSpeech, tree: HypothesisTree) -> Tensor:
    """Log-probabilities of the next token at every node: (nodes, V)."""
    trees = pack([tree])
    logits = policy.logits(policy.score(encoded, trees)[0]).float()
    return logits.masked_fill(policy.forbidden[policy.mask(trees.depths[0])], -1e30).log_softmax(-1)


def english(policy: WhisperPolicy) -> list[int]:
    t = policy.checkpoint.tokenizer
    return [t.sot, t.languages["en"], t.transcribe, t.no_timestamps]


def items(rows: Sequence[Row]) -> list[Item]:
    return [Item(row.domain, row.id, row.speaker, row.errors.errors, row.errors.reference) for row in rows]


if __name__ == "__main__":
    raise SystemExit(main())
