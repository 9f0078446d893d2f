#!/usr/bin/env bats
# A changed option never reuses a wrong file, and reuses every right one.

load e2e

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    cp -rp "$model" model
    chmod -R u+w model
    cp "$text" text.jsonl
    base base --work work
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
}

data=(--text text.jsonl --sequences 4 --seqlen 64)

base() { # OUT OPTION...
    local out=$1
    shift
    forge quantize model "$out" "${data[@]}" --quiet "$@"
}

# Which stages a run adds to the work directory, and that its result is that
# of a run without one.
adds() { # STAGES OPTION...
    local want=$1
    shift
    find work -maxdepth 1 -name '*-*' | sort >before
    rm -rf shared alone
    base shared --work work "$@"
    find work -maxdepth 1 -name '*-*' | sort >after
    base alone "$@"
    same shared alone
    [ "$(comm -13 before after | sed 's,work/,,; s/-.*//' | xargs)" = "$want" ]
}

@test "the same settings: nothing" { adds ""; }
@test "another layout: nothing" { adds "" --layout awq; }
@test "another group: solving" { adds "solve" --group 64; }
@test "other zeros: solving" { adds "solve" --asym; }
@test "the best effort: gradients beside the calibration, and solving" {
    adds "calib solve" --effort best # whose tokens have weights
    [ "$(find work/calib-* -name fisher.fts | wc -l)" -eq 2 ] # of fewer tokens by default
    [ "$(find work/calib-* -name weights.fts | wc -l)" -eq 1 ]
}
@test "another way through the layers: calibration" {
    adds "calib solve" --propagate original
}
@test "... whose Hessians serve another group" {
    base first --work work --propagate original
    cp -p work/calib-*/hessian-0.fts hessian
    stat -c %Y%i work/calib-*/hessian-*.fts >stamps
    adds "solve" --propagate original --group 32
    stat -c %Y%i work/calib-*/hessian-*.fts | cmp - stamps
}
@test "more data: tokens" { adds "calib solve tokens" --sequences 5; }
@test "longer sequences: tokens" { adds "calib solve tokens" --seqlen 65; }
@test "no data: solving" {
    data=()
    adds "calib solve tokens" --method rtn
}
@test "threads, jobs, progress, shards: nothing" {
    adds "" --threads 1 --jobs 2 --progress never --shard-size 1MB
}
@test "another text: tokens" {
    sed -i '1s/"text": *"/&So /' text.jsonl
    run -1 cmp -s text.jsonl "$text"
    adds "calib solve tokens"
}
@test "another model: calibration" {
    # One weight in the middle of the file; the size stays.
    printf '\001' | dd of=model/model.safetensors bs=1 seek=4000000 \
        conv=notrunc status=none
    adds "calib solve"
}
