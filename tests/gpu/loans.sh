#!/bin/bash
# loans.sh BIN MODEL TEXT: the loop on the GPU with memory that is lent between the
# tools and with bytes in pipes: the same codes.  Exit 77: no device.
set -euo pipefail
bin=$(realpath "$1") model=$(realpath "$2") text=$(realpath "$3")
export PATH="$bin:$PATH"
# shellcheck source=tests/gpu/device.sh
. "$(dirname "$0")/device.sh"
cd "$dir"

forge-tokens -q --sequences 32 --seqlen 512 "$model" "$text" >tokens

loop() { # EFFORT OPTION...: codes to standard output, bytes in front of the solver to n
    local effort=$1
    shift
    rm -f back
    mkfifo back
    forge-calib -q --device cuda "${states[@]}" --propagate both --feedback back "$@" "$model" tokens |
        forge-hessian -q --device cuda "${weigh[@]}" "$@" | tee >(wc -c >n) | forge-weights -q "$@" --join "$model" |
        forge-grid -q --device cuda "$@" |
        forge-solve -q --device cuda --effort "$effort" --prior 2 "$@" | tee back
}
content() { # of END
    python3 -c 'import sys; print(open(sys.argv[1], "rb").read().rpartition(b"FTS1")[2][84:92].hex())' "$1"
}
states=() weigh=()
for effort in fast default; do
    loop $effort >bytes
    before=$(cat n)
    loop $effort --loans "lent-$effort" >lent
    echo "$effort: $(content bytes) $(content lent), $before bytes of Hessians in the pipe, $(cat n) lent"
    [ "$(content bytes)" = "$(content lent)" ]
    [ "$(cat n)" -lt $((before / 10)) ]
    # activations take turns in the memory that hidden states and a layer leave
    for memory in 60M 75M 90M; do
        states=(--gpu-memory "$memory")
        loop $effort --loans "turns-$effort-$memory" >lent
        echo "$effort, $memory: $(content lent)"
        [ "$(content bytes)" = "$(content lent)" ]
    done
    states=()
done
# rows that the host multiplies by roots of weights, and rows that are lent
forge-gradient -q --device cuda --weights weights "$model" tokens >gradients
weigh=(--weights weights)
loop default >bytes
loop default --loans lent-weights >lent
echo "weights of tokens: $(content bytes) $(content lent)"
[ "$(content bytes)" = "$(content lent)" ]
weigh=()
loop default >bytes
[ "$(content bytes)" != "$(content lent)" ]
