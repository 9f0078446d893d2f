#!/bin/bash
# families.sh BIN: activations, gradients, and gradients with respect to weights, of small
# random models of every family, made on the GPU in f32, against double precision
# (tests/reference, python3 with NumPy); and sequences that grow together there against
# those that grow alone.  Exit 77: no device.
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
    case $kind in # margins of routers are differences of f32 scores
    deepseek* | *moe | mixtral | minimax* | gpt_oss | llama4) bound=5e-4 ;;
    *) bound=1e-4 ;;
    esac
    activations=$(activations $kind 1e-5)
    forge-gradient -q --dtype f32 --device cuda $kind $tokens >g.fts
    gradients=$(python3 "$reference/gradient.py" $kind $tokens g.fts "$bound")
    echo "$kind: activations: $activations; gradients: $gradients"
done
# Of the KL of a quantized model, and sequences that the model writes: forge-tune and
# forge-generate.
for kind in llama llama-biases qwen3 gemma2 phi3 olmo2 granite deepseek_v3 deepseek_v2 qwen2_moe mixtral gpt_oss llama4; do
    [ -d $kind ] || python3 "$reference/forward.py" make $kind $kind
    forge-weights -q $kind | forge-grid -q --group 16 | forge-solve -q --method rtn >codes
    forge-tune -q --device cuda --dtype f32 --steps 1 --batch 4 --gradients g.fts --tokens t.fts $kind codes >out
    weights=$(python3 "$reference/tune.py" $kind t.fts codes g.fts 1e-4)
    forge-generate -q --device cuda --dtype f32 --sequences 40 --tokens 60 $kind >gpu.fts
    forge-generate -q --device cpu --dtype f32 --sequences 40 --tokens 60 $kind >cpu.fts
    drawn=$(python3 - "$reference" <<'EOF'
import sys
sys.path.insert(0, sys.argv[1])
import forward
a, b = ([x.array().tolist() for x in forward.read(n)] for n in ("gpu.fts", "cpu.fts"))
same = sum(x == y for x, y in zip(a, b))
print("%d of 40 sequences are the CPU's" % same)
assert same >= 36  # a draw between two tokens now and then
EOF
    )
    echo "$kind: weights: $weights; $drawn"
done
# Without gradients.  A norm of small outputs multiplies their rounding (tests/cli/mixtures.bats), and streams are
# divided by small lengths, as on the CPU.
for kind in qwen3_next qwen3_5 qwen3_5_moe kimi_linear gemma3n granite4 granite4-moe; do
    bound=5e-5
    [[ $kind != granite4* ]] || bound=1e-5
    activations=$(activations $kind $bound)
    echo "$kind: activations: $activations"
done
