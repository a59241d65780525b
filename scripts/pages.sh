#!/bin/sh
# Writes docs/results/*.md and their figures from the rows in results/. `make pages` runs it; so does a test, to see that
# the committed pages are what the rows give.
#
# page NAME FOLDERS [OPTIONS]: FOLDERS are names in results/, joined by commas. with_figures: the same with figures, for
# the runs whose seconds may be compared.
set -eu
cd "$(dirname "$0")/.."
SHARPEN=${SHARPEN:-sharpen}

page() {
    name=$1
    folders=$(printf 'results/%s ' $(echo "$2" | tr , ' '))
    shift 2
    $SHARPEN report $folders "$@" --markdown "docs/results/$name.md"
}

with_figures() {
    page "$@" --figures "docs/figures/$1"
}

page ls-source ls-source
with_figures ls-gs10 ls-gs10 --against source,beam,em-tok
page ls-gs10-without-loop ls-gs10 --against source,beam,em-tok --without 2414-128291-0015
page ls-gs10-exact ls-gs10-exact --against source,beam
page ls-gs10-presets ls-gs10,ls-gs10-fast,ls-gs10-exact --against source,beam,em-tok-b
page ls-gs10-methods ls-gs10-methods --against source,beam,em-tok-b
page ls-gs10-togo ls-gs10-togo,ls-gs10 --against source,em-tok,em-tok-b
page ls-gs10-norms ls-gs10-norms,ls-gs10 --against source,em-tok-b
with_figures ls-gs10-steps ls-gs10-steps --against source,beam,em-tok,em-tok-b
with_figures ls-gs10-samples ls-gs10-samples,ls-gs10-ablations --against source,beam,em-tok,em-tok-b
with_figures ls-gs10-tiny ls-gs10-tiny --against source,beam,em-tok
page ls-gs10-tiny-beam ls-gs10-tiny-beam,ls-gs10-tiny --against beam
with_figures ls-noises ls-noises --against source,beam,em-tok,greedy-em
page ls-noises-without-loop ls-noises --against source,beam,em-tok,greedy-em --without 5442-32873-0014
page ls-nb-exact ls-nb-exact --against source,beam
with_figures accents accents --against source,beam,em-tok
page accents-without-loop accents --against source,beam,em-tok --without 096400008
with_figures languages languages --against source,beam,em-tok
page languages-without-loop languages --against source,beam,em-tok --without common_voice_nl_18058272
page tune tune
page choosing choosing --against source,beam
page frontier-gaussian frontier-gaussian --against source,beam --frontier docs/figures/frontier-gaussian.png
page frontier-noises frontier-noises --against source,beam --frontier docs/figures/frontier-noises.png
page frontier-noises-without-loop frontier-noises --against source,beam --without 5442-32873-0005
page frontier-accents frontier-accents --against source,beam --frontier docs/figures/frontier-accents.png
page frontier-languages frontier-languages --against source,beam --frontier docs/figures/frontier-languages.png
page frontier-tiny frontier-tiny --against source,beam --frontier docs/figures/frontier-tiny.png
page other-steps other-steps
page length-penalty length-penalty
page noise-draws noise-draws --against source,beam
page every-window every-window
page every-noises every-noises
page ls-gs10-small ls-gs10-small
page families families --against source,beam
page frontier-clean frontier-clean --against source,beam --frontier docs/figures/frontier-clean.png
page guard-cv guard-cv
page padding-cv padding-cv
page padding-ls padding-ls
page padding-noises padding-noises
with_figures polish-samples polish-samples --against source,beam,em-tok
