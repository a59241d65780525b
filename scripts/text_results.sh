#!/usr/bin/env bash
# The rows of results/text/smollm2-135m: SmolLM2-135M-Instruct on tasks that are made from a seed, every method on the same items.
# It resumes: more items are a larger number. Usage: scripts/text_results.sh ITEMS [TASK…]
set -euo pipefail
cd "$(dirname "$0")/.."
items=$1
shift
tasks=${*:-arithmetic-shots copying-shots sorting-shots reading-shots}
${SHARPEN:-sharpen} evaluate-text $(printf 'made:%s:test ' $tasks) --model smollm2-135m --dtype bfloat16 --end-with '\n' --max-tokens 16 \
  --methods source,vote,greedy-em,em-seq,em-tok,em-tok-b --steps 3 --samples 4 --limit "$items" --batch-size 8 --threads 1 \
  --out results/text/smollm2-135m
