#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# The device is a part of a stage's key where bytes depend on it.  The device is
# tests/fake_cuda.c, under two names; its codes are not the CPU's.

load e2e

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    local bin
    bin=$(dirname "$(command -v forge)")
    cp -rL "$bin" "$bin/../lib" .
    cp "$(dirname "$(command -v mkstream)")/forge-cuda.so" bin
    cp bin/forge-cuda.so bin/libcuda.so.1 # the driver that --device auto looks for
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    all=$BATS_FILE_TMPDIR/bin
    export LD_LIBRARY_PATH=$all${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    few=(--text "$text" --sequences 2 --seqlen 32)
    quiet=--quiet
}

quantize() { # OUT OPTION...
    "$all/forge" quantize "$model" "$1" "${few[@]}" $quiet --work work "${@:2}"
}

# How many directories each stage has in the work directory.
stages() {
    find work -maxdepth 1 -name '*-????????????????' -printf '%f\n' | sed 's/-.*//' | sort | uniq -c |
        awk '{ printf "%s%s ", $2, $1 }'
}

@test "another GPU, other libraries, the CPU: each has files of its own, and its own result" {
    FAKE_CUDA_NAME="Fake A" quantize a --effort best --tune 0
    [ "$(stages)" = "calib1 solve1 tokens1 " ]
    FAKE_CUDA_NAME="Fake B" quantize b --effort best --tune 0
    [ "$(stages)" = "calib2 solve2 tokens1 " ]
    FAKE_CUDA_NAME="Fake A" FAKE_CUDA_BLAS=1.2.4 quantize b2 --effort best --tune 0
    [ "$(stages)" = "calib3 solve3 tokens1 " ]
    quantize c --effort best --tune 0 --device cpu
    [ "$(stages)" = "calib4 solve4 tokens1 " ]
    # F of each
    [ "$(find work/calib-* -name fisher.fts | wc -l)" -eq 4 ]
    # the same again, by either word: nothing
    FAKE_CUDA_NAME="Fake B" quantize again --effort best --tune 0 --device cuda
    [ "$(stages)" = "calib4 solve4 tokens1 " ]
    same b again
    # and the CPU's are those of a run without any device
    forge quantize "$model" alone "${few[@]}" --quiet --work other --effort best --tune 0
    same c alone
    [ "$(cd work && echo calib-* solve-*)" != "$(cd other && echo calib-* solve-*)" ]
    for stage in other/calib-* other/solve-*; do [ -e "work/${stage#other/}" ]; done
}

@test "a run that goes on elsewhere says so in one line" {
    quiet=
    FAKE_CUDA_NAME="Fake A" quantize a >/dev/null
    FAKE_CUDA_NAME="Fake B" quantize b 2>said >/dev/null
    [ "$(grep -c 'was made on' said)" -eq 1 ]
    grep -q "was made on Fake A, cuBLAS 1.2.3, cuSOLVER 4.5.6, this run computes on Fake B, .*: it makes its own files$" said
    quantize c --device cpu 2>said >/dev/null
    grep -q "was made on Fake B, .*, this run computes on the CPU: it makes its own files$" said
    quantize d 2>said >/dev/null
    grep -q "was made on the CPU, this run computes on Fake GPU, .*; --device cpu goes on with those$" said
    quantize e 2>said >/dev/null
    run ! grep -q 'was made on' said
}

@test "rounding to nearest is the same on every device" {
    few=(--method rtn)
    quantize a
    quantize b --device cpu
    [ "$(stages)" = "calib1 solve1 tokens1 " ]
    same a b
}

@test "a step on a machine with another device ends with 78, in one line" {
    quantize a --effort best --tune 0
    rm -r a work/*/*.fts # the loop makes the result, too
    cd work
    PATH=$all:$PATH "$all/forge" stage tokens
    for step in fisher loop; do
        run -78 env PATH="$all:$PATH" FAKE_CUDA_NAME="Fake B" "$all/forge" stage $step
        [[ $output == *"the run was planned on 'Fake GPU, cuBLAS 1.2.3, cuSOLVER 4.5.6', this is 'Fake B, "* ]]
        # no driver: no device
        run -78 env PATH="$all:$PATH" LD_LIBRARY_PATH= "$all/forge" stage $step
        [[ $output == *"the run was planned on 'Fake GPU, "*"', which is not here" ]]
        PATH=$all:$PATH "$all/forge" stage $step >/dev/null
    done
}

@test "what was planned on the CPU is computed there, whatever the machine has" {
    LD_LIBRARY_PATH='' quantize a
    rm -r a work/*/codes-*
    export FAKE_CUDA_LOG=$PWD/log
    (cd work && PATH=$all:$PATH "$all/forge" stage loop >/dev/null)
    [ ! -e log ]
}

@test "a pruned model is of the device that chose its experts" {
    python3 "$tree/tests/reference/moe.py" make qwen3_moe plain moe
    model=$PWD/moe
    for device in cpu auto; do
        quantize $device --device $device --keep 4 --group 32
        quantize $device-rtn --device $device --keep 4 --group 32 --method rtn
    done
    [ "$(stages)" = "calib4 pruned2 solve4 tokens2 " ]
}

@test "settings of another kind are refused" {
    quantize a
    python3 - <<'PYTHON'
import json
s = json.load(open("work/settings.json"))
s["gpu"] = "x" * 300
json.dump(s, open("work/settings.json", "w"))
PYTHON
    run -65 --separate-stderr "$all/forge" status work
    [[ $stderr == *'"gpu" is not what forge writes' ]]
}

# Bytes of MiB, GiB as printed.
bytes() { awk -v n="$1" -v u="$2" 'BEGIN { printf "%.0f", n * (u == "GiB" ? 1024 : 1) * 1048576 }'; }

@test "--dry-run says what each tool takes on the GPU, and what is there" {
    for effort in fast default best; do
        FAKE_CUDA_ROOM=$((3 << 30)) quantize out --dry-run --effort $effort >said
        grep -qx 'GPU          Fake GPU, cuBLAS 1.2.3, cuSOLVER 4.5.6: 3.00 GiB, 3.00 GiB free' said
        [ ! -e work ]
        read -r hessian solve least < <(sed -nE \
            's/^ +([0-9.]+) MiB for the widest Hessian, ([0-9.]+) MiB to solve .* at a time ([0-9.]+) MiB$/\1 \2 \3/p' said)
        # llama-4m: 256 states, 768 inputs of down_proj
        python3 - $effort "$hessian" "$solve" "$least" "$model/config.json" <<'PYTHON'
import json, sys
effort, *said, path = sys.argv[1:]
c = json.load(open(path))
H, I = c["hidden_size"], c["intermediate_size"]
up = lambda n, to: -(-n // to) * to
both, refined = effort != "fast", effort != "fast"

def hessian(cols, outs):  # tokens in bf16, square, triangle; a cross moment: tokens of both, sum, result
    n = 16384 * cols * 2 + 4 * cols * cols + 2 * cols * (cols + 1)
    return n + (8192 * 2 * (cols + outs) + 8 * cols * outs if both else 0)

def solve(rows, cols, adds, few):
    n, g = up(cols, 128), -(-cols // 128)
    # L in f32 and as three bf16, its diagonal blocks, the order of inputs, which are dead, lambda; of the
    # refined solver H as three bf16, and its blocks
    factor = 10 * n * n + 512 * n + 5 * cols + 8 + (6 * n * n + 512 * n) * refined
    whole = rows
    rows = min(rows, 64) if few and refined else rows
    r = up(rows, 64)
    fill = 4 * max(cols * (cols + 1) // 2, cols * cols if refined and not adds else 0)
    if not refined:
        # w, what is pushed, its three parts, codes; grids, losses, order; weights, results
        return factor + fill + n * r * (4 + 4 + 6 + 1) + g * r * 4 + r * 8 + 8 + cols * 4 + rows * (4 * cols + cols // 2 + 4 * g)
    x = n * r * (4 + 4 + 6 + 4 + 1) + 1024 * r * 4 + 3 * 128 * r * 2 + 4 + 2 * g * r * 4 + n // 128 * r * 8
    x += n * 8 + rows * 4 + 8 * {"default": 8, "best": 24}[effort] + rows * (4 * cols + max(cols // 2, 4 * g))
    square = 6 * n * n
    if effort == "best" and adds and not few:
        square = max(square, 10 * up(whole, 64) ** 2)
    moved = square + 2 * up(n, 512) * 512 * 4 + (0 if adds else 4 * n * n)
    return factor * (2 if effort == "best" else 1) + fill + x + moved

linears = [(H, H, False), (H // c["num_attention_heads"] * c["num_key_value_heads"], H, False), (H, H, True), (I, H, False),
           (H, I, True)]
want = [max(hessian(H, H), hessian(I, H)), max(solve(*l, False) for l in linears), max(solve(*l, True) for l in linears)]
for x, y in zip(map(float, said), want):
    assert abs(x - y / 2**20) <= 0.051 * max(1, x / 100), (effort, said, [w / 2**20 for w in want])
PYTHON
    done
    LD_LIBRARY_PATH='' quantize out --dry-run >said
    run ! grep -q '^GPU  ' said
    grep -q '^GPU memory   where there is one, ' said
}

@test "a GPU too small is refused before the work: by tool, and all of them together" {
    all=$BATS_FILE_TMPDIR/bin
    needs() { # EFFORT
        quantize out --dry-run --effort "$1" >said
        layer=$(sed -nE 's/^GPU memory +([0-9.]+) MiB for a layer.*/\1/p' said)
        read -r hessian least < <(sed -nE 's/^ +([0-9.]+) MiB for the widest Hessian.* at a time ([0-9.]+) MiB$/\1 \2/p' said)
    }
    small() { # MIB WHAT OPTION...
        FAKE_CUDA_ROOM=$(bytes "$1" MiB) run -75 --separate-stderr quantize out --device cuda "${@:3}"
        [[ $stderr == "forge: needs "*" MiB of GPU memory for $2, "*" are available" ]]
        [ ! -e work ]
    }
    needs default
    small "$(awk -v n="$layer" 'BEGIN { print n - .1 }')" "a layer"
    small "$(awk -v n="$hessian" 'BEGIN { print n - .1 }')" "the widest Hessian"
    small 1000 "the widest Hessian" --gpu-memory 40M
    small 150 "a layer's gradients"
    small 150 "a layer's gradients" --effort best
    needs fast
    sum=$(awk -v a="$layer" -v b="$hessian" -v c="$least" 'BEGIN { print a + b + c }')
    small "$(awk -v n="$sum" 'BEGIN { print n - .2 }')" "a layer, its Hessians and its codes" --effort fast
    # with auto the CPU does what does not fit
    FAKE_CUDA_ROOM=100 quantize out --effort fast
    FAKE_CUDA_ROOM=$(bytes "$(awk -v n="$sum" 'BEGIN { print n + .2 }')" MiB) quantize enough --device cuda --effort fast
    same_tensors out enough
}

@test "effort best tunes codes on a GPU, if the model is small and there is room" {
    tunes() { # HOW OPTION...
        quantize out --dry-run "${@:2}" >said || return 2
        grep -q "^tuning  .*, $1 sequences: " said
    }
    tunes "640 steps of 16" --effort best
    tunes "640 steps of 16" --effort best --device cuda
    tunes "640 steps of 4" --effort best --tune-batch 4
    tunes "3 steps of 16" --effort best --tune 3
    tunes "3 steps of 16" --tune 3
    for how in "" "--effort best --device cpu" "--effort best --tune 0" "--effort best --parts 2"; do
        # shellcheck disable=SC2086
        run -1 tunes ".*" $how
    done
    export FAKE_CUDA_ROOM
    FAKE_CUDA_ROOM=$(bytes 40 MiB)
    run -1 tunes ".*" --effort best
    # 40 million weights
    FAKE_CUDA_ROOM=$(bytes 40 GiB)
    cp -rL "$model" large
    rm large/model*
    mkmodel large/model.safetensors 4096 1024 3072 8 8 3
    jq '.vocab_size = 4096 | .hidden_size = 1024 | .intermediate_size = 3072 | .num_attention_heads = 8 | .num_key_value_heads = 8 |
        .head_dim = 128 | .num_hidden_layers = 3' "$model/config.json" >large/config.json
    model=large
    tunes "512 steps of 8" --effort best
}

@test "forge-device: what a run would compute on" {
    run -0 "$all/forge-device"
    [ "${lines[0]}" = "Fake GPU, cuBLAS 1.2.3, cuSOLVER 4.5.6" ]
    FAKE_CUDA_ROOM=1048576 "$all/forge-device" --json >facts
    jq -e '.memory == 1048576 and .room == 1048576' facts
    "$all/forge-device" --json --gpu-memory 3M | jq -e '.room == 3145728'
    [ "$("$all/forge-device" --device cpu)" = "the CPU" ]
    [ "$(LD_LIBRARY_PATH='' "$all/forge-device")" = "the CPU" ]
    run -69 --separate-stderr "$all/forge-device" --device cuda:3
    [ "$stderr" = "forge-device: --device cuda:3: fake: no device 3" ]
    run -69 --separate-stderr forge-device --device cuda
    run -64 --separate-stderr "$all/forge-device" --device tpu
    run -64 --separate-stderr "$all/forge-device" here
    run -74 --separate-stderr sh -c '"$0" >/dev/full' "$all/forge-device"
}

@test "the loop may hold what other tools leave, where that is a layer and more than half" {
    quantize out --effort fast --dry-run >said
    layer=$(sed -nE 's/^GPU memory +([0-9.]+) MiB for a layer.*/\1/p' said)
    read -r hessian least < <(sed -nE 's/^ +([0-9.]+) MiB for the widest Hessian.* at a time ([0-9.]+) MiB$/\1 \2/p' said)
    states() { # MIB: of the GPU; prints those that forge-calib may hold
        rm -rf out work
        FAKE_CUDA_ROOM=$(bytes "$1" MiB) quantize out --effort fast "${@:2}"
        jq .gpu_states work/settings.json
    }
    # beside 512 MiB for the context of each of five tools half a layer is no limit to work with
    small=$(awk -v a="$layer" -v b="$hessian" -v c="$least" 'BEGIN { print 2560 + a / 2 + b + c }')
    [ "$(states "$small")" -eq 0 ]
    left=$(states 8192)
    [ "$left" -gt $((4096 << 20)) ]
    [ "$left" -lt $((5632 << 20)) ]
    [ "$(states 8192 --gpu-memory 4G)" -eq 0 ]
    left=$(states 8192 --effort default) # two streams
    [ "$left" -gt $((4096 << 20)) ]
    [ "$left" -lt $((5632 << 20)) ]
}

@test "MPS: a run on a GPU has a service of its own, whose clients its processes are, and ends it" {
    export LOG=$PWD/log
    mkdir fakes
    cat >fakes/nvidia-cuda-mps-control <<'END'
#!/bin/sh
if [ "$1" != -f ]; then
    read -r said
    echo "$said" >>"$LOG"
    rm "$CUDA_MPS_PIPE_DIRECTORY/control"
    exit
fi
echo "start $CUDA_MPS_PIPE_DIRECTORY" >>"$LOG"
[ "$BROKEN" != starts ] || exit 1
: >"$CUDA_MPS_PIPE_DIRECTORY/control"
while [ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ]; do sleep 0.02; done
END
    cp -rL "$all" "$BATS_FILE_TMPDIR/lib" .
    mv bin/forge-device bin/real
    cat >bin/forge-device <<'END'
#!/bin/sh
echo "client $CUDA_MPS_PIPE_DIRECTORY" >>"$LOG"
[ "$BROKEN" != serves ] || [ -z "$CUDA_MPS_PIPE_DIRECTORY" ] || { echo 'forge-device: cannot open the device'; exit 69; }
exec "${0%/*}/real" "$@"
END
    chmod +x fakes/* bin/forge-device
    all=$PWD/bin PATH=$PWD/fakes:$PATH
    quantize a
    dir=$(sed -n 's/^start //p' log)
    [[ $dir == /tmp/forge-mps.tmp.*.?????? ]]
    diff log - <<<"start $dir"$'\n'"client $dir"$'\nquit'
    [ ! -e "$dir" ]
    rm log # the service does not start, or the GPU is not opened by it: without
    BROKEN=starts quantize b
    [[ $(sed 's/start .*/start/' log) == $'start\nclient ' ]]
    rm log
    BROKEN=serves quantize c
    [[ $(sed 's/forge-mps.*//' log) == $'start /tmp/\nclient /tmp/\nquit\nclient ' ]]
    rm log # not wanted, not needed, or the user's own
    FORGE_MPS=0 quantize d
    CUDA_MPS_PIPE_DIRECTORY=$PWD/own quantize e
    quantize f --device cpu
    quantize g --dry-run
    run ! grep -q start log
    grep -qx "client $PWD/own" log
    for same in b c d e; do same a $same; done
}
