#!/bin/bash
# experts.sh BIN MKEXPERTS [EXPERTS HIDDEN WIDTH TOKENS]: a layer of experts with
# ragged numbers of tokens through forge-hessian and forge-solve, on the GPU and
# on the CPU: from files, through pipes, and in so little memory that batches
# are cut.  One Hessian may be 1e-4 from the CPU's, one code in a thousand
# another (ties).  Exit 77: no device.
set -euo pipefail
bin=$(realpath "$1") mk=$(realpath "$2") experts=${3:-40} hidden=${4:-512} width=${5:-192} tokens=${6:-300}
export PATH="$bin:$PATH"
# shellcheck source=tests/gpu/device.sh
. "$(dirname "$0")/device.sh"
cd "$dir"

size=("$experts" "$hidden" "$width")
echo "== $experts experts of $hidden x $width, $tokens tokens and more or less"
"$mk" acts "${size[@]}" "$tokens" >acts.fts
"$mk" weights "${size[@]}" | forge-grid -q --device cpu >grids.fts

hessian() { forge-hessian -q --device "$@" acts.fts; }
solve() { forge-solve -q --device "$@" --hessian h.fts grids.fts 2>/dev/null; }
compare() { # WHAT STREAM STREAM
    echo "$1: $("$mk" compare "$2" "$3")" || exit 1
}
hessian cpu >h.fts
hessian cuda >gpu.h
compare "hessians" gpu.h h.fts
solve cpu >cpu.fts
solve cuda >gpu.fts
compare "codes of the same hessians" gpu.fts cpu.fts
hessian cuda --gpu-memory 16M >again.h
solve cuda --gpu-memory 48M >again
compare "in little memory" again.h gpu.h
compare "in little memory" again gpu.fts
"$mk" acts "${size[@]}" "$tokens" | forge-hessian -q --device cuda |
    "$mk" join "${size[@]}" | forge-grid -q --device cuda --search lp |
    forge-solve -q --device cuda >pipe 2>/dev/null
forge-hessian -q --device cuda acts.fts | "$mk" join "${size[@]}" |
    forge-grid -q --device cuda --search lp >joined
forge-solve -q --device cuda joined >file 2>/dev/null
compare "through pipes" pipe file
