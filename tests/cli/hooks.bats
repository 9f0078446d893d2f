#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-hooks(1): inputs of linears from other programs' files.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    M=$FORGE_TREE/examples/llama-4m
    # files of every kind, and the second moments of what is in them
    (cd "$BATS_TEST_DIRNAME/../reference" && exec /usr/bin/python3 - "$BATS_TEST_TMPDIR") <<'P'
import sys
import numpy as np
import checkpoints as c
d, rng = sys.argv[1], np.random.default_rng(5)
down, q = "model.layers.1.mlp.down_proj", "model.layers.0.self_attn.q_proj"
a, b, x = rng.normal(size=(3, 7, 768)), rng.normal(size=(5, 768)), rng.normal(size=(20, 256))
np.save(f"{d}/{down}.npy", a.astype("f2"))  # [batch, tokens, inputs]
f4 = lambda v: ("F32", v.shape, v.astype("<f4").tobytes())  # noqa: E731
c.save_safetensors(f"{d}/b.safetensors", {down: f4(b), q: f4(x), q.replace("q_proj", "k_proj"): f4(x)}, {})
c.save_bin(f"{d}/c.pt", {"model.layers.3.mlp_in": f4(x)})
c.save_safetensors(f"{d}/wide.safetensors", {down: f4(x)}, {})
c.save_safetensors(f"{d}/other.safetensors", {"model.layers.1.mlp.act": f4(x)}, {})
c.save_safetensors(f"{d}/ids.safetensors", {down: ("I32", (4, 768), bytes(4 * 768 * 4))}, {})
rows = {"model.layers.1.mlp_mid": np.concatenate([a.astype("f2").reshape(-1, 768), b]),
        "model.layers.0.attn_in": x, "model.layers.3.mlp_in": x}
np.savez(f"{d}/want.npz", **{k: 2 * v.astype("f4").astype(float).T @ v.astype("f4").astype(float) / len(v) for k, v in rows.items()})
P
    down=model.layers.1.mlp.down_proj.npy
}

refused() { # STATUS TEXT FILE...
    run "-$1" --separate-stderr forge-hooks -o x.fts "$M" "${@:3}"
    [[ $stderr == *"$2"* ]] || { echo "said: $stderr"; return 1; }
    [ "${#stderr_lines[@]}" = 1 ]
    [ ! -e x.fts ]
}

@test "Hessians are the second moments of what was in the files" {
    run -0 --separate-stderr forge-hooks -o a.fts "$M" "$down" b.safetensors c.pt
    [[ $stderr == *"4 tensors"*"1 of the same inputs left out" ]]
    forge-hessian -q a.fts >h.fts
    PYTHONPATH=$BATS_TEST_DIRNAME/../reference /usr/bin/python3 - <<'P'
import numpy as np
import fts
want, n = np.load("want.npz"), 0
for t in fts.read(open("h.fts", "rb")):
    h = want[t.name]
    i = np.tril_indices(len(h))
    assert np.abs(t.array() - h[i]).max() < 1e-6 * np.abs(h).max(), t.name
    n += 1
assert n == 3
P
    # in the order of the model, with the linears that read each
    [ "$(forge-ls a.fts | awk '$1 == "activation" { print $2, $3, $4 }')" = "model.layers.0.attn_in F32 20x256
model.layers.1.mlp_mid F32 21x768
model.layers.1.mlp_mid F32 5x768
model.layers.3.mlp_in F32 20x256" ]
    grep -aq "model.layers.0.self_attn.q_proj" h.fts
    grep -aq "model.layers.0.self_attn.v_proj" h.fts
}

@test "equal input gives equal bytes, and bf16 stays" {
    forge-hooks -q "$M" "$down" b.safetensors >a.fts
    forge-hooks -q "$M" "$down" b.safetensors >b.fts
    cmp a.fts b.fts
    forge-calib -q --synthetic gaussian --sequences 1 --seqlen 9 "$M" >s.fts
    PYTHONPATH=$BATS_TEST_DIRNAME/../reference /usr/bin/python3 - <<'P'
import checkpoints as c
import fts
t = {x.name: ("BF16", tuple(x.shape), x.payload) for x in fts.read(open("s.fts", "rb"))}
c.save_safetensors("s.safetensors", t, {})
P
    forge-hooks -q "$M" s.safetensors | forge-hessian -q >one
    forge-hessian -q s.fts >two
    forge-ls one >one.list
    forge-ls two >two.list
    cmp one.list two.list
    PYTHONPATH=$BATS_TEST_DIRNAME/../reference /usr/bin/python3 - <<'P'
import fts
one, two = ({x.name: x.payload for x in fts.read(open(f, "rb"))} for f in ("one", "two"))
assert one == two and len(one) == 16
P
}

@test "what is no input of the model, or no array, is refused by name" {
    refused 65 "'model.layers.1.mlp.act': is no linear that is quantized, and no input of one" other.safetensors
    refused 65 "'model.layers.1.mlp.down_proj': is no [tokens, 768] of" wide.safetensors
    refused 65 "'model.layers.1.mlp.down_proj': is no [tokens, 768] of" ids.safetensors
    refused 66 "nowhere.npy" nowhere.npy
    refused 66 "nowhere.pt" nowhere.pt
    refused 65 "neither a directory nor a .safetensors, .bin, .pt or .pth file" "$M/tokenizer.json"
    head -c 3000 "$down" >model.layers.2.mlp.down_proj.npy
    refused 65 "npy: is not of the size that it says" model.layers.2.mlp.down_proj.npy
    head -c 60 "$down" >model.layers.2.mlp.down_proj.npy
    run -65 forge-hooks -o x.fts "$M" model.layers.2.mlp.down_proj.npy
    head -c 600 c.pt >cut.pt
    run -65 forge-hooks -o x.fts "$M" cut.pt
    echo no >model.layers.2.mlp.down_proj.npy
    refused 65 "not a .npy file" model.layers.2.mlp.down_proj.npy
    /usr/bin/python3 -c 'import numpy as n; n.save("model.layers.2.mlp.down_proj.npy", n.zeros((4, 768), "i4"))'
    refused 65 "npy: want float16, float32 or float64" model.layers.2.mlp.down_proj.npy
    /usr/bin/python3 -c 'import numpy as n; n.save("model.layers.2.mlp.down_proj.npy", n.zeros((768, 4), "f4").T)'
    refused 65 "fortran_order" model.layers.2.mlp.down_proj.npy
    refused 64 "want MODEL and at least one FILE"
}

@test "modules that are not quantized are left out and named, unknown ones refused" {
    (cd "$BATS_TEST_DIRNAME/../reference" && exec /usr/bin/python3 - "$BATS_TEST_TMPDIR") <<'P'
import sys
import numpy as np
import checkpoints as c
d, rng = sys.argv[1], np.random.default_rng(6)
f4 = lambda n, k: ("F32", (n, k), rng.normal(size=(n, k)).astype("<f4").tobytes())  # noqa: E731
q, head = {"model.layers.0.self_attn.q_proj": f4(20, 256)}, {"lm_head": f4(20, 256)}
c.save_safetensors(f"{d}/q.safetensors", q, {})
c.save_safetensors(f"{d}/one.safetensors", {**head, **q}, {})
c.save_safetensors(f"{d}/two.safetensors", {**head, **q, "model.norm": f4(20, 256)}, {})
c.save_safetensors(f"{d}/head.safetensors", head, {})
c.save_safetensors(f"{d}/bad.safetensors", {**q, "lm_heat": f4(20, 256)}, {})
P
    forge-hooks -q "$M" q.safetensors >want
    for files in one.safetensors two.safetensors "q.safetensors head.safetensors"; do
        # shellcheck disable=SC2086
        run -0 --separate-stderr forge-hooks -o got "$M" $files
        cmp got want
        line="'lm_head' is not quantized: left out"
        [ "$files" != two.safetensors ] || line="2 tensors of modules that are not quantized left out, the first of 'lm_head'"
        [ "${stderr_lines[0]}" = "forge-hooks: $line" ]
    done
    refused 65 "'lm_heat': is no linear that is quantized" bad.safetensors
    refused 65 "'lm_head': is no linear that is quantized, and nothing else is there" head.safetensors
    # of a model without its tensors only lm_head is known
    mkdir bare
    cp "$M/config.json" bare
    forge-hooks -q bare one.safetensors >got
    cmp got want
    run -65 forge-hooks -q bare two.safetensors
}

@test "batches: a list or tuple of tensors under a name, in a defaultdict too" {
    (cd "$BATS_TEST_DIRNAME/../reference" && exec /usr/bin/python3 - "$BATS_TEST_TMPDIR") <<'P'
import collections
import io
import sys
import numpy as np
import checkpoints as c
d, rng, data = sys.argv[1], np.random.default_rng(7), {}
q, k = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"
def t(a):  # noqa: E302
    data[f"data/{len(data)}"] = a.tobytes()
    return c.Tensor(c.Storage(str(len(data) - 1), "F32", a.size), 0, a.shape, c.strides(a.shape))
def save(name, value):  # noqa: E302
    f = io.BytesIO()
    c.Pickler(f).dump(value)
    c.write_zip(f"{d}/{name}.pt", {"data.pkl": f.getvalue(), "byteorder": b"little", **data})
x = [rng.normal(size=(n, 256)).astype("<f4") for n in (5, 9, 2)]
b = [t(a) for a in x]
save("list", {q: b, k: b[:2], "lm_head": b})
save("tuple", {q: tuple(b), k: b[1]})
save("ordered", collections.OrderedDict({q: b}))
save("default", collections.defaultdict(list, {q: b}))
for i, a in enumerate(x):
    c.save_safetensors(f"{d}/{i}.safetensors", {q: ("F32", a.shape, a.tobytes())}, {})
P
    forge-hooks -q "$M" [012].safetensors >want
    for f in list tuple ordered default; do
        forge-hooks -q "$M" $f.pt >got
        cmp got want
    done
    # the sequences of a second file follow
    forge-hooks -q "$M" [012].safetensors 1.safetensors >want
    forge-hooks -q "$M" list.pt 1.safetensors >got
    cmp got want
}

@test "a pickle can only build tensors" {
    /usr/bin/python3 - <<'P'
import os
import pickle
import zipfile
class X:
    def __reduce__(self):
        return os.system, ("touch owned",)
with zipfile.ZipFile("evil.pt", "w") as z:
    z.writestr("evil/data.pkl", pickle.dumps({"model.layers.1.mlp.down_proj": X()}, 2))
P
    refused 65 "refuses to run posix.system" evil.pt
    [ ! -e owned ]
}

@test "a full disk and a closed pipe" {
    run -74 forge-hooks -q -o /dev/full "$M" "$down"
    forge-hooks -q "$M" "$down" | head -c 100 >/dev/null
}
