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

activations() { # KIND BOUND
    python3 "$reference/forward.py" make "$1" "$1"
    forge-calib -q --dtype f32 --device cuda "$1" t.fts >x.fts
    python3 "$reference/forward.py" check "$1" t.fts "$2" x.fts
}

for kind in llama mistral qwen3 gemma2 gemma3 phi3 phi3-long olmo2 olmo3 granite smollm3 glm4 deepseek_v3 deepseek_v2 \
    qwen2_moe mixtral glm4_moe minimax_m2 ernie4_5_moe gpt_oss llama4 granitemoe; do
    tokens=t.fts
    [ $kind != granite ] || tokens=other.fts
    activations=$(activations $kind 1e-5)
    forge-gradient -q --dtype f32 --device cuda $kind $tokens >g.fts
    gradients=$(python3 "$reference/gradient.py" $kind $tokens g.fts 1e-4)
    echo "$kind: activations: $activations; gradients: $gradients"
done
# Without gradients.  A norm of small outputs multiplies their rounding (tests/cli/mixtures.bats), and streams are
# divided by small lengths, as on the CPU.
for kind in qwen3_next qwen3_5 qwen3_5_moe kimi_linear gemma3n granite4 granite4-moe; do
    bound=5e-5
    [[ $kind != granite4* ]] || bound=1e-5
    activations=$(activations $kind $bound)
    echo "$kind: activations: $activations"
done
