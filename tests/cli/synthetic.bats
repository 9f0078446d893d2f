#!/usr/bin/env bats
# shellcheck disable=SC2154 # run sets stderr
# forge-calib --synthetic as a user meets it.

bats_require_minimum_version 1.5.0

PY="$BATS_TEST_DIRNAME/../reference/synthetic.py"
FORWARD="$BATS_TEST_DIRNAME/../reference/forward.py"

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

gaussian() { forge-calib -q --synthetic "gaussian$1" --sequences 3 --seqlen 5 "${@:2}"; }

@test "every element is what the definition says, and its first million are normal" {
    python3 "$FORWARD" make mini m
    gaussian "" --dtype f32 m >one.fts
    python3 "$PY" check one.fts 1 15 0
    gaussian :18446744073709551615 m >last.fts
    python3 "$PY" check last.fts 18446744073709551615 15 0
    forge-calib -q --synthetic gaussian:3 --dtype f32 --sequences 10 --seqlen 1000 m >x.fts
    PYTHONPATH=$(dirname "$PY") python3 - <<'PYTHON'
import math
import numpy as np
import fts
x = np.concatenate([t.array().ravel() for t in fts.read(open("x.fts", "rb"))]).astype(np.float64)
n = len(x)
assert n > 10**6
cdf = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in np.sort(x)])
ks = np.max(np.abs(cdf - (np.arange(n) + 0.5) / n))
assert ks * math.sqrt(n) < 1.63, ks  # Kolmogorov-Smirnov, level 1 %
assert abs(x.mean()) * math.sqrt(n) < 4
assert abs(np.mean(x[1:] * x[:-1])) * math.sqrt(n) < 4
assert 4.3 < np.abs(x).max() < 6.5
PYTHON
}

@test "the inputs are those of a run: names, widths, linears; experts get their share" {
    python3 "$FORWARD" tokens t.fts 9 70
    for kind in llama qwen2 deepseek_v3 mixtral; do
        python3 "$FORWARD" make $kind $kind
        forge-calib -q $kind t.fts >run.fts
        mv $kind/config.json .
        rm -r $kind
        mkdir $kind # no weights are needed
        mv config.json $kind
        gaussian :2 $kind >$kind.fts
        python3 "$PY" inputs run.fts >want
        python3 "$PY" inputs $kind.fts >got
        case $kind in # experts to which the run's router sent no token have no input there
        deepseek_v3 | mixtral)
            cut -d' ' -f1 want >names
            LC_ALL=C join names got >common
            cmp common want
            [ "$(cut -d' ' -f1 got | grep -vc experts)" -eq "$(cut -d' ' -f1 want | grep -vc experts)" ]
            ;;
        *) cmp want got ;;
        esac
    done
    # 15 tokens choose top_k of the experts
    for kind in deepseek_v3 mixtral; do
        share=$(python3 - $kind <<'PYTHON'
import json, sys
c = json.load(open(sys.argv[1] + "/config.json"))
print(-(-15 * c["num_experts_per_tok"] // c.get("n_routed_experts", c.get("num_local_experts"))))
PYTHON
        )
        python3 "$PY" check $kind.fts 2 15 "$share"
    done
}

@test "equal bytes with any number of threads, at any level; another seed gives others" {
    python3 "$FORWARD" make mini m
    forge-calib -q --synthetic gaussian:9 --sequences 2 -j 1 m >a.fts
    forge-calib -q --synthetic gaussian:9 --sequences 2 -j 5 m | cmp - a.fts
    FORGE_CPU=plain forge-calib -q --synthetic gaussian:9 --sequences 2 m | cmp - a.fts
    sha256sum <a.fts >sum
    forge-calib -q --synthetic gaussian:8 --sequences 2 m | run -1 sha256sum -c sum
}

@test "one layer of it is that layer of the whole; by default 128 sequences of 512" {
    python3 "$FORWARD" make llama m
    gaussian "" m >whole.fts
    gaussian "" -l 1 m >one.fts
    PYTHONPATH=$(dirname "$PY") python3 - <<'PYTHON'
import fts
def frames(name):
    return [(t.name, t.sequence, t.payload) for t in fts.read(open(name, "rb"))]
assert frames("one.fts") == [f for f in frames("whole.fts") if f[0].startswith("model.layers.1.")] != []
PYTHON
    [ "$(forge-calib -q --synthetic gaussian -l 0 m | forge-ls - | grep -c '^activation.*attn_in.*512x48')" -eq 128 ]
}

@test "its Hessians are near 2 I, and a pipe goes through on them" {
    python3 "$FORWARD" make deepseek_v3 m
    forge-calib -q --synthetic gaussian --sequences 16 m | forge-hessian -q >H.fts
    PYTHONPATH=$(dirname "$PY") python3 - <<'PYTHON'
import numpy as np
import fts
for t in fts.read(open("H.fts", "rb")):
    h = t.array()
    n = int((np.sqrt(8 * h.size + 1) - 1) / 2)
    at = np.cumsum(np.arange(1, n + 1)) - 1
    rows = t.samples
    assert np.all(np.abs(h[at] - 2) < 2 * 6 * np.sqrt(2 / rows)), t.name  # chi-squared
    assert np.all(np.abs(np.delete(h, at)) < 2 * 6 / np.sqrt(rows)), t.name
PYTHON
    forge-weights -q m | forge-grid -q --group 16 --hessian H.fts |
        forge-solve -q --hessian H.fts >codes.fts
    [ "$(forge-ls codes.fts | grep -c ^codes)" -gt 10 ]
}

@test "bad values, and what it does not read, are refused before any work" {
    mkdir m
    for word in gauss gaussian: gaussian:-1 gaussian:07 'gaussian: 1' gaussian:1x \
        gaussian:18446744073709551616 ''; do
        run -64 --separate-stderr forge-calib -o out.fts --synthetic "$word" m
        [[ $stderr == *"--synthetic: '$word' is not gaussian[:SEED]"* ]]
        [ ! -e out.fts ]
    done
    for other in t.fts '--to hidden' --hitmap '--feedback f' '--codes c' '--layer 0 --hidden h' --expect-key=k; do
        # shellcheck disable=SC2086
        run -64 --separate-stderr forge-calib -o out.fts --synthetic gaussian m $other
        [[ $stderr == *"--synthetic runs no model"* ]]
        [ "$(wc -l <<<"$stderr")" -eq 1 ]
    done
    run -64 --separate-stderr forge-calib -o out.fts --seqlen 4 m
    [[ $stderr == *"want --synthetic"* ]]
    run -66 --separate-stderr forge-calib -o out.fts --synthetic gaussian m
    python3 "$FORWARD" make mini n
    run -64 --separate-stderr forge-calib -o out.fts --synthetic gaussian -l 1 n
    [[ $stderr == *"the model has layers 0 to 0"* ]]
    [ ! -e out.fts ]
    run -74 forge-calib -q --synthetic gaussian -o /dev/full n
}
