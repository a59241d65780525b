#!/bin/sh
# The runs behind docs/results.md, by name, from the folder of the corpora. An interrupted run resumes.
# scripts/pages.sh then makes the pages of the results.
#
#     scripts/results.sh DATA source gs10 gs10-exact presets norms accents noises languages steps samples sizes tune
#     scripts/results.sh DATA families     # other models: after sharpen models fetch small, tiny and moonshine-tiny
#     scripts/results.sh DATA cheaper-steps     # on a CPU that multiplies bfloat16
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
efforts="--effort plain,normal,high,max"

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
    cheaper-steps)
        sixteen="--methods em-tok-b --samples 16 --gate 0.9 --padding condensed --dtype bfloat16"
        alone="--batch-size 1 --threads 1"
        ten="--steps 10 --search-every 4"
        sharpen evaluate "$ls" --noise GS --snr 10 --effort max --dtype bfloat16 $alone --out results/cheaper-steps
        sharpen evaluate "$ls" --noise GS --snr 10 $sixteen --steps 8 --search-every 2 --decode mbr --lr 2.5e-3 $alone \
            --out results/cheaper-steps
        sharpen evaluate "$ls" --noise GS --snr 10 $sixteen $ten $alone --out results/cheaper-steps
        sharpen evaluate "$ls" --noise GS --snr 10 $sixteen --steps 4 --search-every 2 --decode mbr --lr 2.5e-3 $alone \
            --dtype float32 --out results/cheaper-steps
        sharpen evaluate "$ls" $noises --limit 60 --effort max --dtype bfloat16 $alone --out results/cheaper-steps
        for n in 6 12 18; do # by turns, so that their seconds can be compared
            timed() { sharpen evaluate "$ls" --noise GS --snr 10 --limit $n "$@" $alone --out results/cheaper-steps-time; }
            timed --effort paper
            timed --effort plain,normal,high,max --dtype bfloat16
            timed --effort plain,high
            timed $sixteen $ten
        done ;;
    gaussian)
        frontier gaussian "$ls" --noise GS --snr 10 $efforts,paper ;;
    clean)
        frontier clean "$ls" $efforts ;;
    noises-all)
        frontier noises "$ls" $noises --limit 60 $efforts ;;
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
