#!/bin/bash
# families.sh BIN: activations and gradients of small random models of every family,
# made on the GPU in f32, against double precision (tests/reference, python3 with
# NumPy).  Exit 77: no device.
set -euo pipefail
reference=$(realpath "$(dirname "$0")/../reference")
PATH=$(realpath "$1"):$PATH
# shellcheck source=tests/gpu/device.sh
. "$(dirname "$0")/device.sh"
cd "$dir"

python3 "$reference/forward.py" tokens t.fts 40 1 33 64
# another length: one of granite's draws is too near to the end of a token
python3 "$reference/forward.py" tokens other.fts 64 1 33
for kind in llama mistral qwen3 gemma2 gemma3 phi3 phi3-long olmo2 olmo3 granite smollm3 glm4 deepseek_v3 deepseek_v2 \
    qwen2_moe mixtral glm4_moe minimax_m2 ernie4_5_moe gpt_oss llama4 granitemoe; do
    tokens=t.fts
    [ $kind != granite ] || tokens=other.fts
    python3 "$reference/forward.py" make $kind $kind
    forge-calib -q --dtype f32 --device cuda $kind t.fts >x.fts
    forge-gradient -q --dtype f32 --device cuda $kind $tokens >g.fts
    activations=$(python3 "$reference/forward.py" check $kind t.fts 1e-5 x.fts)
    gradients=$(python3 "$reference/gradient.py" $kind $tokens g.fts 1e-4)
    echo "$kind: activations: $activations; gradients: $gradients"
done
