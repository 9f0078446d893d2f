#!/usr/bin/env bats
# forge-calib --until, --part: a run cut into points and parts of the tokens.

load cli

PY="$BATS_TEST_DIRNAME/../reference/forward.py"

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

# The loop of MODEL with the activations that forge-calib wrote kept in loop.fts, and
# the codes of each layer in codes-%.fts.
loop() { # MODEL PROPAGATE
    mkfifo back
    forge-calib -q --feedback back --propagate "$2" "$1" t.fts | tee loop.fts | forge-hessian -q |
        forge-weights -q --join "$1" | forge-grid -q --group 16 | forge-solve -q --effort fast |
        forge-split -q codes-%.fts >back
    rm back
}

# POINTS of all layers of MODEL, in the order in which the loop writes them.
points() { # MODEL
    python3 "$PY" names loop.fts | awk '$1 == "activation" {
        sub(/\.(drift|output|gap)$/, "", $2)
        n = split($2, w, ".")
        p = w[3] "." (w[5] ? "experts" : w[4])
        if (w[5] && w[n] == "in") next
        if (!seen[p]++) print p
    }'
}

# Each activation frame of the loop is in one of the files point-*.fts, with these
# bytes, and nothing else is.
same_frames() {
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import glob, sys
sys.path.insert(0, sys.argv[1])
import fts
def frames(name):
    return {(t.name, t.sequence, bytes(t.payload), tuple(t.shape), t.last, tuple(t.modules or ()))
            for t in fts.read(open(name, "rb")) if t.role == "activation"}
want = frames("loop.fts")
got, n = set(), 0
for name in glob.glob("point-*.fts"):
    part = frames(name)
    got |= part
    n += len(part)
assert n == len(got) and got == want, (n, sorted(x[:2] for x in got ^ want)[:10])
print(n, "frames")
PYTHON
}

@test "a run from point to point writes what the loop does; from the tokens, too" {
    python3 "$PY" tokens t.fts 40 9 33 64
    for kind in qwen3 llama-biases deepseek_v3 deepseek_v2-lite qwen2_moe mixtral; do
        for propagate in both quantized; do
            rm -rf -- *-*.fts m
            python3 "$PY" make "$kind" m
            loop m $propagate
            before=t.fts
            for point in $(points m); do
                forge-calib -q --until "$point" --propagate $propagate --codes codes-%.fts --hidden "next-$point.fts" \
                    m "$before" >"point-$point.fts" ||
                    { echo "$kind $propagate $point from $before"; return 1; }
                [ ! -e "next-$point.fts" ] || before=next-$point.fts
            done
            same_frames
            # behind the routing the states stay at mlp_in
            [[ $kind != deepseek_v3 || ! -e next-1.experts.fts ]]
            rm point-*
            for point in $(points m); do
                forge-calib -q --until "$point" --propagate $propagate --codes codes-%.fts m t.fts >"point-$point.fts"
            done
            same_frames
        done
    done
}

@test "parts of the tokens are every n-th sequence, and keep their numbers" {
    python3 "$PY" tokens t.fts 5 6 7 8 9
    python3 "$PY" make llama m
    for p in 0 1 2; do
        forge-calib -q --until 1.mlp_in --part $p --parts 3 --hidden s$p.fts m t.fts >p$p.fts
        forge-calib -q --until 1.mlp_mid m s$p.fts >q$p.fts # states: the part is in them
    done
    forge-calib -q --until 1.mlp_mid m t.fts >all.fts
    [ "$(for p in 0 1 2; do python3 "$PY" names p$p.fts; done | awk '{ print $3 }' | xargs)" = "1 4 2 5 3" ]
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts
rows = lambda name: {t.sequence: t.payload for t in fts.read(open(name, "rb"))}
assert rows("q0.fts") | rows("q1.fts") | rows("q2.fts") == rows("all.fts")
PYTHON
}

refused() { # STATUS TEXT ARGUMENT...
    fails "$1" "$2" forge-calib -q -o out.fts "${@:3}"
    [ ! -e out.fts ]
}

@test "what cannot be is refused in a line" {
    python3 "$PY" tokens t.fts 5 6
    python3 "$PY" make llama m
    forge-calib -q --until 1.mlp_in --propagate both --hidden s.fts -o /dev/null m t.fts
    for point in 1 1. x.attn_in 2.attn_in 1.q_lat 1.experts -1.attn_in 1.hidden; do
        refused 64 "'$point' is no point of the model" --until "$point" m t.fts
    done
    refused 64 "exclude each other" --until 1.mlp_in --hitmap m t.fts
    refused 64 "--layer does not go with it" --until 1.mlp_in --layer 1 m t.fts
    refused 64 "below --parts" --part 2 --parts 2 m t.fts
    refused 65 "has no sequences" --part 2 --parts 3 m t.fts
    refused 65 "inside of layer 1: want --until" m s.fts
    refused 65 "behind the end of --until" --until 1.mlp_in --propagate both m s.fts
    refused 65 "want --propagate both" --until 1.mlp_mid m s.fts
    # states without their activations, or with those of another sequence
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts
s = list(fts.read(open("s.fts", "rb")))
fts.write(open("bare.fts", "wb"), [t for t in s if t.role == "hidden"])
fts.write(open("turned.fts", "wb"), [t for t in s if t.role == "hidden"] + [t for t in s if t.role != "hidden"][::-1])
fts.write(open("one.fts", "wb"), [t for t in s if not t.name.endswith(".original")])
PYTHON
    for name in bare turned; do
        refused 65 "'model.layers.1.mlp_in': want the activation of sequence 1" --until 1.mlp_mid --propagate both m $name.fts
    done
    refused 65 "no states of the original model" --until 1.mlp_mid --propagate both m one.fts
}
