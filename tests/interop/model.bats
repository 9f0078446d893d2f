#!/usr/bin/env bats
# The forward pass against transformers.

@test "random models of every family and kind of rope agree with transformers" {
    tree=$BATS_TEST_DIRNAME/../..
    make -C "$tree" -s build/release/tests/helper/forward
    PATH="$tree/build/release/tests/helper:$PATH"
    "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/model_check.py"
}
