#!/usr/bin/env bats
# Token ids against the tokenizers package.

@test "ids equal those of the tokenizers package" {
    "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/tokens_check.py"
}
