#!/usr/bin/env bats
# Our outputs in the programs that will read them, and beside those of the
# programs that make such checkpoints too.  By make interop; minutes each.
#
# PYTHON  with requirements*.txt installed (scripts/setup --venv)
# MODELS  checkpoint directories, dense or mixtures; default: examples/*/
# CALIB, EVAL  texts; default: those of examples/
# WORK    keep and reuse what is made, the peers' results above all, which make
#         bench-quality takes from the same place
#
# On failure, and with bats --show-output-of-passing-tests, every verdict.

setup_file() {
    cd "$BATS_TEST_DIRNAME/../.." || return 1
    export TEXTS="--calib ${CALIB:-examples/calib.jsonl} --eval ${EVAL:-examples/eval.txt}"
    export MODELS=${MODELS:-$(dirname examples/*/config.json)}
    export WORK=${WORK:-$BATS_FILE_TMPDIR}
}

check() {
    local m models=()
    cd "$BATS_TEST_DIRNAME/../.." || return 1
    for m in $MODELS; do
        models+=(--model "$m")
    done
    # shellcheck disable=SC2086
    "${PYTHON:-python3}" "tests/interop/$1.py" $TEXTS --work "$WORK" "${models[@]}" "${@:2}"
}

@test "forge-eval gives transformers' figures" { check eval_check; }
@test "real loaders open every layout and compute with our weights" { check loaders; }
@test "grids of several kinds, each said in the config as loaders read it" {
    WORK=$WORK/grids check loaders --layout compressed-tensors-sym --layout gptq --layout gptq_v2-sym \
        --option=--grid '--option=*.down_proj=32' --option=--grid '--option=*.1.self_attn.[qkv]_proj=64'
}
@test "codes of 8 bits: of some linears, with zero points, and of all" {
    WORK=$WORK/eight check loaders --layout compressed-tensors-sym --layout gptq --layout gptq_v2 \
        --option=--grid '--option=*.down_proj=8bit,32' --option=--grid '--option=*.1.self_attn.[qkv]_proj=8bit'
    WORK=$WORK/eight-asym check loaders --layout compressed-tensors-asym --option=--grid '--option=*.down_proj=8bit'
    WORK=$WORK/eight-all check loaders --layout compressed-tensors-sym --layout gptq --option=--grid '--option=*=8bit'
}
@test "experts pruned behind a whole router: vLLM's plug-in routes as forge-eval does" {
    "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/random_models.py" "${EVAL:-$BATS_TEST_DIRNAME/../../examples/eval.txt}" "$WORK/remap" deepseek-v3-f32
    MODELS=$WORK/remap/deepseek-v3-f32 check remap_check
}
@test "kv_b_proj of latent attention in 4 bits" {
    "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/random_models.py" "${EVAL:-$BATS_TEST_DIRNAME/../../examples/eval.txt}" "$WORK/latent" deepseek-v3-f32
    export MODELS=$WORK/latent/deepseek-v3-f32
    WORK=$WORK/of check loaders --group 64 --option=--modules '--option=*'
}
@test "the same for random models of other families" {
    "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/random_models.py" "${EVAL:-$BATS_TEST_DIRNAME/../../examples/eval.txt}" "$WORK/random"
    # Each in a process of its own: once GPTQModel has loaded a mixture,
    # transformers renames those that come after it otherwise.
    for m in "$WORK"/random/*; do
        MODELS=$m check loaders || wrong+=" $m"
    done
    [ -z "${wrong-}" ]
}
@test "multimodal checkpoints: only the language model is quantized, and transformers loads them" {
    cd "$BATS_TEST_DIRNAME/../.." || return 1
    make -s build/release/tests/helper/forward
    PATH="$PWD/build/release/tests/helper:$PATH" "${PYTHON:-python3}" tests/interop/multimodal_check.py "${EVAL:-examples/eval.txt}"
}
@test "models for embeddings: names without model., and transformers loads them with and without the head" { check bare_check; }
@test "forge-solve has no more loss than GPTQModel's GPTQ" { check solve_check; }
@test "our default is nearer to the original than the peers' defaults" { check quality; }
