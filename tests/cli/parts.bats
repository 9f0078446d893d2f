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

# The points of all layers at which a run in parts stops, in the order in which the loop
# writes them: those that linears read, but of experts the last one.
points() {
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts
seen = []
for t in fts.read(open("loop.fts", "rb")):
    if t.role != "activation" or not t.modules or t.name.endswith((".drift", ".output", ".gap")):
        continue
    w = t.name.split(".")
    point = w[2] + "." + ("experts" if "experts" in w else w[3])
    if point not in seen:
        seen.append(point)
print(*seen, sep="\n")
PYTHON
}

# The experts of layer LAYER in three shares, from the states next-LAYER.experts.fts.
shares() { # MODEL PROPAGATE LAYER
    for k in 0 1 2; do
        mkfifo back
        forge-calib -q --feedback back --propagate "$2" --share $k --shares 3 --outputs "outputs-$3-$k.fts" \
            "$1" "next-$3.experts.fts" | tee "point-$3.share-$k.fts" | forge-hessian -q | forge-weights -q --join "$1" |
            forge-grid -q --group 16 | forge-solve -q --effort fast | forge-split -q "share-%-$k.fts" >back
        rm back
    done
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

# The shares' codes are the loop's; so are the sums of their hit maps.
same_codes() { # LAYER
    python3 - "$BATS_TEST_DIRNAME/../reference" "$1" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts, numpy as np
def frames(name):
    return [t for t in fts.read(open(name, "rb")) if t.role in ("codes", "qmeta", "hitmap")]
def of_experts(all):
    return {(t.role, t.name): bytes(t.payload) for t in all if ".experts." in t.name}
layer = sys.argv[2]
want = frames(f"codes-{layer}.fts")
got = [t for k in range(3) for t in frames(f"share-{layer}-{k}.fts")]
assert of_experts(got) == of_experts(want) and of_experts(want)
hits = lambda all: sum(t.array().reshape(t.shape).astype(float) for t in all if t.role == "hitmap")
assert np.allclose(hits(got), hits(want), rtol=1e-6), (hits(got), hits(want))
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
            for point in $(points); do
                outputs=()
                if [[ $before == *experts.fts && $kind != mixtral ]]; then # else the experts run
                    outputs=(--part 0 --parts 1)
                    for k in 0 1 2; do outputs+=(--outputs "outputs-$((${point%.*} - 1))-$k.fts"); done
                fi
                forge-calib -q --until "$point" --propagate $propagate --codes codes-%.fts --hidden "next-$point.fts" \
                    "${outputs[@]}" m "$before" >"point-$point.fts" ||
                    { echo "$kind $propagate $point from $before"; return 1; }
                [ ! -e "next-$point.fts" ] || before=next-$point.fts
                [[ $point != *.experts ]] || { shares m $propagate "${point%.*}" && same_codes "${point%.*}"; }
            done
            same_frames
            rm point-*
            for point in $(points); do
                forge-calib -q --until "$point" --propagate $propagate --codes codes-%.fts --hidden "next-$point.fts" m t.fts \
                    >"point-$point.fts"
                [[ $point != *.experts ]] || shares m $propagate "${point%.*}"
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
    refused 64 "--parts: 3 of 2 sequences" --part 2 --parts 3 m t.fts
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

# A share of the experts of model m, from the states in FILE.fts, is refused.
share_refused() { # TEXT FILE
    # shellcheck disable=SC2016 # for the inner shell
    fails 65 "$1" bash -c 'sleep 1 | forge-calib -q --feedback - --propagate both --share 0 --shares 2 -o /dev/null m "$1"' - "$2.fts"
}

@test "states of experts that lack something, and outputs of other tokens, are refused in a line" {
    python3 "$PY" tokens t.fts 5 6
    python3 "$PY" make qwen2_moe m
    forge-calib -q --until 0.experts --propagate both --hidden next-0.experts.fts -o /dev/null m t.fts
    shares m both 0
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import copy, sys
sys.path.insert(0, sys.argv[1])
import fts
def write(name, frames):
    fts.write(open(name, "wb"), frames)
def cut(t, part, of):
    t = copy.copy(t)
    t.payload = bytes(t.payload)[:len(t.payload) // of * part]
    t.shape = [t.shape[0] // of * part, t.shape[1]]
    return t
s = list(fts.read(open("next-0.experts.fts", "rb")))
states = [t for t in s if t.role == "hidden"]
routing = [t for t in s if t.role == "routing"]
rows = [t for t in s if t.role == "activation"]
write("bare.fts", states + rows)
write("noweights.fts", states + [t for t in routing if not (t.dtype == "F32" and ".experts" in t.name)] + rows)
# the second sequence's states come too late
few = [cut(t, 5, 11) if t.dtype != "F64" else t for t in routing]
write("late.fts", states[::2] + few + states[1::2] + rows)
wrong = copy.copy(routing[0])
wrong.payload = bytes(wrong.payload[:8]) + (99).to_bytes(4, "little") + bytes(wrong.payload[12:])
write("wrong.fts", states + [wrong] + routing[1:] + rows)
o = list(fts.read(open("outputs-0-0.fts", "rb")))
twice = copy.copy(o[0])
twice.payload, twice.shape = bytes(twice.payload) * 2, [2 * twice.shape[0], twice.shape[1]]
write("twice.fts", [twice] + o[1:])
write("fewer.fts", o[1:])
PYTHON
    for name in bare noweights late; do
        share_refused "no states behind layer 0 without its experts" $name
    done
    share_refused "'model.layers.0.experts': no expert 99" wrong
    way=(--until 1.attn_in --propagate both --part 0 --parts 1 --outputs)
    others=(--outputs outputs-0-1.fts --outputs outputs-0-2.fts m)
    refused 65 "'model.layers.0.experts': no expert 99" "${way[@]}" outputs-0-0.fts "${others[@]}" wrong.fts
    refused 65 "more rows of expert 0 of part 0 than it has tokens" "${way[@]}" twice.fts "${others[@]}" next-0.experts.fts
    refused 65 "want rows of 'model.layers.0.mlp.experts.0.out.original' of part 0" "${way[@]}" fewer.fts "${others[@]}" next-0.experts.fts
}
