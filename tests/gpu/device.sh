# device.sh - sourced by the tests of this folder, with the tools on PATH: $dir, an empty
# folder that goes at the end; exit 77 where there is no device.
# shellcheck shell=bash
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
rc=0
forge-grid --device cuda /dev/null >/dev/null 2>"$dir/why" || rc=$?
if [ "$rc" -eq 69 ]; then
    echo "skipped: $(cat "$dir/why")"
    exit 77
fi
