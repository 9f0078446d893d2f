#!/usr/bin/env bats
# Words of forge-pack against packers of installed packages.

@test "words equal those of compressed-tensors and GPTQModel" {
    "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/pack_check.py"
}
