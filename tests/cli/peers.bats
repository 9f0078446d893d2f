#!/usr/bin/env bats
# What tests/interop/peers.py keeps of other programs, with a program that
# counts how often it is asked.

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    mkdir model
    echo '{}' >model/config.json
    echo ids >ids.npy
    cat >python <<'END'
#!/bin/bash
echo "$2" >>calls
[ "$2" != gptqmodel-bad ] || exit 3
mkdir -p "$5"
echo '{}' >"$5/config.json"
echo '{"seconds": 1.5, "peak_bytes": 7}'
END
    chmod +x python
}

# kept NAME VERSION: its directory's name and seconds
kept() {
    python3 -c "
import sys; sys.path.insert(0, '$BATS_TEST_DIRNAME/../interop')
import peers
out, cost = peers.kept('./python', '$1', 'model', 'ids.npy', 'work', '$2')
print((out/'config.json').exists(), cost['seconds'], out.name)"
}

calls() { wc -l <calls; }

@test "a peer's result is made once" {
    first=$(kept gptqmodel 1)
    [[ $first == "True 1.5 gptqmodel-model-"* ]]
    [ "$(kept gptqmodel 1)" = "$first" ]
    [ "$(calls)" -eq 1 ]
}

@test "and anew for another setting, version, model or ids" {
    kept gptqmodel 1
    kept gptqmodel-asym 1
    kept gptqmodel 2
    echo '{"a":1}' >model/config.json
    kept gptqmodel 1
    echo other >ids.npy
    kept gptqmodel 1
    [ "$(calls)" -eq 5 ]
}

@test "one that failed is no result" {
    run kept gptqmodel-bad 1
    [ "$status" -ne 0 ]
    [[ $output == *"gptqmodel-bad: exit 3: see work/"*".log"* ]]
    run kept gptqmodel-bad 1
    [ "$status" -ne 0 ]
    [ "$(calls)" -eq 2 ]
}
