#!/bin/bash
# sanitizers.sh TESTS PLUG-IN: compute-sanitizer's memcheck of every test in the folder
# TESTS, small cases, and racecheck of those without cuBLAS, on which it breaks; all
# at the same time.  Exit 77: no device, or no compute-sanitizer.
set -euo pipefail
tests=$1 so=$2
command -v compute-sanitizer >/dev/null || { echo "skipped: no compute-sanitizer"; exit 77; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

check() { # TOOL TEST CASES
    local log=$out/$2.$1 rc=0
    timeout "${LIMIT:-300}" compute-sanitizer --tool "$1" --error-exitcode 9 \
        "$tests/$2" "$so" 7 "$3" >"$log" 2>&1 || rc=$?
    echo "$1 of $2: $(grep 'SUMMARY' "$log" | tail -1 | tr -d =) (exit $rc)"
    [ $rc -eq 0 ] || [ $rc -eq 77 ] || tail -20 "$log"
    echo $rc >"$log.rc"
}

for test in "$tests"/test_gpu_*; do
    name=${test##*/}
    [[ $name != *.* ]] || continue
    check memcheck "$name" 2 & # of test_gpu_refined two cases
    case $name in *_block | *_ragged | *_grid | *_pack | *_recur | *_decode) check racecheck "$name" 2 & ;; esac
done
wait
if grep -qvxE '0|77' "$out"/*.rc; then
    exit 1
fi
grep -qx 0 "$out"/*.rc || { echo "skipped: no device"; exit 77; }
