#!/usr/bin/env bats
# forge-generate against transformers and the tokenizers package.

@test "greedy tokens, texts of ids and prompts in chat templates" {
    tree=$BATS_TEST_DIRNAME/../..
    make -C "$tree" -s build/release/tests/helper/decode
    # shellcheck disable=SC2086 # a list
    "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/generate_check.py" \
        --helper "$tree/build/release/tests/helper" "$tree/examples/llama-4m" $MODELS
}
