#!/bin/sh
# The runs behind docs/results.md, by name, from the folder of the corpora. An interrupted run resumes.
# scripts/pages.sh then makes the pages of the results.
#
#     scripts/results.sh DATA source gs10 gs10-exact presets norms accents noises languages steps samples sizes tune
#     scripts/results.sh DATA families     # other models: after sharpen models fetch small, tiny and moonshine-tiny
#     scripts/results.sh DATA other-steps noise-draws every-window     # beside the efforts; on a CPU that multiplies bfloat16
#     scripts/results.sh DATA length-penalty     # beside the efforts
#     scripts/results.sh DATA gaussian clean accents-all noises-all languages-all tiny small-beam padding polish     # efforts, for the README
#
# Every process has one thread: two processes use two cores better than one process with two threads.
set -eu
data=$1
shift
ls=$data/librispeech-test-other/manifest.jsonl

evaluate() { sharpen evaluate "$@" --guard off --threads 1; }
noisy() { evaluate "$ls" --noise GS --snr 10 "$@"; }

# Plain searches and efforts, one utterance after the other under every setting, two processes side by side.
frontier() {
    out=$1
    shift
    sharpen evaluate "$@" --methods source,beam --samples 2,16 --decode greedy,mbr --beam-size 16 --padding condensed \
        --batch-size 1 --threads 1 --engine ray --workers 2 --out "results/frontier-$out"
}
noises="--noise AA,AC,BA,CM,MU,NB,SD,VC --noise-dir $data/ms-snsd --snr 10"
efforts="--effort plain,normal,high,paper"

# Other steps than those of an effort; a flag that is given again counts.
tried() { sharpen evaluate --methods em-tok-b --search-every 2 --decode mbr --padding condensed --batch-size 1 --threads 1 --out results/other-steps "$@"; }
four="--samples 16 --steps 4 --lr 2.5e-3"
turns() { sharpen evaluate "$ls" --noise GS --snr 10 --batch-size 1 --threads 1 --engine ray --workers 2 "$@"; }
every="--methods em-tok-b $four --search-every 2 --decode mbr --padding condensed --dtype bfloat16"

for name in "$@"; do
    case $name in
    source)
        evaluate "$ls" --methods source --noise clean,GS --snr 10,5 --out results/ls-source ;;
    gs10-exact)
        noisy --methods source,beam,em-tok-b --limit 40 --out results/ls-gs10-exact ;;
    gs10)
        noisy --preset fastest --methods source,beam,em-tok-b,em-tok,greedy-em,em-seq --limit 80 --out results/ls-gs10
        noisy --preset fastest --methods em-tok-togo,em-tok-togo-b --limit 80 --out results/ls-gs10-togo ;;
    presets) # beside gs10, gs10-exact and the fastest rows of tiny
        noisy --preset fast --methods source,beam --limit 80 --out results/ls-gs10-fast
        for preset in exact fast; do
            noisy --preset $preset --model tiny --methods source,beam --limit 40 --out results/ls-gs10-tiny-beam
        done
        noisy --preset fastest --model tiny --methods source,beam,greedy-em,em-tok,em-tok-b --limit 40 \
            --out results/ls-gs10-tiny ;;
    norms)
        for side in decoder encoder; do
            noisy --preset fastest --methods em-tok-b --adapt-norms $side --limit 40 --out results/ls-gs10-norms
        done ;;
    accents)
        evaluate "$data/speechocean762/manifest.jsonl" --preset fastest \
            --methods source,beam,greedy-em,em-tok,em-tok-b --limit 40 --out results/accents ;;
    noises)
        evaluate "$ls" --noise AA,AC,BA,CM,MU,NB,SD,VC --noise-dir "$data/ms-snsd" --snr 10 --preset fastest \
            --methods source,beam,greedy-em,em-tok,em-tok-b --limit 20 --out results/ls-noises ;;
    languages)
        evaluate "$data/commonvoice-multilingual/manifest.jsonl" --preset fastest \
            --methods source,beam,greedy-em,em-tok,em-tok-b --out results/languages ;;
    steps)
        noisy --preset fastest --methods source,beam,greedy-em,em-seq,em-tok,em-tok-b --steps-at 1,3,5,10,20 --limit 20 \
            --out results/ls-gs10-steps ;;
    samples)
        noisy --preset fastest --methods em-tok,em-tok-b --samples 1,4,64 --limit 20 --out results/ls-gs10-samples
        noisy --preset fastest --methods source,beam,em-tok,em-tok-b --samples 16 --limit 20 --out results/ls-gs10-samples
        noisy --preset fastest --methods pg-tok,ent-tok,pg-tok-b,ent-tok-b --samples 1,4,16 --limit 20 \
            --out results/ls-gs10-ablations ;;
    sizes)
        noisy --preset fast --model tiny --methods source,beam,greedy-em,em-tok,em-tok-b --limit 40 --out results/ls-gs10-tiny ;;
    small-beam) # after sharpen models fetch small; beside gaussian
        sharpen evaluate "$ls" --noise GS --snr 10 --model small --effort plain --batch-size 1 --threads 1 --out results/ls-gs10-small ;;
    polish)
        mkdir -p runs/commonvoice-multilingual
        grep '"language": "pl"' "$data/commonvoice-multilingual/manifest.jsonl" |
            sed "s|\"audio_filepath\": \"|&$(realpath "$data")/commonvoice-multilingual/|" > runs/commonvoice-multilingual/manifest.jsonl
        evaluate runs/commonvoice-multilingual/manifest.jsonl --preset fastest --methods em-tok,em-tok-b --samples 1,4,64 \
            --out results/polish-samples
        evaluate runs/commonvoice-multilingual/manifest.jsonl --preset fastest --methods source,beam,em-tok,em-tok-b \
            --samples 16 --out results/polish-samples ;;
    families) # after sharpen models fetch small, tiny and moonshine-tiny; a preset's padding is for Whisper, which pads
        few="--methods source,beam,em-tok-b --preset fast --out results/families"
        for n in 8 16 24 32 40; do # by turns, so that their seconds can be compared
            for model in moonshine-tiny tiny base small; do noisy --model $model --limit $n $few; done
        done
        noisy --model moonshine-tiny --limit 80 $few
        evaluate "$ls" --noise BA,VC --noise-dir "$data/ms-snsd" --snr 10 --model moonshine-tiny --limit 40 $few
        evaluate "$data/speechocean762/manifest.jsonl" --model moonshine-tiny $few ;;
    other-steps) # beside the efforts; on a CPU that multiplies bfloat16
        sixteen="--samples 16 --gate 0.9"
        for steps in "--samples 5 --steps 5 --lr 5e-3 --schedule linear --gate 0.9" "$sixteen --steps 8 --lr 1.25e-3"; do
            several() { tried "$@" $steps; }
            several "$ls" --noise GS --snr 10
            several "$ls" $noises --limit 60
            several runs/speechocean762-all/manifest.jsonl # after accents-all
            several "$data/commonvoice-multilingual/manifest.jsonl"
            several "$ls" --noise GS --snr 10 --model tiny
            several "$ls"
        done
        tried "$ls" --noise GS --snr 10 $sixteen --steps 8 --lr 1.25e-3,2.5e-3 --dtype bfloat16
        tried "$ls" $noises --limit 60 $sixteen --steps 8 --lr 1.25e-3 --dtype bfloat16
        tried "$ls" --noise GS --snr 10 $sixteen --steps 10 --search-every 4 --decode greedy --dtype bfloat16
        tried "$ls" --noise GS --snr 10 $four --gate 0.5
        tried "$ls" --noise GS --snr 10 $four --dtype bfloat16 ;;
    noise-draws) # the efforts by turns with the paper's setting, so that their seconds can be compared
        drawn() { turns --noise-draws 1 --out results/noise-draws "$@"; }
        for n in 24 48 72 96 120; do
            drawn --limit $n $every
            drawn --limit $n --methods beam --samples 16 --padding condensed --effort plain,high,paper
        done ;;
    every-window) # the same by turns, for their seconds alone
        for n in 12 24; do
            turns --out results/every-window --limit $n $every
            turns --out results/every-window --limit $n --effort plain,high,paper
        done
        sharpen evaluate "$ls" $noises --limit 60 --batch-size 1 --threads 1 --engine ray --workers 2 $every --out results/every-noises ;;
    length-penalty) # beams compared by the root of their length; after accents-all
        root() { sharpen evaluate "$@" --methods source --decode beam --beam-size 5,16 --length-penalty 0.5 --padding condensed --batch-size 1 --threads 1 --out results/length-penalty; }
        root "$ls" --noise GS --snr 10
        root "$ls" $noises --limit 60
        root runs/speechocean762-all/manifest.jsonl
        root "$data/commonvoice-multilingual/manifest.jsonl"
        root "$ls" --noise GS --snr 10 --model tiny
        root "$ls" ;;
    gaussian)
        frontier gaussian "$ls" --noise GS --snr 10 $efforts ;;
    clean)
        frontier clean "$ls" $efforts ;;
    noises-all) # a run that stops early has as many utterances in every noise
        for n in 20 40 60; do frontier noises "$ls" $noises --limit $n $efforts; done ;;
    accents-all) # both folders as one corpus
        mkdir -p runs/speechocean762-all
        for part in speechocean762 speechocean762-b; do
            sed "s|\"audio_filepath\": \"|&$(realpath "$data")/$part/|" "$data/$part/manifest.jsonl"
        done > runs/speechocean762-all/manifest.jsonl
        frontier accents runs/speechocean762-all/manifest.jsonl $efforts ;;
    languages-all)
        frontier languages "$data/commonvoice-multilingual/manifest.jsonl" $efforts ;;
    tiny)
        frontier tiny "$ls" --noise GS --snr 10 --model tiny $efforts ;;
    padding)
        evaluate "$ls" --noise clean,AA,AC,BA,CM,MU,NB,SD,VC --noise-dir "$data/ms-snsd" --snr 10 --methods source \
            --padding full,condensed --engine ray --workers 2 --out results/padding-noises ;;
    tune)
        sharpen tune "$data/commonvoice-en/manifest.jsonl" --domain GS --noise GS --snr 10 --preset fastest --guard off --threads 1 \
            --limit 20 --out results/tune ;;
    *)
        echo "results.sh: no run is named $name; the first lines of this file list them" >&2
        exit 2 ;;
    esac
done
