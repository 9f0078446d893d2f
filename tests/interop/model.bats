#!/usr/bin/env bats
# The forward pass against transformers.

@test "random models of every family and kind of rope agree with transformers" {
    tree=$BATS_TEST_DIRNAME/../..
    make -C "$tree" -s build/release/tests/helper/forward
    PATH="$tree/build/release/tests/helper:$PATH"
    "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/model_check.py"
}

@test "hidden states, logits and routing that transformers recorded beside a model" {
    tree=$BATS_TEST_DIRNAME/../..
    make -C "$tree" -s build/release/tests/helper/forward
    PATH="$tree/build/release/tests/helper:$PATH"
    found=
    for m in $MODELS; do
        [ -e "$m/reference.safetensors" ] || continue
        found=1
        "${PYTHON:-python3}" "$tree/tests/reference/forward.py" recorded "$m" "$m/reference.safetensors" 1e-5
    done
    [ "$found" ] || skip "no reference.safetensors beside one of MODELS"
}
