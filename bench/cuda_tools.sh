#!/bin/bash
# cuda_tools.sh BIN MKEXPERTS [EXPERTS HIDDEN WIDTH TOKENS]: forge-hessian,
# forge-grid and forge-solve on the GPU as a user runs them on a layer's
# experts, from files of a temporary directory, and the last two in a pipe; best
# of three each, with the start of their contexts.  Codes of the pipe are checked
# against those of the files.
set -euo pipefail
PATH="$(realpath "$1"):$PATH"
mk=$(realpath "$2") size=("${3:-128}" "${4:-2048}" "${5:-768}") tokens=${6:-1024}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

best() { # WHAT COMMAND...
    local what=$1 start now min=
    shift
    for _ in 1 2 3; do
        start=$(date +%s%N)
        "$@"
        now=$((($(date +%s%N) - start) / 1000000))
        if [ -z "$min" ] || [ "$now" -lt "$min" ]; then min=$now; fi
    done
    printf '%s: %d.%03d s\n' "$what" $((min / 1000)) $((min % 1000))
}
hessian() { forge-hessian -q --device cuda acts.fts >h.fts; }
grid() { forge-grid -q --device cuda --hessian h.fts weights.fts >grids.fts; }
solve() { forge-solve -q --device cuda --hessian h.fts grids.fts >codes.fts; }
both() {
    forge-grid -q --device cuda --hessian h.fts weights.fts |
        forge-solve -q --device cuda --hessian h.fts >piped.fts
}
"$mk" acts "${size[@]}" "$tokens" >acts.fts
"$mk" weights "${size[@]}" >weights.fts
echo "${size[0]} experts of ${size[1]} x ${size[2]}, $(($(stat -c %s acts.fts) >> 20)) MiB of" \
    "activations, $(($(stat -c %s weights.fts) >> 20)) MiB of weights"
best "forge-hessian" hessian
best "forge-grid" grid
best "forge-solve" solve
best "forge-grid | forge-solve" both
"$mk" compare piped.fts codes.fts
