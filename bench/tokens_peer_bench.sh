#!/bin/bash
# The tokenizers package beside ours, on one thread: ids, their sum, and MB/s.
# Skipped where no Python has it: $PYTHON, that of `make interop`, or python3.
set -euo pipefail
cd "$(dirname "$0")/.."
model=${1:-examples/llama-4m/tokenizer.json} text=${2:-examples/calib.jsonl}
for python in "${PYTHON:-}" .venv/bin/python python3; do
    if [ -n "$python" ] && "$python" -c 'import tokenizers' 2>/dev/null; then
        peer=$("$python" bench/tokens_peer.py "$model" "$text")
        ours=$(build/release/bench/tokens_bench "$model" "$text")
        printf '%s\n%s\n' "$peer" "$ours"
        number() { sed -E "s/.*$1.*/\1/"; }
        for what in ' ([0-9]+) ids' 'sum ([0-9]+)'; do
            [ "$(number "$what" <<<"$peer")" = "$(number "$what" <<<"$ours")" ]
        done
        awk -v a="$(number 'best ([0-9.]+)' <<<"$ours")" \
            -v b="$(number 'best ([0-9.]+)' <<<"$peer")" \
            'BEGIN { printf "tokens: same ids, %.1f times the speed\n", a / b }'
        exit
    fi
done
echo "tokens: no Python with the tokenizers package: no comparison"
