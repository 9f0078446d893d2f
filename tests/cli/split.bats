#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-split(1) as a user meets it.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    mkstream tensor:a:F32:4 weight:model.layers.0.x:F32:2x8 \
        note:model.layers.0.x:'{"method":"gptq","loss":2.5}' \
        tensor:model.layers.0.n:F32:3 weight:model.layers.1.y:F32:2x8 \
        weight:model.layers.10.z:F32:2x8 tensor:model.norm:F32:4 -o in.fts
}

@test "each layer is a file, and the stream goes on" {
    forge-split -q 'l-%.fts' in.fts >out.fts
    forge-ls in.fts >want
    forge-ls out.fts | cmp want
    [ "$(ls l-*)" = "l-0.fts
l-1.fts
l-10.fts" ]
    forge-ls --verify l-0.fts l-1.fts l-10.fts
    [ "$(forge-ls l-0.fts | cut -f 1-2)" = "$(printf 'weight\tmodel.layers.0.x\nnote\tmodel.layers.0.x\ntensor\tmodel.layers.0.n')" ]
    [ "$(forge-ls l-10.fts | cut -f 2)" = model.layers.10.z ]
    forge-split -q -o out2.fts 'k-%.fts' <in.fts
    cmp out.fts out2.fts
    cmp l-0.fts k-0.fts
}

@test "all layers' files go to a pipe, in order, while they are written" {
    mkstream weight:model.layers.3.w:F32:2x8 -o l-3.fts # there already, as of a run before
    forge-split -q 'l-%.fts' in.fts >/dev/null
    mkfifo along
    cat along >seen &
    forge-split -q --along along 'm-%.fts' in.fts >out.fts
    wait
    cat m-0.fts m-1.fts m-10.fts | cmp - seen
    # layers that are there and do not come: in front, between, behind
    rm m-1.fts
    mkstream weight:model.layers.1.y:F32:1x8 weight:model.layers.2.y:F32:1x8 -o more.fts
    forge-split -q 'n-%.fts' more.fts >/dev/null
    cp m-0.fts n-0.fts
    cp l-3.fts n-3.fts
    cat along >seen &
    forge-split -q --along along 'n-%.fts' more.fts >/dev/null
    wait
    cat n-0.fts n-1.fts n-2.fts n-3.fts | cmp - seen
    # its reader ends early: no reason to fail
    cat along | head -c 100 >/dev/null &
    forge-split -q --along along 'o-%.fts' in.fts >out2.fts
    cmp out.fts out2.fts
    cmp m-10.fts o-10.fts
    run --separate-stderr forge-split -q --along no/pipe 'p-%.fts' in.fts
    [ "$status" -eq 73 ]
    [ "$stderr" = "forge-split: cannot open 'no/pipe': No such file or directory" ]
}

@test "a layer goes to the pipe before it is complete" {
    mkfifo along go
    weight() { # NAME: 32 MiB
        echo "weight:$1:F32:1024x8192"
    }
    mkstream "$(weight model.layers.0.a)" "$(weight model.layers.0.b)" -o two.fts
    (
        head -c $((40 << 20)) two.fts
        cat go >/dev/null # until the reader has seen half of the first
        tail -c +$(((40 << 20) + 1)) two.fts
    ) | timeout 60 forge-split -q --along along 'l-%.fts' >out.fts &
    {
        head -c $((16 << 20))
        [ ! -e l-0.fts ] && touch early
        echo >go
        cat
    } <along >seen
    wait
    [ -e early ]
    cmp seen l-0.fts
}

@test "what is noted of the modules, a line each" {
    forge-split -q --report 'r-%' 'l-%.fts' in.fts >/dev/null
    [ "$(cat r-0)" = '{"module":"model.layers.0.x","method":"gptq","loss":2.5}' ]
    [ ! -s r-1 ]
    forge-weights -q "$BATS_TEST_DIRNAME/../../examples/llama-4m" -l 0 |
        forge-grid -q | forge-solve -q --report want |
        forge-split -q --report 'r-%' 'c-%.fts' >/dev/null
    jq -cS 'del(.seconds)' want >a
    jq -cS 'del(.seconds)' r-0 | cmp a
    [ "$(jq -s 'map(select(.seconds >= 0)) | length' r-0)" -eq 7 ]
}

# MODULE.rows-FIRST-END-of-OF, as shares of a run in parts have them.
write_rows() { # FILE [FIRST...]: of 100 rows, those from each FIRST on up to the next
    python3 - "$BATS_TEST_DIRNAME/../reference" "$@" <<'PYTHON'
import json, sys
sys.path.insert(0, sys.argv[1])
import fts, numpy as np
firsts = [int(x) for x in sys.argv[3:]]
rng = np.random.default_rng(3)
codes, meta = rng.integers(0, 256, (100, 8), dtype="u1"), rng.integers(0, 1 << 15, (100, 2)).astype("<u4")
loss, other = [1.25, 3.1, 0.7], [2.5, None, 1.9] # of tiles of 48, 48 and 4 rows
frames, name = [], "model.layers.0.m"
for first in firsts:
    end = next((x for x in firsts if x > first), 100)
    to, tiles = f"{name}.rows-{first}-{end}-of-100", slice(first // 48, (end + 47) // 48)
    note = {"method": "gptq", "effort": "default", "corrected": True} | ({"rows_kept": 2} if first else {})
    note |= {"tiles": {"loss": loss[tiles], "loss_rtn": other[tiles], "loss_gptq": [None] * len(loss[tiles])}, "samples": 7}
    text = [json.dumps(x).encode() for x in (note, {"seconds": 1.5})]
    frames += [fts.Tensor("codes", to, codes[first:end].tobytes(), "U4", (end - first, 16), group=8),
               fts.Tensor("qmeta", to, meta[first:end].tobytes(), "QMETA4", (end - first, 2), group=8, scale_dtype="F16"),
               fts.Tensor("note", to, text[0], "U8", (len(text[0]),)),
               fts.Tensor("note", to, text[1], "U8", (len(text[1]),), ancillary=True)]
fts.write(open(sys.argv[2], "wb"), frames)
np.savez("truth.npz", codes=codes, meta=meta)
PYTHON
}

@test "rows of a linear are put together, and their notes" {
    write_rows in.fts 0 48 96
    forge-split -q --report 'r-%' 'l-%.fts' in.fts >out.fts
    forge-ls l-0.fts >layer
    forge-ls out.fts | cmp - layer
    python3 - "$BATS_TEST_DIRNAME/../reference" <<'PYTHON'
import json, sys
sys.path.insert(0, sys.argv[1])
import fts, numpy as np
truth, got = np.load("truth.npz"), list(fts.read(open("l-0.fts", "rb")))
assert [(t.role, t.name) for t in got] == [(r, "model.layers.0.m") for r in ("codes", "qmeta", "note", "note")]
assert tuple(got[0].shape) == (100, 16) and bytes(got[0].payload) == truth["codes"].tobytes()
assert tuple(got[1].shape) == (100, 2) and bytes(got[1].payload) == truth["meta"].tobytes()
assert got[0].extra["group"] == got[1].extra["group"] == 8
note = json.loads(bytes(got[2].payload))
# the loss of the 48 rows that were not compared, by that of the others
want = {"method": "gptq", "effort": "default", "corrected": True, "rows_kept": 4, "loss": 1.25 + 3.1 + 0.7,
        "loss_rtn": (2.5 + 1.9) * (1.25 + 3.1 + 0.7) / (1.25 + 0.7), "samples": 7}
assert list(note) == list(want) and all(note[k] == v or abs(note[k] - v) < 1e-12 for k, v in want.items()), note
assert json.loads(bytes(got[3].payload)) == {"seconds": 4.5}
PYTHON
    [ "$(jq -c '[.module, .rows_kept, .seconds]' r-0)" = '["model.layers.0.m",4,4.5]' ]
}

@test "rows that are missing, or come in another order, are refused" {
    write_rows in.fts 0 48 96
    write_rows last.fts 96
    run -65 --separate-stderr bash -c "forge-split -q 'l-%.fts' last.fts >out"
    [ "$stderr" = "forge-split: 'model.layers.0.m.rows-96-100-of-100': comes where row 0 of 100 should" ]
    mkstream codes:model.layers.0.m.rows-0-48-of-100:U4:48x16:group=8 >first.fts
    run -65 --separate-stderr bash -c "forge-split -q 'l-%.fts' first.fts >out"
    [ "$stderr" = "forge-split: 'model.layers.0.m': has 0 of 100 rows" ]
    mkstream codes:model.layers.0.m.rows-0-48-of-100:U4:40x16:group=8 >short.fts
    run -65 bash -c "forge-split -q 'l-%.fts' short.fts >out"
    [ -z "$(ls l-* 2>/dev/null)" ]
}

@test "a key goes into every stream, another one is refused" {
    forge-split -q --key abc 'l-%.fts' in.fts >out.fts
    forge-split -q --expect-key abc 'm-%.fts' l-0.fts >/dev/null
    run -65 forge-split -q --expect-key abd 'm-%.fts' l-0.fts
}

@test "a layer that comes again is refused, whole ones stay" {
    mkstream tensor:model.layers.0.x:F32:4 tensor:model.layers.1.x:F32:4 \
        tensor:model.layers.0.y:F32:4 >again.fts
    run -65 --separate-stderr bash -c "forge-split -q 'l-%.fts' again.fts >out"
    [ "$stderr" = "forge-split: layer 0 comes again" ]
    [ "$(ls l-*)" = "l-0.fts
l-1.fts" ]
    run -1 forge-ls --verify -q out
}

@test "a file that cannot be created is 73, a wrong command line 64" {
    run -73 bash -c "forge-split -q 'no/where-%' in.fts >out"
    run -64 forge-split
    run -64 forge-split layer.fts in.fts
    run -64 forge-split 'l-%' in.fts more
    run -64 forge-split --report r 'l-%' in.fts
}
