#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-hessian(1) as a user meets it.

bats_require_minimum_version 1.5.0

PY="$BATS_TEST_DIRNAME/../reference/stages.py"

setup_file() {
    cd "$BATS_FILE_TMPDIR" || exit 1
    python3 "$PY" activations a.fts
    python3 "$PY" activations a32.fts f32
    python3 "$PY" activations part bf16 2
}

setup() {
    cd "$BATS_TEST_TMPDIR" || exit 1
    A=$BATS_FILE_TMPDIR
}

@test "H is the mean of 2 x xT over the tokens of each name" {
    forge-hessian -q "$A/a.fts" >h.fts
    python3 "$PY" check-hessian "$A/a.fts" h.fts
    forge-hessian -q <"$A/a32.fts" >h.fts
    python3 "$PY" check-hessian "$A/a32.fts" h.fts
    forge-hessian -q --dtype f32 "$A/a.fts" >h.fts
    python3 "$PY" check-hessian "$A/a.fts" h.fts
}

@test "diagonal blocks, the last one short, are parts of the whole" {
    for g in 64 100 160 512; do
        forge-hessian -q --block "$g" "$A/a.fts" >h.fts
        python3 "$PY" check-hessian "$A/a.fts" h.fts "$g"
    done
}

@test "--max-tokens takes the first tokens" {
    forge-hessian -q --max-tokens 801 "$A/a.fts" >h.fts
    python3 "$PY" check-hessian "$A/a.fts" h.fts 0 801
}

@test "--skip-tokens leaves out the first tokens of each sequence" {
    for n in 1 7; do
        forge-hessian -q --skip-tokens $n "$A/a.fts" >h.fts
        python3 "$PY" check-hessian "$A/a.fts" h.fts 0 0 $n
    done
    run -64 forge-hessian --skip-tokens 1 --max-tokens 5 "$A/a.fts"
}

@test "--weights: moments are means of weighted tokens" {
    python3 "$PY" token-weights "$A/a.fts" w.fts
    for k in "" 32; do
        python3 "$PY" drift "$A/a$k.fts" d.fts "${k:+f32}"
        forge-hessian -q --weights w.fts d.fts >h.fts
        python3 "$PY" check-weighted d.fts w.fts h.fts "$([ "$k" ] && echo 4e-6 || echo 4e-3)"
        forge-hessian -q -j 1 --weights w.fts <d.fts >one.fts
        python3 "$PY" same h.fts one.fts
    done
    # gradients that are all 0 say nothing: all tokens count alike
    mkstream activation:m.in:F32:4x3:modules=m:last >a.fts
    mkstream activation:m.in:F32:4x2:fill=0 >zeros.fts
    forge-hessian -q a.fts >plain.fts
    forge-hessian -q --weights zeros.fts a.fts >zeros.h
    python3 "$PY" same zeros.h plain.fts
    mkstream activation:m.in:F32:4x2:fill=nan >less.fts
    run --separate-stderr -65 forge-hessian -q --weights less.fts a.fts
    [[ $stderr == *"token 0: the weight is negative or not finite" ]]
    mkstream 'activation:model.layers.0.attn_in:F32:2x1:sequence=1' >few.fts
    run --separate-stderr -65 forge-hessian -q --weights few.fts "$A/a.fts"
    run -65 forge-hessian -q --weights "$A/a.fts" "$A/a.fts"
    run -66 forge-hessian -q --weights none "$A/a.fts"
}

@test "drift and output frames give cross moments, in front of the hessian" {
    for k in "" 32; do
        python3 "$PY" drift "$A/a$k.fts" d.fts "${k:+f32}"
        forge-hessian -q d.fts >c.fts
        python3 "$PY" check-cross d.fts c.fts
        forge-hessian -q -j 1 d.fts >one.fts
        python3 "$PY" same c.fts one.fts
        forge-hessian -q --block 100 d.fts >h.fts # not of blocks
        python3 "$PY" check-hessian "$A/a$k.fts" h.fts 100
    done
    mkstream 'activation:m.in.drift:F32:2x4:modules=m.q:sequence=1' \
        'activation:m.in:F32:2x4:modules=m.q:sequence=1' \
        'activation:m.in:F32:2x4:modules=m.q:sequence=2' >miss
    run -65 --separate-stderr forge-hessian -q miss
    [[ $stderr == *"'m.in': sequence 1: '.drift' is missing" ]]
}

@test "a hessian is the same, byte for byte, beside a cross moment; chunks end where they do" {
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts, numpy as np
rng = np.random.default_rng(9)
def numbers(tokens, width): # of few bits: whole in bf16
    return rng.integers(-128, 128, (tokens, width)).astype("<f4") / 64
def frame(name, x, i):
    return fts.Tensor("activation", name, fts.bf16(x), "BF16", x.shape, modules=["m.q"], sequence=i)
both, alone, bad = [], [], []
for i, tokens in enumerate((3000, 5003, 1, 700), 1):
    x, y = numbers(tokens, 40), numbers(tokens, 24)
    both += [frame("m.in.output", y, i), frame("m.in", x, i)]
    alone.append(frame("m.in", x, i))
    if i == 2:
        x[4321, 7] = np.inf
    bad += [frame("m.in.output", y, i), frame("m.in", x, i)]
for name in ("both", "alone", "bad"):
    fts.write(open(name + ".fts", "wb"), globals()[name])
PYTHON
    for name in both alone; do
        forge-hessian -q $name.fts >h-$name.fts
        forge-hessian -q -j 1 <$name.fts >one.fts
        python3 "$PY" same h-$name.fts one.fts
    done
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts, numpy as np
read = lambda name: list(fts.read(open(name, "rb")))
a, b = ([t.payload for t in read(f"h-{name}.fts") if t.role == "hessian"] for name in ("both", "alone"))
assert len(a) == 1 and a == b
y, x = (np.concatenate([t.array() for t in read("both.fts") if t.name == n]).astype(float) for n in ("m.in.output", "m.in"))
got = [t.array() for t in read("h-both.fts") if t.role == "cross"]
assert len(got) == 1 and np.abs(got[0] - 2 * y.T @ x / len(x)).max() < 4e-6 * np.sqrt((x * x).mean() * (y * y).mean())
PYTHON
    run -65 --separate-stderr forge-hessian -q bad.fts
    [[ $stderr == *"'m.in': sequence 1: token 4321: input 7 is not finite" ]]
}

@test "threads and the way it is read do not change a byte" {
    forge-hessian -q -j 1 "$A/a.fts" >a
    forge-hessian -q -j 3 "$A/a.fts" >b
    # shellcheck disable=SC2002
    cat "$A/a.fts" | forge-hessian -q -j 2 >c
    forge-hessian -q -o d "$A/a.fts"
    cmp a b
    cmp a c
    cmp a d
}

@test "parts merge to the mean over all tokens" {
    forge-hessian -q "$A/part.0" >h0
    forge-hessian -q "$A/part.1" >h1
    forge-hessian -q h0 h1 >h.fts
    python3 "$PY" check-hessian "$A/part.0,$A/part.1" h.fts
    cat h0 h1 | forge-hessian -q >cat.fts
    python3 "$PY" check-hessian "$A/part.0,$A/part.1" cat.fts
    forge-hessian -q "$A/part.0" "$A/part.1" >h.fts # activations of two files
    python3 "$PY" check-hessian "$A/part.0,$A/part.1" h.fts
}

# The Hessian reads the tokens that its cross moment has packed: memory that is large
# enough to be used again when those are done.
@test "--parts of a wide input with the outputs that it should have: the bytes of merged parts" {
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts, numpy as np
rng = np.random.default_rng(5)
whole = []
for p in range(3):
    frames = []
    for suffix, width in ((".output", 512), ("", 4096)):
        z = rng.integers(-128, 128, (9, width)).astype("<f4") / 64
        frames.append(fts.Tensor("activation", "model.layers.0.mlp_mid" + suffix, fts.bf16(z), "BF16", z.shape,
            modules=None if suffix else ["down"], sequence=p + 1, last=True))
    fts.write(open(f"a{p}.fts", "wb"), frames)
    whole += frames
for t in whole[:4]:
    del t.extra["last"]
fts.write(open("whole.fts", "wb"), whole)
PYTHON
    for p in 0 1 2; do forge-hessian -q --partial a$p.fts >m$p.fts; done
    forge-hessian -q m0.fts m1.fts m2.fts >merged.fts
    forge-hessian -q --parts 3 whole.fts >one.fts
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts
merged, one = ({(t.role, t.name): bytes(t.payload) for t in fts.read(open(name, "rb"))} for name in ("merged.fts", "one.fts"))
assert len(one) == 2 and merged == one
PYTHON
}

@test "parts of tokens: moments of both kinds, experts by their rows, blended when merged; shares" {
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts, numpy as np
rng = np.random.default_rng(4)
H, M = 40, 24
def numbers(tokens, width): # of few bits: whole in bf16
    return rng.integers(-128, 128, (tokens, width)).astype("<f4") / 64
# tokens of each part; of expert 1 the first part has none, of expert 2 nobody has
tokens = {"mlp_in": (50, 31, 64), "mlp.experts.0.in": (9, 20, 0), "mlp.experts.1.in": (0, 3, 8),
          "mlp.experts.2.in": (0, 0, 0), "mlp.experts.0.mid": (9, 20, 0)}
modules = lambda k: [f"{k}.{m}" for m in (("down",) if "mid" in k else ("gate", "up"))]
whole = []
for p in range(3):
    frames = []
    for k, n in tokens.items():
        width, kind = (M, "gap") if "mid" in k else (H, "drift")
        x, y = numbers(n[p], width), numbers(n[p], H)
        for suffix, z in (("." + kind, y), ("", x)):
            frames.append(fts.Tensor("activation", "model.layers.2." + k + suffix, fts.bf16(z), "BF16", z.shape,
                modules=None if suffix else modules(k), sequence=p + 1, last=True))
    fts.write(open(f"a{p}.fts", "wb"), frames)
    whole += frames
# the same in one stream, name after name
for t in whole:
    if t.sequence < 3:
        del t.extra["last"]
fts.write(open("whole.fts", "wb"), sorted(whole, key=lambda t: list(tokens).index(t.name[15:].removesuffix(".drift").removesuffix(".gap"))))
PYTHON
    for p in 0 1 2; do forge-hessian -q --partial a$p.fts >m$p.fts; done
    [ "$(forge-ls m0.fts | awk '{ print $1 }' | xargs)" = \
        "cross hessian activation activation activation activation activation activation activation activation" ]
    forge-hessian -q --blend 2 m0.fts m1.fts m2.fts >all.fts
    forge-hessian -q --blend 2 --parts 3 whole.fts >one.fts
    forge-hessian -q --blend 2 whole.fts >sum.fts # another order of sums
    run ! cmp -s one.fts sum.fts
    mine=("mlp_in.up.rows-48-96-of-100,mlp_in.gate" other.up)
    for k in 0 1; do
        forge-hessian -q --blend 2 --share $k --shares 2 --rows "${mine[k]}" m0.fts m1.fts m2.fts >share$k.fts
    done
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts, numpy as np
read = lambda name: list(fts.read(open(name, "rb")))
parts = [read(f"a{p}.fts") for p in range(3)]
def rows(name):
    return np.concatenate([t.array().astype(float).reshape(t.shape) for part in parts for t in part if t.name == name])
def full(t):
    n = int((2 * t.array().size) ** .5)
    h = np.zeros((n, n))
    h[np.tril_indices(n)] = t.array()
    return np.maximum(h, h.T) if (h >= 0).all() else h + np.tril(h, -1).T
layer = rows("model.layers.2.mlp_in")
layer = 2 * layer.T @ layer / len(layer)
got = {(t.role, t.name): t for t in read("all.fts")}
checked = 0
for name in dict.fromkeys(t.name for t in parts[0] if not t.name.endswith((".drift", ".gap"))):
    x = rows(name)
    n, c = x.shape
    h = 2 * x.T @ x / n if n else np.eye(c)
    own = n / (n + 2 * c) if "experts" in name else 1
    if "mid" in name:
        h = own * h + (1 - own) * np.trace(h) / c * np.eye(c)
    elif "experts" in name:
        h = own * h + (1 - own) * layer
    t = got["hessian", name]
    assert (t.extra.get("samples") or 0) == n, name
    assert np.abs(full(t) - h).max() < 2e-6 * np.abs(h).max(), name
    kind = name + (".gap" if "mid" in name else ".drift")
    assert (("cross", kind) in got) == (n > 0), kind
    if n:
        d = own * 2 * rows(kind).T @ x / n
        assert np.abs(got["cross", kind].array() - d).max() < 4e-6 * np.abs(h).max(), kind
    checked += 1
assert checked == 5
# the parts of one stream: the bytes of as many runs
one = read("one.fts")
assert len(one) == len(got)
for t in one:
    assert (t.payload, t.extra) == (got[t.role, t.name].payload, got[t.role, t.name].extra), t.name
# every expert's module is in one share, those of others where --rows says, with the bytes of the whole
seen = []
for k in range(2):
    for t in read(f"share{k}.fts"):
        assert t.payload == got[t.role, t.name].payload
        if t.role == "hessian":
            seen += t.extra["modules"]
want = sum((t.extra["modules"] for t in got.values() if t.role == "hessian"), [])
want[want.index("mlp_in.up")] = "mlp_in.up.rows-48-96-of-100"
assert sorted(seen) == sorted(want) and len(set(seen)) == len(seen), (seen, want)
share = [t.name for t in read("share1.fts") if t.role == "hessian"]
assert share == ["model.layers.2.mlp.experts.1.in"], share
PYTHON
    run -64 forge-hessian --partial --shares 2 a0.fts
    run -64 forge-hessian --partial --rows mlp_in.up a0.fts
    run -64 forge-hessian --parts 2 --rows mlp_in.up a0.fts
    forge-hessian -q --rows "" m0.fts m1.fts m2.fts >none.fts # experts' alone
    forge-ls none.fts >none
    grep -q 'mlp.experts.0.in' none
    run ! grep -q mlp_in none
    run -64 forge-hessian --partial --parts 2 a0.fts
    mkstream 'activation:m.in:F32:3x4:modules=m:last' >numberless.fts
    run -65 --separate-stderr forge-hessian --parts 2 numberless.fts
    [[ $stderr == *"'m.in': --parts wants numbered sequences" ]]
    run -64 forge-hessian --share 2 --shares 2 a0.fts
    # moments in pieces, merged by as many runs or by one, have the bytes of whole ones
    for p in 0 1 2; do forge-hessian -q --partial --pieces 3 a$p.fts >pieces$p.fts; done
    forge-ls pieces0.fts | awk '{ print $2 }' | head -n 6 >names
    diff - names <<'END'
model.layers.2.mlp_in.drift.rows-0-14-of-40
model.layers.2.mlp_in.drift.rows-14-27-of-40
model.layers.2.mlp_in.drift.rows-27-40-of-40
model.layers.2.mlp_in.rows-0-274-of-820
model.layers.2.mlp_in.rows-274-547-of-820
model.layers.2.mlp_in.rows-547-820-of-820
END
    forge-hessian -q --blend 2 pieces0.fts pieces1.fts pieces2.fts | cmp - all.fts
    for k in 0 1 2; do
        forge-hessian -q --piece $k --pieces 3 pieces0.fts pieces1.fts pieces2.fts >piece$k.fts
        forge-hessian -q --piece $k --pieces 3 m0.fts m1.fts m2.fts | cmp - piece$k.fts
    done
    forge-hessian -q --rows mlp_in.up.rows-48-96-of-100,mlp_in.gate piece0.fts piece1.fts piece2.fts >joined.fts
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts
want = [t for t in fts.read(open("share0.fts", "rb")) if "expert" not in t.name]
got = list(fts.read(open("joined.fts", "rb")))
assert [(t.name, t.payload, t.extra) for t in got] == [(t.name, t.payload, t.extra) for t in want] and len(got) == 2
PYTHON
    run -65 --separate-stderr forge-hessian piece0.fts piece2.fts
    [[ $stderr == *"'model.layers.2.mlp_in"*"': numbers are missing" ]]
    run -65 --separate-stderr forge-hessian m0.fts pieces1.fts
    [[ $stderr == *"'model.layers.2.mlp_in"*"': numbers are missing" ]]
    run -64 --separate-stderr forge-hessian piece0.fts
    [[ $stderr == *": pieces of moments want files, and several" ]]
    cp piece1.fts cut.fts && truncate -s -70 cut.fts
    run -65 forge-hessian piece0.fts cut.fts piece2.fts
    # lengths that no memory has
    for name in hessian:m.in.rows-0-3-of-500000000500000000:F32:3 cross:m.in.drift.rows-0-3-of-999999999999999999:F32:3x4 \
        cross:m.in.drift.rows-0-3-of-999999999999999999:F32:3x8; do
        mkstream "$name:samples=3" >huge.fts
        run -65 --separate-stderr forge-hessian huge.fts huge.fts
        [ "${#stderr_lines[@]}" -eq 1 ]
    done
    run -64 forge-hessian --piece 3 --pieces 3 m0.fts
    run -64 forge-hessian --piece 0 m0.fts
    run -64 forge-hessian --piece 0 --pieces 2 --partial a0.fts
    run -64 forge-hessian --pieces 2 --rows mlp_in.up m0.fts
    # a part that is not whole, and moments whose Hessian is not there
    mkstream 'cross:model.layers.2.mlp_in.drift:F32:40x40:samples=3' >alone.fts
    run -65 --separate-stderr forge-hessian alone.fts
    [[ $stderr == *"'model.layers.2.mlp_in': its Hessian is missing" ]]
    cat alone.fts >>m2.fts
    run -65 --separate-stderr forge-hessian m0.fts m1.fts m2.fts
    [[ $stderr == *"'model.layers.2.mlp_in.drift'"* || $stderr == *"'model.layers.2.mlp_in': "* ]]
}

@test "parts that do not fit are named" {
    forge-hessian -q "$A/part.0" >h0
    forge-hessian -q --block 64 "$A/part.1" >h1
    run -65 --separate-stderr forge-hessian h0 h1
    [[ $stderr == *"'model.layers.0.attn_in': parts of different shapes" ]]
    mkstream 'cross:m.in.drift:F32:3x3:samples=3:modules=m' 'hessian:m.in:F32:3:samples=3:modules=m' >cut
    for parts in cut 'cut cut'; do
        run -65 --separate-stderr forge-hessian $parts
        [[ $stderr == *"'m.in': parts of different shapes" ]]
    done
    mkstream 'hessian:m.in:F32:5:samples=3:modules=m' >bad
    run -65 --separate-stderr forge-hessian bad
    [[ $stderr == *"'m.in': not a hessian"* ]]
}

@test "activations that are not finite are named" {
    mkstream 'activation:m.in:F32:3x4:modules=m:sequence=8:fill=nan' >bad
    run -65 --separate-stderr forge-hessian bad
    [[ $stderr == *"'m.in': sequence 7: token 0: input 0 is not finite" ]]
}

@test "hidden states are dropped, other frames pass" {
    mkstream 'hidden:m:F32:3x4:sequence=1' 'note:run:{"a":1}' \
        'activation:m.in:F32:3x4:modules=m:last' >in.fts
    forge-hessian -q in.fts >out.fts
    run -0 forge-ls out.fts
    [ "${#lines[@]}" -eq 2 ]
    [[ ${lines[0]} == note* && ${lines[1]} == hessian* ]]
}

@test "an input that is cut short is exit 65, and the output is no stream" {
    for n in 1000 200000 400000; do
        head -c "$n" "$A/a.fts" >cut
        run -65 --separate-stderr bash -c 'forge-hessian cut >out'
        [[ $stderr == "forge-hessian: "* ]]
        run -1 forge-ls --verify out
    done
}

@test "a full disk is exit 74" {
    [ -e /dev/full ] || skip "no /dev/full"
    run -74 bash -c "forge-hessian '$A/a.fts' >/dev/full"
}

@test "a wrong command line is exit 64, no device 69, no file 66" {
    run -64 forge-hessian --dtype f64 "$A/a.fts"
    run -64 forge-hessian --block x "$A/a.fts"
    run -66 forge-hessian nothing.fts
    run -69 --separate-stderr forge-hessian --device cuda "$A/a.fts"
    [[ $stderr == *"no usable device"* ]]
}

@test "--blend: experts' hessians towards their layer's; without tokens, too; what is mixed in drifts by nothing" {
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts, numpy as np
rng = np.random.default_rng(3)
x = rng.normal(size=(300, 24)).astype("<f4")
e = {"3.in": x[:7], "4.in": x[:0], "3.mid": rng.normal(size=(7, 24)).astype("<f4"), "4.mid": x[:0]}
frames = [fts.Tensor("activation", "model.layers.2.mlp_in", x, last=True)]
drift = rng.normal(size=(7, 24)).astype("<f4")
for k in e:
    if k == "3.in":
        frames.append(fts.Tensor("activation", "model.layers.2.mlp.experts.3.in.drift", drift))
    frames.append(fts.Tensor("activation", "model.layers.2.mlp.experts." + k, e[k], modules=["m." + k], last=True))
fts.write(open("a.fts", "wb"), frames)
np.savez("e.npz", x=x, drift=drift, **{k: v for k, v in e.items()})
PYTHON
    forge-hessian -q --dtype f32 a.fts >h0.fts
    forge-hessian -q --dtype f32 --blend 2 <a.fts >h2.fts
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts, numpy as np
z = np.load("e.npz")
low = np.tril_indices(24)
hess = lambda x: 2 * x.astype(float).T @ x / len(x)
layer = hess(z["x"])
for path, k in (("h0.fts", 0), ("h2.fts", 2 * 24)):
    n = 0
    for t in fts.read(open(path, "rb")):
        if t.role == "cross":
            want = 2 * z["drift"].astype(float).T @ z["3.in"] / (7 + k)
            assert np.abs(t.array() - want).max() < 1e-5 * np.abs(want).max()
            n += 1
            continue
        x = z["x"] if t.name.endswith("mlp_in") else z[t.name.split("experts.")[1]]
        want = hess(x) if len(x) else np.eye(24)
        if k and "experts" in t.name:
            if t.name.endswith(".in"):
                want = (len(x) * want + k * layer) / (len(x) + k)
            elif len(x):
                want = (len(x) * want + k * np.trace(want) / 24 * np.eye(24)) / (len(x) + k)
        assert (t.samples or 0) == len(x), t.name
        assert np.abs(t.array() - want[low]).max() < 1e-5 * np.abs(want).max(), t.name
        n += 1
    assert n == 6
PYTHON
}

@test "--blend-with: from a pipe as from a file, without a word; an empty one is refused" {
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fts, numpy as np
rng = np.random.default_rng(3)
x = rng.normal(size=(300, 24)).astype("<f4")
expert = fts.Tensor("activation", "model.layers.2.mlp.experts.3.in", x[:7], modules=["m"], last=True)
fts.write(open("part.fts", "wb"), [expert])
fts.write(open("layer.fts", "wb"), [fts.Tensor("activation", "model.layers.2.mlp_in", x, last=True)])
fts.write(open("whole.fts", "wb"), [fts.Tensor("activation", "model.layers.2.mlp_in", x, last=True), expert])
fts.write(open("other.fts", "wb"), [fts.Tensor("weight", "model.layers.2.mlp_in", x)])
PYTHON
    forge-hessian -q layer.fts -o h.fts
    run -0 --separate-stderr forge-hessian -q --blend 2 --blend-with h.fts part.fts -o out.fts
    [ -z "$stderr" ]
    forge-hessian -q --blend 2 whole.fts -o want.fts
    [ "$(forge-ls --stats model.layers.2.mlp.experts.3.in out.fts)" = "$(forge-ls --stats model.layers.2.mlp.experts.3.in want.fts | sed s/want.fts/out.fts/)" ]
    cat h.fts | forge-hessian -q --blend 2 --blend-with - part.fts -o piped.fts
    cmp out.fts piped.fts
    cat other.fts | forge-hessian -q --blend 2 --blend-with - part.fts -o none.fts
    run -65 --separate-stderr forge-hessian -q --blend 2 --blend-with /dev/null part.fts -o no.fts
    [ "$stderr" = "forge-hessian: '/dev/null': frame 0: the input is empty (did what writes it fail?)" ]
    [ ! -e no.fts ]
}
