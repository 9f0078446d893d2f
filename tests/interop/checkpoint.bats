#!/usr/bin/env bats
# Checkpoints written by safetensors, torch, transformers and
# compressed-tensors, read by ours.

@test "other people's checkpoints come back bit for bit" {
    tree=$BATS_TEST_DIRNAME/../..
    make -C "$tree" -s build/release/tests/helper/ckdump
    PATH="$tree/build/release/tests/helper:$PATH"
    "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/checkpoint_check.py"
}
