#!/usr/bin/env bats
# Words of forge-pack against packers of installed packages.

@test "words equal those of compressed-tensors and GPTQModel" {
    "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/pack_check.py"
}

@test "act-order of GPTQModel, repacked, in its loaders" {
    cd "$BATS_TEST_DIRNAME/../.." || return 1
    "${PYTHON:-python3}" tests/interop/actorder_check.py examples/llama-4m "${CALIB:-examples/calib.jsonl}"
}

@test "torch multiplies with int4pack checkpoints as they are" {
    "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/int4pack_check.py" "$BATS_TEST_DIRNAME/../../examples/llama-4m"
}

@test "llama.cpp's gguf package reads what forge-gguf writes" {
    cd "$BATS_TEST_DIRNAME/../.." || return 1
    for m in ${MODELS:-examples/llama-4m}; do
        ! grep -qE '"model_type": *"(llama|qwen3)"' "$m/config.json" || models+=("$m")
    done
    "${PYTHON:-python3}" tests/interop/gguf_check.py "${models[@]}"
}
